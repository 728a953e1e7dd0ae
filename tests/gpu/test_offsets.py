"""Offsets of Triton's kernels in tensors of more than 2³¹ elements: no number that is computed with 32 bits overflows.

The kernels run here in NumPy, whose integers have Triton's widths and wrap around as a GPU's do; the tensors are on the
meta device.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from charlm.cells.passes import Passes
from charlm.cells.triton import Options, kernels
from tests.cells.measure import CASES, Case, own
from tests.pairwise import pairwise

gpu_kernels = pytest.importorskip("charlm.gpu.kernels")
H, LAST = 40, 2**31
"""Units, and the first number that 32 bits do not hold."""

BATCHES = [
    7,
    LAST // (3 * H),  # gates side by side exceed it
    (LAST - 1) // H,  # the units alone do not, but the end of the last block does
    LAST // H + 1000,
]
OPTIONS = [{"state": 0.4, "zoneout": 0.3}, {}]


class Lanes(np.ndarray):
    """Integers of a program's lanes."""

    def to(self, dtype: Any) -> Any:
        return self.astype(dtype)


class Pointer:
    """The address of an argument, plus an offset."""

    def __init__(self, tensor: Tensor, offset: Any = 0) -> None:
        self.tensor, self.offset = tensor, offset

    def __add__(self, offset: Any) -> "Pointer":
        return Pointer(self.tensor, self.offset + offset)


class Program:
    """A program of a kernel, by its number; collects the offsets of what it reads and writes."""

    def __init__(self, source: str, number: int, integers: Any) -> None:
        self.accesses: list[tuple[Tensor, np.ndarray]] = []
        one = np.ones(1)
        language = SimpleNamespace(
            program_id=lambda axis: np.array([number], integers).view(Lanes),
            arange=lambda start, end: np.arange(start, end, dtype=integers).view(Lanes),
            load=self.load,
            store=self.store,
            where=lambda *_: one,
            full=lambda *_: one,
            constexpr=None,
            float32=None,
        )
        self.functions: dict[str, Any] = {"triton": SimpleNamespace(jit=lambda function: function), "tl": language}
        self.functions |= dict.fromkeys(("exp", "log", "sqrt", "sigmoid", "tanh", "softplus", "relu"), lambda *_: one)
        self.functions |= dict.fromkeys(("maximum", "minimum", "normalize_back"), lambda *_: one)
        self.functions["normalize"] = lambda *_: (one, one, one)
        exec(source[source.index("@triton.jit") :], self.functions)

    def load(self, pointer: Pointer, inside: Any = True, other: float = 0.0) -> np.ndarray:
        offsets = np.broadcast_to(pointer.offset, np.broadcast_shapes(np.shape(pointer.offset), np.shape(inside)))
        self.accesses.append((pointer.tensor, offsets[np.broadcast_to(inside, offsets.shape)].astype(np.int64)))
        return np.ones(1)

    def store(self, pointer: Pointer, value: Any, inside: Any = True) -> None:
        self.load(pointer, inside)


class Launcher:
    """In place of a compiled kernel: runs the last program of the grid twice, the second time with 64 bits alone."""

    def __init__(self, source: str, name: str, widths: list[Any]) -> None:
        self.source, self.name, self.widths = source, name, widths

    def __getitem__(self, grid: tuple[int]) -> Callable[..., None]:
        def launch(*arguments: Any, BLOCK: int, INDEX: Any, **_: Any) -> None:
            index = {"int32": np.int32, "int64": np.int64}[INDEX.name]
            self.widths.append(index)
            assert all(one.is_contiguous() for one in arguments if isinstance(one, Tensor))
            found, expected = (
                self.accesses(grid[0] - 1, arguments, BLOCK, *widths) for widths in ((np.int32, index), (np.int64,) * 2)
            )
            assert len(found) == len(expected) > 0
            for (tensor, offsets), (_, exact) in zip(found, expected, strict=True):
                assert np.array_equal(offsets, exact), self.name
                assert exact.size > 0
                assert 0 <= exact.min() <= exact.max() < tensor.numel(), self.name

        return launch

    def accesses(
        self, number: int, arguments: tuple[Any, ...], block: int, integers: Any, index: Any
    ) -> list[tuple[Tensor, np.ndarray]]:
        program = Program(self.source, number, integers)
        values = [Pointer(one) if isinstance(one, Tensor) else np.array([one], integers) for one in arguments]
        with np.errstate(all="ignore"):
            program.functions[self.name](*values, BLOCK=block, INDEX=index)
        return program.accesses


@pytest.fixture
def widths(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The integers that each launch was given for its offsets."""
    found: list[Any] = []

    def compiled(passes: Passes, options: Options) -> dict[str, Launcher]:
        both = kernels(passes, options)
        launched = [kernel for _, those in (*both.forward, *both.backward) for kernel in those]
        return {kernel.name: Launcher(both.source, kernel.name, found) for kernel in launched}

    monkeypatch.setattr(gpu_kernels, "compiled", compiled)
    return found


@pairwise(case=CASES, B=BATCHES, options=OPTIONS, resets=[True, False])
def test_no_offset_overflows(case: Case, B: int, options: dict[str, float], resets: bool, widths: list[Any]) -> None:
    stack = case.start(H, H, 1, **options).to("meta")
    x_TBI = torch.empty(2, B, H, device="meta", requires_grad=True)
    resets_TB = torch.empty(2, B, dtype=torch.bool, device="meta") if resets else None
    y_TBH, _ = own(stack)(x_TBI, stack.zero_state(B), resets_TB)
    y_TBH.sum().backward()
    assert np.int64 in widths or H * B < LAST - 256
    assert np.int32 in widths or B > 7


def test_a_product_of_32_bits_would_show(widths: list[Any]) -> None:
    """The check itself: it sees a kernel that multiplies batch and units."""
    source = "@triton.jit\ndef kernel(x, B, N, BLOCK, INDEX):\n"
    source += "    at = tl.program_id(0).to(INDEX) * BLOCK + tl.arange(0, BLOCK)\n    tl.load(x + at, at < B * N)\n"
    B = LAST // H + 1000
    launch = Launcher(source, "kernel", widths)[(-(-B * H // 256),)]
    x = torch.empty(B, H, device="meta")
    index = SimpleNamespace(name="int64")
    with pytest.raises(AssertionError):
        launch(x, B, H, BLOCK=256, INDEX=index)
