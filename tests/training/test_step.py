"""One update after another: truncated backpropagation, state, limits, divergence."""

import math

import pytest
import torch
import torch.nn.functional as F

from charlm.cells import CELLS
from charlm.errors import DataError, DivergenceError
from charlm.native.kernels import UPDATE
from tests.runs import row_of

CPU = torch.device("cpu")


@pytest.mark.parametrize("kind", CELLS)
def test_updates_are_truncated_backpropagation_with_carried_state(trainer_of, kind):
    """Against a loop written out: contiguous streams, summed loss, clip, SGD, detached state, reset by epoch."""
    trainer = trainer_of(model={"cell": {"kind": kind, "hidden": 6}}, train={"bptt": 200})
    model = trainer_of(model={"cell": {"kind": kind, "hidden": 6}}, train={"bptt": 200}).model
    x_TB, y_TB = trainer.streams.read(0, trainer.streams.length)
    ids = torch.cat([x_TB, y_TB[-1:]]).T  # [B, S + 1]
    windows, rest = divmod(ids.shape[1] - 1, 200)
    assert rest > 0
    state = None
    for step in range(5):
        epoch, window = divmod(step, windows)
        position = window * 200 + (rest if epoch % 2 else 0)
        if window == 0:
            state = None
        x, y = ids[:, position : position + 200].T, ids[:, position + 1 : position + 201].T
        logits, state = model(x, state)
        state = tuple(s.detach() for s in state)
        loss = F.cross_entropy(logits.permute(0, 2, 1), y, reduction="none").sum(0).mean()
        model.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 2.0)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.05 * parameter.grad
        trainer.update()
        row = row_of(trainer)
        trainer.state.count_row()
        assert row["loss"] == pytest.approx(loss.item(), rel=1e-5)
        assert row["nats"] == pytest.approx(loss.item() / 200, rel=1e-5)
        assert row["grad_norm"] == pytest.approx(norm.item(), rel=1e-4)
    assert trainer.state.epoch == 5 // windows
    for (name, a), b in zip(trainer.model.named_parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, msg=name)


def test_penalties_are_not_part_of_the_loss_that_is_logged(trainer_of):
    plain, penalized = trainer_of(), trainer_of(train={"activation_penalty": 100.0, "change_penalty": 100.0})
    plain.update()
    penalized.update()
    assert row_of(plain)["loss"] == row_of(penalized)["loss"]
    assert row_of(plain)["grad_norm"] < row_of(penalized)["grad_norm"]


def test_a_new_model_knows_how_frequent_each_character_is(trainer_of):
    """With features of no weight, it scores their entropy, and little more: it gives a tenth to all alike."""
    for members in (1, 2):
        trainer = trainer_of(model={"members": members, "init_uniform": 0.1}, optimizer={"lr": 1e-9})
        with torch.no_grad():
            for name, parameter in trainer.model.named_parameters():
                if name.endswith("decoder.weight"):
                    parameter.zero_()
        counts = trainer.streams.read(0, trainer.streams.length)[1].flatten().bincount()
        while trainer.epochs() < 1:
            trainer.update()
        p = counts / counts.sum()
        expected = -(p * (0.9 * p + 0.1 / len(p)).log()).sum().item()
        assert row_of(trainer)["nats"] == pytest.approx(expected, rel=1e-3)
        assert expected < 0.98 * math.log(len(p))


def test_every_character_is_trained_on(trainer_of):
    """674 characters of a stream are 67 windows of 10 and 4 over: left out at the end, then at the beginning."""
    trainer = trainer_of()
    read, starts = set(), []
    assert trainer.streams.length % 10 == 4
    while trainer.state.epoch < 3:
        start = trainer.state.position
        assert (trainer.state.recurrent is None) == (trainer.epochs() == trainer.state.epoch)
        if trainer.epochs() == trainer.state.epoch:
            starts.append(start)
        read |= set(range(start, start + 10))
        trainer.update()
    assert starts == [0, 4, 0]
    assert read == set(range(trainer.streams.length))


@pytest.mark.parametrize(
    ("limits", "share"),
    [
        ({"max_steps": 20}, 5 / 20),
        ({"max_steps": None, "max_epochs": 2}, 5 / 67 / 2),
        ({"max_steps": 1000, "max_epochs": 0.5}, 5 / 67 / 0.5),
    ],
)
def test_share_done_is_that_of_the_nearest_limit(trainer_of, limits, share):
    trainer = trainer_of(train=limits)
    for _ in range(5):
        trainer.update()
    assert trainer.share_done() == pytest.approx(share)
    trainer.state.step, trainer.state.epoch = 2000, 3  # a limit lowered on resumption
    assert trainer.share_done() == 1


def test_schedule_by_minutes_follows_the_clock(trainer_of):
    trainer = trainer_of(
        train={"max_steps": None, "max_minutes": 2},
        optimizer={"schedule": {"name": "linear", "final_fraction": 0}},
    )

    def stand(elapsed_s, starting_s=0.0, ending_s=0.0):
        trainer.state.elapsed_s, trainer.state.starting_s, trainer.state.ending_s = elapsed_s, starting_s, ending_s
        trainer.budget.begin(trainer.state, valid_chars=0)

    stand(90.0)
    assert trainer.learning_rate() == pytest.approx(0.05 / 4)
    stand(90.0, 90.0)
    assert trainer.learning_rate() == pytest.approx(0.05)
    stand(100.0, 90.0, 10.0)
    assert trainer.learning_rate() == pytest.approx(0.05 / 2)
    stand(110.0, 90.0, 10.0)
    assert trainer.budget.share_done() >= 1
    stand(45.0, 20.0, 1000.0)  # at most half of the minutes after the start are kept for the end
    assert trainer.budget.share_done() == 0.5


def test_reset_state_begins_streams_again(trainer_of):
    """At 1 every window starts from zero, at 0 none does; all states of a stream are reset together."""
    always, never, some = (trainer_of(train={"reset_state": p}) for p in (1.0, 0.0, 0.5))
    for trainer in (always, never, some):
        trainer.update()
    assert all((state == 0).all() for state in always._carried_state())
    assert all(a is b for a, b in zip(never._carried_state(), never.state.recurrent, strict=True))
    carried = [some._carried_state() for _ in range(100)]
    h_zeroed, c_zeroed = (torch.stack([(states[number] == 0).all(-1)[0] for states in carried]) for number in (0, 1))
    assert torch.equal(h_zeroed, c_zeroed)
    assert 0.4 < h_zeroed.float().mean() < 0.6
    lines = trainer_of(train={"reset_state": 1.0}, unit="line")
    lines.update()
    assert lines._carried_state() is lines.state.recurrent  # every line starts from zero anyway


@pytest.mark.parametrize("deferred", [False, True])
@pytest.mark.parametrize("name", ["adamw", "adam", "sgd", "rmsprop", "adagrad", "muon"])
def test_divergence_is_found_before_the_weights_are_spoiled(trainer_of, name, deferred):
    """Without waiting for the device, as with CUDA, the step is made harmless, and the next look reports it."""
    trainer = trainer_of(optimizer={"name": name, "lr": 0.01})
    trainer._defers_checks = deferred
    trainer.update()
    trainer.check_finite()
    with torch.no_grad():
        trainer.model.decoder.bias[0] = math.inf
    before = {key: p.detach().clone() for key, p in trainer.model.named_parameters()}
    message = "a loss or gradient that is not finite" if deferred else "loss nan, gradient norm nan; allowed: finite"
    if deferred:
        for _ in range(3):
            trainer.update()
    with pytest.raises(DivergenceError, match=rf"^update 2: found {message}"):
        (trainer.check_finite if deferred else trainer.update)()
    for key, parameter in trainer.model.named_parameters():
        if not deferred or name in ("adamw", "adam", "sgd"):
            assert torch.equal(parameter, before[key]), key
        assert parameter[torch.isfinite(before[key])].isfinite().all(), key
    assert trainer.state.step == (4 if deferred else 1)


def test_deferred_checks_change_nothing_else(trainer_of):
    plain, deferred = (trainer_of(optimizer={"name": "adamw", "lr": 0.01}) for _ in range(2))
    deferred._defers_checks = True
    for _ in range(3):
        plain.update()
        deferred.update()
    deferred.check_finite()
    assert torch.equal(plain.model.decoder.weight, deferred.model.decoder.weight)


def test_average_of_the_weights(trainer_of):
    trainer = trainer_of(train={"ema": 0.25})  # the decay rises to it within three updates
    expected = None
    for n in range(6):
        trainer.update()
        weight = trainer.model.decoder.weight.detach().clone()
        keep = min((1 + n) / (10 + n), 0.25)
        expected = weight if expected is None else keep * expected + (1 - keep) * weight
    assert trainer.evaluated_model is not trainer.model
    torch.testing.assert_close(trainer.evaluated_model.decoder.weight, expected)
    assert trainer_of().evaluated_model.decoder.weight.shape == expected.shape


@pytest.mark.usefixtures("needs_kernels")
@pytest.mark.parametrize("name", ["adamw", "adam", "muon"])
def test_updates_by_the_kernel_are_torchs(trainer_of, name, monkeypatch):
    """With clipping, decay and a running average."""
    options = {"name": name, "lr": 0.01, "clip_norm": 0.5, "weight_decay": 0.1}
    by_kernel, by_torch = (trainer_of(train={"ema": 0.5}, optimizer=options) for _ in range(2))
    for _ in range(4):
        by_kernel.update()
    monkeypatch.setattr(UPDATE, "works", lambda: False)
    for _ in range(4):
        by_torch.update()
    assert row_of(by_kernel)["grad_norm"] == pytest.approx(row_of(by_torch)["grad_norm"], rel=1e-4)
    for one, other in zip(by_kernel.parameters, by_torch.parameters, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    ours, theirs = by_kernel.evaluated_model, by_torch.evaluated_model
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    assert not torch.equal(by_kernel.model.decoder.weight, by_torch.model.decoder.weight)


def test_bf16_keeps_weights_and_state_in_fp32(trainer_of):
    trainer = trainer_of(precision="bf16")
    for _ in range(3):
        trainer.update()
    assert all(part.dtype == torch.float32 for part in trainer.state.recurrent)
    assert all(p.dtype == torch.float32 for p in trainer.parameters)
    exact = trainer_of()
    for _ in range(3):
        exact.update()
    got, wanted = row_of(trainer)["nats"], row_of(exact)["nats"]
    assert got != wanted
    assert got == pytest.approx(wanted, rel=0.02)


def test_same_seed_same_weights_other_seed_others(trainer_of):
    first, second, other = trainer_of(), trainer_of(), trainer_of(seed=2)
    for trainer in (first, second, other):
        trainer.update()
    assert torch.equal(first.model.decoder.weight, second.model.decoder.weight)
    assert not torch.equal(first.model.decoder.weight, other.model.decoder.weight)


def test_a_split_too_small_names_the_numbers(trainer_of):
    with pytest.raises(DataError, match=r"train split: 2,700 characters; 40 streams of 100 steps need at least 4,001"):
        trainer_of(train={"batch_size": 40, "bptt": 100})
