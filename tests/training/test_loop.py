"""Whole runs: what they write, their samples and how they end."""

import contextlib
import signal
import time

import pytest
import torch

import charlm.training.folder
import charlm.training.loop
from charlm.checkpoint import read_checkpoint
from charlm.config import load_config
from charlm.inference.loading import load
from charlm.training.budget import Budget
from charlm.training.start import resume_run, start_run
from charlm.training.step import Trainer
from tests.runs import rows

LAST = "checkpoints/last.safetensors"


def test_the_average_of_the_weights_is_what_is_scored_sampled_and_fine_tuned(tmp_path, config_of, capsys):
    run = tmp_path / "run"
    outcome = start_run(config_of(train={"ema": 0.9, "sample_length": 60}, optimizer={"lr": 0.05}), run)
    sampled = [line for line in capsys.readouterr().err.splitlines() if line.startswith("sample ")][-1]
    checkpoint, model = read_checkpoint(run / LAST), load(run / LAST)
    averaged = model.network.state_dict()
    assert any(not torch.equal(averaged[name], weight) for name, weight in checkpoint.weights.items())
    assert all(torch.equal(averaged[name], weight) for name, weight in checkpoint.averaged.items())
    assert outcome.valid_nats == pytest.approx(model.evaluate(model.split("valid")).nats_per_char, rel=1e-6)
    assert sampled.endswith(repr(model.sample(length=60, seed=1 + 12)))

    still = config_of(train={"max_steps": 1}, optimizer={"name": "sgd", "lr": 1e-30})
    start_run(still, tmp_path / "second", checkpoint)
    tuned = read_checkpoint(tmp_path / "second" / LAST).weights
    assert all(torch.equal(tuned[name], weight) for name, weight in checkpoint.averaged.items())


def test_folder(tmp_path, config_of):
    config = config_of(train={"max_steps": 26, "keep_checkpoints": 2})
    run = tmp_path / "run"
    outcome = start_run(config, run)
    assert load_config(run / "config.yaml") == config
    names = [f"{name}.safetensors" for name in ("best", "last", "step-00000020", "step-00000025")]
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == names
    assert (outcome.step, outcome.chars) == (26, 26 * 40)
    best = read_checkpoint(run / "checkpoints/best.safetensors").progress
    assert (best["step"], best["best_nats"]) == (outcome.best_step, outcome.best_nats)


def test_a_score_that_equals_the_best_is_no_new_best(tmp_path, config_of):
    still = config_of(train={"max_steps": 100, "patience": 2}, optimizer={"name": "sgd", "lr": 1e-30})
    outcome = start_run(still, tmp_path / "run")
    assert (outcome.reason, outcome.best_step, outcome.step) == ("patience", 4, 12)
    assert read_checkpoint(tmp_path / "run/checkpoints/best.safetensors").progress["step"] == 4


@pytest.mark.parametrize(
    ("eval_every", "sample_every", "slow_from", "least_s", "most_s"),
    [(0, 0, 999, 18, 34), (20, 0, 999, 25, 30.6), (20, 0, 30, 25, 32), (20, 1000, 999, 25, 30.6)],
)
def test_minutes_include_the_last_evaluation_and_checkpoints(
    tmp_path, config_of, clock, monkeypatch, before_update, eval_every, sample_every, slow_from, least_s, most_s
):
    """30 s are asked for, besides 20 s of compiling. Without an evaluation before, its time is guessed.

    The machine may become three times slower.
    """
    monkeypatch.setattr("charlm.native.compiler.compiled_s", lambda since_s: 20.0)
    before_update(slow_from, lambda trainer: setattr(clock, "slower", 3))
    config = config_of(
        train={"max_steps": None, "max_minutes": 0.5, "eval_every": eval_every, "sample_every": sample_every},
        optimizer={"lr": 0.01, "schedule": {"name": "linear", "final_fraction": 0}},
    )
    outcome = start_run(config, tmp_path / "run", budget=Budget(0.5, clock.now_s - 22))
    assert least_s < outcome.elapsed_s <= most_s
    assert outcome.reason == "max_minutes"
    assert read_checkpoint(tmp_path / "run" / LAST).progress["lr"] < 0.01 * 0.03
    last = [row for row in rows(tmp_path / "run") if row["split"] == "valid"][-1]
    assert last["step"] == outcome.step


@pytest.fixture
def clock(monkeypatch):
    """A clock that only updates (0.1 s), evaluations (2 s), samples and checkpoints (1 s, these not `slower`) move."""

    class Clock:
        now_s = time.perf_counter()
        slower = 1

    def slowed(name, module, seconds, suffers=True):
        function = getattr(module, name)

        def slow(*arguments, **options):
            Clock.now_s += seconds * (Clock.slower if suffers else 1)
            return function(*arguments, **options)

        monkeypatch.setattr(module, name, slow)

    slowed("_gradients", Trainer, 0.1)
    slowed("evaluate", charlm.training.loop, 2.0)
    slowed("draw_sample", charlm.training.loop, 1.0)
    slowed("save_checkpoint", charlm.training.folder, 1.0, suffers=False)
    monkeypatch.setattr(time, "perf_counter", lambda: Clock.now_s)
    return Clock


@pytest.mark.parametrize(("records", "read_first"), [("", "\n"), ("\n", "")])
def test_every_character_has_the_bits_of_its_score(tmp_path, write, config_of, records, read_first):
    text = write("text.txt", "".join(f"ü {n}.\nπός {n} 日本 €\n" for n in range(300)))
    data = {"source": text, "records": records}
    start_run(config_of({"max_steps": 6, "sample_every": 6, "sample_length": 60}, data=data), tmp_path / "run")
    [_, row] = rows(tmp_path / "run", "samples.jsonl")
    [expected] = load(tmp_path / "run" / LAST).char_surprise([read_first + row["text"]])
    # The newline that ends a line is scored, but no part of the sample.
    assert row["bits"] == pytest.approx(expected[: len(row["text"])], abs=0.006)


def test_the_first_samples_are_early_and_the_last_is_of_the_end(tmp_path, config_of):
    train = {"max_steps": 50, "sample_every": 40, "sample_length": 3, "eval_every": 0, "save_every": 0, "bptt": 2}
    run = tmp_path / "run"
    start_run(config_of(train), run)
    assert [row["step"] for row in rows(run, "samples.jsonl")] == [0, 10, 30, 40, 50]
    longer = config_of(train | {"max_steps": 100})
    resume_run(run, lambda saved: longer)
    assert [row["step"] for row in rows(run, "samples.jsonl")] == [0, 10, 30, 40, 80, 100]


@pytest.mark.parametrize("happens", ["a fault", "a signal"])
def test_what_happens_in_the_last_sample_costs_no_training(tmp_path, config_of, monkeypatch, happens):
    def disturbed(*arguments, **options):
        if happens == "a fault":
            raise MemoryError
        signal.raise_signal(signal.SIGINT)

    run = tmp_path / "run"
    config = config_of({"max_steps": 9, "sample_every": 40, "save_every": 0}, data={"split": [1, 0, 0]})
    draws = iter([charlm.training.loop.draw_sample, disturbed])
    monkeypatch.setattr("charlm.training.loop.draw_sample", lambda *args, **options: next(draws)(*args, **options))
    with pytest.raises(MemoryError) if happens == "a fault" else contextlib.nullcontext():
        assert start_run(config, run).reason == "max_steps"
    assert read_checkpoint(run / LAST).progress["step"] == 9


def test_sampling_draws_nothing_that_training_needs(tmp_path, config_of):
    """Weights and random state are the same with samples and without."""
    for every in (0, 1):
        start_run(config_of({"sample_every": every}, model={"dropout": 0.3}), tmp_path / str(every))
    with_samples, without = (read_checkpoint(tmp_path / str(every) / LAST).weights for every in (1, 0))
    assert all(torch.equal(with_samples[name], tensor) for name, tensor in without.items())
