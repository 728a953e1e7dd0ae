"""A cell's equations for people, from its program: in Unicode, or in LaTeX.

W v is a matrix times a vector, ⊙ a product unit by unit, and a[1], a[2], … are the vectors or matrices in a.

In the backward pass, dv is the gradient of the loss with respect to v, and δ₁, δ₂, … are gradients of unnamed values.
It leads from the gradients of the states after the step, such as dhₜ, to those before it, such as dhₜ₋₁.
The gradient of a parameter is a sum over steps and streams: of da vᵀ and da for W and b in a = W v + b, of dw for any
other w.
"""

import functools
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import ClassVar

from charlm.cells.derivative import GradientGraph, gradient_graph, passes_of
from charlm.cells.lines import SYMBOL, Lines, Notation, notation_of
from charlm.cells.operations import ATOM, OPERATIONS, UNARY
from charlm.cells.passes import Passes, numbered
from charlm.cells.program import EPSILON, Builder, Node, Program, scalarized, scalars


def equations(program: Program) -> list[str]:
    """A line for each equation, such as `cₜ = f ⊙ cₜ₋₁ + i ⊙ g`."""
    return [f"{name} = {text}" for name, text in Lines(program, Notation()).lines()]


def derivative(program: Program) -> list[str]:
    """The equations of the backward pass, such as `dcₜ₋₁ = dc ⊙ f`, with the names of the forward equations."""
    return [f"{name} = {text}" for name, text in _Back(program, Notation()).lines()]


def latex(program: Program, *, backward: bool = False) -> str:
    """The equations of the forward or backward pass as an `aligned` environment for display math."""
    written = (_Back if backward else Lines)(program, _Latex())
    lines = " \\\\\n".join(rf"  {name} &= {text}" for name, text in written.lines())
    return f"\\begin{{aligned}}\n{lines}\n\\end{{aligned}}"


def notes(lines: Iterable[str]) -> list[str]:
    """What those functions in the equations are that have no common name."""
    text = "\n".join(lines)
    return [what for name, what in _FUNCTIONS.items() if re.search(rf"\b{name}\(", text)]


_EACH = f"of each vector in v alone; ε = {Notation().number(EPSILON)} unless it is given"
_FUNCTIONS = {
    "normalize": f"normalize(v, ε) is (v − mean v) / √(mean (v − mean v)² + ε), {_EACH}.",
    "normalize′": "normalize′(v, d, ε) is the gradient of v, where d is that of n = normalize(v, ε): "
    "(d − mean d − n ⊙ mean(n ⊙ d)) / √(mean (v − mean v)² + ε).",
    "rms_normalize": f"rms_normalize(v, ε) is v / √(mean v² + ε), {_EACH}.",
    "rms_normalize′": "rms_normalize′(v, d, ε) is the gradient of v, where d is that of n = rms_normalize(v, ε): "
    "(d − n ⊙ mean(n ⊙ d)) / √(mean v² + ε).",
    "stop_gradient": "stop_gradient(v) is v, which the derivative takes for a constant.",
}


class _Latex(Notation):
    input, now, past, minus, prime = "x_{t}", "t", "t-1", "-", "'"

    def template(self, op: str) -> str:
        return notation_of(op)[1]

    def precedence(self, op: str) -> tuple[int, ...]:
        return (ATOM, 0, 0) if op == "div" else super().precedence(op)

    def symbol(self, name: str, *below: str) -> str:
        head, *words = SYMBOL.findall(name)
        lowered = f"_{{{','.join((*words, *below))}}}" if words or below else ""
        letter = r"\delta" if head == "δ" else head
        return (letter if len(head) == 1 else rf"\mathit{{{head}}}") + lowered

    def again(self, symbol: str) -> str:
        return f"{{{symbol}^{{*}}}}"

    def function(self, op: str) -> str:
        return rf"\operatorname{{{op.replace('_', '-')}}}"

    def numbered(self, name: str, number: int) -> str:
        return f"{f'{{{name}}}' if '^' in name else name}^{{({number})}}"

    def transposed(self, matrix: str) -> str:
        return rf"{{{matrix}}}^{{\top}}"


Places = list[list[int]]
"""The vectors of each node, as places."""


class _Back(Lines):
    """The backward pass, in which values that the forward equations name have these names."""

    leaves: ClassVar = (*Lines.leaves, "d_state")

    def __init__(self, program: Program, notation: Notation) -> None:
        passes, forward, builder = passes_of(program), Lines(program, notation), Builder()
        used_names = {name for name, _ in forward.lines()}
        whole = scalars(builder, program.nodes)
        loop = scalarized(passes.split.loop)
        graph = gradient_graph(loop, exact=True)
        ahead, behind = _in_single_vectors(passes, loop, graph, builder, whole)
        known: dict[int, str] = {}  # the values that the forward equations name
        self.wholes: dict[tuple[str, ...], str] = {}
        """The gradients of vectors side by side → the name of all together."""
        for place, name in forward.names.items():
            count = len(whole[place])
            names = [notation.numbered(name, k + 1) for k in range(count)] if count > 1 else [name]
            known = dict(zip(whole[place], names, strict=True)) | known
            if program.nodes[place].op == "stop":  # the backward pass reads its argument
                known = dict(zip(whole[program.nodes[place].args[0]], names, strict=True)) | known
            self.wholes[tuple(f"d{each}" for each in names)] = f"d{name}"
        results = _state_gradients(passes, graph, builder, behind)
        combined = program._replace(nodes=tuple(builder.nodes), results=tuple(results), gates=(), shown=())
        ends = [behind[row][0] for rows in graph.rows.values() for row in rows]
        super().__init__(combined, notation, ends, known)
        self.used_names |= used_names
        self.preferred = self.names_of(graph, ahead, behind, forward) | self.preferred
        self.gradients: set[int] = set()
        for place, node in enumerate(self.nodes):
            if node.op == "d_state" or not self.gradients.isdisjoint(node.args):
                self.gradients.add(place)
        self.numbers = itertools.count(1)

    def names_of(self, graph: GradientGraph, ahead: Places, behind: Places, forward: Lines) -> dict[int, str]:
        """Names of gradients, by the values that have them: first those with names, then parameters and functions."""
        after = {forward.after(state): self.symbols[state, ""] for state in self.program.states}
        uses = Counter(graph.of.values())
        names: dict[int, str] = {}
        for named in (("known",), ("vector", "input"), UNARY):
            for place, gradient in sorted(graph.of.items()):
                node = self.nodes[ahead[place][0]]
                if node.op == "vector" and uses[gradient] > 1:  # a bias; the line is the gradient of the sum with it
                    continue
                if node.op in named and all(self.nodes[arg].op == "vector" for arg in node.args):
                    text, _ = self.formula(ahead[place][0])
                    names.setdefault(self.same[behind[gradient][0]], f"d{after.get(text, text)}")
        return names

    def after(self, state: str) -> str:
        return f"d{self.symbols[state, self.notation.past]}"

    def leaf(self, node: Node) -> tuple[str, int]:
        if node.op == "d_state":
            return f"d{self.symbols[node.name, self.notation.now]}", ATOM
        return super().leaf(node)

    def formula(self, place: int) -> tuple[str, int]:
        node = self.nodes[place]
        if node.op != "product_back":
            return super().formula(place)
        rows = tuple(self.text(arg, ATOM if len(node.args) == 1 else 0) for arg in node.args)
        whole = self.wholes.get(rows) or (rows[0] if len(rows) == 1 else f"({', '.join(rows)})")
        matrix = self.notation.transposed(self.row(replace(node, op="product")))
        return self.notation.template("product").format(whole, matrix=matrix), self.notation.precedence("product")[0]

    def function(self, op: str) -> str:
        name = super().function(op.removesuffix("_back"))
        return f"{name}{self.notation.prime}" if op.endswith("_back") else name

    def repeats(self, place: int) -> bool:
        """Repeat a single operation on named values."""
        node = self.nodes[place]
        named = all(arg in self.names or self.nodes[arg].op in self.leaves for arg in node.args)
        return named and not node.op.endswith("_back")

    def unnamed(self, place: int, fresh: Iterator[str]) -> str:
        return self.notation.symbol("δ", str(next(self.numbers))) if place in self.gradients else next(fresh)


def _in_single_vectors(
    passes: Passes, loop: Program, graph: GradientGraph, builder: Builder, whole: Places
) -> tuple[Places, Places]:
    """A loop's nodes and their gradients in the builder of the whole program, whose vectors are `whole`."""
    norms = [*numbered(loop.nodes, "normalize")]
    ahead: Places = []
    behind: Places = []
    for node in graph.forward:
        args = tuple(ahead[arg][0] for arg in node.args)
        if node.op in ("window", "static"):
            places = passes.split.windows if node.op == "window" else passes.split.vectors
            ahead.append(whole[places[node.index]])
        elif node.op == "part":
            ahead.append([ahead[node.args[0]][node.index]])
        elif node.op in OPERATIONS and node.op != "stop":
            ahead.append([builder.apply(node.op, *args, size=node.size)])
        else:
            place = builder.put(replace(node, args=args))
            ahead.append([builder.part(place, k) for k in range(node.count)])
    for node in graph.nodes:
        args = tuple(behind[arg][0] for arg in node.args)
        if node.op == "value":
            value = graph.forward[node.index]
            behind.append(ahead[value.args[0] if value.op == "stop" else node.index])
        elif node.op in OPERATIONS:
            behind.append([_with_sign_in_front(builder, node, args)])
        elif node.op == "normalize_back":
            norm = loop.nodes[norms[node.index]]
            args = (ahead[norm.args[0]][0], args[0])
            op = "rms_normalize_back" if norm.index else node.op
            behind.append([builder.put(replace(node, op=op, args=args, number=norm.number))])
        elif node.op == "product_back":
            product = passes.products[node.index]
            behind.append([builder.put(replace(node, args=args, name=product.name, index=product.index))])
        else:
            behind.append([builder.put(node)])
    return ahead, behind


def _with_sign_in_front(builder: Builder, node: Node, args: tuple[int, ...]) -> int:
    """An operation; −(a ⊙ b) rather than (−a) ⊙ b."""
    if node.op not in ("mul", "div"):
        return builder.apply(node.op, *args, size=node.size)
    opposites = [builder.opposite(arg) for arg in args]
    args = tuple(arg if each is None else each for arg, each in zip(args, opposites, strict=True))
    result = builder.apply(node.op, *args, size=node.size)
    return result if opposites.count(None) != 1 else builder.apply("sub", builder.constant(0.0), result)


def _state_gradients(passes: Passes, graph: GradientGraph, builder: Builder, behind: Places) -> list[int]:
    """The gradient of each state before the step, with its products' share."""
    through = {node.index: behind[place][0] for place, node in enumerate(graph.nodes) if node.op == "product_back"}
    results = []
    for state, products in passes.through.items():
        terms = [behind[graph.states[state]][0]] if state in graph.states else []
        terms += [through[index] for index in products]
        results.append(functools.reduce(functools.partial(builder.apply, "add"), terms or [builder.constant(0.0)]))
    return results
