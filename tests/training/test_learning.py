"""Models learn what there is to learn, and never more; the shipped configs train."""

import pytest

from charlm.cells import CELLS
from charlm.config import load_config, parse_config, shipped_configs
from charlm.model import count_parameters
from charlm.training.start import start_run
from tests.runs import rows
from tests.text import MarkovSource, words_text

CONFIGS = shipped_configs()


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[] if kind in ("lstm", "rhn") else pytest.mark.slow) for kind in CELLS]
)
def test_a_markov_source_is_learned_to_its_entropy_and_no_further(tmp_path, write, kind):
    source = MarkovSource()
    valid = source.text(30_000, seed=3)
    raw = {
        "data": {
            "source": write("train.txt", source.text(120_000, seed=2)),
            "valid_source": write("valid.txt", valid),
            "split": [1, 0, 0],
        },
        "model": {"cell": {"kind": kind, "hidden": 24}, "embedding": 8},
        "train": {"batch_size": 32, "bptt": 32, "sample_every": 0, "max_steps": 250, "eval_every": 50},
        "optimizer": {"name": "adamw", "lr": 0.02, "clip_norm": 5.0, "schedule": {"name": "cosine"}},
    }
    outcome = start_run(parse_config(raw, "test"), tmp_path / "run")
    assert outcome.best_nats <= 1.02 * source.entropy_nats
    # On a finite text the source itself scores a little off its entropy. A model scores worse than the source by its
    # divergence from it, which is far above the chance fluctuations of the difference here.
    floor = source.nats_per_char(valid)
    assert floor == pytest.approx(source.entropy_nats, rel=0.02)
    scores = [row["nats"] for row in rows(tmp_path / "run") if row["split"] == "valid"]
    assert len(scores) == 5
    assert min(scores) >= floor


@pytest.mark.usefixtures("no_kernels")
def test_each_trains(write, tmp_path):
    """At its own depth, layers, window, dropout and optimizer; with few units and on a short text."""
    text = write("text.txt", words_text(20_000))
    small = {"model.cell.hidden": 4, "train.batch_size": 1, "train.max_steps": 1, "train.sample_every": 0}
    for name, file in CONFIGS.items():
        outcome = start_run(load_config(file, small | {"data.source": str(text)}), tmp_path / name)
        assert (outcome.step, 0 < outcome.best_nats < 10) == (1, True), name


def test_the_model_of_the_rhn_paper_has_its_46_million_parameters():
    assert count_parameters(load_config(CONFIGS["paper-rhn-enwik8"]).model, 256) == pytest.approx(46e6, rel=0.005)
