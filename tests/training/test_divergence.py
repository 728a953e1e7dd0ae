"""A loss that is not finite stops the run or rolls it back."""

import math

import pytest
import torch

from charlm.checkpoint import read_checkpoint
from charlm.errors import DivergenceError
from charlm.training.start import resume_run, start_run
from charlm.training.step import Trainer
from tests.runs import rows


def test_divergence_names_the_last_good_checkpoint(tmp_path, config_of):
    config = config_of(
        model={"cell": {"kind": "rnn", "nonlinearity": "relu"}},
        train={"max_steps": 500, "save_every": 1},
        optimizer={"name": "sgd", "lr": 10.0},
    )
    run = tmp_path / "run"
    with pytest.raises(DivergenceError, match=rf"^step \d+: found .*; last good checkpoint: {run}/checkpoints/last"):
        start_run(config, run)
    weights = read_checkpoint(run / "checkpoints/last.safetensors").weights
    assert all(torch.isfinite(tensor).all() for tensor in weights.values())


def test_a_validation_score_that_is_not_finite_stops_too(tmp_path, config_of):
    """Weights may overflow the forward pass while every training step was still finite."""
    config = config_of(
        model={"cell": {"kind": "rnn", "nonlinearity": "relu"}},
        train={"max_steps": 500, "eval_every": 1},
        optimizer={"name": "sgd", "lr": 10.0},
    )
    with pytest.raises(DivergenceError, match=r"^step \d+: found .* nats; allowed: finite"):
        start_run(config, tmp_path / "run")
    assert all(math.isfinite(row["nats"]) for row in rows(tmp_path / "run"))


def test_rollback_goes_on_from_the_last_checkpoint_with_half_the_rate(tmp_path, config_of, monkeypatch, capsys):
    update = Trainer.update
    trained = []

    def diverge_once(trainer):
        if trainer.state.step == 8 and trainer.state.rollbacks == 0:
            with torch.no_grad():
                trainer.model.decoder.weight[0] = math.nan
        update(trainer)
        trained.append((trainer.state.step, trainer.state.lr))

    monkeypatch.setattr(Trainer, "update", diverge_once)
    run = tmp_path / "run"
    outcome = start_run(config_of(train={"on_divergence": "rollback"}), run)
    assert outcome.step == 12
    assert trained == [(step, 3e-3) for step in range(1, 9)] + [(step, 1.5e-3) for step in range(9, 13)]
    assert "back to step 8, learning rate × 0.5 from now on" in capsys.readouterr().err
    found = rows(run)
    assert [(row["step"], row["split"]) for row in found] == [
        *[(3, "train"), (4, "valid"), (6, "train"), (8, "valid"), (8, "rollback"), (9, "train"), (12, "train")],
        (12, "valid"),
    ]
    assert (found[4]["diverged_step"], found[4]["lr_factor"]) == (8, 0.5)
    assert found[4]["fault"].startswith("step 9: found loss nan")
    checkpoint = read_checkpoint(run / "checkpoints/last.safetensors")
    assert checkpoint.progress["rollbacks"] == 1
    assert all(bool(weight.isfinite().all()) for weight in checkpoint.weights.values())


def test_optimizer_state_that_overflows_is_not_saved(tmp_path, config_of, monkeypatch):
    """The square of a finite gradient may be infinite: its weight would never change again."""
    update = Trainer.update

    def overflow(trainer):
        update(trainer)
        if trainer.state.step == 7:
            trainer.optimizer.state[trainer.model.decoder.bias]["exp_avg_sq"][0] = math.inf

    monkeypatch.setattr(Trainer, "update", overflow)
    run = tmp_path / "run"
    with pytest.raises(DivergenceError, match=r"^step \d+: found optimizer state that is not finite; allowed"):
        start_run(config_of(), run)
    assert read_checkpoint(run / "checkpoints/last.safetensors").progress["step"] < 7


@pytest.fixture
def diverging_at_8(monkeypatch):
    """No update of step 8's weights is finite before the third rollback."""
    update = Trainer.update

    def diverge(trainer):
        if trainer.state.step == 8 and trainer.state.rollbacks < 3:
            raise DivergenceError("step 9: diverged")
        update(trainer)

    monkeypatch.setattr(Trainer, "update", diverge)


@pytest.mark.usefixtures("diverging_at_8")
def test_rollback_goes_further_back_where_the_run_came_no_further(tmp_path, config_of):
    """Of the discarded stretch no numbered checkpoint is left either."""
    run = tmp_path / "run"
    train = {"on_divergence": "rollback", "save_every": 2, "max_steps": 11}
    assert start_run(config_of(train=train), run).step == 11
    back = [row["step"] for row in rows(run) if row["split"] == "rollback"]
    assert back == [6, 8]  # the first, to step 8, was among the rows that the second discarded
    numbered = sorted(path.name for path in (run / "checkpoints").glob("step-*"))
    assert numbered == [f"step-{step:08}.safetensors" for step in (6, 8, 10)]


@pytest.mark.usefixtures("diverging_at_8")
def test_rollback_without_an_older_checkpoint_says_so(tmp_path, config_of):
    train = {"on_divergence": "rollback", "save_every": 0, "eval_every": 8}
    with pytest.raises(DivergenceError) as caught:
        start_run(config_of(train=train), tmp_path / "run")
    assert "; rolled back 1 time before; there is no checkpoint before step 8; last good" in str(caught.value)


@pytest.mark.usefixtures("diverging_at_8")
def test_rollbacks_have_no_more_chances_than_a_resumption_leaves_them(tmp_path, config_of):
    run = tmp_path / "run"
    train = {"on_divergence": "rollback", "max_rollbacks": 2, "save_every": 2}
    with pytest.raises(DivergenceError, match="rolled back 2 times before; last good"):
        start_run(config_of(train=train), run)
    with pytest.raises(DivergenceError, match="rolled back 2 times before; last good"):
        resume_run(run, lambda _: config_of(train={**train, "max_rollbacks": 1}))


def test_rollback_gives_up(tmp_path, config_of):
    config = config_of(train={"on_divergence": "rollback", "max_rollbacks": 2}, optimizer={"name": "sgd", "lr": 1e30})
    with pytest.raises(DivergenceError) as caught:
        start_run(config, tmp_path / "run")
    last = tmp_path / "run/checkpoints/last.safetensors"
    assert str(caught.value).endswith(f"; rolled back 2 times before; last good checkpoint: {last}")
    assert read_checkpoint(last).progress["rollbacks"] == 2
    assert [row["split"] for row in rows(tmp_path / "run")] == ["rollback", "rollback"]
