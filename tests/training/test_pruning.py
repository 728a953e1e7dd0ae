"""Evaluations by shares of a run, after which a pruner may end it."""

import pytest

from charlm.checkpoint import read_checkpoint
from charlm.training.loop import Callbacks
from charlm.training.start import resume_run, start_run
from tests.runs import assert_same_checkpoint, interrupted_after, rows

NEVER = {"eval_every": 0, "save_every": 0, "sample_every": 0, "max_steps": 12}
SHARES = (0.3, 0.5, 0.55, 0.9)
LAST = "checkpoints/last.safetensors"


def evaluated(run):
    return [row["step"] for row in rows(run) if row["split"] == "valid"]


@pytest.fixture
def asked():
    """The shares and scores that the pruner was asked about."""
    return []


@pytest.fixture
def pruner_of(asked):
    """Callbacks that end the run after a share."""

    def build(end=2.0):
        def should_prune(share, nats):
            asked.append((share, nats))
            return share >= end

        return Callbacks(should_prune=should_prune, prune_at=SHARES)

    return build


def test_the_pruner_is_asked_after_each_share(tmp_path, config_of, pruner_of, asked):
    run = tmp_path / "run"
    outcome = start_run(config_of(train=NEVER), run, callbacks=pruner_of())
    assert (outcome.reason, outcome.step) == ("max_steps", 12)
    assert evaluated(run) == [4, 6, 7, 11, 12]
    scores = [row["nats"] for row in rows(run) if row["split"] == "valid"]
    assert asked == list(zip(SHARES, scores[:4], strict=True))


@pytest.mark.parametrize(
    ("train", "data", "shares"),
    [
        ({"max_steps": 2}, {}, [0.5, 0.9]),  # of several shares that one step passes the last counts
        ({"max_steps": None, "max_minutes": 0.01}, {}, [0.3]),
        ({}, {"split": [1, 0, 0]}, []),  # no score without a validation split
    ],
)
def test_shares_of_steps_and_of_minutes(tmp_path, config_of, pruner_of, asked, train, data, shares):
    start_run(config_of(train=NEVER | train, data=data), tmp_path / "run", callbacks=pruner_of())
    assert [share for share, _ in asked][: len(shares) or 1] == shares


def test_a_pruned_run_has_a_checkpoint_and_can_be_resumed(tmp_path, config_of, pruner_of, asked):
    """A signal comes before the pruner, which is then asked after resuming."""
    config, run = config_of(train=NEVER), tmp_path / "run"
    with interrupted_after(6):
        assert start_run(config, run, callbacks=pruner_of(end=0.5)).reason == "SIGINT"
    assert [share for share, _ in asked] == [0.3]
    outcome = resume_run(run, callbacks=pruner_of(end=0.5))
    assert (outcome.reason, outcome.step) == ("pruned", 6)
    assert evaluated(run) == [4, 6]
    assert read_checkpoint(run / LAST).progress["step"] == 6
    assert resume_run(run, callbacks=pruner_of()).reason == "max_steps"
    assert [share for share, _ in asked] == list(SHARES)
    start_run(config, tmp_path / "whole", callbacks=pruner_of())
    assert_same_checkpoint(run / LAST, tmp_path / "whole" / LAST)
