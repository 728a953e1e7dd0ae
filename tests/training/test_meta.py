"""Whole updates on the meta device, whose tensors have no values.

They take the way of every device that is not the CPU. Whatever would wait for a GPU, such as reading a number, raises.
"""

import contextlib
import math
import sys
from unittest import mock

import pytest
import torch

from tests.pairwise import pairwise

META = torch.device("meta")
PLACES = {"embedding": 0.1, "input": 0.1, "between_layers": 0.1, "output": 0.1}
MODELS = [
    {},
    {"layers": 2, "dropout": {**PLACES, "state": 0.1, "weights": 0.1}, "zoneout": 0.1},
    {"layers": 2, "embedding": 5, "residual": True, "learned_start": True},
]


@pytest.fixture(autouse=True)
def autocast(monkeypatch):
    """Autocast as on a GPU: `torch.autocast` switches it off on machines without one."""

    @contextlib.contextmanager
    def autocast(device, precision):
        torch.set_autocast_enabled("cuda", precision == "bf16")
        torch.set_autocast_dtype("cuda", torch.bfloat16)
        try:
            yield
        finally:
            torch.set_autocast_enabled("cuda", False)

    monkeypatch.setattr("charlm.model.network.autocast", autocast)
    pytest.importorskip("triton")
    monkeypatch.setattr("charlm.gpu.kernels.compiled", mock.MagicMock())  # nothing is launched
    monkeypatch.setattr("charlm.layers.selection.fault_on_device", lambda *loop: None)
    monkeypatch.setattr("charlm.training.machine.load", lambda *kernels: None)  # those of the CPU
    # Adam's fused step has a form for this device; the list of devices that have one leaves it out.
    optimizer = sys.modules["torch.optim.optimizer"]
    monkeypatch.setattr(optimizer, "_get_fused_kernels_supported_devices", lambda: ["cpu", "cuda", "meta"])


@pairwise(
    kind=["lstm", "rhn", "sru", "mingru"],
    model=MODELS,
    name=["adamw", "adam", "rmsprop", "muon"],  # torch has no fused step of SGD for this device
    precision=["fp32", "bf16"],
    train=[{}, {"ema": 0.9, "reset_state": 0.1}, {"activation_penalty": 0.1, "change_penalty": 0.1}],
    records=["", "\n"],  # records run in the loop that takes resets
)
def test_updates(trainer_of, monkeypatch, kind, model, name, precision, train, records):
    trainer = trainer_of(
        on="meta",
        records=records,
        precision=precision,
        model={"cell": {"kind": kind, "hidden": 12}, **model},
        optimizer={"name": name, "lr": 0.01},
        train={"bptt": 3, **train},
    )
    if name in ("rmsprop", "muon"):  # they wait for the check for finite numbers, and for nothing else
        monkeypatch.setattr("charlm.training.step.math", mock.Mock(inf=math.inf, isfinite=lambda number: True))
    trainer.update()
    trainer.update()
    assert {parameter.device for parameter in trainer.parameters} == {META}
