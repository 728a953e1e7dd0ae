"""Triton kernels of a cell's two passes: one for each stage of a step, between matrix products.

A kernel prints a loop of the plan. Where it normalizes, each of its programs computes a row, all units of one stream;
else a block of units of any streams.
"""

import functools
from typing import NamedTuple

from charlm.cells.operations import UNARY
from charlm.cells.passes import Passes
from charlm.cells.plan import Plan, backward_plan, forward_plan
from charlm.cells.triton_kernel import KernelText, Options, TritonKernel, triton_pass


class TritonStage(NamedTuple):
    """Products, then kernels that read their results."""

    products: tuple[int, ...]
    kernels: tuple[TritonKernel, ...]


class Kernels(NamedTuple):
    """All kernels, and the order in which they run."""

    source: str
    forward: list[TritonStage]
    backward: list[TritonStage]


_HEAD = f"""\
import triton
import triton.language as tl

from charlm.gpu.functions import (
    {", ".join([*UNARY, "maximum", "minimum", "normalize", "normalize_back"])}
)
"""


@functools.lru_cache(maxsize=64)
def kernels(passes: Passes, options: Options) -> Kernels:
    """The kernels of both passes."""
    forward, forward_texts = _stages("forward", passes, options, forward_plan(passes, team=False))
    backward, backward_texts = _stages("backward", passes, options, backward_plan(passes, team=False))
    through = tuple(index for indices in passes.through.values() for index in indices)
    source = "\n\n".join([_HEAD, *forward_texts, *backward_texts])
    return Kernels(source, forward, [*backward, TritonStage(through, ())])


def _stages(name: str, passes: Passes, options: Options, plan: Plan) -> tuple[list[TritonStage], list[str]]:
    """The stages of a pass, and the texts of its kernels."""
    of = triton_pass(passes, options, plan)
    stages: list[TritonStage] = []
    texts: list[str] = []
    for k, stage in enumerate(plan.stages):
        written = [KernelText(of, k, loop).write(f"{name}_{k}_{loop.size}") for loop in stage.loops]
        texts += [text for _, text in written]
        begins = tuple(of.products[place] for place in stage.begins)
        stages.append(TritonStage(begins, tuple(kernel for kernel, _ in written)))
    return stages, texts
