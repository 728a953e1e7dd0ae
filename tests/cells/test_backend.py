"""The backend that computes a layer, and the line that says which it is and why."""

from pathlib import Path
from typing import Any

import pytest
import torch

import charlm.cells.lstm
from charlm import cells
from charlm.cells import CELLS, RecurrentBase, select_backends
from charlm.cells.backend import select
from charlm.cells.torch_base import TorchRecurrentBase
from tests.cells.measure import CASES, Case
from tests.pairwise import pairwise

CPU = torch.device("cpu")
onednn = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch has no oneDNN here")

WITHOUT_KERNEL = [
    ("rnn", {}, "rnn: fused torch layer (ATen); {}"),
    ("gru", {"dropout": 0.5, "weight_dropout": 0.5}, "gru: fused torch layer (ATen); {}"),
    pytest.param("lstm", {}, "lstm: fused torch layer (oneDNN); {}", marks=onednn),
    ("lstm", {"layer_norm": True}, "lstm: reference loop; {}; no fused torch layer: it lacks layer_norm"),
    ("gru", {"state_dropout": 0.5}, "gru: reference loop; {}; no fused torch layer: it lacks state_dropout"),
    ("gru", {"zoneout": 0.5}, "gru: reference loop; {}; no fused torch layer: it lacks zoneout"),
    ("rhn", {}, "rhn: reference loop; {}"),
]

OPTIONS = [{}, {"state_dropout": 0.5}, {"weight_dropout": 0.5}, {"zoneout": 0.5}]


@pytest.mark.usefixtures("needs_kernels")
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_line_with_a_kernel(case: Case, options: dict[str, float]) -> None:
    stack = CELLS[case.kind](3, 4, **case.options, **options)
    if stack.cpu_kernel is None:
        pytest.skip(f"{case.kind} has the reference loop only")
    assert stack.select_backend("cpu").description == f"{case.kind}: fused CPU kernel"
    with torch.autocast("cpu", torch.bfloat16):
        assert stack.select_backend("cpu").description == f"{case.kind}: fused CPU kernel"


@pytest.mark.usefixtures("no_kernels")
@pytest.mark.parametrize(("kind", "options", "line"), WITHOUT_KERNEL)
def test_line_without_a_kernel(kind: str, options: dict[str, Any], line: str) -> None:
    expected = line.format("no fused CPU kernel: switched off by this test")
    assert CELLS[kind](3, 4, **options).select_backend("cpu").description == expected


def test_line_where_the_kernel_lacks_the_precision() -> None:
    stack = CELLS["rhn"](3, 4)
    with torch.autocast("cpu", torch.float16):
        line = "rhn: reference loop; no fused CPU kernel: it multiplies in float32 or bfloat16 only"
        assert stack.select_backend("cpu").description == line
    assert (
        stack.double().select_backend("cpu").description
        == "rhn: reference loop; no fused CPU kernel: it needs float32 parameters on the CPU"
    )


def other(kind: str, training: bool = True, **options: Any) -> str:
    """The line of what runs where the kernel cannot."""
    return without_kernel(CELLS[kind](3, 4, **options), training)


def without_kernel(cell: RecurrentBase, training: bool = True) -> str:
    backends = [backend for backend in cell.backends(CPU) if backend.name != "fused CPU kernel"]
    return select(cell.kind, backends, CPU, training).description


def test_evaluation_needs_no_mask_of_the_state() -> None:
    assert other("gru", training=False, state_dropout=0.5) == "gru: fused torch layer (ATen)"


def test_evaluation_has_zoneout() -> None:
    assert other("gru", training=False, zoneout=0.5) == "gru: reference loop; no fused torch layer: it lacks zoneout"


def test_lstm_in_double_precision_is_not_for_onednn() -> None:
    line = without_kernel(CELLS["lstm"](3, 4).double())
    assert line == "lstm: fused torch layer (ATen)"


def test_cuda_is_for_cudnn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "is_available", lambda: True)
    assert CELLS["lstm"](3, 4).select_backend("cuda").description == "lstm: fused torch layer (cuDNN)"
    with torch.backends.cudnn.flags(enabled=False):
        assert CELLS["lstm"](3, 4).select_backend("cuda").description == "lstm: fused torch layer (ATen)"


def test_cuda_with_resets_is_for_the_loop_that_takes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "is_available", lambda: True)
    for kind in CELLS:
        selection = CELLS[kind](3, 4).select_backend("cuda", resets=True)
        assert (selection.backend.name, selection.passed_over) == ("loop with its own backward pass", {})


@onednn
@pytest.mark.parametrize("supported", [False, True])
def test_lstm_shuns_onednn_where_it_lacks_bfloat16(supported: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(charlm.cells.lstm, "onednn_supports", lambda dtype: supported)
    reference = "lstm: reference loop; no fused torch layer: oneDNN lacks bfloat16 on this CPU"
    fused = "lstm: fused torch layer (oneDNN)"
    with torch.autocast("cpu", torch.bfloat16):
        assert other("lstm") == (fused if supported else reference)
    assert other("lstm") == fused


@pytest.mark.usefixtures("no_kernels")
def test_the_backend_of_every_kind_is_known_without_a_model() -> None:
    before = torch.get_rng_state()
    found = select_backends("cpu")
    assert torch.equal(torch.get_rng_state(), before)
    assert list(found) == list(CELLS)
    for kind, selection in found.items():
        assert ("fused CPU kernel" in selection.passed_over) == (CELLS[kind].cpu_kernel is not None)
        assert selection.description == CELLS[kind](3, 4).select_backend("cpu").description


@pairwise(case=CASES, options=OPTIONS, training=[False, True], autocast=[False, True], kernels=[False, True])
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

    recorded(CELLS[case.kind], "driven_layer")
    recorded(CELLS[case.kind], "reference_layer")
    recorded(TorchRecurrentBase, "torch_layer")
    stack = CELLS[case.kind](3, 4, **case.options, **options).train(training)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        line = stack.select_backend("cpu", training=training).description
        stack(torch.zeros(2, 1, 3))
    says = {": fused CPU kernel": "driven_layer", ": reference loop": "reference_layer", ": fused torch": "torch_layer"}
    assert ran == [next(name for words, name in says.items() if words in line)]


@pytest.mark.usefixtures("needs_kernels")
@pytest.mark.parametrize("kind", CELLS)
def test_the_kernel_of_a_kind_has_its_gates_and_compiles(kind: str) -> None:
    kernel = CELLS[kind].cpu_kernel
    if kernel is None:
        pytest.skip(f"{kind} has the reference loop only")
    assert (kernel.folder / "gates.h") == Path(cells.__file__).parent / kind / "gates.h"
    kernel.check()
