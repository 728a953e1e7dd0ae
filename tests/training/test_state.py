"""The trainer's state in a checkpoint: what is restored and what is refused."""

from dataclasses import replace

import pytest
import torch

from charlm.errors import CheckpointError
from charlm.training.state import restore_snapshot, take_snapshot


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
