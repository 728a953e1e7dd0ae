"""Triton kernels of a cell's two passes: one for each stage of a step, between matrix products.

A kernel computes all vectors of one size. Where it normalizes, each of its programs computes a row, all units of one
stream; else a block of units of any streams.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from charlm.cells.passes import Passes, numbered
from charlm.cells.program import UNARY, Node, Size
from charlm.cells.stages import ANYWHERE, stages


class Options(NamedTuple):
    """What the driver adds to a cell."""

    masked: bool
    """State dropout."""
    kept: bool
    """Zoneout."""
    carried: bool
    """Resets."""
    bf16: bool
    """Products of operands that are copied in bfloat16."""


@dataclass(frozen=True)
class Memory:
    """What a kernel reads or writes in a step, [B, count, units] unless said otherwise.

        before, after, made    state `index` before the step; after it; after it without zoneout and resets
        vector, kept, carried  [count, units], [B or 1, S, H] and [B]; kept_row is the distance of rows of `kept`
        moments                [B, normalizations, 2]
        copy                   a copy of operand `index` for its products: times the mask, perhaps in bfloat16
        product                what product `index` gives, in the backward pass the gradient of its operand
        d_state                the gradient of state `index` before the step, except through products of it
        d_copy                 a copy of `d_product` in bfloat16
        d_vector               sums over steps
        waiting                node `index`, for a later stage

    All others are fields of `Arguments` in recurrence.h, or of its tables of pointers.
    """

    what: str
    index: int = 0
    size: Size = "H"

    @property
    def name(self) -> str:
        return f"{self.what}_{self.index}"


class Kernel(NamedTuple):
    name: str
    size: Size
    whole_rows: bool
    arguments: tuple[Memory, ...]


class Stage(NamedTuple):
    """Products, then kernels that read their results."""

    products: tuple[int, ...]
    kernels: tuple[Kernel, ...]


class Kernels(NamedTuple):
    """All kernels, and the order in which they run."""

    source: str
    forward: list[Stage]
    backward: list[Stage]


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
    forward, backward = _Forward(passes, options), _Backward(passes, options)
    orders = forward.stages(), backward.stages()
    return Kernels("\n\n".join([_HEAD, *forward.texts, *backward.texts]), *orders)


_LEAVES = (*ANYWHERE, "product", "product_back")
_SYMBOLS = {"add": "+", "sub": "-", "mul": "*", "div": "/", "greater": ">"}
_FUNCTIONS = {**{op: op for op in UNARY}, "max": "maximum", "min": "minimum", "where": "tl.where"}
_ROW = ("normalize", "normalize_back")
"""What needs a whole row."""

Place = tuple[Memory, int, int]
"""One of several vectors side by side: where, how many, and which."""


class Store(NamedTuple):
    """Stores something that a value is needed for."""

    place: int
    stage: int
    size: Size
    write: Callable[["_Writer"], None]


class _Pass:
    """What both passes have in common."""

    name = ""

    def __init__(self, passes: Passes, options: Options, nodes: list[Node], ends: list[int]) -> None:
        self.passes, self.options, self.nodes = passes, options, nodes
        self.names, self.internal = passes.split.loop.states, passes.split.loop.internal
        self.parts = stages(nodes, ends, split_norms=False, anywhere=ANYWHERE)
        self.at = {place: k for k, part in enumerate(self.parts) for place in (*part.begins, *part.nodes)}
        self.stored: dict[int, Place] = {}
        """Where earlier kernels have put values."""
        self.texts: list[str] = []

    def stages(self) -> list[Stage]:
        stores = self.stores()
        found = []
        for stage, part in enumerate(self.parts):
            computed = [place for place in part.nodes if not self.is_leaf(place)]
            now = [store for store in stores if store.stage == stage]
            sizes = [*(self.nodes[place].size for place in computed), *(store.size for store in now)]
            sizes = [size for size in dict.fromkeys(map(self.alike, sizes)) if size != ""]
            numbers = tuple(self.product(place) for place in part.begins)
            found.append(Stage(numbers, tuple(self.kernel(stage, size, computed, now) for size in sizes)))
        return found

    def kernel(self, stage: int, size: Size, computed: list[int], stores: list[Store]) -> Kernel:
        writer = _Writer(self)
        places = [place for place in computed if self.alike(self.nodes[place].size) == size]
        stores = [store for store in stores if self.alike(store.size) == size]
        for place in places:
            writer.compute(place)
            # At once, so that few values are in registers.
            for store in (store for store in stores if store.place == place):
                store.write(writer)
            if place not in self.stored and self.waits(place):
                writer.keep(Memory("waiting", place, self.nodes[place].size), place)
        for store in (store for store in stores if store.place not in places):
            store.write(writer)
        whole_rows = any(self.nodes[place].op in _ROW for place in places)
        kernel = Kernel(f"{self.name}_{stage}_{size}", size, whole_rows, tuple(writer.arguments))
        self.texts.append(writer.text(kernel))
        return kernel

    def alike(self, size: Size) -> Size:
        return "H" if size == "I" and self.passes.mixes_sizes else size

    def is_leaf(self, place: int) -> bool:
        node = self.nodes[place]
        return (self.nodes[node.args[0]] if node.op == "part" else node).op in _LEAVES

    def waits(self, place: int) -> bool:
        """Whether a later kernel needs the value."""
        users = (user for user, node in enumerate(self.nodes) if place in node.args and user in self.at)
        return any(self.at[user] > self.at[place] and self.nodes[user].op not in _LEAVES for user in users)

    def zones_out(self, s: int) -> bool:
        return self.options.kept and self.names[s] not in self.internal

    def each(self, rows: tuple[int, ...], size: Size, store: Callable[..., None]) -> list[Store]:
        """store(writer, place=…, count=…, k=…) for each of several vectors side by side."""
        calls = [functools.partial(store, place=place, count=len(rows), k=k) for k, place in enumerate(rows)]
        return [Store(place, self.at[place], size, call) for place, call in zip(rows, calls, strict=True)]

    def product(self, place: int) -> int:
        """The number of a product that begins a stage."""
        raise NotImplementedError

    def stores(self) -> list[Store]:
        raise NotImplementedError


class _Writer:
    """Writes one kernel."""

    def __init__(self, of: _Pass) -> None:
        self.of = of
        self.lines: list[str] = []
        self.arguments: dict[Memory, None] = {}
        self.values: dict[int, str] = {}
        self.loads: dict[str, str] = {}
        self.gradients: set[str] = set()

    def text(self, kernel: Kernel) -> str:
        names = ", ".join([*(argument.name for argument in kernel.arguments), "B", "N"])
        if kernel.whole_rows:
            lines = ["b = tl.program_id(0).to(INDEX)", "u = tl.arange(0, BLOCK)", "inside = u < N"]
        else:
            at = "at = tl.program_id(0).to(INDEX) * BLOCK + tl.arange(0, BLOCK)"
            lines = [at, "inside = at < B * N", "b, u = at // N, at % N"]
        head = f"@triton.jit\ndef {kernel.name}({names}, BLOCK: tl.constexpr, INDEX: tl.constexpr):\n"
        return head + "".join(f"    {line}\n" for line in (*lines, *self.lines))

    def let(self, name: str, expression: str) -> str:
        self.lines.append(f"{name} = {expression}")
        return name

    # Memory

    def pointer(self, what: str, index: int = 0) -> str:
        self.arguments[memory := Memory(what, index)] = None
        return memory.name

    def address(self, memory: Memory, count: int = 1, k: int = 0) -> str:
        """Of this stream's vector k of `count`."""
        self.arguments[memory] = None
        return f"{memory.name} + " + ("b * N + u" if count == 1 else f"(b * {count} + {k}) * N + u")

    def load(self, address: str) -> str:
        """A variable with units that are in memory; 0 outside."""
        if address not in self.loads:
            self.loads[address] = self.let(f"x{len(self.loads)}", f"tl.load({address}, inside, other=0.0)")
        return self.loads[address]

    def read(self, what: str, index: int = 0, count: int = 1, k: int = 0) -> str:
        return self.load(self.address(Memory(what, index), count, k))

    def store(self, memory: Memory, value: str, count: int = 1, k: int = 0) -> None:
        self.lines.append(f"tl.store({self.address(memory, count, k)}, {value}, inside)")

    def keep(self, memory: Memory, place: int, count: int = 1, k: int = 0) -> None:
        """Store a value where later kernels can have it."""
        self.store(memory, self.value(place), count, k)
        self.of.stored.setdefault(place, (memory, count, k))

    def masked(self, value: str, size: Size) -> str:
        """An operand of a product, or its gradient."""
        return f"{value} * {self.read('mask')}" if self.of.options.masked and size == "H" else value

    def moment(self, number: int, k: int) -> str:
        """The address of 1 / σ, or of the mean, of a normalization."""
        return f"{self.pointer('moments')} + (b * {len(self.of.passes.normalizations)} + {number}) * 2 + {k}"

    def share(self, s: int) -> str:
        """What zoneout keeps of a state."""
        return self.load(f"{self.pointer('kept')} + b * {self.pointer('kept_row')} + {s} * N + u")

    def carried(self, value: str) -> str:
        return f"{value} * tl.load({self.pointer('carried')} + b)"

    def d_state(self, s: int) -> str:
        """The gradient of a state after the step, without zoneout; `bypass_{s}` is what zoneout lets past the step."""
        name = f"d_{s}"
        if name not in self.gradients:
            self.gradients.add(name)
            products = [self.read("product", index) for index in self.of.passes.through[self.of.names[s]]]
            self.let(name, " + ".join([self.read("d_state", s), *(self.masked(one, "H") for one in products)]))
            if self.of.options.carried:
                self.let(name, self.carried(name))
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
                self.values[place] = repr(node.number) if math.isfinite(node.number) else f'float("{node.number}")'
            elif node.size == "":
                self.compute(place)
            else:
                expression = self.in_memory(place)
                self.values[place] = expression if expression.isidentifier() else self.let(f"v{place}", expression)
        return self.values[place]

    def in_memory(self, place: int) -> str:
        """A value that is in memory."""
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
                what = "made" if node.op == "after" else "before"
                return self.read(what, self.of.names.index(node.name))
            case "saved":
                rows = passes.forward.saved[node.size]
                return self.read("saved", list(passes.forward.saved).index(node.size), len(rows), node.index)
            case "operand" | "window":
                return self.read(node.op, node.index, node.count, k)
            case "product" | "product_back":
                value = self.read("product", self.of.product(place), node.count, k)
                return value if node.op == "product" else self.masked(value, node.size)
        raise AssertionError(node)

    def compute(self, place: int) -> None:
        """A variable with the result of an operation."""
        node, nodes, norms = self.of.nodes[place], self.of.nodes, self.of.passes.normalizations
        args = [self.value(arg) for arg in node.args]
        name = self.values[place] = args[0] if node.op == "stop" else f"v{place}"
        if node.op in UNARY and nodes[node.args[0]].op == "constant":
            args = [f"tl.full((1,), {args[0]}, tl.float32)"]
        if node.op == "normalize":
            number = numbered(nodes, "normalize")[place]
            self.let(f"{name}, scale, mean", f"normalize({args[0]}, N, {node.number}, {not node.index}, inside)")
            self.lines += [f"tl.store({self.moment(number, k)}, {one})" for k, one in enumerate(("scale", "mean"))]
        elif node.op == "normalized":
            centered = f"({args[0]} - tl.load({self.moment(node.index, 1)}))" if norms[node.index].centered else args[0]
            self.let(name, f"{centered} * tl.load({self.moment(node.index, 0)})")
        elif node.op == "normalize_back":
            scale = f"tl.load({self.moment(node.index, 0)})"
            self.let(name, f"normalize_back({', '.join(args)}, {scale}, N, {norms[node.index].centered}, inside)")
        elif node.op == "d_state":
            self.values[place] = self.d_state(self.of.names.index(node.name))
        elif node.op in _SYMBOLS:
            self.let(name, f"{args[0]} {_SYMBOLS[node.op]} {args[1]}")
        elif node.op != "stop":
            self.let(name, f"{_FUNCTIONS[node.op]}({', '.join(args)})")


class _Forward(_Pass):
    name = "forward"

    def __init__(self, passes: Passes, options: Options) -> None:
        super().__init__(passes, options, passes.forward.nodes, passes.forward_ends)
        self.products = numbered(self.nodes, "product")

    def product(self, place: int) -> int:
        return self.products[place]

    def stores(self) -> list[Store]:
        passes, found = self.passes, []
        for k, (size, rows) in enumerate(passes.forward.saved.items()):
            found += self.each(rows, size, functools.partial(_Writer.keep, memory=Memory("saved", k)))
        for index in passes.kept:
            place = passes.operands[index].node
            put = functools.partial(self.put_operand, index)
            found.append(Store(place, self.at[place], passes.operands[index].size, put))
        for s, place in enumerate(passes.forward.states.values()):
            found.append(Store(place, self.at[place], "H", functools.partial(self.put_state, s, place)))
        return found

    def put_operand(self, index: int, writer: _Writer) -> None:
        place = self.passes.operands[index].node
        writer.keep(Memory("operand", index), place)
        self.copy(index, writer.value(place), writer)

    def copy(self, index: int, value: str, writer: _Writer) -> None:
        """Copy an operand for its products."""
        size = self.passes.operands[index].size
        if self.options.bf16 or (self.options.masked and size == "H"):
            writer.store(Memory("copy", index), writer.masked(value, size))

    def put_state(self, s: int, place: int, writer: _Writer) -> None:
        value = writer.value(place)
        if self.options.kept or self.options.carried:
            writer.store(Memory("made", s), value)
        if self.zones_out(s):
            share, old = writer.share(s), writer.read("before", s)
            value = writer.let(f"new_{s}", f"{share} * {old} + (1 - {share}) * {value}")
        if self.options.carried:
            if s == 0:
                writer.store(Memory("outputs"), value)
            value = writer.let(f"next_{s}", writer.carried(value))
        writer.store(Memory("after", s), value)
        for index, operand in enumerate(self.passes.operands):
            if operand.state == self.names[s]:
                self.copy(index, value, writer)


class _Backward(_Pass):
    name = "backward"

    def __init__(self, passes: Passes, options: Options) -> None:
        super().__init__(passes, options, passes.backward.nodes, passes.backward_ends)

    def product(self, place: int) -> int:
        return self.nodes[place].index

    def stages(self) -> list[Stage]:
        through = tuple(index for indices in self.passes.through.values() for index in indices)
        return [*super().stages(), Stage(through, ())]

    def stores(self) -> list[Store]:
        passes, back, program = self.passes, self.passes.backward, self.passes.split.program
        found: list[Store] = []
        for s, name in enumerate(self.names):
            place = back.states.get(name, -1)
            last = self.at.get(place, 0)
            for stage in {0, last} if self.zones_out(s) else {last}:
                own = place if stage == last else -1
                found.append(Store(own, stage, "H", functools.partial(self.put_state, s, own, stage)))
        for index, rows in back.products.items():
            found += self.each(rows, passes.products[index].size, functools.partial(self.put_product, index))
        for index in back.windows.keys() - passes.like_windows.keys():
            size = program.nodes[passes.split.windows[index]].size
            store = functools.partial(_Writer.keep, memory=Memory("d_window", index))
            found += self.each(back.windows[index], size, store)
        for index in back.vectors.keys() - passes.like_vectors.keys():
            size = program.nodes[passes.split.vectors[index]].size
            found += self.each(back.vectors[index], size, functools.partial(self.add_to_vector, index))
        return found

    def put_state(self, s: int, place: int, stage: int, writer: _Writer) -> None:
        """The gradient of a state before the step; place: −1 for only the part that zoneout lets past the step."""
        terms = [] if place == -1 else [writer.value(place)]
        if stage == 0 and (self.zones_out(s) or Node("d_state", name=self.names[s]) in self.nodes):
            writer.d_state(s)  # reads what is written below
        if self.zones_out(s):
            terms.append(writer.read("d_state", s) if stage else f"bypass_{s}")
        writer.store(Memory("d_state", s), " + ".join(terms) or "0.0")

    def put_product(self, index: int, writer: _Writer, place: int, count: int, k: int) -> None:
        writer.keep(Memory("d_product", index), place, count, k)
        if self.options.bf16:
            writer.store(Memory("d_copy", index), writer.value(place), count, k)

    def add_to_vector(self, index: int, writer: _Writer, place: int, count: int, k: int) -> None:
        total = f"{writer.read('d_vector', index, count, k)} + {writer.value(place)}"
        writer.store(Memory("d_vector", index), total, count, k)
