"""Models learn what there is to learn, and never more."""

import json

import pytest

from charlm.cells import CELLS
from charlm.config import parse_config
from charlm.training.start import start_run
from tests.text import MarkovSource


@pytest.mark.parametrize("kind", CELLS)
def test_a_markov_source_is_learned_to_its_entropy_and_no_further(tmp_path, kind):
    source = MarkovSource()
    train, valid = source.text(120_000, seed=2), source.text(30_000, seed=3)
    (tmp_path / "train.txt").write_text(train)
    (tmp_path / "valid.txt").write_text(valid)
    config = parse_config(
        {
            "data": {
                "source": str(tmp_path / "train.txt"),
                "split": [1, 0, 0],
                "valid_source": str(tmp_path / "valid.txt"),
            },
            "model": {"cell": {"kind": kind, "hidden": 24}, "embedding": 8},
            "train": {"batch_size": 32, "bptt": 32, "max_steps": 250, "eval_every": 50, "sample_every": 0},
            "optimizer": {"name": "adamw", "lr": 0.02, "clip_norm": 5.0, "schedule": {"name": "cosine"}},
        },
        "test",
    )
    outcome = start_run(config, tmp_path / "run")
    assert outcome.best_nats <= 1.02 * source.entropy_nats
    # On a finite text the source itself scores a little off its entropy. A model scores worse than the source by its
    # divergence from it, which is far above the chance fluctuations of the difference here.
    floor = source.nats_per_char(valid)
    assert floor == pytest.approx(source.entropy_nats, rel=0.02)
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    scores = [line["nats"] for line in lines if line["split"] == "valid"]
    assert len(scores) == 5
    assert min(scores) >= floor


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["lstm", "rhn"])
def test_validation_falls_on_real_text(tmp_path, tinyshakespeare, kind):
    config = parse_config(
        {
            "data": {"source": str(tinyshakespeare), "split": [0.9, 0.1, 0]},
            "model": {"cell": {"kind": kind, "hidden": 64}, "embedding": 16},
            "train": {"batch_size": 32, "bptt": 32, "max_steps": 240, "eval_every": 80, "sample_every": 0},
            "optimizer": {"name": "adamw", "lr": 0.01, "clip_norm": 5.0, "schedule": {"name": "cosine"}},
        },
        "test",
    )
    outcome = start_run(config, tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    scores = [line["nats"] for line in lines if line["split"] == "valid"]
    assert scores == sorted(scores, reverse=True)
    assert outcome.best_nats < 2.35  # counts of pairs of characters: 2.48
