"""Samples during training: their surprise, and samples.jsonl."""

import json

import numpy as np
import pytest
import torch

from charlm.inference.trained import load
from charlm.training.start import start_run


def samples(run):
    return [json.loads(line) for line in (run / "samples.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(("level", "records"), [("char", ""), ("char", "\n"), ("byte", "")])
def test_every_character_has_the_bits_of_its_score(tmp_path, write, config_of, level, records):
    text = write("text.txt", "".join(f"ü {n}.\nπός {n} 日本 €\n" for n in range(300)))
    data = {"source": text, "level": level, "records": records}
    start_run(config_of({"max_steps": 6, "sample_every": 6, "sample_length": 60}, data=data), tmp_path / "run")
    [_, row] = samples(tmp_path / "run")
    assert (row["step"], len(row["bits"])) == (6, len(row["text"]))
    if level == "char":
        trained = load(tmp_path / "run/checkpoints/last.safetensors", "cpu")
        read_first = "" if records else "\n"
        [expected] = trained.char_scores([read_first + row["text"]])
        # The newline that ends a line is scored, but no part of the sample.
        np.testing.assert_allclose(row["bits"], expected[: len(row["bits"])], atol=0.006)


@pytest.mark.parametrize(("every", "steps"), [(500, [0, 10, 30, 100]), (40, [0, 10, 30, 40, 80]), (0, [])])
def test_the_first_samples_are_early(tmp_path, config_of, every, steps):
    train = {"max_steps": 100, "sample_every": every, "sample_length": 3, "eval_every": 0, "save_every": 0, "bptt": 2}
    start_run(config_of(train), tmp_path / "run")
    assert [row["step"] for row in samples(tmp_path / "run")] == steps


def test_sampling_draws_nothing_that_training_needs(tmp_path, config_of):
    """Weights and random state are the same with samples and without."""
    for every in (0, 1):
        start_run(config_of({"sample_every": every}, model={"dropout": 0.3}), tmp_path / str(every))
    with_samples, without = (load(tmp_path / str(every), "cpu").network.state_dict() for every in (1, 0))
    assert all(torch.equal(with_samples[name], tensor) for name, tensor in without.items())
