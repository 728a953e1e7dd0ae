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


class Kernel(NamedTuple):
    name: str
    size: Size
    whole_rows: bool
    arguments: tuple[Argument, ...]


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
"""Operations that need a whole row."""

Vector = tuple[Argument, int, int]
"""One of several vectors side by side: the argument, how many vectors it has, and which one this is."""


class Store(NamedTuple):
    """Writes the statements that store a value."""

    place: int
    """The node of the value; −1 if it is not one node."""
    stage: int
    size: Size
    write: Callable[["_Writer"], None]


class _Pass:
    """The kernels of one pass, by its stages."""

    name = ""

    def __init__(self, passes: Passes, options: Options, nodes: list[Node], ends: list[int]) -> None:
        self.passes, self.options, self.nodes = passes, options, nodes
        self.names, self.internal = passes.split.loop.states, passes.split.loop.internal
        self.levels = stages(nodes, ends, split_norms=False, anywhere=ANYWHERE)
        self.at = {place: k for k, level in enumerate(self.levels) for place in (*level.begins, *level.nodes)}
        self.stored: dict[int, Vector] = {}
        """Values that earlier kernels have stored."""
        self.texts: list[str] = []

    def stages(self) -> list[Stage]:
        all_stores = self.stores()
        result = []
        for stage, level in enumerate(self.levels):
            computed = [place for place in level.nodes if not self.is_leaf(place)]
            stores = [store for store in all_stores if store.stage == stage]
            sizes = [*(self.nodes[place].size for place in computed), *(store.size for store in stores)]
            sizes = [size for size in dict.fromkeys(map(self.unified, sizes)) if size != ""]
            products = tuple(self.product(place) for place in level.begins)
            result.append(Stage(products, tuple(self.kernel(stage, size, computed, stores) for size in sizes)))
        return result

    def kernel(self, stage: int, size: Size, computed: list[int], stores: list[Store]) -> Kernel:
        writer = _Writer(self)
        places = [place for place in computed if self.unified(self.nodes[place].size) == size]
        stores = [store for store in stores if self.unified(store.size) == size]
        for place in places:
            writer.compute(place)
            # Store at once, so that few values occupy registers.
            for store in (store for store in stores if store.place == place):
                store.write(writer)
            if place not in self.stored and self.is_read_later(place):
                writer.store_value(Argument("node", place, self.nodes[place].size), place)
        for store in (store for store in stores if store.place not in places):
            store.write(writer)
        whole_rows = any(self.nodes[place].op in _ROW for place in places)
        kernel = Kernel(f"{self.name}_{stage}_{size}", size, whole_rows, tuple(writer.arguments))
        self.texts.append(writer.text(kernel))
        return kernel

    def unified(self, size: Size) -> Size:
        """H for I too if the step adds vectors of both sizes."""
        return "H" if size == "I" and self.passes.mixes_sizes else size

    def is_leaf(self, place: int) -> bool:
        node = self.nodes[place]
        return (self.nodes[node.args[0]] if node.op == "part" else node).op in _LEAVES

    def is_read_later(self, place: int) -> bool:
        """Whether the kernel of a later stage reads the value."""
        users = (user for user, node in enumerate(self.nodes) if place in node.args and user in self.at)
        return any(self.at[user] > self.at[place] and self.nodes[user].op not in _LEAVES for user in users)

    def zones_out(self, s: int) -> bool:
        return self.options.zoneout and self.names[s] not in self.internal

    def each(self, rows: tuple[int, ...], size: Size, store: Callable[..., None]) -> list[Store]:
        """store(writer, place=…, count=…, k=…) for each of several vectors side by side."""
        calls = [functools.partial(store, place=place, count=len(rows), k=k) for k, place in enumerate(rows)]
        return [Store(place, self.at[place], size, call) for place, call in zip(rows, calls, strict=True)]

    def product(self, place: int) -> int:
        """The index in `Passes.products` of a product that begins a stage."""
        raise NotImplementedError

    def stores(self) -> list[Store]:
        raise NotImplementedError


class _Writer:
    """Writes one kernel."""

    def __init__(self, of: _Pass) -> None:
        self.of = of
        self.lines: list[str] = []
        self.arguments: dict[Argument, None] = {}
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

    def moment(self, number: int, k: int) -> str:
        """The address of 1 / σ, or of the mean, of a normalization."""
        return f"{self.pointer('moments')} + (b * {len(self.of.passes.normalizations)} + {number}) * 2 + {k}"

    def share(self, s: int) -> str:
        """The share of a state that zoneout keeps."""
        return self.load(f"{self.pointer('zoneout')} + b * {self.pointer('zoneout_row')} + {s} * N + u")

    def with_resets(self, value: str) -> str:
        """The value with resets."""
        return f"{value} * tl.load({self.pointer('carry')} + b)"

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
                self.values[place] = repr(node.number) if math.isfinite(node.number) else f'float("{node.number}")'
            elif node.size == "":
                self.compute(place)
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
        passes, stores = self.passes, []
        for k, (size, rows) in enumerate(passes.forward.saved.items()):
            stores += self.each(rows, size, functools.partial(_Writer.store_value, argument=Argument("saved", k)))
        for index in passes.stored_operands:
            place = passes.operands[index].node
            put = functools.partial(self.put_operand, index)
            stores.append(Store(place, self.at[place], passes.operands[index].size, put))
        for s, place in enumerate(passes.forward.states.values()):
            stores.append(Store(place, self.at[place], "H", functools.partial(self.put_state, s, place)))
        return stores

    def put_operand(self, index: int, writer: _Writer) -> None:
        place = self.passes.operands[index].node
        writer.store_value(Argument("operand", index), place)
        self.copy(index, writer.value(place), writer)

    def copy(self, index: int, value: str, writer: _Writer) -> None:
        """Copy an operand for its products."""
        size = self.passes.operands[index].size
        if self.options.bf16 or (self.options.mask and size == "H"):
            writer.store(Argument("copy", index), writer.masked(value, size))

    def put_state(self, s: int, place: int, writer: _Writer) -> None:
        value = writer.value(place)
        if self.options.zoneout or self.options.resets:
            writer.store(Argument("pre_zoneout", s), value)
        if self.zones_out(s):
            share, old = writer.share(s), writer.read("before", s)
            value = writer.let(f"new_{s}", f"{share} * {old} + (1 - {share}) * {value}")
        if self.options.resets:
            if s == 0:
                writer.store(Argument("outputs"), value)
            value = writer.let(f"next_{s}", writer.with_resets(value))
        writer.store(Argument("after", s), value)
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
        stores: list[Store] = []
        for s, name in enumerate(self.names):
            place = back.states.get(name, -1)
            last = self.at.get(place, 0)
            for stage in {0, last} if self.zones_out(s) else {last}:
                own = place if stage == last else -1
                stores.append(Store(own, stage, "H", functools.partial(self.put_state, s, own, stage)))
        for index, rows in back.products.items():
            stores += self.each(rows, passes.products[index].size, functools.partial(self.put_product, index))
        for index in back.windows.keys() - passes.like_windows.keys():
            size = program.nodes[passes.split.windows[index]].size
            store = functools.partial(_Writer.store_value, argument=Argument("d_window", index))
            stores += self.each(back.windows[index], size, store)
        for index in back.vectors.keys() - passes.like_vectors.keys():
            size = program.nodes[passes.split.vectors[index]].size
            stores += self.each(back.vectors[index], size, functools.partial(self.add_to_vector, index))
        return stores

    def put_state(self, s: int, place: int, stage: int, writer: _Writer) -> None:
        """The gradient of a state before the step; place: −1 for zoneout's bypass alone."""
        terms = [] if place == -1 else [writer.value(place)]
        if stage == 0 and (self.zones_out(s) or Node("d_state", name=self.names[s]) in self.nodes):
            writer.d_state(s)  # it loads what is overwritten below
        if self.zones_out(s):
            terms.append(writer.read("d_state", s) if stage else f"bypass_{s}")
        writer.store(Argument("d_state", s), " + ".join(terms) or "0.0")

    def put_product(self, index: int, writer: _Writer, place: int, count: int, k: int) -> None:
        writer.store_value(Argument("d_product", index), place, count, k)
        if self.options.bf16:
            writer.store(Argument("d_copy", index), writer.value(place), count, k)

    def add_to_vector(self, index: int, writer: _Writer, place: int, count: int, k: int) -> None:
        total = f"{writer.read('d_vector', index, count, k)} + {writer.value(place)}"
        writer.store(Argument("d_vector", index), total, count, k)
