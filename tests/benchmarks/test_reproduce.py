"""What scripts/reproduce recorded stands on the pages, and the trials of benchmarks/ablate.py are what they say."""

import importlib
import json
from types import ModuleType

import pytest

from charlm.cells import CELLS
from charlm.config import differences, load_config
from tests.conftest import ROOT

MARKED = "<!-- results -->\n{}<!-- /results -->\n"
CELLS_MARKED = "<!-- cells -->\n{}<!-- /cells -->\n"


@pytest.fixture
def recorded(monkeypatch) -> ModuleType:
    """The script as it is, with the results and pages of this checkout."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("reproduce")


def test_this_checkout_shows_what_is_recorded(recorded):
    results = recorded.read_results()
    compared = json.loads(recorded.COMPARISON.read_text(encoding="utf-8"))
    page = recorded.PAGE.read_text(encoding="utf-8")
    assert results.keys() <= {row.name for row in recorded.ROWS}
    assert MARKED.format(recorded.table(results)) in page
    assert CELLS_MARKED.format(recorded.table_of_cells(compared)) in page
    assert MARKED.format(recorded.summary(results)) in recorded.README.read_text(encoding="utf-8")
    assert {row["cell"] for row in compared["rows"]} == CELLS.keys()


def test_trials_of_the_ablation_change_what_they_name_and_nothing_else(recorded, tmp_path):
    ablate = importlib.import_module("ablate")
    config = tmp_path / "base.yaml"
    config.write_text(ablate.BASE, encoding="utf-8")
    base = load_config(config)
    for trial in ablate.TRIALS:
        named = [setting.partition("=")[0] for setting in trial]
        changed = differences(base, load_config(config, list(trial)))
        assert all(any(key.startswith(name) for key in changed) for name in named), trial
        assert all(any(key.startswith(name) for name in named) for key in changed), trial
    assert len(set(ablate.TRIALS)) == len(ablate.TRIALS)
