"""One update after another: truncated backpropagation, state, limits, divergence, and what is restored."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from charlm.config.optimizers import OPTIMIZERS
from charlm.errors import CheckpointError, DivergenceError
from charlm.training.snapshot import restore_snapshot, take_snapshot
from tests.pairwise import pairwise
from tests.runs import row_of


@pytest.mark.parametrize(("kind", "scores", "scored"), [("lstm", "sum", 200), ("rhn", "last", 1), ("sru", "sum", 200)])
def test_updates_are_truncated_backpropagation_with_carried_state(trainer_of, kind, scores, scored):
    """Against a loop written out: contiguous streams, summed loss, clip, SGD, detached state, reset by epoch."""
    options = {"model": {"cell": {"kind": kind, "hidden": 6}}, "train": {"bptt": 200, "loss": scores}}
    trainer, model = trainer_of(**options), trainer_of(**options).model
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
        loss = F.cross_entropy(logits.permute(0, 2, 1), y, reduction="none")[-scored:].sum(0).mean()
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
        assert row["nats"] == pytest.approx(loss.item() / scored, rel=1e-5)
        assert row["chars"] == 800 * (step + 1)
        assert row["grad_norm"] == pytest.approx(norm.item(), rel=1e-4)
    assert trainer.state.epoch == 5 // windows
    for (name, a), b in zip(trainer.model.named_parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, msg=name)


def test_the_loss_of_the_last_step_of_records(trainer_of):
    """Of a window that may end within a record: the mean over streams of the last character's nats."""
    trainer = trainer_of(records="\n", train={"bptt": 50, "loss": "last"})
    x_TB, y_TB = trainer.streams.read(0, 50)
    expected = F.cross_entropy(trainer.model(x_TB)[0][-1], y_TB[-1]).item()
    trainer.update()
    assert row_of(trainer)["nats"] == row_of(trainer)["loss"] == pytest.approx(expected, rel=1e-5)
    assert (x_TB == trainer.model.reset_id).any()


def test_a_new_model_knows_how_frequent_each_character_is(trainer_of):
    """With features of no weight, it scores their entropy, and little more: it gives a tenth to all alike."""
    trainer = trainer_of(model={"members": 2}, optimizer={"lr": 1e-9})
    for name, parameter in trainer.model.named_parameters():
        if name.endswith("decoder.weight"):
            parameter.data.zero_()
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


def test_share_done_is_that_of_the_nearest_limit(trainer_of):
    trainer = trainer_of(train={"max_steps": 1000, "max_epochs": 0.5})
    trainer.update()
    assert trainer.share_done() == pytest.approx(1 / 67 / 0.5)


@pytest.mark.usefixtures("no_kernels")
@pytest.mark.parametrize("learned_start", [False, True])
def test_reset_state_begins_a_share_of_the_streams_again(trainer_of, learned_start):
    """All states of a stream are reset together."""
    trainer = trainer_of(train={"reset_state": 0.25}, model={"learned_start": learned_start})
    window_loss, begins = trainer.model.window_loss, []

    def watched(x_TB, y_TB, state, **penalties):
        if state is not None:
            initial = trainer.model.initial_state(4)
            assert initial[0].any() == learned_start
            h_begins_B, c_begins_B = ((part == start).all(-1)[0] for part, start in zip(state, initial, strict=True))
            assert torch.equal(h_begins_B, c_begins_B)
            begins.append(h_begins_B)
        return window_loss(x_TB, y_TB, state, **penalties)

    trainer.model.window_loss = watched
    for _ in range(60):
        trainer.update()
    assert 0.15 <= torch.cat(begins).float().mean() <= 0.35


@pytest.mark.usefixtures("no_kernels")
@pytest.mark.parametrize("records", ["", "\n"])
def test_a_learned_start_alone_learns_how_records_begin(trainer_of, records):
    """Where nothing else is trained; without decay, and with a gradient in every window."""
    train = {} if records else {"reset_state": 0.3}
    trainer = trainer_of(train, {"name": "muon", "lr": 0.3}, {"learned_start": True}, records=records)
    assert [*trainer.optimizer.param_groups[1]["names"]].count("layers.start_l0") == 1
    for name, parameter in trainer.model.named_parameters():
        parameter.requires_grad_(name == "layers.start_l0")
    trainer.model.decoder.weight.detach().mul_(10)  # so that a state matters
    x_TB, y_TB = trainer.streams.read(0, 10, trainer.device, 0)

    def loss():
        with torch.no_grad():
            return float(trainer.model.window_loss(x_TB, y_TB, None).cross_entropy)

    first = loss()
    for _ in range(60):
        trainer.update()
    assert loss() < first - 1
    assert trainer.optimizer.state[trainer.model.layers.start_l0]["step"] == 60


SKIPPED_ON_A_GPU = [{"name": "adamw"}, {"name": "adam"}, {"name": "sgd"}]
CHECKED_AT_ONCE = [
    *({"name": name, "momentum": momentum} for name in ("muon", "rmsprop") for momentum in (0.0, 0.9)),
    {"name": "sgd", "momentum": 0.9},
    {"name": "adagrad"},
]


def changing_tensors(trainer):
    snapshot = take_snapshot(trainer)
    groups = {group: getattr(snapshot, group) for group in ("weights", "averaged", "optimizer")}
    return {(group, name): tensor.clone() for group in groups for name, tensor in groups[group].items()}


@pairwise(
    optimizer=[*SKIPPED_ON_A_GPU, *CHECKED_AT_ONCE],
    as_on_gpu=[True, False],
    where=["gradient", "loss"],
    updates=[2, 0],  # after the first one, the average is the weights
    has_kernels=[False, True],
)
def test_divergence_is_found_before_anything_is_spoiled(
    trainer_of, request, optimizer, as_on_gpu, where, updates, has_kernels
):
    """Neither weights nor their average nor optimizer state. As on a GPU, some skip steps until the next look."""
    assert {each["name"] for each in (*SKIPPED_ON_A_GPU, *CHECKED_AT_ONCE)} == {*OPTIMIZERS.classes}
    if not has_kernels:
        request.getfixturevalue("no_kernels")
    trainer = trainer_of(optimizer={"lr": 0.01, **optimizer}, train={"ema": 0.9})
    trainer._reading_waits = as_on_gpu
    for _ in range(updates):
        trainer.update()
    trainer.check_finite()
    before = changing_tensors(trainer)
    compute = trainer._gradients

    def spoiled(*window):
        loss = compute(*window)
        if where == "loss":
            return loss._replace(objective=loss.objective + math.inf)
        trainer.model.decoder.bias.grad *= math.inf
        return loss

    trainer._gradients = spoiled
    skipped = 3 if as_on_gpu and optimizer in SKIPPED_ON_A_GPU else 0
    for _ in range(skipped):
        trainer.update()
    with pytest.raises(DivergenceError):
        (trainer.check_finite if skipped else trainer.update)()
    for name, tensor in changing_tensors(trainer).items():
        assert torch.equal(tensor, before.get(name, torch.zeros_like(tensor))), name  # new optimizer state is 0
    assert trainer.state.step == updates + skipped


def test_the_average_of_the_weights_begins_with_those_after_the_first_update(trainer_of):
    trainer = trainer_of(train={"ema": 0.25}, optimizer={"lr": 1.0})  # the decay rises to it within three updates
    expected = torch.zeros(())
    for n in range(5):
        trainer.update()
        decay = min((1 + n) / (10 + n), 0.25) if n else 0.0
        expected = decay * expected + (1 - decay) * trainer.model.decoder.weight.detach()
        torch.testing.assert_close(trainer.evaluated_model.decoder.weight, expected)


# The trainer's state in a checkpoint


@pytest.mark.parametrize("optimizer", ["adamw", "adam", "sgd", "rmsprop", "adagrad", "muon"])
def test_a_checkpoint_whose_tensors_do_not_fit_is_refused(trainer_of, optimizer):
    """Each tensor in turn that a kernel reads; fused steps would write where it ought to be."""
    momentum = {"momentum": 0.9} if optimizer in ("sgd", "rmsprop") else {}
    model = {"cell": {"kind": "lstm", "hidden": 5}}
    trainer = trainer_of(model=model, optimizer={"name": optimizer, "clip_norm": 1.0, **momentum}, train={"ema": 0.9})
    trainer.update()
    good = take_snapshot(trainer)
    for group in ("weights", "averaged", "optimizer", "carried"):
        tensors = getattr(good, group)
        for name in tensors.keys() - {"objective_sum", "grad_norm"}:
            for unfit in (torch.zeros(*tensors[name].shape, 2), tensors[name].reshape(-1)[:0]):
                assert_refused(trainer, replace(good, **{group: tensors | {name: unfit}}))
            if group in ("weights", "averaged"):
                assert_refused(trainer, replace(good, **{group: tensors | {name: tensors[name].double()}}))
                assert_refused(trainer, replace(good, **{group: tensors | {f"more.{name}": tensors[name]}}))
            if not name.startswith("momentum_buffer") and len(tensors) > 1:
                others = {key: tensors[key] for key in tensors.keys() - {name}}
                assert_refused(trainer, replace(good, **{group: others}))
    restore_snapshot(trainer, good)
    trainer.update()


def assert_refused(trainer, checkpoint):
    with pytest.raises(CheckpointError):
        restore_snapshot(trainer, checkpoint)
