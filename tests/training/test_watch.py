"""Evaluations by shares of a run, after which it may be ended."""

import pytest

from charlm.checkpoint import read_checkpoint
from charlm.training.loop import Callbacks
from charlm.training.start import resume_run, start_run
from tests.runs import assert_same_checkpoint, interrupted_after, rows

NEVER = {"eval_every": 0, "save_every": 0, "sample_every": 0, "max_steps": 12}


def evaluated(run):
    return [row["step"] for row in rows(run) if row["split"] == "valid"]


@pytest.fixture
def seen():
    return []


@pytest.fixture
def watch_of(seen):
    """A watch that ends the run after this share."""

    def build(end=2.0):
        def stops(share, nats):
            seen.append((share, nats))
            return share >= end

        return Callbacks(should_prune=stops, prune_at=(0.3, 0.5, 0.55, 0.9))

    return build


def test_evaluations_after_shares(tmp_path, config_of, watch_of, seen):
    outcome = start_run(config_of(train=NEVER), tmp_path / "run", callbacks=watch_of())
    assert (outcome.reason, outcome.step) == ("max_steps", 12)
    assert evaluated(tmp_path / "run") == [4, 6, 7, 11, 12]
    assert [share for share, _ in seen] == [0.3, 0.5, 0.55, 0.9]
    assert [nats for _, nats in seen] == [row["nats"] for row in rows(tmp_path / "run") if row["split"] == "valid"][:4]


def test_of_several_shares_that_one_step_passes_the_last_counts(tmp_path, config_of, watch_of, seen):
    start_run(config_of(train=NEVER | {"max_steps": 2}), tmp_path / "run", callbacks=watch_of())
    assert [share for share, _ in seen] == [0.5, 0.9]
    assert evaluated(tmp_path / "run") == [1, 2]


def test_a_run_that_is_ended_has_a_checkpoint_and_can_be_resumed(tmp_path, config_of, watch_of, seen):
    config = config_of(train=NEVER)
    outcome = start_run(config, tmp_path / "run", callbacks=watch_of(end=0.5))
    assert (outcome.reason, outcome.step) == ("pruned", 6)
    assert evaluated(tmp_path / "run") == [4, 6]
    assert read_checkpoint(tmp_path / "run/checkpoints/last.safetensors").progress["step"] == 6
    assert resume_run(tmp_path / "run", callbacks=watch_of()).reason == "max_steps"
    assert [share for share, _ in seen] == [0.3, 0.5, 0.55, 0.9]

    start_run(config, tmp_path / "whole", callbacks=watch_of())
    last = "checkpoints/last.safetensors"
    assert_same_checkpoint(tmp_path / "run" / last, tmp_path / "whole" / last)


def test_shares_of_time(tmp_path, config_of, watch_of, seen):
    config = config_of(train=NEVER | {"max_steps": None, "max_minutes": 0.01})
    assert start_run(config, tmp_path / "run", callbacks=watch_of()).reason == "max_minutes"
    assert seen[0][0] == 0.3


def test_a_signal_comes_before_the_watch_which_is_asked_after_resuming(tmp_path, config_of, watch_of, seen):
    with interrupted_after(steps=6):
        assert start_run(config_of(train=NEVER), tmp_path / "run", callbacks=watch_of(end=0.5)).reason == "SIGINT"
    assert [share for share, _ in seen] == [0.3]
    assert resume_run(tmp_path / "run", callbacks=watch_of(end=0.5)).reason == "pruned"
    assert evaluated(tmp_path / "run") == [4, 6]


def test_without_a_validation_split_nobody_is_asked(tmp_path, config_of, watch_of, seen):
    start_run(config_of(train=NEVER, data={"split": [1, 0, 0]}), tmp_path / "run", callbacks=watch_of(end=0))
    assert seen == []
