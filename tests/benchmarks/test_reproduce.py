"""scripts/reproduce and benchmarks/ablate.py on made-up runs, without their trainings."""

import importlib
import json
import shutil
import subprocess
from pathlib import Path
from types import ModuleType, SimpleNamespace

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


@pytest.fixture
def run_script(recorded, tmp_path, trained_run, monkeypatch):
    """Runs scripts/reproduce, with pages, runs and a plot in `tmp_path`, and gives the commands that it would start.

    Training makes a tiny run; each command prints a score.
    """
    files = {"RUNS": "runs", "RESULTS": "results.json", "PAGE": "a.md", "README": "b.md", "PLOT": "results.png"}
    for name, file in (files | {"COMPARISON": "cells.json"}).items():
        monkeypatch.setattr(recorded, name, tmp_path / file)
    recorded.RESULTS.write_text("{}\n", encoding="utf-8")
    recorded.COMPARISON.write_text('{"rows": []}\n', encoding="utf-8")
    for page in (recorded.PAGE, recorded.README):
        page.write_text(f"Before.\n{MARKED.format('')}{CELLS_MARKED.format('')}After.\n", encoding="utf-8")

    def run(*arguments):
        commands = []

        def start(command, **_):
            words = command[3:]
            commands.append(words)
            if words[0] == "train":
                shutil.copytree(trained_run, words[-1], dirs_exist_ok=True)
            dynamic = {"dynamic": {"nats_per_char": 1.25}} if "--dynamic" in words else {}
            return SimpleNamespace(stdout=json.dumps({"nats_per_char": 1.5, **dynamic}))

        # Not in subprocess itself, which matplotlib uses to find fonts.
        monkeypatch.setattr(recorded, "subprocess", SimpleNamespace(run=start, PIPE=subprocess.PIPE))
        monkeypatch.setattr("sys.argv", ["reproduce", *arguments])
        recorded.main()
        return commands

    return run


def test_it_trains_scores_and_records_a_row_and_leaves_the_others(recorded, run_script, tmp_path):
    name, text = "tinyshakespeare-5min", str(tmp_path / "text.txt")
    run = str(recorded.RUNS / f"{name}-seed1")
    assert run_script("python-stdlib-5min")[0][:2] == ["train", "builtin:python-stdlib"]
    before = recorded.read_results()
    shutil.rmtree(recorded.RUNS)
    score = ["eval", run, "--json", "--dynamic"]
    options = ["--minutes=5", "--set=data.split=[0.9, 0.1, 0]", "--set=seed=1", "--device=cpu", "--run-dir", run]
    assert run_script(name, "--source", text) == [["train", text, *options], score]
    results = recorded.read_results()
    assert results["python-stdlib-5min"] == before["python-stdlib-5min"]
    [result] = results[name]
    assert (result.seed, result.nats, result.dynamic_nats, result.parameters) == (1, 1.5, 1.25, 2014)
    assert run_script(name, "--source", text) == []  # it is complete
    (Path(run) / "result.json").unlink()  # an interrupted run is resumed
    assert run_script(name, "--source", text) == [["train", "--resume", "--run-dir", run], score]
    page = recorded.PAGE.read_text(encoding="utf-8")
    assert page.startswith("Before.\n")
    assert page.endswith("After.\n")
    [line] = [line for line in page.splitlines() if line.startswith("| tinyshakespeare | 5 min | lstm, 1 × 16 |")]
    assert line.endswith(" | 1.5000 | 1.2500 |")
    assert recorded.PLOT.read_bytes().startswith(b"\x89PNG")


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
