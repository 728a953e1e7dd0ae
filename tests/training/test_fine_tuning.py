"""New runs that start from the weights of another."""

import pytest
import torch

from charlm.checkpoint import read_checkpoint
from charlm.errors import ConfigError, VocabularyError
from charlm.inference import load
from charlm.training.start import start_run
from tests.text import words_text


def test_init_from_keeps_ids_and_grows_the_vocabulary(tmp_path, config_of):
    first = tmp_path / "first"
    start_run(config_of(), first)
    checkpoint = read_checkpoint(first / "checkpoints/last.safetensors")
    other = tmp_path / "other.txt"
    other.write_text(words_text(4000, seed=3).replace("a", "ä").replace("e", "日"))
    with pytest.raises(VocabularyError, match=r"never seen 'ä' \(U\+00E4\), '日' \(U\+65E5\); allowed: its \d+ char"):
        start_run(config_of(data={"source": str(other)}), tmp_path / "refused", checkpoint)
    assert not (tmp_path / "refused").exists()
    grown = config_of(data={"source": str(other), "grow_vocabulary": True}, train={"max_steps": 1})
    start_run(grown, tmp_path / "second", checkpoint)
    result = read_checkpoint(tmp_path / "second/checkpoints/last.safetensors")
    assert result.vocabulary.characters == checkpoint.vocabulary.characters + "ä日"
    old, new = checkpoint.weights["embedding.weight"], result.weights["embedding.weight"]
    assert new.shape[0] == old.shape[0] + 2
    assert (new[: len(old)] - old).abs().max() < 0.05


@pytest.mark.parametrize("embedding", [0, 12])
def test_init_from_starts_where_the_other_ended(tmp_path, config_of, embedding):
    """On the same text and without an update, the new run scores what the old one scored."""
    model = {"embedding": embedding, "tie_embeddings": embedding > 0}
    outcome = start_run(config_of(model=model), tmp_path / "first")
    checkpoint = read_checkpoint(tmp_path / "first/checkpoints/last.safetensors")
    still = config_of(model=model, train={"max_steps": 1}, optimizer={"name": "sgd", "lr": 1e-30})
    again = start_run(still, tmp_path / "second", checkpoint)
    assert again.valid_nats == pytest.approx(outcome.valid_nats, rel=1e-6)


def test_init_from_may_change_what_is_no_part_of_the_weights(tmp_path, config_of):
    start_run(config_of(), tmp_path / "first")
    checkpoint = read_checkpoint(tmp_path / "first/checkpoints/last.safetensors")
    model = {"dropout": 0.1, "zoneout": 0.2, "orthogonal": True, "init_uniform": 0.1}
    still = config_of(model=model, train={"max_steps": 1}, optimizer={"name": "sgd", "lr": 1e-30})
    start_run(still, tmp_path / "second", checkpoint)
    weights = read_checkpoint(tmp_path / "second/checkpoints/last.safetensors").weights
    assert all(torch.equal(weights[name], weight) for name, weight in checkpoint.weights.items())


@pytest.mark.parametrize(("before", "after"), [("text", "line"), ("line", "text")])
def test_init_from_may_change_the_unit(tmp_path, config_of, before, after):
    """Without an update the new run scores what the old weights score with the new unit."""
    start_run(config_of(data={"unit": before}), tmp_path / "first")
    checkpoint = read_checkpoint(tmp_path / "first/checkpoints/last.safetensors")
    still = config_of(data={"unit": after}, train={"max_steps": 1}, optimizer={"name": "sgd", "lr": 1e-30})
    outcome = start_run(still, tmp_path / "second", checkpoint)
    model = load(tmp_path / "second")
    assert (model.network.begins is None) == (after == "text")
    assert model.evaluate(model.split("valid")).nats_per_char == pytest.approx(outcome.valid_nats, rel=1e-6)


def test_init_from_a_model_that_has_never_seen_a_line_end(tmp_path, config_of):
    text = tmp_path / "text.txt"
    text.write_text(words_text(4000).replace("\n", " "))
    start_run(config_of(), tmp_path / "first")
    checkpoint = read_checkpoint(tmp_path / "first/checkpoints/last.safetensors")
    text.write_text(words_text(4000))
    with pytest.raises(VocabularyError, match=r"has never seen '\\n' \(U\+000A\); allowed: .*grow_vocabulary=true"):
        start_run(config_of(data={"unit": "line"}), tmp_path / "refused", checkpoint)
    grown = config_of(data={"unit": "line", "grow_vocabulary": True}, train={"max_steps": 1})
    assert start_run(grown, tmp_path / "second", checkpoint).step == 1


def test_init_from_another_model_names_every_difference(tmp_path, config_of):
    start_run(config_of(), tmp_path / "first")
    checkpoint = read_checkpoint(tmp_path / "first/checkpoints/last.safetensors")
    with pytest.raises(ConfigError) as caught:
        start_run(config_of(model={"layers": 2, "embedding": 8}), tmp_path / "second", checkpoint)
    assert [fault.split(":")[0] for fault in caught.value.faults] == ["model.layers", "model.embedding"]
