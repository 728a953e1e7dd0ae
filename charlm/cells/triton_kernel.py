"""Writes one Triton kernel: its loads, values and stores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from charlm.cells.operations import UNARY
from charlm.cells.program import Size

if TYPE_CHECKING:
    from charlm.cells.triton import TritonPass


class Options(NamedTuple):
    """What a call adds to the cell."""

    mask: bool
    """State dropout."""
    zoneout: bool
    resets: bool
    bf16: bool
    """Products in bfloat16, of copies of their operands."""


@dataclass(frozen=True)
class Argument:
    """A pointer that a kernel takes: values of one step, [B, count, units] unless stated otherwise.

        before, after   state `index` before the step; after it
        pre_zoneout     state `index` after the step, before zoneout and resets
        vector          [count, units]
        zoneout         [B or 1, S, H]; zoneout_row, a number, is the distance of its rows
        carry           [B]
        moments         [B, normalizations, 2]
        copy            a copy of operand `index` for its products: times the mask, perhaps in bfloat16
        product         the result of product `index`; in the backward pass the gradient of its operand
        d_state         the gradient of state `index` before the step, except through products of it
        d_copy          a copy of `d_product` in bfloat16
        d_vector        sums over steps
        node            node `index`, for a later stage

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


Vector = tuple[Argument, int, int]
"""One of several vectors side by side: the argument, how many vectors it has, and which one this is."""


_SYMBOLS = {"add": "+", "sub": "-", "mul": "*", "div": "/", "greater": ">"}
_FUNCTIONS = {**{op: op for op in UNARY}, "max": "maximum", "min": "minimum", "where": "tl.where"}


class Writer:
    """Writes one kernel. whole_rows: each program computes all units of a stream."""

    def __init__(self, of: TritonPass, whole_rows: bool) -> None:
        self.of, self.whole_rows = of, whole_rows
        self.lines: list[str] = []
        self.arguments: dict[Argument, None] = {}
        self.values: dict[int, str] = {}
        self.loads: dict[str, str] = {}
        self.gradients: set[str] = set()

    def text(self, kernel: TritonKernel) -> str:
        names = ", ".join([*(argument.name for argument in kernel.arguments), "B", "N"])
        if self.whole_rows:
            lines = ["b = tl.program_id(0).to(INDEX)", "u = tl.arange(0, BLOCK)", "inside = u < N"]
        else:
            at = "at = tl.program_id(0).to(INDEX) * BLOCK + tl.arange(0, BLOCK)"
            lines = [at, "b, u = at // N, at % N", "inside = b < B"]  # B · N may not fit into 32 bits
        head = f"@triton.jit\ndef {kernel.name}({names}, BLOCK: tl.constexpr, INDEX: tl.constexpr):\n"
        return head + "".join(f"    {line}\n" for line in (*lines, *self.lines))

    def let(self, name: str, expression: str) -> str:
        self.lines.append(f"{name} = {expression}")
        return name

    # Loads and stores

    def pointer(self, kind: str, index: int = 0) -> str:
        self.arguments[argument := Argument(kind, index)] = None
        return argument.name

    def address(self, argument: Argument, count: int = 1, k: int = 0) -> str:
        """The address of this stream's vector k of `count`."""
        self.arguments[argument] = None
        return f"{argument.name} + " + ("b * N + u" if count == 1 else f"(b * {count} + {k}) * N + u")

    def load(self, address: str) -> str:
        """A variable with the units at this address; 0 past the last one."""
        if address not in self.loads:
            self.loads[address] = self.let(f"x{len(self.loads)}", f"tl.load({address}, inside, other=0.0)")
        return self.loads[address]

    def read(self, kind: str, index: int = 0, count: int = 1, k: int = 0) -> str:
        return self.load(self.address(Argument(kind, index), count, k))

    def store(self, argument: Argument, value: str, count: int = 1, k: int = 0) -> None:
        self.lines.append(f"tl.store({self.address(argument, count, k)}, {value}, inside)")

    def store_value(self, argument: Argument, place: int, count: int = 1, k: int = 0) -> None:
        """Store the value of a node, which later kernels then load."""
        self.store(argument, self.value(place), count, k)
        self.of.stored.setdefault(place, (argument, count, k))

    def masked(self, value: str, size: Size) -> str:
        """An operand of a product, or its gradient."""
        return f"{value} * {self.read('mask')}" if self.of.options.mask and size == "H" else value

    def load_of_stream(self, address: str) -> str:
        """A number of this stream; 0 past the last one, where a block of units of any streams can end."""
        return f"tl.load({address})" if self.whole_rows else f"tl.load({address}, inside, other=0.0)"

    def moment(self, number: int, k: int) -> str:
        """The address of 1 / σ, or of the mean, of a normalization."""
        return f"{self.pointer('moments')} + (b * {len(self.of.passes.normalizations)} + {number}) * 2 + {k}"

    def share(self, s: int) -> str:
        """The share of a state that zoneout keeps."""
        return self.load(f"{self.pointer('zoneout')} + b * {self.pointer('zoneout_row')} + {s} * N + u")

    def with_resets(self, value: str) -> str:
        """The value with resets."""
        return f"{value} * {self.load_of_stream(self.pointer('carry') + ' + b')}"

    def d_state(self, s: int) -> str:
        """The gradient of a state after the step, before zoneout. `bypass_{s}` is the part that zoneout passes on."""
        name = f"d_{s}"
        if name not in self.gradients:
            self.gradients.add(name)
            products = [self.read("product", index) for index in self.of.passes.through[self.of.names[s]]]
            self.let(name, " + ".join([self.read("d_state", s), *(self.masked(one, "H") for one in products)]))
            if self.of.options.resets:
                self.let(name, self.with_resets(name))
            if s == 0:
                self.let(name, f"{name} + {self.read('d_outputs')}")
            if self.of.zones_out(s):
                self.let(f"bypass_{s}", f"{self.share(s)} * {name}")
                self.let(name, f"(1 - {self.share(s)}) * {name}")
        return name

    # Values

    def value(self, place: int) -> str:
        """A number, or the name of a variable."""
        if place not in self.values:
            node = self.of.nodes[place]
            if node.op == "constant":
                self.values[place] = repr(node.number)
            else:
                expression = self.loaded(place)
                self.values[place] = expression if expression.isidentifier() else self.let(f"v{place}", expression)
        return self.values[place]

    def loaded(self, place: int) -> str:
        """A value that is not computed here."""
        if place in self.of.stored:
            value = self.load(self.address(*self.of.stored[place]))
            return f"{value} != 0" if self.of.nodes[place].op == "greater" else value
        node, k, passes = self.of.nodes[place], 0, self.of.passes
        if node.op == "part":
            [place], k, node = node.args, node.index, self.of.nodes[node.args[0]]
        match node.op:
            case "static":
                return self.load(f"{self.pointer('vector', node.index)} + {k} * N + u")
            case "state" | "before" | "after":
                kind = "pre_zoneout" if node.op == "after" else "before"
                return self.read(kind, self.of.names.index(node.name))
            case "saved":
                rows = passes.forward.saved[node.size]
                return self.read("saved", list(passes.forward.saved).index(node.size), len(rows), node.index)
            case "operand" | "window":
                return self.read(node.op, node.index, node.count, k)
            case "product" | "product_back":
                value = self.read("product", self.of.products[place], node.count, k)
                return value if node.op == "product" else self.masked(value, node.size)
        raise AssertionError(node)

    def compute(self, place: int) -> None:
        """A variable with the result of an operation."""
        node, norms = self.of.nodes[place], self.of.passes.normalizations
        args = [self.value(arg) for arg in node.args]
        name = self.values[place] = args[0] if node.op == "stop" else f"v{place}"
        if node.op == "normalize":
            number = self.of.norms[place]
            self.let(f"{name}, scale, mean", f"normalize({args[0]}, N, {node.number}, {not node.index}, inside)")
            self.lines += [f"tl.store({self.moment(number, k)}, {one})" for k, one in enumerate(("scale", "mean"))]
        elif node.op == "normalized":
            scale, mean = (self.load_of_stream(self.moment(node.index, k)) for k in (0, 1))
            centered = f"({args[0]} - {mean})" if norms[node.index].centered else args[0]
            self.let(name, f"{centered} * {scale}")
        elif node.op == "normalize_back":
            scale = self.load_of_stream(self.moment(node.index, 0))
            self.let(name, f"normalize_back({', '.join(args)}, {scale}, N, {norms[node.index].centered}, inside)")
        elif node.op == "d_state":
            self.values[place] = self.d_state(self.of.names.index(node.name))
        elif node.op in _SYMBOLS:
            self.let(name, f"{args[0]} {_SYMBOLS[node.op]} {args[1]}")
        elif node.op != "stop":
            self.let(name, f"{_FUNCTIONS[node.op]}({', '.join(args)})")
