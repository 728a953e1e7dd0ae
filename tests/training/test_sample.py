"""Samples during training: their surprise, and samples.jsonl."""

import json
from unittest import mock

import numpy as np
import pytest
import torch

from charlm.inference.options import SamplingOptions
from charlm.inference.sampling import draw_sample
from charlm.inference.trained import load
from charlm.training.start import resume_run, start_run
from charlm.training.step import Trainer


def samples(run):
    return [json.loads(line) for line in (run / "samples.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("unit", ["text", "line"])
@pytest.mark.parametrize("level", ["char", "byte"])
def test_every_character_has_the_bits_of_its_score(tmp_path, config_of, level, unit):
    text = tmp_path / "text.txt"
    text.write_text("".join(f"ü {n}.\nπός {n} 日本 €\n" for n in range(300)))
    data = {"source": str(text), "level": level, "unit": unit}
    start_run(config_of({"max_steps": 6, "sample_every": 6, "sample_length": 60}, data=data), tmp_path / "run")
    [_, row] = samples(tmp_path / "run")
    text, bits = row["text"], row["bits"]
    assert row["step"] == 6
    assert len(text) == len(bits)
    if level == "char":
        trained = load(tmp_path / "run/checkpoints/last.safetensors", "cpu")
        read_first = {"text": "\n", "line": ""}[unit]
        [expected] = trained.char_scores([read_first + text])
        if unit == "line":  # the newline that ends the line is scored, but no part of the sample
            expected = expected[:-1]
        np.testing.assert_allclose(bits, expected, atol=0.006)


@pytest.mark.parametrize(
    ("every", "steps"), [(500, [0, 10, 30, 100]), (20, [0, 10, 20, 40, 60, 80, 100]), (0, []), (10, range(0, 101, 10))]
)
def test_the_first_samples_are_early(tmp_path, config_of, every, steps):
    train = {"max_steps": 100, "sample_every": every, "sample_length": 3, "eval_every": 0, "save_every": 0, "bptt": 2}
    start_run(config_of(train), tmp_path / "run")
    drawn = samples(tmp_path / "run")
    assert [row["step"] for row in drawn] == [*steps]


def test_a_run_that_is_killed_before_its_first_checkpoint_has_one_sample_of_step_0(tmp_path, config_of, finished_run):
    with mock.patch.object(Trainer, "update", side_effect=ZeroDivisionError), pytest.raises(ZeroDivisionError):
        start_run(config_of(), tmp_path / "run")
    [first] = samples(tmp_path / "run")
    resume_run(tmp_path / "run")
    assert samples(tmp_path / "run") == samples(finished_run)
    assert samples(finished_run)[0] == first


def test_sampling_draws_nothing_that_training_needs(tmp_path, config_of):
    """Weights and random state are the same with samples and without."""
    for every in (0, 1):
        start_run(config_of({"sample_every": every}, model={"dropout": 0.3}), tmp_path / str(every))
    with_samples, without = (load(tmp_path / str(every), "cpu").network.state_dict() for every in (1, 0))
    assert all(torch.equal(with_samples[name], tensor) for name, tensor in without.items())


def test_a_model_that_is_not_finite_has_no_bits(trained_run, monkeypatch):
    trained = load(trained_run, "cpu")
    monkeypatch.setattr(
        "charlm.inference.sampling.score_texts", lambda model, texts: [np.full(len(texts[0]) - 1, np.nan)]
    )
    options = SamplingOptions(length=5)
    drawn = draw_sample(trained.network, trained.vocabulary, options=options, seed=3)
    assert drawn["bits"] == [None] * 5
