"""The trainer's state in a checkpoint: what is restored and what is refused."""

import itertools
from dataclasses import replace

import pytest
import torch

from charlm.errors import CheckpointError
from charlm.training.state import restore_snapshot, take_snapshot

UNFIT = {
    "longer": lambda tensor: torch.zeros(*tensor.shape, 2, dtype=tensor.dtype),
    "empty": lambda tensor: tensor.reshape(-1)[:0],
    "missing": lambda tensor: None,
}


@pytest.mark.parametrize("optimizer", ["adamw", "adam", "sgd", "rmsprop", "adagrad", "muon"])
def test_a_checkpoint_whose_tensors_do_not_fit_is_refused(trainer_of, optimizer):
    """Each tensor in turn that a kernel reads; fused steps would write where it ought to be."""
    momentum = {"momentum": 0.9} if optimizer in ("sgd", "rmsprop") else {}
    model = {"cell": {"kind": "lstm", "hidden": 5}}
    trainer = trainer_of(model=model, optimizer={"name": optimizer, "clip_norm": 1.0, **momentum}, train={"ema": 0.9})
    trainer.update()
    good = take_snapshot(trainer)
    restore_snapshot(trainer, good)
    for group, fault in itertools.product(("weights", "averaged", "optimizer", "carried"), UNFIT):
        tensors = getattr(good, group)
        for name, tensor in tensors.items():
            if name in ("objective_sum", "grad_norm") and fault != "missing":
                continue
            if fault == "missing" and (len(tensors) == 1 or name.startswith("momentum_buffer")):
                continue  # a momentum that is missing starts from zero
            changed = {**tensors, name: UNFIT[fault](tensor)}
            bad = {key: value for key, value in changed.items() if value is not None}
            with pytest.raises(CheckpointError, match=r"use another|use a checkpoint of"):
                restore_snapshot(trainer, replace(good, **{group: bad}))
    restore_snapshot(trainer, good)
    trainer.update()


@pytest.mark.parametrize("optimizer", ["sgd", "rmsprop"])
def test_a_momentum_that_comes_with_resumption_starts_from_zero(trainer_of, optimizer):
    before, after = (trainer_of(optimizer={"name": optimizer, "momentum": m}) for m in (0.0, 0.9))
    before.update()
    restore_snapshot(after, take_snapshot(before))
    for trainer in (before, after):
        trainer.update()
    torch.testing.assert_close(before.model.decoder.weight, after.model.decoder.weight)
    buffers = [after.optimizer.state[parameter]["momentum_buffer"] for parameter in after.parameters]
    assert all(bool(buffer.any()) for buffer in buffers)
