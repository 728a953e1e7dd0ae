"""The derivative of a step by reverse mode, and the values that the forward pass saves for it."""

import functools
import math
from dataclasses import replace

from charlm.cells.cell import Cell
from charlm.cells.loop import Split, split
from charlm.cells.passes import Normalization, Operand, Pass, Passes, Product, Rows
from charlm.cells.program import UNARY, Builder, Node, Size, needed, scalarized


def passes(split: Split) -> Passes:
    """Both passes of a split program."""
    return _Derivation(split).passes()


@functools.lru_cache(maxsize=64)
def passes_of(cell: Cell, square: bool) -> Passes:
    """Both passes of a cell's step, see `trace`."""
    return passes(split(cell.program(square)))


def least_saved(cell: Cell) -> int:
    """A lower bound on the numbers saved for the backward pass, per step, unit and stream of a layer."""
    derived = passes_of(cell, True)
    operands = sum(derived.operands[k].size == "H" for k in derived.stored_operands)
    return len(cell.states) + len(derived.forward.saved.get("H", ())) + operands


NEGLIGIBLE = -60.0
"""exp of a smaller number is too small to matter as a gradient in single precision."""
_CHEAP = ("add", "sub", "mul", "max", "min", "where", "greater", "stop", "relu")
"""Operations whose results are recomputed, not saved."""


class _Derivation:
    def __init__(self, split: Split) -> None:
        self.split = split
        loop = scalarized(split.loop)
        self.loop = loop
        self.forward = Builder(loop.nodes)
        self.uses = [arg for node in loop.nodes for arg in node.args]
        nodes = self.forward.nodes
        self.product_nodes = [place for place, node in enumerate(nodes) if node.op == "product"]
        self.norm_nodes = [place for place, node in enumerate(nodes) if node.op == "normalize"]
        operands = dict.fromkeys(nodes[place].args[0] for place in self.product_nodes)
        self.operands = {place: index for index, place in enumerate(operands)}
        self.back = Builder()
        self.adjoint: dict[int, int] = {}  # of each node of the forward pass
        self.of_parts: dict[int, dict[int, int]] = {}  # of nodes with several vectors
        self.through: dict[str, list[int]] = {name: [] for name in loop.states}
        self.saved: dict[Size, list[int]] = {}

    def passes(self) -> Passes:
        loop, nodes = self.loop, self.forward.nodes
        count = len(loop.nodes)
        for name, place in zip(loop.states, loop.results, strict=True):
            self.add(place, self.back.put(Node("d_state", name=name)))
        gradients: dict[int, Rows] = {}
        for place in reversed(range(count)):
            node = nodes[place]
            if node.op in ("product", "window", "static") and place not in self.adjoint and place not in self.of_parts:
                rows: Rows = (self.back.constant(0.0),) * node.count
            elif node.op in ("product", "window", "static"):
                of_parts = self.of_parts.get(place, {0: self.adjoint.get(place, 0)})
                rows = tuple(of_parts.get(k, self.back.constant(0.0)) for k in range(node.count))
            elif place in self.adjoint:
                self.go_back(place, node, self.adjoint[place])
                continue
            else:
                continue
            gradients[place] = rows
            if node.op == "product":
                self.through_product(place, node, rows)
        return self.resolved(gradients)

    def add(self, place: int, term: int) -> None:
        """Add to the gradient of a node."""
        node = self.forward.nodes[place]
        if node.op == "part":
            of_parts = self.of_parts.setdefault(node.args[0], {})
            of_parts[node.index] = (
                self.back.apply("add", of_parts[node.index], term) if node.index in of_parts else term
            )
        elif node.op not in ("constant", "greater"):
            known = self.adjoint.get(place)
            self.adjoint[place] = term if known is None else self.back.apply("add", known, term)

    def through_product(self, place: int, node: Node, rows: Rows) -> None:
        [operand] = node.args
        size = self.forward.nodes[operand].size
        index = self.product_nodes.index(place)
        result = self.back.put(Node("product_back", rows, 1, size, index=index))
        if self.forward.nodes[operand].op == "state":
            self.through[self.forward.nodes[operand].name].append(index)
        else:
            self.add(operand, result)

    def value(self, place: int) -> int:
        """A value of the forward pass, as a node of the backward pass."""
        node = self.forward.nodes[place]
        if node.op == "constant":
            return self.back.constant(node.number)
        return self.back.put(Node("value", (), 1, node.size, index=place))

    def go_back(self, place: int, node: Node, d: int) -> None:
        """Pass the gradient of a node on to its arguments."""
        do, args, y = self.back.apply, node.args, self.value(place)
        size = node.size
        match node.op:
            case "add":
                self.add(args[0], d)
                self.add(args[1], d)
            case "sub":
                self.add(args[0], d)
                self.add(args[1], do("sub", self.back.constant(0.0), d))
            case "mul":
                self.add(args[0], do("mul", d, self.value(args[1]), size=size))
                self.add(args[1], do("mul", d, self.value(args[0]), size=size))
            case "div":
                over = do("div", d, self.value(args[1]), size=size)
                self.add(args[0], over)
                self.add(args[1], do("sub", self.back.constant(0.0), do("mul", over, y)))
            case "exp":
                self.add(args[0], do("mul", d, y))
            case "log":
                self.add(args[0], do("div", d, self.value(args[0])))
            case "tanh":
                self.add(args[0], do("mul", d, do("sub", self.back.constant(1.0), do("mul", y, y))))
            case "sigmoid":
                self.add(args[0], do("mul", do("mul", d, y), do("sub", self.back.constant(1.0), y)))
            case "softplus":
                slope = self.value(self.forward.apply("sigmoid", args[0]))
                self.add(args[0], do("mul", d, slope))
            case "relu":
                self.add(args[0], self.where(do("greater", y, self.back.constant(0.0)), d, None))
            case "sqrt":
                self.add(args[0], do("div", do("mul", d, self.back.constant(0.5)), y))
            case "max" | "min":
                self.to_the_extreme(place, node, d)
            case "where":
                condition = self.value(args[0])
                self.add(args[1], self.where(condition, d, None))
                self.add(args[2], self.where(condition, None, d))
            case "normalize":
                index = self.norm_nodes.index(place)
                self.add(args[0], self.back.put(Node("normalize_back", (d, y), 1, size, index=index)))

    def where(self, condition: int, a: int | None, b: int | None) -> int:
        """where, with 0 in place of None."""
        zero = self.back.constant(0.0)
        size = self.back.nodes[a if a is not None else b or 0].size
        return self.back.apply("where", condition, zero if a is None else a, zero if b is None else b, size=size)

    def to_the_extreme(self, place: int, node: Node, d: int) -> None:
        """Pass the gradient of a maximum or minimum to the chosen argument; half to each if they are equal.

        If one argument is a number, the other gets the whole gradient unless it is beyond that number.
        """
        number = next((arg for arg in node.args if self.forward.nodes[arg].op == "constant"), None)
        if number is None:
            self.to_either(node, d)
            return
        [other] = [arg for arg in node.args if arg != number]
        compared = [self.value(number), self.value(other)]
        exponential, bound = self.forward.find("exp", place), self.forward.nodes[number].number
        if node.op == "max" and bound < NEGLIGIBLE and exponential is not None and self.uses.count(place) == 1:
            # Compare its exponential, which is saved anyway. At the bound the gradient is negligible, so rounding
            # either way is harmless.
            compared = [self.back.constant(math.exp(bound) * 1.000001), self.value(exponential)]
        outside = self.back.apply("greater", *(compared if node.op == "max" else compared[::-1]), size=node.size)
        self.add(other, self.where(outside, None, d))

    def to_either(self, node: Node, d: int) -> None:
        """The gradient of a maximum or minimum of two vectors."""
        do, constant = self.forward.apply, self.forward.constant
        wins = [do("greater", *node.args), do("greater", *node.args[::-1])]
        first_wins, second_wins = wins if node.op == "max" else wins[::-1]
        share = do("where", first_wins, constant(1.0), do("where", second_wins, constant(0.0), constant(0.5)))
        to_first = self.back.apply("mul", d, self.value(share))
        self.add(node.args[0], to_first)
        self.add(node.args[1], self.back.apply("sub", d, to_first))

    # Which values of the forward pass are saved, and which are recomputed

    def resolved(self, gradients: dict[int, Rows]) -> Passes:
        nodes = self.forward.nodes
        self.after = {place: name for name, place in zip(self.loop.states, self.loop.results, strict=True)}
        self.final = Builder()
        required = self._required(gradients)
        self.chosen = self._chosen(required)
        for place in sorted(self.chosen):
            self.saved.setdefault(nodes[place].size, []).append(place)
        values = self._values(required)
        new: dict[int, int] = {}
        for place, node in enumerate(self.back.nodes):
            if node.op == "value":
                if place in self._live:
                    new[place] = values[node.index]
            elif all(arg in new for arg in node.args):
                moved = tuple(new[arg] for arg in node.args)
                simple = node.op in (*UNARY, "add", "sub", "mul", "div", "max", "min", "greater", "where")
                size = node.size
                new[place] = (
                    self.final.apply(node.op, *moved, size=size)
                    if simple
                    else self.final.put(replace(node, args=moved))
                )
        return self._passes(gradients, new)

    def _required(self, gradients: dict[int, Rows]) -> list[int]:
        """Forward nodes whose values the backward pass needs, in order."""
        ready = [row for rows in gradients.values() for row in rows]
        ready += [
            self.adjoint[place]
            for place, node in enumerate(self.loop.nodes)
            if node.op == "state" and place in self.adjoint
        ]
        ready += [place for place, node in enumerate(self.back.nodes) if node.op == "product_back"]
        self._live = live = set(needed(self.back.nodes, ready))
        return sorted({self.back.nodes[place].index for place in live if self.back.nodes[place].op == "value"})

    def _chosen(self, required: list[int]) -> set[int]:
        """The values to save so that every required one can be loaded or recomputed."""
        chosen: set[int] = set()
        plain: set[int] = set()  # in memory, or arithmetic and normalization of such values
        known: set[int] = set()  # can be loaded or recomputed
        for place, node in enumerate(tuple(self.forward.nodes)):
            if self.is_there(place) or (node.op in (*_CHEAP, "normalize") and plain.issuperset(node.args)):
                plain.add(place)
            again = node.op in (*_CHEAP, "div") and known.issuperset(node.args)
            # Recomputing one function of values in memory costs less than writing and reading its result.
            again = again or (node.op in (*UNARY, "normalize") and plain.issuperset(node.args))
            if self.is_there(place) or again:
                known.add(place)
            elif place in required:
                known.add(place)
                chosen.add(self._what_to_save(place))
        return chosen

    def is_there(self, place: int) -> bool:
        """Whether a value is in memory without being saved: states, windows, parameters, operands of products."""
        node = self.forward.nodes[place]
        whole = self.forward.nodes[node.args[0]] if node.op == "part" else node
        is_leaf = whole.op in ("state", "static", "window", "constant")
        return is_leaf or place in self.after or place in self.operands

    def _what_to_save(self, place: int) -> int:
        """The node to save: the value itself; for a condition, 1 or 0."""
        node = self.forward.nodes[place]
        if node.op != "greater":
            return place
        one, zero = self.forward.constant(1.0), self.forward.constant(0.0)
        return self.forward.apply("where", place, one, zero, size=node.size)

    def _values(self, required: list[int]) -> dict[int, int]:
        """Values of the forward pass as nodes of the backward pass: in memory, or computed again."""
        nodes = self.forward.nodes
        loaded_or_recomputed: set[int] = set()
        ready = list(required)
        while ready:
            place = ready.pop()
            if place not in loaded_or_recomputed:
                loaded_or_recomputed.add(place)
                ready += () if self._in_memory(place) is not None else nodes[place].args
        values: dict[int, int] = {}
        for place in sorted(loaded_or_recomputed):
            loaded = self._in_memory(place)
            values[place] = self._recomputed(place, values) if loaded is None else loaded
        return values

    def _in_memory(self, place: int) -> int | None:
        """The node that loads a value; None if it is not in memory."""
        node, put = self.forward.nodes[place], self.final.put
        if place in self.chosen:
            return put(Node("saved", (), 1, node.size, index=self.saved[node.size].index(place)))
        if node.op == "greater" and (number := self._saved_condition(place)) is not None:
            saved = put(Node("saved", (), 1, node.size, index=self.saved[node.size].index(number)))
            return self.final.apply("greater", saved, self.final.constant(0.5), size=node.size)
        if node.op == "constant":
            return self.final.constant(node.number)
        if node.op == "state":
            return put(Node("before", (), 1, node.size, node.name))
        if place in self.after:
            return put(Node("after", (), 1, node.size, self.after[place]))
        if place in self.operands:
            return put(Node("operand", (), 1, node.size, index=self.operands[place]))
        return None

    def _recomputed(self, place: int, values: dict[int, int]) -> int:
        """The node that recomputes a value."""
        node = self.forward.nodes[place]
        args = tuple(values[arg] for arg in node.args)
        if node.op == "stop":
            return args[0]
        if node.op == "normalize":
            return self.final.put(Node("normalized", args, 1, node.size, index=self.norm_nodes.index(place)))
        if node.op in ("static", "window", "part"):
            return self.final.put(replace(node, args=args))
        return self.final.apply(node.op, *args, size=node.size)

    def _saved_condition(self, place: int) -> int | None:
        """The saved 1 or 0 of a condition; None if it is not saved."""
        nodes = self.forward.nodes
        return next((one for one in self.chosen if nodes[one].op == "where" and nodes[one].args[0] == place), None)

    def _passes(self, gradients: dict[int, Rows], new: dict[int, int]) -> Passes:
        nodes, loop = self.forward.nodes, self.loop
        forward = Pass(nodes, dict(zip(loop.states, loop.results, strict=True)))
        forward.saved = {size: tuple(places) for size, places in self.saved.items()}
        places = {node.name: place for place, node in enumerate(loop.nodes) if node.op == "state"}
        backward = Pass(self.final.nodes)
        backward.states = {name: new[self.adjoint[place]] for name, place in places.items() if place in self.adjoint}
        for place, rows in gradients.items():
            node = nodes[place]
            moved = tuple(new[row] for row in rows)
            if node.op == "product":
                backward.products[self.product_nodes.index(place)] = moved
            else:
                (backward.windows if node.op == "window" else backward.vectors)[node.index] = moved
        of_all = {place: self._gradient(place) for place in range(len(loop.nodes))}
        backward.gradients = {place: new[row] for place, row in of_all.items() if row in new}
        operands = [self._operand(place) for place in self.operands]
        products = [self._product(place) for place in self.product_nodes]
        norms = [
            Normalization(nodes[place].size, nodes[place].number, not nodes[place].index) for place in self.norm_nodes
        ]
        through = {name: tuple(rows) for name, rows in self.through.items()}
        of_products = {(rows, products[index].size): index for index, rows in backward.products.items()}
        like = []
        for gradients, whole in ((backward.windows, self.split.windows), (backward.vectors, self.split.vectors)):
            pairs = {k: (rows, self.split.program.nodes[whole[k]].size) for k, rows in gradients.items()}
            like.append({k: of_products[pair] for k, pair in pairs.items() if pair in of_products})
        return Passes(self.split, tuple(operands), tuple(products), tuple(norms), forward, backward, through, *like)

    def _gradient(self, place: int) -> int | None:
        node = self.forward.nodes[place]
        return self.of_parts.get(node.args[0], {}).get(node.index) if node.op == "part" else self.adjoint.get(place)

    def _operand(self, place: int) -> Operand:
        node = self.forward.nodes[place]
        return Operand(place, node.size, node.name if node.op == "state" else "")

    def _product(self, place: int) -> Product:
        node = self.forward.nodes[place]
        return Product(node.name, node.index, node.count, node.size, self.operands[node.args[0]])
