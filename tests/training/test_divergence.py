"""A loss that is not finite stops the run or rolls it back."""

import math

import pytest
import torch

from charlm.checkpoint import read_checkpoint
from charlm.errors import DivergenceError
from charlm.inference.loading import load
from charlm.report.page import report_page
from charlm.report.run import read_run
from charlm.runs import describe_run
from charlm.training.start import resume_run, start_run
from tests.browser import data_of
from tests.runs import rows

LAST = "checkpoints/last.safetensors"
RELU = {"kind": "rnn", "nonlinearity": "relu"}
FAST = {"name": "sgd", "lr": 100.0}


@pytest.mark.parametrize(
    ("cell", "train", "optimizer"),
    [
        (RELU, {"save_every": 1}, FAST),
        (RELU, {"eval_every": 1}, FAST),  # weights may overflow the forward pass after an update that was finite
        ({"kind": "mingru"}, {"eval_every": 1}, {"lr": 1e6}),  # a finite score that no checkpoint may hold
    ],
)
def test_a_run_that_explodes_leaves_finite_weights_and_scores(tmp_path, config_of, cell, train, optimizer):
    config = config_of(model={"cell": cell, "layers": 2}, train={"max_steps": 500, **train}, optimizer=optimizer)
    with pytest.raises(DivergenceError, match=r"^update \d+: found .*; last good checkpoint: .*/run/checkpoints/last"):
        start_run(config, tmp_path / "run")
    weights = read_checkpoint(tmp_path / "run" / LAST).weights
    assert all(torch.isfinite(tensor).all() for tensor in weights.values())
    assert all(math.isfinite(row["nats"]) for row in rows(tmp_path / "run"))


def test_optimizer_state_that_overflows_is_not_saved(tmp_path, config_of, before_update):
    """The square of a finite gradient may be infinite: its weight would never change again."""

    def overflow(trainer):
        trainer.optimizer.state[trainer.model.decoder.bias]["exp_avg_sq"][0] = math.inf

    before_update(7, overflow)
    with pytest.raises(DivergenceError):
        start_run(config_of(), tmp_path / "run")
    assert read_checkpoint(tmp_path / "run" / LAST).progress["step"] < 7


def test_rollback_goes_on_from_the_last_checkpoint_with_half_the_rate(tmp_path, config_of, before_update):
    before_update(8, lambda trainer: trainer.model.decoder.weight.data.fill_(math.nan))
    run = tmp_path / "run"
    assert start_run(config_of(train={"on_divergence": "rollback", "log_every": 1}), run).step == 12
    logged = rows(run)
    [back] = [row for row in logged if row["split"] == "rollback"]
    assert (back["step"], back["diverged_step"], back["lr_factor"]) == (8, 8, 0.5)
    assert back["fault"].startswith("update 9: found loss nan")
    rates = [(row["step"], row["lr"]) for row in logged if row["split"] == "train"]
    assert rates == [(step, 3e-3) for step in range(1, 9)] + [(step, 1.5e-3) for step in range(9, 13)]
    checkpoint = read_checkpoint(run / LAST)
    assert checkpoint.progress["rollbacks"] == 1
    assert all(bool(weight.isfinite().all()) for weight in checkpoint.weights.values())


@pytest.fixture
def diverging_at_8(before_update):
    """No update of step 8's weights is finite before the third rollback."""

    def diverge(trainer):
        if trainer.state.rollbacks < 3:
            raise DivergenceError("update 9: diverged")

    before_update(8, diverge, times=math.inf)


@pytest.mark.usefixtures("diverging_at_8")
def test_rollback_goes_further_back_where_the_run_came_no_further(tmp_path, config_of):
    """Of the discarded stretch no numbered checkpoint is left either."""
    run = tmp_path / "run"
    train = {"on_divergence": "rollback", "save_every": 2, "max_steps": 11}
    assert start_run(config_of(train=train), run).step == 11
    back = [row["step"] for row in rows(run) if row["split"] == "rollback"]
    assert back == [6, 8]  # the first, to step 8, was among the rows that the second discarded
    numbered = sorted(path.stem for path in (run / "checkpoints").glob("step-*"))
    assert numbered == ["step-00000006", "step-00000008", "step-00000010"]


@pytest.mark.usefixtures("diverging_at_8")
def test_the_best_checkpoint_is_what_is_reported_although_a_rollback_undid_it(tmp_path, config_of):
    """The run returns from update 8, the best, to 5, twice; the later scores, at lower rates, are worse."""
    run = tmp_path / "run"
    outcome = start_run(config_of(train={"on_divergence": "rollback"}), run)
    model, logged = load(run), rows(run)
    scores = {"best_nats": outcome.best_nats, "best_step": outcome.best_step}
    assert scores == {"best_nats": model.evaluate(model.split("valid")).nats_per_char, "best_step": 8}
    assert model.progress["step"] == 8
    back = [row for row in logged if row["split"] == "rollback"]
    assert [(row["step"], {name: row[name] for name in scores}) for row in back] == [(5, scores)] * 2
    later = [row for row in logged if row["split"] == "valid" and row["step"] > 5]
    assert [row["step"] for row in later] == [8, 12]
    assert min(row["nats"] for row in later) > outcome.best_nats
    assert describe_run(run).best_nats == outcome.best_nats
    assert data_of(report_page([read_run(run)]))["runs"][0]["scores"]["best_nats"] == outcome.best_nats


@pytest.mark.usefixtures("diverging_at_8")
def test_rollback_gives_up(tmp_path, config_of):
    """Without an older checkpoint, or after as many rollbacks as are allowed, also over a resumption."""
    train = {"on_divergence": "rollback", "save_every": 0, "eval_every": 8}
    with pytest.raises(DivergenceError):
        start_run(config_of(train=train), tmp_path / "first")

    run, train = tmp_path / "run", {"on_divergence": "rollback", "max_rollbacks": 2, "save_every": 2}
    with pytest.raises(DivergenceError):
        start_run(config_of(train=train), run)
    assert read_checkpoint(run / LAST).progress["rollbacks"] == 2
    with pytest.raises(DivergenceError, match="; rolled back 2 times before; "):
        resume_run(run, lambda _: config_of(train={**train, "max_rollbacks": 1}))
