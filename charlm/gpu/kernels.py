"""Launches the kernels that cells/triton.py writes for a cell, and the matrix products between them."""

import functools
import linecache
from collections.abc import Callable
from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from charlm.cells.passes import Passes
from charlm.cells.program import Size
from charlm.cells.triton import Argument, TritonKernel, TritonStage, kernels
from charlm.cells.window import Gradients, Window
from charlm.gpu.product import torch_product

_BLOCK = 256

AS_WRITTEN = {"enable_fp_fusion": False}
"""Options of all kernels: no fused multiply-adds, because a·b − a·b must be 0."""


@functools.lru_cache(maxsize=256)
def compiled(passes: Passes, bf16: bool) -> dict[str, Any]:
    """The kernels as functions by name. Triton reads their text again, through Python's cache of lines."""
    source = kernels(passes, bf16).source
    file = f"<kernels {hash((passes, bf16)):x}>"
    linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file
    functions: dict[str, Any] = {"__name__": "charlm.gpu.kernels"}
    exec(compile(source, file, "exec"), functions)
    return functions


def shape(kernel: TritonKernel, units: int) -> dict[str, int]:
    """The size of a program, in units and warps."""
    if not kernel.whole_rows:
        return {"BLOCK": _BLOCK, "num_warps": 4}
    block = 1 << (units - 1).bit_length()  # the next power of 2
    return {"BLOCK": block, "num_warps": min(16, max(4, block // 128))}


class TritonSteps:
    """The steps of one pass over a window, in float32.

    gradients: those that the backward pass computes; None for a forward pass.
    """

    BF16 = torch.bfloat16  # of the operands that the kernels write; tests replace it

    def __init__(self, window: Window, gradients: Gradients | None = None) -> None:
        self.w, self.g = window, gradients
        w, p = window, window.passes
        # Rounded once for all steps.
        self.weights = [weight.bfloat16() for weight in w.weights] if w.bf16 else w.weights
        self._kernels, self._functions = kernels(p, w.bf16), compiled(p, w.bf16)
        self._node_values: dict[Argument, Tensor] = {}
        if gradients is None:
            self._products = [self._new(one.size, one.gates) for one in p.products]
            # Double-buffered: a step copies states for the next one while it still needs its own copies.
            self._copies: dict[int, Tensor] = {}
            for k, operand in enumerate(p.operands if w.bf16 else ()):
                self._copies[k] = self._new(operand.size, 2, bf16=True).view(2, w.B, -1)
                if operand.state:
                    self._copies[k][0] = w.state(operand.state, 0)
        else:
            self._d_states = torch.zeros_like(w.states[:, 0], memory_format=torch.contiguous_format)
            if gradients.d_last is not None:
                self._d_states.copy_(gradients.d_last)
            self._products = [self._new(p.operands[one.operand].size).zero_() for one in p.products]
            products = enumerate(p.products if w.bf16 else ())
            self._copies = {k: self._new(one.size, one.gates, bf16=True) for k, one in products}
            # A sum for each stream: atomic additions to a shared one would round differently in each run.
            self._d_vectors = [one if one is None else one.new_zeros(w.B, len(one)) for one in gradients.d_vectors]

    def forward(self) -> None:
        """Compute the states after each step."""
        for t in range(self.w.T):
            self._run(self._kernels.forward, t)

    def backward(self, gradients: Gradients) -> None:
        """Compute the gradients."""
        w = self.w
        for t in reversed(range(w.T)):
            self._run(self._kernels.backward, t)
        for name, d_BH in zip(w.passes.states, self._d_states, strict=True):
            for index in w.passes.through[name]:
                d_BH += self._products[index]
        gradients.d_first.copy_(self._d_states)
        for total, sums in zip(gradients.d_vectors, self._d_vectors, strict=True):
            if total is not None and sums is not None:
                total += sums.sum(0)

    def _run(self, stages: list[TritonStage], t: int) -> None:
        w = self.w
        for products, step_kernels in stages:
            for index in products:
                matrix = self.weights[index].t() if self.g is None else self.weights[index]
                torch_product(self._operand(index, t), matrix, bf16=w.bf16, out=self._products[index])
            for kernel in step_kernels:
                self._launch(kernel, t)

    def _launch(self, kernel: TritonKernel, t: int) -> None:
        units = self.w.units(kernel.size)
        arguments = [self._argument(argument, t) for argument in kernel.arguments]
        block = shape(kernel, units)
        grid = (self.w.B,) if kernel.whole_rows else (-(-self.w.B * units // _BLOCK),)
        largest = max(argument.numel() for argument in arguments if isinstance(argument, Tensor))
        index = tl.int32 if largest <= 2**31 - _BLOCK else tl.int64  # the last block may begin at the last unit
        self._functions[kernel.name][grid](*arguments, self.w.B, units, INDEX=index, **block, **AS_WRITTEN)

    def _operand(self, index: int, t: int) -> Tensor:
        """The left operand of a product."""
        w = self.w
        if self.g is not None:
            return self._copies[index] if w.bf16 else self.g.d_products[index][t]
        number = w.passes.products[index].operand
        operand = w.passes.operands[number]
        if number in self._copies:
            return self._copies[number][t % 2 if operand.state else 0]
        return w.state(operand.state, t) if operand.state else w.operand(number, t)

    def _argument(self, argument: Argument, t: int) -> Tensor | int:
        """The value of a kernel's argument at step t."""
        if argument.kind != "node":
            return _ARGUMENTS[argument.kind](self, argument.index, t)
        if argument not in self._node_values:
            self._node_values[argument] = self._new(argument.size)
        return self._node_values[argument]

    def _new(self, size: Size, count: int = 1, bf16: bool = False) -> Tensor:
        dtype = self.BF16 if bf16 else self.w.states.dtype
        return self.w.states.new_empty(self.w.B, count * self.w.units(size), dtype=dtype)


_ARGUMENTS: dict[str, Callable[[Any, int, int], Tensor | int]] = {
    "window": lambda steps, k, t: steps.w.windows[k][t],
    "vector": lambda steps, k, t: steps.w.vectors[k],
    "given": lambda steps, k, t: steps.w.given[k][t % len(steps.w.given[k])],
    "given_row": lambda steps, k, t: 0 if steps.w.given[k].shape[1] == 1 else steps.w.given[k].shape[2],
    "before": lambda steps, k, t: steps.w.states[k, t],
    "after": lambda steps, k, t: steps.w.states[k, t + 1],
    "saved": lambda steps, k, t: steps.w.saved[k][steps.w.row(t)],
    "moments": lambda steps, k, t: steps.w.moments[steps.w.row(t)],
    "operand": lambda steps, k, t: steps.w.operand(k, t),
    "product": lambda steps, k, t: steps._products[k],
    "copy": lambda steps, k, t: steps._copies[k][(t + 1) % 2 if steps.w.passes.operands[k].state else 0],
    "d_outputs": lambda steps, k, t: steps.g.d_outputs[t],
    "d_state": lambda steps, k, t: steps._d_states[k],
    "d_product": lambda steps, k, t: steps.g.d_products[k][t],
    "d_copy": lambda steps, k, t: steps._copies[k],
    "d_window": lambda steps, k, t: steps.g.d_windows[k][t],
    "d_vector": lambda steps, k, t: steps._d_vectors[k],
}
"""The value of an argument at step t, by its kind: of `TritonSteps`, its index, and t."""
