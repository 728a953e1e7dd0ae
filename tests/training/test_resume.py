"""A resumed run ends as one that was never interrupted, bit for bit."""

from unittest import mock

import pytest
import torch

from charlm.checkpoint import best_score, read_checkpoint
from charlm.config import load_config, parse_config, read_settings
from charlm.errors import ConfigError, DataError
from charlm.runs import describe_run
from charlm.system.files import replace_file
from charlm.training.start import resume_run, start_run
from charlm.training.step import Trainer
from tests.runs import interrupted_after, rows, untimed, with_max_steps
from tests.text import words_text
from tests.training.conftest import assert_same_run

LAST = "checkpoints/last.safetensors"
DROPOUT = {"embedding": 0.1, "input": 0.1, "between_layers": 0.2, "output": 0.2}
OPTIMIZERS = {"adamw": "lstm", "adam": "rhn", "sgd": "gru", "rmsprop": "slstm", "adagrad": "sru", "muon": "mogrifier"}
CASES = {}
for name, kind in OPTIMIZERS.items():
    of_state = 0.2 if kind in ("lstm", "rhn") else 0  # which needs a kernel of its own
    dropout = {**DROPOUT, "state": of_state, "variational": name in ("adamw", "sgd", "adagrad")}
    CASES[f"{kind}-{name}"] = {
        "model": {"cell": {"kind": kind, "hidden": 12}, "layers": 2, "dropout": dropout},
        "train": {"max_steps": 14, "ema": 0.9, "sample_every": 2},
        "optimizer": {"name": name, "lr": 0.01, "schedule": {"name": "cosine"}},
    }
CASES["gru-sgd"]["optimizer"]["momentum"] = 0.9
CASES["a tied embedding of another size, and members"] = {
    "model": {"embedding": 5, "tie_embeddings": True, "dropout": DROPOUT, "members": 2, "layers": 2},
    "train": {"ema": 0.9, "sample_every": 2},
    "optimizer": {"name": "adamw", "lr": 0.01, "clip_norm": 0.5},
}
# Across the end of an epoch, whose order of records is another.
CASES["records"] = {
    "data": {"records": "\n"},
    "model": {"learned_start": True},
    "train": {"batch_size": 1, "bptt": 450},
}


def changed(*options):
    return lambda saved: parse_config(saved.model_dump(mode="json"), "saved", read_settings(options))


@pytest.mark.parametrize("case", CASES)
def test_an_interrupted_run_ends_with_the_bits_of_one_in_one_go(tmp_path, config_of, case):
    """Interrupted after 7 steps, between logs and within an epoch."""
    config = config_of(**CASES[case])
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    start_run(config, whole)
    with interrupted_after(7):
        assert start_run(config, parts).reason == "SIGINT"
    assert read_checkpoint(parts / LAST).progress["step"] == 7
    assert resume_run(parts).reason == "max_steps"
    assert_same_run(whole, parts)
    assert (read_checkpoint(parts / LAST).progress["epoch"] > 0) == (case == "records")


def test_around_the_end_of_an_epoch(tmp_path, config_of):
    """An epoch is 20 windows here; where it ends there is no hidden state to carry."""
    schedule = {"name": "step", "factor": 0.5, "after_epochs": 1}
    train = {"bptt": 40, "max_steps": 24, "reset_state": 0.1}
    config = config_of(train, optimizer={"name": "adamw", "lr": 0.01, "schedule": schedule})
    start_run(config, tmp_path / "whole")
    for stop in (19, 20, 21):
        parts = tmp_path / str(stop)
        with interrupted_after(stop):
            start_run(config, parts)
        assert ("recurrent.0" in read_checkpoint(parts / LAST).carried) == (stop != 19)
        resume_run(parts)
        assert_same_run(tmp_path / "whole", parts)


def test_a_killed_run_rewrites_what_came_after_its_checkpoint(finished_run, run):
    """Metrics and samples are ahead of the last checkpoint, and end in half a line."""
    (run / "checkpoints/step-00000005.safetensors").replace(run / LAST)
    with (run / "metrics.jsonl").open("a") as metrics, (run / "samples.jsonl").open("a") as samples:
        metrics.write('{"step": 13, "los')
        samples.write('{"step": 8, "text": "of a killed process", "bits": []}\n{"step": 1')
    resume_run(run)
    assert_same_run(finished_run, run)


@pytest.fixture
def killed_run(tmp_path, config_of):
    """Killed at update 12, the best, between the writing of `best` and of `last`, which is of update 10."""
    run = tmp_path / "run"

    def replace_unless_killed(file, data):
        if file.name == "last.safetensors" and best_score(run)[1] == 12:
            raise ZeroDivisionError
        replace_file(file, data)

    with mock.patch("charlm.checkpoint.replace_file", replace_unless_killed), pytest.raises(ZeroDivisionError):
        start_run(config_of(), run)
    assert read_checkpoint(run / LAST).progress["step"] == 10
    return run


def test_a_run_that_is_killed_between_best_and_last_finds_the_same_best_again(finished_run, killed_run):
    resume_run(killed_run)
    assert_same_run(finished_run, killed_run)


def test_a_best_checkpoint_that_is_newer_than_the_last_one_is_what_is_reported(killed_run):
    """The run reaches the same update again with other weights, as one of so many minutes does."""
    best = best_score(killed_run)
    assert describe_run(killed_run).best_nats == best[0]
    outcome = resume_run(killed_run, changed("optimizer.lr=1e-30"))
    assert outcome.valid_nats > outcome.best_nats
    assert (outcome.best_nats, outcome.best_step) == best_score(killed_run) == best


def test_a_damaged_best_checkpoint_is_replaced_and_not_reported(run):
    best = run / "checkpoints/best.safetensors"
    best.write_bytes(best.read_bytes()[:-1] + b"\x7f")
    outcome = resume_run(run, changed("optimizer.lr=1.0", "train.max_steps=14"))
    assert (outcome.best_nats, outcome.best_step) == best_score(run) == (outcome.valid_nats, 14)


def test_a_run_that_dies_at_once_can_be_resumed(finished_run, tmp_path, config_of):
    """There is a checkpoint before the first step, and one sample."""
    run = tmp_path / "run"
    with mock.patch.object(Trainer, "update", side_effect=ZeroDivisionError), pytest.raises(ZeroDivisionError):
        start_run(config_of(), run)
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["last.safetensors"]
    resume_run(run)
    assert_same_run(finished_run, run)


@pytest.mark.parametrize("train", [{}, {"read_share": 0.09}])  # about seven windows: both halves end inside a pass
def test_a_run_that_ended_goes_on_as_if_it_had_not(tmp_path, config_of, train):
    """k steps to their end, then resumed to 2k: weights and metrics of 2k in one go, closing rows dropped."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    start_run(config_of(train={"max_steps": 20, **train}), whole)
    start_run(config_of(train={"max_steps": 10, **train}), parts)
    assert rows(parts)[-1]["step"] == 10
    resume_run(parts, with_max_steps(20))
    assert untimed(whole) == untimed(parts)
    ours, theirs = (read_checkpoint(run / LAST) for run in (whole, parts))
    assert all(torch.equal(ours.weights[name], theirs.weights[name]) for name in ours.weights)


def test_a_run_is_finished_until_its_limit_is_raised(finished_run, run):
    """Resuming one that is finished changes nothing."""
    assert describe_run(run).state == "finished"
    assert resume_run(run).step == 12
    assert_same_run(finished_run, run)
    with interrupted_after(13):
        resume_run(run, changed("train.max_epochs=0.2", "train.max_steps=null"))
    assert describe_run(run).state == "resumable"


@pytest.mark.usefixtures("needs_kernels", "no_kernels")
def test_other_kernels_or_threads_than_before_are_said(run, capsys):
    """And the last session's are what the next one expects."""

    def said(*options):
        resume_run(run, changed(*options))
        lines = capsys.readouterr().err.splitlines()
        return [line.split(", ")[0] for line in lines if line.startswith(("kernels ", "threads "))]

    assert said("train.max_steps=13", "threads=2") == ["threads  found 2", "kernels  found none"]
    assert said("train.max_steps=14") == []
    assert said("train.max_steps=15", "threads=1") == ["threads  found 1"]


def test_what_a_resumption_may_change(run, config_of, capsys):
    """The limit, resets, the average of the weights; and samples that are gone do not matter."""
    (run / "samples.jsonl").unlink()
    config = config_of(train={"max_steps": 24, "reset_state": 0.3})
    assert resume_run(run, lambda _: config).step == 24
    assert [line for line in capsys.readouterr().err.splitlines() if line.startswith("change")] == [
        "change   train.reset_state: 0.0 → 0.3",
        "change   train.max_steps: 12 → 24",
    ]
    assert load_config(run / "config.yaml") == config
    assert [row["step"] for row in rows(run, "samples.jsonl")] == [18, 24]

    resume_run(run, changed("train.ema=0.9"))
    checkpoint = read_checkpoint(run / LAST)  # the average starts from the trained weights
    assert checkpoint.averaged
    assert all(torch.equal(checkpoint.averaged[name], checkpoint.weights[name]) for name in checkpoint.weights)


def test_resume_refuses_another_model_and_another_text(tmp_path, config_of):
    run, text = tmp_path / "run", tmp_path / "text.txt"
    text.write_text(words_text(4000))
    start_run(config_of(data={"source": str(text)}, train={"max_steps": 1}), run)
    other = [
        r'data.records="\n"',
        "model.cell.hidden=13",
        "train.bptt=11",
        "train.read_share=0.5",
        "train.loss=last",
        "optimizer.name=sgd",
    ]
    with pytest.raises(ConfigError) as caught:
        resume_run(run, changed(*other))
    assert [fault.split(":")[0] for fault in caught.value.faults] == [option.split("=")[0] for option in other]
    text.write_text(words_text(3999))
    with pytest.raises(DataError):
        resume_run(run)
