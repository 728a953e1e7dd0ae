"""New runs that start from the weights of another."""

import pytest
import torch

from charlm.checkpoint import read_checkpoint
from charlm.training.start import start_run
from tests.text import words_text

LAST = "checkpoints/last.safetensors"
STILL = {"train": {"max_steps": 1}, "optimizer": {"name": "sgd", "lr": 1e-30}}
"""Without an update worth the name."""


@pytest.fixture(scope="module")
def first(finished_run):
    return read_checkpoint(finished_run / LAST)


def test_weights_stay_and_every_member_gets_the_new_characters(tmp_path, config_of):
    """What is no part of the weights may change: dropout and the like, and the records of the text."""
    model = {"embedding": 5, "tie_embeddings": True, "members": 2}
    start_run(config_of(model=model), tmp_path / "first")
    first = read_checkpoint(tmp_path / "first" / LAST)
    other = tmp_path / "other.txt"
    other.write_text(words_text(4000, seed=3).replace("a", "ä").replace("e", "日"))
    data = {"source": str(other), "grow_vocabulary": True, "records": "\n"}
    model |= {"dropout": 0.1, "zoneout": 0.2, "orthogonal": True, "init_uniform": 0.1}
    start_run(config_of(data=data, model=model, **STILL), tmp_path / "second", first)
    second = read_checkpoint(tmp_path / "second" / LAST)
    assert second.vocabulary.characters == first.vocabulary.characters + "ä日"
    for name, old in first.weights.items():
        assert torch.equal(second.weights[name][: len(old)], old), name
    for member in ("members.0", "members.1"):
        old, new = (each.weights[f"{member}.decoder.bias"] for each in (first, second))
        assert torch.equal(new[-2:], old.min().expand(2))
        assert second.weights[f"{member}.embedding.weight"][-2:].abs().min() > 0


def test_the_start_is_scored_and_kept_if_no_update_improves_on_it(tmp_path, config_of, first):
    harmful = config_of(optimizer={"name": "sgd", "lr": 100.0})
    outcome = start_run(harmful, tmp_path / "second", first)
    assert outcome.best_step == 0
    assert outcome.best_nats == pytest.approx(first.progress["valid_nats"], rel=1e-6)
    assert outcome.valid_nats > outcome.best_nats
    best = read_checkpoint(tmp_path / "second/checkpoints/best.safetensors")
    assert all(torch.equal(best.weights[name], weight) for name, weight in first.weights.items())
    assert best.trained_chars == first.trained_chars == 12 * 4 * 10
