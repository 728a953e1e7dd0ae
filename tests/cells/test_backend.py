"""The backend that computes a layer, and the line that says which it is and why."""

from typing import Any

import pytest
import torch

from charlm.cells import CELLS
from charlm.layers import select_backend
from tests.cells.measure import Case

NO_KERNEL = "; no fused CPU kernel: switched off by CHARLM_KERNELS"
LACKS = f"reference loop{NO_KERNEL}; no fused torch layer: it lacks"

LINES = [
    ("gru", {"between_layers": 0.5, "weights": 0.5}, True, f"fused torch layer (ATen){NO_KERNEL}"),
    ("lstm", {"layer_norm": True}, True, f"{LACKS} layer_norm"),
    ("gru", {"state": 0.5}, True, f"{LACKS} dropout.state"),
    ("gru", {"state": 0.5}, False, f"fused torch layer (ATen){NO_KERNEL}"),  # evaluation needs no mask
    ("rhn", {}, True, f"reference loop{NO_KERNEL}"),
]


@pytest.mark.usefixtures("no_kernels")
@pytest.mark.parametrize(("kind", "options", "training", "line"), LINES)
def test_lines_without_a_kernel(kind: str, options: dict[str, Any], training: bool, line: str) -> None:
    selection = Case(kind).start(3, 4, **options).select_backend("cpu", training)
    assert selection.description == f"{kind}: {line}"


@pytest.mark.usefixtures("needs_kernels")
def test_lines_with_a_kernel() -> None:
    for kind in CELLS:
        assert Case(kind).start(3, 4, zoneout=0.1).select_backend("cpu").description == f"{kind}: fused CPU kernel"
    layers = Case("rhn").start(3, 4)
    with torch.autocast("cpu", torch.float16):
        line = "rhn: reference loop; no fused CPU kernel: it multiplies in float32 or bfloat16 only"
        assert layers.select_backend("cpu").description == line
    line = "rhn: reference loop; no fused CPU kernel: it needs float32 parameters on the CPU"
    assert layers.double().select_backend("cpu").description == line


def test_lines_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "is_available", lambda: True)
    assert Case("lstm").start(3, 4).select_backend("cuda").description == "lstm: fused torch layer (cuDNN)"
    for kind in CELLS:  # cuDNN takes no resets
        selection = Case(kind).start(3, 4).select_backend("cuda", resets=True)
        assert (selection.backend.name, selection.passed_over) == ("loop with its own backward pass", {})


@pytest.mark.usefixtures("no_kernels")
def test_the_backend_of_every_kind_is_known_without_a_model() -> None:
    for kind in CELLS:
        assert select_backend(kind, "cpu").description == Case(kind).start(3, 4).select_backend("cpu").description


@pytest.mark.parametrize("kernels", ["needs_kernels", "no_kernels"])
def test_layers_run_what_the_line_says(kernels: str, request: pytest.FixtureRequest) -> None:
    """Two backends seldom round alike."""
    request.getfixturevalue(kernels)
    layers, x = Case("lstm").start(30, 40), torch.randn(20, 3, 30)
    chosen = layers.select_backend("cpu").backend
    assert chosen.name != "reference loop"
    y, _ = layers(x)
    assert torch.equal(y, layers(x, backend=chosen)[0])
    assert not torch.equal(y, layers.forward_reference(x)[0])
