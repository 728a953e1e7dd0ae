"""Products on a GPU, which sum bfloat16 operands in float32."""

import pytest
import torch

from charlm.gpu.products import product
from tests.cells.measure import error, rounded


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("into", [False, True])
def test_sums_of_bf16_operands_are_not_rounded(device: str, transposed: bool, into: bool) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    a, b = torch.randn(17, 300, device=device), torch.randn(300, 40, device=device)
    if transposed:
        a, b = a.t().contiguous().t(), b.t().contiguous().t()
    out = torch.empty(17, 40, device=device) if into else None
    found = product(a, b, bf16=True, out=out)
    assert found.dtype == torch.float32
    assert out is None or found is out
    assert error(found, rounded(a).double() @ rounded(b).double()) < 1e-3 < error(found, a.double() @ b.double())
