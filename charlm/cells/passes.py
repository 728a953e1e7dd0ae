"""The two passes over a step of a loop: forward, and backward by reverse mode. Kernels are generated from them.

Both are lists of single vectors, computed unit by unit, between products and normalizations. Besides the operations of
a program they have:

    window, static   window or vector `index` of the `Split`; `part` takes one of its vectors
    before, after    the state `name` before the step, and after it
    given            the tensor `name` of a call
    saved            the saved value `index` of this size
    operand          operand `index` of the products, if it is not a state
    d_state          the gradient of the state `name` after the step
    product_back     the gradient of product `index` with respect to its operand; args: the gradients of its gates
    normalized       args[0] normalized with the saved moments of normalization `index`
    normalize_back   the gradient of normalization `index` with respect to its argument; args: the gradient
                     of its result, its result
"""

import functools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from charlm.cells.program import Node, Size
from charlm.cells.split import Split

Rows = tuple[int, ...]
"""The nodes of several vectors side by side."""


class Operand(NamedTuple):
    """An operand of products in the loop."""

    node: int
    """Its node in the forward pass."""
    size: Size
    state: str
    """The name of the state; "" if it is no state: then it is stored for the backward pass."""


@dataclass(frozen=True)
class Product:
    """A product in the loop: matrix `index` of a parameter, perhaps transposed, times an operand."""

    name: str
    index: int
    gates: int
    size: Size
    operand: int
    """Its index in `Passes.operands`."""
    transposed: bool


class Forward(NamedTuple):
    """The forward pass: nodes in the order of computation, and which of them are stored."""

    nodes: list[Node]
    states: dict[str, int]
    """Each state after the step."""
    saved: dict[Size, Rows]
    """The values saved for the backward pass, by size."""


class Backward(NamedTuple):
    """The backward pass: nodes in the order of computation, and which of them are stored."""

    nodes: list[Node]
    states: dict[str, int]
    """The gradient of each state before the step, without its products' share."""
    products: dict[int, Rows]
    """The gradients of each product's gates."""
    windows: dict[int, Rows]
    """The gradients of each window's vectors."""
    vectors: dict[int, Rows]
    """The gradients of each static value's vectors, to be summed over streams and steps."""


@dataclass(frozen=True, eq=False)
class Passes:
    """Both passes of a step. A copied model shares them, and so its kernels."""

    split: Split
    operands: tuple[Operand, ...]
    products: tuple[Product, ...]
    normalizations: tuple[Node, ...]
    forward: Forward
    backward: Backward

    def __deepcopy__(self, memo: object) -> "Passes":
        return self

    @property
    def states(self) -> tuple[str, ...]:
        return self.split.loop.states

    @functools.cached_property
    def given(self) -> tuple[str, ...]:
        """Names of the tensors that a call gives, in the order of their tables."""
        return self.split.loop.given

    @functools.cached_property
    def stored_operands(self) -> tuple[int, ...]:
        """Operands that are stored for the backward pass, because they are not states."""
        return tuple(index for index, operand in enumerate(self.operands) if not operand.state)

    @functools.cached_property
    def through(self) -> dict[str, Rows]:
        """For each state the products that read it: their `product_back` adds to its gradient before the step."""
        found: dict[str, Rows] = dict.fromkeys(self.forward.states, ())
        for index, product in reversed([*enumerate(self.products)]):
            if state := self.operands[product.operand].state:
                found[state] = (*found[state], index)
        return found

    @functools.cached_property
    def like_windows(self) -> dict[int, int]:
        """Windows whose gradient equals a product's → this product; the two share memory."""
        return self._like_products(self.backward.windows, self.split.windows)

    @functools.cached_property
    def like_vectors(self) -> dict[int, int]:
        """Vectors whose gradient sums a product's over steps and streams → this product."""
        return self._like_products(self.backward.vectors, self.split.vectors)

    def _like_products(self, gradients: dict[int, Rows], places: Rows) -> dict[int, int]:
        products = {(rows, self.products[k].size): k for k, rows in self.backward.products.items()}
        found: dict[int, int] = {}
        for k, rows in gradients.items():
            size = self.split.program.nodes[places[k]].size
            if (rows, size) in products:
                found[k] = products[rows, size]
        return found

    @functools.cached_property
    def reads_windows(self) -> bool:
        """Whether the backward pass reads the windows."""
        return any(node.op == "window" for node in self.backward.nodes)

    @functools.cached_property
    def reads_input_size(self) -> bool:
        """Whether the loop has vectors of size I, and so depends on that number."""
        return any(node.size == "I" for node in self.split.loop.nodes)

    @functools.cached_property
    def summed_vectors(self) -> dict[int, Rows]:
        """The gradients of vectors that a loop sums up."""
        return {k: rows for k, rows in self.backward.vectors.items() if k not in self.like_vectors}

    def loop_size(self, size: Size) -> Size:
        """The size of the loop that computes such vectors: H also for I where both are the same."""
        return "H" if size == "I" and self._mixes_sizes else size

    @functools.cached_property
    def _mixes_sizes(self) -> bool:
        """Whether the step adds vectors of the sizes I and H, which then have the same units."""
        nodes = self.split.program.nodes
        if any(nodes[place].size == "I" for place in self.split.program.results):
            return True
        unit_by_unit = [node for node in nodes if node.op not in ("product", "part")]
        return any({"H", "I"} <= {nodes[arg].size for arg in node.args} for node in unit_by_unit)


def numbers(nodes: Sequence[Node]) -> dict[int, int]:
    """The index in `Passes` of each product and normalization of a pass, by its place."""
    counts: Counter[str] = Counter()
    indices: dict[int, int] = {}
    for place, node in enumerate(nodes):
        if node.op in ("product", "normalize"):
            indices[place] = counts[node.op]
            counts[node.op] += 1
        elif node.op in ("product_back", "normalize_back"):
            indices[place] = node.index
    return indices
