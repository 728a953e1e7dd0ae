"""Triton kernels of a cell's two passes: one for each stage of a step, between matrix products.

A kernel computes all vectors of one size. Where it normalizes, each of its programs computes a row, all units of one
stream; else a block of units of any streams.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

from charlm.cells.operations import UNARY
from charlm.cells.passes import ANYWHERE, Passes, numbered, stages
from charlm.cells.program import Node, Size
from charlm.cells.triton_kernel import Argument, Options, TritonKernel, Vector, Writer


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
    products = numbered(passes.forward.nodes, "product")
    forward = TritonPass("forward", passes, options, passes.forward.nodes, passes.forward_ends, products)
    products = {place: node.index for place, node in enumerate(passes.backward.nodes) if node.op == "product_back"}
    backward = TritonPass("backward", passes, options, passes.backward.nodes, passes.backward_ends, products)
    forward.write(_forward_stores(forward))
    backward.write(_backward_stores(backward))
    through = tuple(index for indices in passes.through.values() for index in indices)
    source = "\n\n".join([_HEAD, *forward.texts, *backward.texts])
    return Kernels(source, forward.stages, [*backward.stages, TritonStage(through, ())])


_LEAVES = (*ANYWHERE, "product", "product_back")
_ROW = ("normalize", "normalize_back")
"""Operations that need a whole row."""


class Store(NamedTuple):
    """A store of a value, in a stage."""

    place: int
    """The node of the value; −1 if it is not one node."""
    stage: int
    size: Size
    write: Callable[[Writer], None]


class TritonPass:
    """The kernels of one pass, stage by stage. products: the index of each product, by its place."""

    def __init__(
        self, name: str, passes: Passes, options: Options, nodes: list[Node], ends: list[int], products: dict[int, int]
    ) -> None:
        self.name, self.passes, self.options, self.nodes, self.products = name, passes, options, nodes, products
        self.names, self.internal = passes.split.loop.states, passes.split.loop.internal
        self.levels = stages(nodes, ends, split_norms=False, anywhere=ANYWHERE)
        self.at = {place: k for k, level in enumerate(self.levels) for place in (*level.begins, *level.nodes)}
        self.norms = numbered(nodes, "normalize")
        self.read_last: dict[int, int] = {}
        """The last stage whose kernel reads a value, by the value's place."""
        for user, stage in self.at.items():
            for arg in nodes[user].args if nodes[user].op not in _LEAVES else ():
                self.read_last[arg] = max(stage, self.read_last.get(arg, 0))
        self.stored: dict[int, Vector] = {}
        """Values that earlier kernels have stored."""
        self.stages: list[TritonStage] = []
        self.texts: list[str] = []

    def write(self, all_stores: list[Store]) -> None:
        """Write the kernels of all stages."""
        for stage, level in enumerate(self.levels):
            computed = [place for place in level.nodes if not self.is_leaf(place)]
            stores = [store for store in all_stores if store.stage == stage]
            sizes = [*(self.nodes[place].size for place in computed), *(store.size for store in stores)]
            sizes = [size for size in dict.fromkeys(map(self.unified, sizes)) if size != ""]
            products = tuple(self.products[place] for place in level.begins)
            of_stage = tuple(self.kernel(stage, size, computed, stores) for size in sizes)
            self.stages.append(TritonStage(products, of_stage))

    def kernel(self, stage: int, size: Size, computed: list[int], stores: list[Store]) -> TritonKernel:
        places = [place for place in computed if self.unified(self.nodes[place].size) == size]
        whole_rows = any(self.nodes[place].op in _ROW for place in places)
        writer = Writer(self, whole_rows)
        by_place: dict[int, list[Store]] = {}
        for store in (store for store in stores if self.unified(store.size) == size):
            by_place.setdefault(store.place, []).append(store)
        for place in places:
            writer.compute(place)
            # Store at once, so that few values occupy registers.
            for store in by_place.pop(place, ()):
                store.write(writer)
            if place not in self.stored and self.read_last.get(place, 0) > stage:
                writer.store_value(Argument("node", place, self.nodes[place].size), place)
        for store in (store for group in by_place.values() for store in group):
            store.write(writer)
        kernel = TritonKernel(f"{self.name}_{stage}_{size}", size, whole_rows, tuple(writer.arguments))
        self.texts.append(writer.text(kernel))
        return kernel

    def unified(self, size: Size) -> Size:
        """The size, with H in place of I if the step adds vectors of both sizes."""
        return "H" if size == "I" and self.passes.mixes_sizes else size

    def is_leaf(self, place: int) -> bool:
        node = self.nodes[place]
        return (self.nodes[node.args[0]] if node.op == "part" else node).op in _LEAVES

    def zones_out(self, s: int) -> bool:
        return self.options.zoneout and self.names[s] not in self.internal

    def each(self, rows: tuple[int, ...], size: Size, store: Callable[..., None]) -> list[Store]:
        """store(writer, place=…, count=…, k=…) for each of several vectors side by side."""
        calls = [functools.partial(store, place=place, count=len(rows), k=k) for k, place in enumerate(rows)]
        return [Store(place, self.at[place], size, call) for place, call in zip(rows, calls, strict=True)]


def _forward_stores(of: TritonPass) -> list[Store]:
    passes, options = of.passes, of.options

    def copy(index: int, value: str, writer: Writer) -> None:
        """Copy an operand for its products."""
        size = passes.operands[index].size
        if options.bf16 or (options.mask and size == "H"):
            writer.store(Argument("copy", index), writer.masked(value, size))

    def put_operand(index: int, writer: Writer) -> None:
        place = passes.operands[index].node
        writer.store_value(Argument("operand", index), place)
        copy(index, writer.value(place), writer)

    def put_state(s: int, place: int, writer: Writer) -> None:
        value = writer.value(place)
        if options.zoneout or options.resets:
            writer.store(Argument("pre_zoneout", s), value)
        if of.zones_out(s):
            share, old = writer.share(s), writer.read("before", s)
            value = writer.let(f"new_{s}", f"{share} * {old} + (1 - {share}) * {value}")
        if options.resets:
            if s == 0:
                writer.store(Argument("outputs"), value)
            value = writer.let(f"next_{s}", writer.with_resets(value))
        writer.store(Argument("after", s), value)
        for index, operand in enumerate(passes.operands):
            if operand.state == of.names[s]:
                copy(index, value, writer)

    stores: list[Store] = []
    for k, (size, rows) in enumerate(passes.forward.saved.items()):
        stores += of.each(rows, size, functools.partial(Writer.store_value, argument=Argument("saved", k)))
    for index in passes.stored_operands:
        operand = passes.operands[index]
        put = functools.partial(put_operand, index)
        stores.append(Store(operand.node, of.at[operand.node], operand.size, put))
    for s, place in enumerate(passes.forward.states.values()):
        stores.append(Store(place, of.at[place], "H", functools.partial(put_state, s, place)))
    return stores


def _backward_stores(of: TritonPass) -> list[Store]:
    passes, back, nodes = of.passes, of.passes.backward, of.passes.split.program.nodes

    def put_state(s: int, place: int, stage: int, writer: Writer) -> None:
        """The gradient of a state before the step; place: −1 for zoneout's bypass alone."""
        terms = [] if place == -1 else [writer.value(place)]
        if stage == 0 and (of.zones_out(s) or Node("d_state", name=of.names[s]) in of.nodes):
            writer.d_state(s)  # it loads what is overwritten below
        if of.zones_out(s):
            terms.append(writer.read("d_state", s) if stage else f"bypass_{s}")
        writer.store(Argument("d_state", s), " + ".join(terms) or "0.0")

    def put_product(index: int, writer: Writer, place: int, count: int, k: int) -> None:
        writer.store_value(Argument("d_product", index), place, count, k)
        if of.options.bf16:
            writer.store(Argument("d_copy", index), writer.value(place), count, k)

    def add_to_vector(index: int, writer: Writer, place: int, count: int, k: int) -> None:
        total = f"{writer.read('d_vector', index, count, k)} + {writer.value(place)}"
        writer.store(Argument("d_vector", index), total, count, k)

    stores: list[Store] = []
    for s, name in enumerate(of.names):
        place = back.states.get(name, -1)
        last = of.at.get(place, 0)
        for stage in {0, last} if of.zones_out(s) else {last}:
            stored_place = place if stage == last else -1
            stores.append(Store(stored_place, stage, "H", functools.partial(put_state, s, stored_place, stage)))
    for index, rows in back.products.items():
        stores += of.each(rows, passes.products[index].size, functools.partial(put_product, index))
    for index in back.windows.keys() - passes.like_windows.keys():
        store = functools.partial(Writer.store_value, argument=Argument("d_window", index))
        stores += of.each(back.windows[index], nodes[passes.split.windows[index]].size, store)
    for index in back.vectors.keys() - passes.like_vectors.keys():
        store = functools.partial(add_to_vector, index)
        stores += of.each(back.vectors[index], nodes[passes.split.vectors[index]].size, store)
    return stores
