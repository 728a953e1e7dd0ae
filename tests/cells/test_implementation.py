"""The line that says what runs, and that it is what runs."""

from typing import Any

import pytest
import torch

import charlm.cells.lstm
from charlm.cells import CELLS, RecurrentBase
from charlm.cells.torch_base import TorchRecurrentBase

from .measure import Case

CPU = torch.device("cpu")
onednn = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch has no oneDNN here")

WITHOUT_KERNEL = [
    ("rnn", {}, "rnn: torch's fused layer (ATen)"),
    ("gru", {"dropout": 0.5, "weight_dropout": 0.5}, "gru: torch's fused layer (ATen)"),
    pytest.param("lstm", {}, "lstm: torch's fused layer (oneDNN)", marks=onednn),
    ("lstm", {"layer_norm": True}, "lstm: reference loop (layer_norm has no fused layer)"),
    ("gru", {"state_dropout": 0.5}, "gru: reference loop (state_dropout has no fused layer)"),
    ("gru", {"zoneout": 0.5}, "gru: reference loop (zoneout has no fused layer)"),
    ("rhn", {}, "rhn: reference loop"),
]

OPTIONS = [{}, {"state_dropout": 0.5}, {"weight_dropout": 0.5}, {"zoneout": 0.5}]


@pytest.mark.usefixtures("needs_kernels")
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_line_with_a_kernel(case: Case, options: dict[str, float]) -> None:
    stack = CELLS[case.kind](3, 4, **case.options, **options)
    assert stack.implementation("cpu") == f"{case.kind}: fused CPU kernel"
    with torch.autocast("cpu", torch.bfloat16):
        assert stack.implementation("cpu") == f"{case.kind}: fused CPU kernel"


@pytest.mark.usefixtures("no_kernels")
@pytest.mark.parametrize(("kind", "options", "line"), WITHOUT_KERNEL)
def test_line_without_a_kernel(kind: str, options: dict[str, Any], line: str) -> None:
    expected = f"{line}; no fused CPU kernel: switched off by this test"
    assert CELLS[kind](3, 4, **options).implementation("cpu") == expected


def test_line_where_the_kernel_lacks_the_precision() -> None:
    stack = CELLS["rhn"](3, 4)
    with torch.autocast("cpu", torch.float16):
        line = "rhn: reference loop; no fused CPU kernel: it takes products in float32 or bfloat16"
        assert stack.implementation("cpu") == line
    assert (
        stack.double().implementation("cpu")
        == "rhn: reference loop; no fused CPU kernel: it computes in float32 on the CPU"
    )


def other(kind: str, device: torch.device = CPU, training: bool = True, **options: Any) -> str:
    """The line of what runs where the kernel cannot."""
    return CELLS[kind](3, 4, **options).choose_other(device, training).description


def test_evaluation_needs_no_mask_of_the_state() -> None:
    assert other("gru", training=False, state_dropout=0.5) == "gru: torch's fused layer (ATen)"


def test_evaluation_has_zoneout() -> None:
    assert other("gru", training=False, zoneout=0.5) == "gru: reference loop (zoneout has no fused layer)"


def test_lstm_in_double_precision_is_not_for_onednn() -> None:
    line = CELLS["lstm"](3, 4).double().choose_other(CPU, training=True).description
    assert line == "lstm: torch's fused layer (ATen)"


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
    with torch.autocast("cpu", torch.bfloat16):
        assert other("lstm") == (fused if supported else reference)
    assert other("lstm") == fused


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("kernels", [False, True])
def test_the_line_says_what_runs(
    case: Case,
    training: bool,
    options: dict[str, float],
    autocast: bool,
    kernels: bool,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    request.getfixturevalue("needs_kernels" if kernels else "no_kernels")
    ran = []

    def recorded(owner: type[RecurrentBase], name: str) -> None:
        original = getattr(owner, name)

        def layer(*args: Any) -> Any:
            ran.append(name)
            return original(*args)

        monkeypatch.setattr(owner, name, layer)

    recorded(CELLS[case.kind], "kernel_layer")
    recorded(CELLS[case.kind], "reference_layer")
    recorded(TorchRecurrentBase, "fused_layer")
    stack = CELLS[case.kind](3, 4, **case.options, **options).train(training)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        line = stack.implementation("cpu", training=training)
        stack(torch.zeros(2, 1, 3))
    says = {": fused CPU kernel": "kernel_layer", "reference loop": "reference_layer", "torch's": "fused_layer"}
    assert ran == [next(name for words, name in says.items() if words in line)]
