"""A resumed run ends as one that was never interrupted, bit for bit."""

from unittest import mock

import pytest
import torch

from charlm.cells import CELLS
from charlm.checkpoint import read_checkpoint
from charlm.config import load_config, parse_config
from charlm.errors import ConfigError, DataError
from charlm.training.start import resume_run, start_run
from charlm.training.step import Trainer
from tests.runs import assert_same_checkpoint, interrupted_after, rows, untimed, with_max_steps
from tests.text import words_text

DROPOUT = {"embedding": 0.1, "input": 0.1, "state": 0.2, "between_layers": 0.2, "output": 0.2}


@pytest.mark.parametrize(("kind", "variational"), [(kind, number % 2 == 0) for number, kind in enumerate(CELLS)])
def test_resume_is_bit_identical(tmp_path, config_of, kind, variational):
    """Interrupted after 7 of 14 steps, between logs and within an epoch, and resumed: as if in one go."""
    model = {"cell": {"kind": kind, "hidden": 12}, "layers": 2, "dropout": {**DROPOUT, "variational": variational}}
    config = config_of(model=model, train={"max_steps": 14, "ema": 0.9})
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    start_run(config, whole)
    with interrupted_after(7):
        assert start_run(config, parts).reason == "SIGINT"
    assert read_checkpoint(parts / "checkpoints/last.safetensors").progress["step"] == 7
    assert resume_run(parts).reason == "max_steps"
    assert_same_checkpoint(whole / "checkpoints/last.safetensors", parts / "checkpoints/last.safetensors")
    assert_same_checkpoint(whole / "checkpoints/best.safetensors", parts / "checkpoints/best.safetensors")
    assert untimed(whole) == untimed(parts)


@pytest.mark.parametrize("optimizer", ["adamw", "adam", "nadam", "radam", "sgd", "rmsprop", "adagrad", "muon"])
def test_resume_is_bit_identical_for_every_optimizer(tmp_path, config_of, optimizer):
    momentum = {"momentum": 0.9} if optimizer == "sgd" else {}
    assert_resumes_alike(
        tmp_path, config_of(optimizer={"name": optimizer, "lr": 0.01, "schedule": {"name": "cosine"}, **momentum})
    )


def test_resume_is_bit_identical_with_windows_of_changing_length(tmp_path, config_of):
    assert_resumes_alike(tmp_path, config_of(train={"bptt_start": 3, "vary_bptt": 0.3}))


def test_resume_is_bit_identical_with_lines(tmp_path, config_of):
    """Across the end of an epoch, whose order of lines is another."""
    assert_resumes_alike(tmp_path, config_of(data={"unit": "line"}, train={"batch_size": 1, "bptt": 700}))


def assert_resumes_alike(tmp_path, config):
    """In one go, and interrupted after 5 steps and resumed."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    start_run(config, whole)
    with interrupted_after(5):
        start_run(config, parts)
    resume_run(parts)
    assert_same_checkpoint(whole / "checkpoints/last.safetensors", parts / "checkpoints/last.safetensors")
    assert untimed(whole) == untimed(parts)


def test_resume_from_an_earlier_checkpoint_rewrites_what_came_after(tmp_path, config_of):
    """As after a kill: the metrics are ahead of the last checkpoint, and end in half a line."""
    config = config_of()
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    start_run(config, whole)
    start_run(config, parts)
    folder = parts / "checkpoints"
    (folder / "step-00000005.safetensors").replace(folder / "last.safetensors")
    with (parts / "metrics.jsonl").open("a") as file:
        file.write('{"step": 13, "los')
    resume_run(parts)
    assert untimed(whole) == untimed(parts)
    assert_same_checkpoint(whole / "checkpoints/last.safetensors", parts / "checkpoints/last.safetensors")


@pytest.mark.parametrize(
    "train",
    [
        {"log_every": 3, "eval_every": 4},
        {"log_every": 5, "eval_every": 10},
        {"read_share": 0.09},  # about seven windows: both halves end inside a pass
    ],
)
def test_a_run_that_ended_goes_on_as_if_it_had_not(tmp_path, config_of, train):
    """k steps to their end, then resumed to 2k: weights and metrics of 2k in one go, closing rows dropped."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    start_run(config_of(train={"max_steps": 20, **train}), whole)
    start_run(config_of(train={"max_steps": 10, **train}), parts)
    assert rows(parts)[-1]["step"] == 10
    resume_run(parts, with_max_steps(20))
    assert untimed(whole) == untimed(parts)
    ours, theirs = (read_checkpoint(run / "checkpoints/last.safetensors") for run in (whole, parts))
    assert all(torch.equal(ours.weights[name], theirs.weights[name]) for name in ours.weights)


@pytest.mark.parametrize("stop", [79, 80, 81])
def test_resume_around_the_end_of_an_epoch(tmp_path, config_of, stop):
    """An epoch is 80 windows here; where it ends there is no hidden state to carry."""
    schedule = {"name": "step", "factor": 0.5, "after_epochs": 1}
    config = config_of(
        train={"max_steps": 84, "reset_state": 0.1}, optimizer={"name": "adamw", "lr": 0.01, "schedule": schedule}
    )
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    start_run(config, whole)
    with interrupted_after(stop):
        start_run(config, parts)
    carried = read_checkpoint(parts / "checkpoints/last.safetensors").carried
    assert ("recurrent.0" in carried) == (stop != 79)
    resume_run(parts)
    assert untimed(whole) == untimed(parts)
    assert_same_checkpoint(whole / "checkpoints/last.safetensors", parts / "checkpoints/last.safetensors")


@pytest.mark.parametrize("eval_every", [4, 5, 0])
def test_resuming_a_run_that_is_done_changes_nothing(tmp_path, config_of, eval_every):
    start_run(config_of(train={"eval_every": eval_every}), tmp_path / "run")
    before = untimed(tmp_path / "run")
    outcome = resume_run(tmp_path / "run")
    assert (outcome.step, outcome.reason) == (12, "max_steps")
    assert untimed(tmp_path / "run") == before


def test_a_longer_run_by_resuming(tmp_path, config_of, capsys):
    config = config_of()
    start_run(config, tmp_path / "run")
    outcome = resume_run(tmp_path / "run", with_max_steps(20))
    assert (outcome.step, outcome.reason) == (20, "max_steps")
    assert "change   train.max_steps: 12 → 20" in capsys.readouterr().err
    assert load_config(tmp_path / "run" / "config.yaml").train.max_steps == 20


def test_an_average_asked_for_on_resume_starts_from_the_trained_weights(tmp_path, config_of):
    outcome = start_run(config_of(), tmp_path / "run")
    resumed = resume_run(
        tmp_path / "run", lambda saved: parse_config(saved.model_dump(mode="json"), "saved", ["train.ema=0.9"])
    )
    assert resumed.step == outcome.step
    checkpoint = read_checkpoint(tmp_path / "run/checkpoints/last.safetensors")
    assert checkpoint.averaged
    assert all(torch.equal(checkpoint.averaged[name], checkpoint.weights[name]) for name in checkpoint.weights)


def test_a_run_that_dies_at_once_can_be_resumed(tmp_path, config_of):
    """There is a checkpoint before the first step, and what it resumes to is the whole run."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    start_run(config_of(), whole)
    with mock.patch.object(Trainer, "update", side_effect=ZeroDivisionError), pytest.raises(ZeroDivisionError):
        start_run(config_of(), parts)
    assert [p.name for p in (parts / "checkpoints").iterdir()] == ["last.safetensors"]
    resume_run(parts)
    assert untimed(whole) == untimed(parts)
    assert_same_checkpoint(whole / "checkpoints/last.safetensors", parts / "checkpoints/last.safetensors")


def test_a_new_run_removes_what_one_that_was_killed_at_once_has_left(tmp_path, config_of):
    (tmp_path / "run/checkpoints").mkdir(parents=True)
    leftovers = [tmp_path / "run" / name for name in (".0.charlm.tmp", "checkpoints/.0.charlm.tmp")]
    for path in leftovers:
        path.write_text("half")
    start_run(config_of(), tmp_path / "run")
    assert [path for path in leftovers if path.exists()] == []


def test_resume_refuses_another_model_and_another_text(tmp_path, config_of):
    run = tmp_path / "run"
    start_run(config_of(), run)
    with pytest.raises(ConfigError) as caught:
        resume_run(
            run,
            lambda saved: config_of(
                model={"cell": {"kind": "lstm", "hidden": 13}}, train={"bptt": 11}, data={"unit": "line"}
            ),
        )
    assert [fault.split(";")[0] for fault in caught.value.faults] == [
        "data.unit: found 'line', the run has 'text'",
        "model.cell.hidden: found 13, the run has 12",
        "train.bptt: found 11, the run has 10",
    ]
    (tmp_path / "text.txt").write_text(words_text(3999))
    with pytest.raises(DataError, match="the text has changed since"):
        resume_run(run)


def test_resume_may_change_how_windows_vary(tmp_path, config_of, capsys):
    run = tmp_path / "run"
    start_run(config_of(), run)
    config = config_of(train={"max_steps": 24, "bptt_start": 2, "vary_bptt": 0.3})
    assert resume_run(run, lambda saved: config).step == 24
    changes = [line for line in capsys.readouterr().err.splitlines() if line.startswith("change")]
    assert changes == [
        "change   train.bptt_start: None → 2",
        "change   train.vary_bptt: 0.0 → 0.3",
        "change   train.max_steps: 12 → 24",
    ]
    chars = [row["chars"] for row in rows(run) if row["split"] == "train"]
    assert chars[3] == 12 * 40
    assert chars[-1] < 24 * 40
