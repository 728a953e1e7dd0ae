"""Triton kernels of a cell's two passes: one for each stage of a step, between matrix products.

A kernel computes all vectors of one size. Where it normalizes, each of its programs computes a row, all units of one
stream; else a block of units of any streams.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

from charlm.cells.passes import Passes, numbered
from charlm.cells.program import UNARY, Node, Size
from charlm.cells.stages import ANYWHERE, stages
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
    forward, backward = _Forward(passes, options), _Backward(passes, options)
    orders = forward.stages(), backward.stages()
    return Kernels("\n\n".join([_HEAD, *forward.texts, *backward.texts]), *orders)


_LEAVES = (*ANYWHERE, "product", "product_back")
_ROW = ("normalize", "normalize_back")
"""Operations that need a whole row."""


class Store(NamedTuple):
    """A store of a value, in a stage."""

    place: int
    """The node of the value; −1 if it is not one node."""
    stage: int
    size: Size
    write: Callable[["Writer"], None]


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

    def stages(self) -> list[TritonStage]:
        all_stores = self.stores()
        result = []
        for stage, level in enumerate(self.levels):
            computed = [place for place in level.nodes if not self.is_leaf(place)]
            stores = [store for store in all_stores if store.stage == stage]
            sizes = [*(self.nodes[place].size for place in computed), *(store.size for store in stores)]
            sizes = [size for size in dict.fromkeys(map(self.unified, sizes)) if size != ""]
            products = tuple(self.product(place) for place in level.begins)
            result.append(TritonStage(products, tuple(self.kernel(stage, size, computed, stores) for size in sizes)))
        return result

    def kernel(self, stage: int, size: Size, computed: list[int], stores: list[Store]) -> TritonKernel:
        places = [place for place in computed if self.unified(self.nodes[place].size) == size]
        whole_rows = any(self.nodes[place].op in _ROW for place in places)
        writer = Writer(self, whole_rows)
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
        kernel = TritonKernel(f"{self.name}_{stage}_{size}", size, whole_rows, tuple(writer.arguments))
        self.texts.append(writer.text(kernel))
        return kernel

    def unified(self, size: Size) -> Size:
        """The size, with H in place of I if the step adds vectors of both sizes."""
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
            stores += self.each(rows, size, functools.partial(Writer.store_value, argument=Argument("saved", k)))
        for index in passes.stored_operands:
            place = passes.operands[index].node
            put = functools.partial(self.put_operand, index)
            stores.append(Store(place, self.at[place], passes.operands[index].size, put))
        for s, place in enumerate(passes.forward.states.values()):
            stores.append(Store(place, self.at[place], "H", functools.partial(self.put_state, s, place)))
        return stores

    def put_operand(self, index: int, writer: Writer) -> None:
        place = self.passes.operands[index].node
        writer.store_value(Argument("operand", index), place)
        self.copy(index, writer.value(place), writer)

    def copy(self, index: int, value: str, writer: Writer) -> None:
        """Copy an operand for its products."""
        size = self.passes.operands[index].size
        if self.options.bf16 or (self.options.mask and size == "H"):
            writer.store(Argument("copy", index), writer.masked(value, size))

    def put_state(self, s: int, place: int, writer: Writer) -> None:
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

    def stages(self) -> list[TritonStage]:
        through = tuple(index for indices in self.passes.through.values() for index in indices)
        return [*super().stages(), TritonStage(through, ())]

    def stores(self) -> list[Store]:
        passes, back, program = self.passes, self.passes.backward, self.passes.split.program
        stores: list[Store] = []
        for s, name in enumerate(self.names):
            place = back.states.get(name, -1)
            last = self.at.get(place, 0)
            for stage in {0, last} if self.zones_out(s) else {last}:
                stored_place = place if stage == last else -1
                stores.append(
                    Store(stored_place, stage, "H", functools.partial(self.put_state, s, stored_place, stage))
                )
        for index, rows in back.products.items():
            stores += self.each(rows, passes.products[index].size, functools.partial(self.put_product, index))
        for index in back.windows.keys() - passes.like_windows.keys():
            size = program.nodes[passes.split.windows[index]].size
            store = functools.partial(Writer.store_value, argument=Argument("d_window", index))
            stores += self.each(back.windows[index], size, store)
        for index in back.vectors.keys() - passes.like_vectors.keys():
            size = program.nodes[passes.split.vectors[index]].size
            stores += self.each(back.vectors[index], size, functools.partial(self.add_to_vector, index))
        return stores

    def put_state(self, s: int, place: int, stage: int, writer: Writer) -> None:
        """The gradient of a state before the step; place: −1 for zoneout's bypass alone."""
        terms = [] if place == -1 else [writer.value(place)]
        if stage == 0 and (self.zones_out(s) or Node("d_state", name=self.names[s]) in self.nodes):
            writer.d_state(s)  # it loads what is overwritten below
        if self.zones_out(s):
            terms.append(writer.read("d_state", s) if stage else f"bypass_{s}")
        writer.store(Argument("d_state", s), " + ".join(terms) or "0.0")

    def put_product(self, index: int, writer: Writer, place: int, count: int, k: int) -> None:
        writer.store_value(Argument("d_product", index), place, count, k)
        if self.options.bf16:
            writer.store(Argument("d_copy", index), writer.value(place), count, k)

    def add_to_vector(self, index: int, writer: Writer, place: int, count: int, k: int) -> None:
        total = f"{writer.read('d_vector', index, count, k)} + {writer.value(place)}"
        writer.store(Argument("d_vector", index), total, count, k)
