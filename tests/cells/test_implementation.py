"""The line that says what runs, and that it is what runs."""

from typing import Any

import pytest
import torch

import charlm.cells.lstm
from charlm.cells import CELLS, Stack
from charlm.cells.torch_fused import TorchFusedStack

from .measure import Case

onednn = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch has no oneDNN here")

LINES = [
    ("rnn", {}, "rnn: torch's fused layer (ATen)"),
    ("gru", {"dropout": 0.5}, "gru: torch's fused layer (ATen)"),
    pytest.param("lstm", {}, "lstm: torch's fused layer (oneDNN)", marks=onednn),
    ("lstm", {"layer_norm": True}, "lstm: reference loop (layer_norm has no fused layer)"),
    ("gru", {"state_dropout": 0.5}, "gru: reference loop (state_dropout has no fused layer)"),
    ("rhn", {}, "rhn: reference loop"),
]


@pytest.mark.parametrize(("kind", "options", "line"), LINES)
def test_line(kind: str, options: dict[str, Any], line: str) -> None:
    assert CELLS[kind](3, 4, **options).implementation("cpu") == line


def test_evaluation_needs_no_mask_of_the_state() -> None:
    stack = CELLS["gru"](3, 4, state_dropout=0.5)
    assert stack.implementation(torch.device("cpu"), training=False) == "gru: torch's fused layer (ATen)"


def test_lstm_in_double_precision_is_not_for_onednn() -> None:
    assert CELLS["lstm"](3, 4).double().implementation("cpu") == "lstm: torch's fused layer (ATen)"


def test_cuda_is_for_cudnn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "is_available", lambda: True)
    assert CELLS["lstm"](3, 4).implementation("cuda") == "lstm: torch's fused layer (cuDNN)"
    with torch.backends.cudnn.flags(enabled=False):
        assert CELLS["lstm"](3, 4).implementation("cuda") == "lstm: torch's fused layer (ATen)"


@onednn
@pytest.mark.parametrize("supported", [False, True])
def test_lstm_shuns_onednn_where_it_lacks_bfloat16(supported: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(charlm.cells.lstm, "onednn_supports", lambda dtype: supported)
    reference = "lstm: reference loop (this CPU lacks bfloat16 for oneDNN)"
    fused = "lstm: torch's fused layer (oneDNN)"
    stack = CELLS["lstm"](3, 4)
    with torch.autocast("cpu", torch.bfloat16):
        assert stack.implementation("cpu") == (fused if supported else reference)
    assert stack.implementation("cpu") == fused


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("state_dropout", [0.0, 0.5])
@pytest.mark.parametrize("autocast", [False, True])
def test_the_line_says_what_runs(
    case: Case, training: bool, state_dropout: float, autocast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = []

    def recorded(owner: type[Stack], name: str) -> None:
        original = getattr(owner, name)

        def layer(*args: Any) -> Any:
            ran.append(name)
            return original(*args)

        monkeypatch.setattr(owner, name, layer)

    recorded(CELLS[case.kind], "reference_layer")
    recorded(TorchFusedStack, "fused_layer")
    stack = CELLS[case.kind](3, 4, state_dropout=state_dropout, **case.options).train(training)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        line = stack.implementation("cpu", training=training)
        stack(torch.zeros(2, 1, 3))
    assert ran == ["reference_layer" if "reference loop" in line else "fused_layer"]
