"""Characters that kernels generate are those of step after step, for a cell with everything that a program can have."""

from typing import Any

import pytest
import torch

from charlm.layers import Lookup, RecurrentLayers, linear
from tests.export.odd import Odd

V, B, N = 11, 3, 30


@pytest.mark.usefixtures("needs_kernels")
@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize(
    ("embedding", "layers", "options"),
    [(5, 1, {}), (5, 3, {"residual": True}), (13, 2, {"zoneout": 0.3}), (0, 2, {})],  # I ≠ H, I = H, one-hot
)
@torch.no_grad()
def test_an_odd_cell_writes_what_its_layers_do(
    embedding: int, layers: int, options: dict[str, Any], bf16: bool
) -> None:
    stack = RecurrentLayers(Odd(hidden=13), embedding or V, layers, **options).eval()
    for parameter in stack.parameters():
        parameter += 0.3 * torch.randn_like(parameter)
    table_VE = torch.randn(V, embedding) if embedding else None
    decoder = torch.randn(V, 13), torch.randn(V)
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        y, state = stack(Lookup(torch.randint(V, (4, B)), table_VE))
        generator = stack.generator(state, table_VE, decoder)
        assert generator is not None
        found = generator.draw(torch.rand(N, B), temperature=0.0, top_k=0, top_p=1.0, min_p=0.0)
        for ids in found:
            assert torch.equal(linear(y[-1], *decoder).argmax(-1), ids)
            y, state = stack(Lookup(ids[None], table_VE), state)
