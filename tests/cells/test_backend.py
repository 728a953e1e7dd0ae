"""The backend that computes a layer, and the line that says which it is and why."""

from typing import Any

import pytest
import torch

from charlm.cells import CELLS
from charlm.layers import RecurrentLayers, select_backends, stack, torch_operator
from charlm.layers.backend import select
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
    layers = case.start(3, 4, **options)
    assert layers.select_backend("cpu").description == f"{case.kind}: fused CPU kernel"
    with torch.autocast("cpu", torch.bfloat16):
        assert layers.select_backend("cpu").description == f"{case.kind}: fused CPU kernel"


@pytest.mark.usefixtures("no_kernels")
@pytest.mark.parametrize(("kind", "options", "line"), WITHOUT_KERNEL)
def test_line_without_a_kernel(kind: str, options: dict[str, Any], line: str) -> None:
    expected = line.format("no fused CPU kernel: switched off by this test")
    assert Case(kind).start(3, 4, **options).select_backend("cpu").description == expected


def test_line_where_the_kernel_lacks_the_precision() -> None:
    layers = Case("rhn").start(3, 4)
    with torch.autocast("cpu", torch.float16):
        line = "rhn: reference loop; no fused CPU kernel: it multiplies in float32 or bfloat16 only"
        assert layers.select_backend("cpu").description == line
    line = "rhn: reference loop; no fused CPU kernel: it needs float32 parameters on the CPU"
    assert layers.double().select_backend("cpu").description == line


def other(kind: str, training: bool = True, **options: Any) -> str:
    """The line of what runs where the kernel cannot."""
    return without_kernel(Case(kind).start(3, 4, **options), training)


def without_kernel(layers: RecurrentLayers, training: bool = True) -> str:
    backends = [backend for backend in layers.backends(CPU) if backend.name != "fused CPU kernel"]
    return select(layers.kind, backends, CPU, training).description


def test_evaluation_needs_no_mask_of_the_state() -> None:
    assert other("gru", training=False, state_dropout=0.5) == "gru: fused torch layer (ATen)"


def test_evaluation_has_zoneout() -> None:
    assert other("gru", training=False, zoneout=0.5) == "gru: reference loop; no fused torch layer: it lacks zoneout"


def test_lstm_in_double_precision_is_not_for_onednn() -> None:
    line = without_kernel(Case("lstm").start(3, 4).double())
    assert line == "lstm: fused torch layer (ATen)"


def test_cuda_is_for_cudnn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "is_available", lambda: True)
    layers = Case("lstm").start(3, 4)
    assert layers.select_backend("cuda").description == "lstm: fused torch layer (cuDNN)"
    with torch.backends.cudnn.flags(enabled=False):
        assert layers.select_backend("cuda").description == "lstm: fused torch layer (ATen)"


def test_cuda_with_resets_is_for_the_loop_that_takes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "is_available", lambda: True)
    for kind in CELLS:
        selection = Case(kind).start(3, 4).select_backend("cuda", resets=True)
        assert (selection.backend.name, selection.passed_over) == ("loop with its own backward pass", {})


@onednn
@pytest.mark.parametrize("supported", [False, True])
def test_lstm_shuns_onednn_where_it_lacks_bfloat16(supported: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_operator, "onednn_supports", lambda dtype: supported)
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
        assert "fused CPU kernel" in selection.passed_over
        assert selection.description == Case(kind).start(3, 4).select_backend("cpu").description


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

    def recorded(words: str, owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def layer(*args: Any) -> Any:
            ran.append(words)
            return original(*args)

        monkeypatch.setattr(owner, name, layer)

    recorded("fused CPU kernel", stack, "driven_layer")
    recorded("reference loop", stack, "reference_layer")
    recorded("fused torch layer", torch_operator.TorchOperator, "layer")
    layers = case.start(3, 4, **options).train(training)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        line = layers.select_backend("cpu", training=training).description
        layers(torch.zeros(2, 1, 3))
    assert len(ran) == 1
    assert line.startswith(f"{case.kind}: {ran[0]}")
