"""Models learn what there is to learn, and never more."""

import pytest

from charlm.cells import CELLS
from charlm.config import parse_config
from charlm.training.start import start_run
from tests.runs import rows
from tests.text import MarkovSource


def trained(run, kind, source, hidden, lr, train, **data):
    """How a run ends, and its validation scores."""
    config = parse_config(
        {
            "data": {"source": str(source), **data},
            "model": {"cell": {"kind": kind, "hidden": hidden}, "embedding": hidden // 3},
            "train": {"batch_size": 32, "bptt": 32, "sample_every": 0, **train},
            "optimizer": {"name": "adamw", "lr": lr, "clip_norm": 5.0, "schedule": {"name": "cosine"}},
        },
        "test",
    )
    outcome = start_run(config, run)
    return outcome, [row["nats"] for row in rows(run) if row["split"] == "valid"]


@pytest.mark.parametrize("kind", CELLS)
def test_a_markov_source_is_learned_to_its_entropy_and_no_further(tmp_path, kind):
    source = MarkovSource()
    valid = source.text(30_000, seed=3)
    (tmp_path / "train.txt").write_text(source.text(120_000, seed=2))
    (tmp_path / "valid.txt").write_text(valid)
    text, train = tmp_path / "train.txt", {"max_steps": 250, "eval_every": 50}
    data = {"split": [1, 0, 0], "valid_source": str(tmp_path / "valid.txt")}
    outcome, scores = trained(tmp_path / "run", kind, text, 24, 0.02, train, **data)
    assert outcome.best_nats <= 1.02 * source.entropy_nats
    # On a finite text the source itself scores a little off its entropy. A model scores worse than the source by its
    # divergence from it, which is far above the chance fluctuations of the difference here.
    floor = source.nats_per_char(valid)
    assert floor == pytest.approx(source.entropy_nats, rel=0.02)
    assert len(scores) == 5
    assert min(scores) >= floor


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["lstm", "rhn"])
def test_validation_falls_on_real_text(tmp_path, tinyshakespeare, kind):
    train, split = {"max_steps": 240, "eval_every": 80}, [0.9, 0.1, 0]
    outcome, scores = trained(tmp_path / "run", kind, tinyshakespeare, 64, 0.01, train, split=split)
    assert scores == sorted(scores, reverse=True)
    assert outcome.best_nats < 2.35  # counts of pairs of characters: 2.48
