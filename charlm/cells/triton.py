"""Triton kernels of a cell's two passes: one for each stage of a step, between matrix products.

A kernel prints a loop of the plan. Where it normalizes, each of its programs computes a row, all units of one stream;
else a block of units of any streams.
"""

import functools
from dataclasses import dataclass
from typing import NamedTuple

from charlm.cells.operations import UNARY, in_code
from charlm.cells.passes import Passes
from charlm.cells.plan import PRODUCTS, Load, Loop, Plan, Store, Vector, backward_plan, forward_plan
from charlm.cells.program import Size


@dataclass(frozen=True)
class Argument:
    """A pointer that a kernel takes: values of one step, [B, count, units] unless stated otherwise.

        before, after   state `index` before the step; after it
        vector          [count, units]
        given           tensor `index` of the call, [B or 1, n]; given_row, a number, is the distance of its rows
        moments         [B, normalizations, 2]
        copy            a copy of operand `index` in bfloat16 for its products
        product         the result of product `index`; in the backward pass the gradient of its operand
        d_state         the gradient of state `index` before the step, except through products of it
        d_copy          a copy of `d_product` in bfloat16
        d_vector        sums over steps
        node            value `index` of this size for later stages

    All others are fields of `Arguments` in recurrence.h, or items of its tables.
    """

    kind: str
    index: int = 0
    size: Size = "H"

    @property
    def name(self) -> str:
        return f"{self.kind}_{self.index}"


class TritonKernel(NamedTuple):
    name: str
    size: Size
    whole_rows: bool
    arguments: tuple[Argument, ...]
    text: str


TritonStage = tuple[tuple[int, ...], tuple[TritonKernel, ...]]
"""Products, then kernels that read their results."""


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


@functools.lru_cache(maxsize=256)
def kernels(passes: Passes, bf16: bool) -> Kernels:
    """The kernels of both passes. bf16: products are in bfloat16, of copies of their operands."""
    forward = _stages("forward", passes, bf16, forward_plan(passes, PRODUCTS))
    backward = _stages("backward", passes, bf16, backward_plan(passes, PRODUCTS))
    texts = [kernel.text for _, of_stage in (*forward, *backward) for kernel in of_stage]
    through = tuple(index for indices in passes.through.values() for index in indices)
    return Kernels("\n\n".join([_HEAD, *texts]), forward, [*backward, (through, ())])


def _stages(name: str, passes: Passes, bf16: bool, plan: Plan) -> list[TritonStage]:
    stages: list[TritonStage] = []
    for k, stage in enumerate(plan.stages):
        begins = tuple(plan.numbers[place] for place in stage.begins)
        written = [KernelText(passes, bf16, plan, loop).write(f"{name}_{k}_{loop.size}") for loop in stage.loops]
        stages.append((begins, tuple(written)))
    return stages


_POINTERS = {"state": "before", "later": "node"}
"""The kind of the argument for a kind of vector, where it has another name."""


class KernelText:
    """The text of a kernel in the making: its lines, its arguments, and the names of values."""

    def __init__(self, passes: Passes, bf16: bool, plan: Plan, loop: Loop) -> None:
        self.passes, self.bf16, self.plan, self.nodes, self.loop = passes, bf16, plan, plan.nodes, loop
        ops = [self.nodes[step].op for step in loop.steps if isinstance(step, int)]
        self.whole_rows = "normalize" in ops or "normalize_back" in ops
        self.lines: list[str] = []
        self.arguments: dict[Argument, None] = {}
        self.values: dict[int, str] = {}
        self.loads: dict[str, str] = {}

    def write(self, name: str) -> TritonKernel:
        for step in self.loop.steps:
            if isinstance(step, Store):
                self.store(step)
            elif isinstance(step, Load):
                self.values[step.value] = self.loaded(step)
            else:
                self.values[step] = self.computed(step)
        names = ", ".join([*(argument.name for argument in self.arguments), "B", "N"])
        if self.whole_rows:
            lines = ["b = tl.program_id(0).to(INDEX)", "u = tl.arange(0, BLOCK)", "inside = u < N"]
        else:
            at = "at = tl.program_id(0).to(INDEX) * BLOCK + tl.arange(0, BLOCK)"
            lines = [at, "b, u = at // N, at % N", "inside = b < B"]  # B · N may not fit into 32 bits
        head = f"@triton.jit\ndef {name}({names}, BLOCK: tl.constexpr, INDEX: tl.constexpr):\n"
        text = head + "".join(f"    {line}\n" for line in (*lines, *self.lines))
        return TritonKernel(name, self.loop.size, self.whole_rows, tuple(self.arguments), text)

    def let(self, name: str, expression: str) -> str:
        self.lines.append(f"{name} = {expression}")
        return name

    def pointer(self, kind: str, index: int = 0, size: Size = "H") -> str:
        argument = Argument(kind, index, size)
        self.arguments[argument] = None
        return argument.name

    def address(self, vector: Vector) -> str:
        """The address of this stream's units of a vector."""
        kind, index, size, count, k = vector
        if kind == "static":
            return f"{self.pointer('vector', index)} + {k} * N + u"
        if kind == "given":
            row = f"{self.pointer(kind, index)} + b * {self.pointer('given_row', index)}"
            return row if size == "" else f"{row} + {k} * N + u"
        pointer = self.pointer(_POINTERS.get(kind, kind), index, size if kind == "later" else "H")
        return f"{pointer} + (b * {count} + {k}) * N + u" if count > 1 else f"{pointer} + b * N + u"

    def load(self, address: str) -> str:
        """A variable with the units at this address; 0 past the last one."""
        if address not in self.loads:
            self.loads[address] = self.let(f"x{len(self.loads)}", f"tl.load({address}, inside, other=0.0)")
        return self.loads[address]

    def read(self, kind: str, index: int = 0) -> str:
        return self.load(self.address(Vector(kind, index)))

    def write_to(self, address: str, value: str) -> None:
        self.lines.append(f"tl.store({address}, {value}, inside)")

    def load_of_stream(self, address: str) -> str:
        """A number of this stream; 0 past the last one, where a block of units of any streams can end."""
        return f"tl.load({address})" if self.whole_rows else f"tl.load({address}, inside, other=0.0)"

    def moment(self, norm: int, k: int) -> str:
        """The address of 1 / σ, or of the mean, of a normalization."""
        return f"{self.pointer('moments')} + (b * {len(self.passes.normalizations)} + {norm}) * 2 + {k}"

    def name(self, place: int) -> str:
        """A value by its name; a constant as a number."""
        node = self.nodes[place]
        return repr(node.number) if node.op == "constant" else self.values[place]

    def loaded(self, load: Load) -> str:
        """The name of a value that is loaded."""
        node = self.nodes[load.value]
        if load.vector.size == "":
            return self.let(f"v{load.value}", self.load_of_stream(self.address(load.vector)))
        value = self.load(self.address(load.vector))
        return self.let(f"v{load.value}", f"{value} != 0") if node.op == "greater" else value

    def computed(self, place: int) -> str:
        """The name of a value that is computed here."""
        node, name = self.nodes[place], f"v{place}"
        norms = self.passes.normalizations
        args = [self.name(arg) for arg in node.args]
        match node.op:
            case "stop":
                return args[0]
            case "d_state":
                return self.d_state(self.passes.states.index(node.name))
            case "normalize":
                norm = self.plan.numbers[place]
                self.let(f"{name}, scale, mean", f"normalize({args[0]}, N, {node.number}, {not node.is_rms}, inside)")
                for k, moment in enumerate(("scale", "mean")):
                    self.lines.append(f"tl.store({self.moment(norm, k)}, {moment})")
                return name
            case "normalized":
                scale = self.load_of_stream(self.moment(node.index, 0))
                mean = self.load_of_stream(self.moment(node.index, 1))
                centered = args[0] if norms[node.index].is_rms else f"({args[0]} - {mean})"
                return self.let(name, f"{centered} * {scale}")
            case "normalize_back":
                scale = self.load_of_stream(self.moment(node.index, 0))
                call = f"normalize_back({', '.join(args)}, {scale}, N, {not norms[node.index].is_rms}, inside)"
                return self.let(name, call)
        return self.let(name, in_code("triton", node.op, *args))

    def d_state(self, s: int) -> str:
        """The gradient of a state after the step."""
        products = [self.read("product", index) for index in self.passes.through[self.passes.states[s]]]
        terms = [self.read("d_state", s), *products]
        if s == 0:
            terms.append(self.read("d_outputs"))
        return self.let(f"d_{s}", " + ".join(terms))

    def store(self, store: Store) -> None:
        kind, index, *_ = store.vector
        value = self.name(store.value)
        match kind:
            case "operand" | "saved" | "d_product" | "d_window" | "later":
                self.write_to(self.address(store.vector), value)
                if kind == "operand":
                    self.copy(index, value)
                if kind == "d_product" and self.bf16:
                    self.write_to(self.address(store.vector._replace(kind="d_copy")), value)
            case "d_vector":
                address = self.address(store.vector)
                self.write_to(address, f"{self.load(address)} + {value}")
            case "state":
                self.write_to(self.address(Vector("after", index)), value)
                for k, operand in enumerate(self.passes.operands):
                    if operand.state == self.passes.states[index]:
                        self.copy(k, value)
            case "d_state":
                self.write_to(self.address(store.vector), value)
            case "no_d_state":
                self.write_to(self.address(Vector("d_state", index)), "0.0")

    def copy(self, index: int, value: str) -> None:
        """Copy an operand for its products."""
        if self.bf16:
            self.write_to(self.address(Vector("copy", index)), value)
