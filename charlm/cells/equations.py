"""A cell's equations for people, from its program: in Unicode, or in LaTeX.

W v is a matrix times a vector, ⊙ a product unit by unit, and a[1], a[2], … are the vectors or matrices in a.

In the backward pass, dv is the gradient of the loss with respect to v, and δ₁, δ₂, … are gradients of unnamed values.
It leads from the gradients of the states after the step, such as dhₜ, to those before it, such as dhₜ₋₁.
The gradient of a parameter is a sum over steps and streams: of da vᵀ and da for W and b in a = W v + b, of dw for any
other w.
"""

import functools
import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import ClassVar

from charlm.cells.derivative import passes
from charlm.cells.lines import ATOM, SYMBOL, Lines, Notation
from charlm.cells.loop import split
from charlm.cells.operations import BINARY, UNARY
from charlm.cells.passes import Passes, numbered
from charlm.cells.program import EPSILON, Builder, Node, Program, scalars


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
    templates: ClassVar = {
        **Notation.templates, "sub": "{0} - {1}", "neg": "-{0}", "scale": r"{0} \, {1}", "mul": r"{0} \odot {1}",
        "div": r"\frac{{{0}}}{{{1}}}", "product": r"{matrix} \, {0}",
        "sigmoid": r"\sigma({0})", "sqrt": r"\sqrt{{{0}}}", "log_sigmoid": r"\log \sigma({0})",
        "stop": r"\operatorname{{stop-gradient}}({0})",
        "square": "{{{0}}}^{{2}}",
        "where": r"\begin{{cases}} {1} & \text{{if }} {0} \\ {2} & \text{{else}} \end{{cases}}",
    }  # fmt: skip
    binds: ClassVar = {**Notation.binds, "div": (ATOM, 0, 0)}
    input, now, past, minus, prime = "x_{t}", "t", "t-1", "-", "'"

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


class _Back(Lines):
    """The backward pass. Values that the forward equations name become `known` nodes."""

    leaves: ClassVar = (*Lines.leaves, "known", "d_state")

    def __init__(self, program: Program, notation: Notation) -> None:
        derived, forward, builder = passes(split(program)), Lines(program, notation), Builder()
        back = derived.backward
        used_names = {name for name, _ in forward.lines()}
        whole = scalars(builder, program.nodes)
        ahead, behind = _in_single_vectors(derived, builder, whole)
        known: dict[int, str] = {}
        self.rows: dict[tuple[str, ...], str] = {}
        for place, name in forward.names.items():
            count = len(whole[place])
            names = [notation.numbered(name, k + 1) for k in range(count)] if count > 1 else [name]
            known = dict(zip(whole[place], names, strict=True)) | known
            if program.nodes[place].op == "stop":  # the backward pass reads its argument
                known = dict(zip(whole[program.nodes[place].args[0]], names, strict=True)) | known
            self.rows[tuple(f"d{each}" for each in names)] = f"d{name}"
        results = []
        through = {node.index: place for place, node in enumerate(back.nodes) if node.op == "product_back"}
        for state in program.states:
            terms = [back.states[state]] if state in back.states else []
            terms += [through[product] for product in derived.through[state]]
            places = [behind[place][0] for place in terms] or [builder.constant(0.0)]
            results.append(functools.reduce(functools.partial(builder.apply, "add"), places))
        nodes = [Node("known", name=known[k]) if k in known else node for k, node in enumerate(builder.nodes)]
        program = program._replace(nodes=tuple(nodes), results=tuple(results), gates=(), shown=())
        super().__init__(program, notation, [behind[row][0] for row in derived.gradient_rows])
        self.used_names |= used_names
        after = {forward.after(state): self.symbols[state, ""] for state in program.states}
        uses = Counter(back.gradients.values())
        for named in (("known",), ("vector", "input"), UNARY):
            for place, gradient in back.gradients.items():
                node = self.nodes[ahead[place][0]]
                if node.op == "vector" and uses[gradient] > 1:  # a bias; the line is the gradient of the sum with it
                    continue
                if node.op in named and all(self.nodes[arg].op == "vector" for arg in node.args):
                    text, _ = self.formula(ahead[place][0])
                    self.preferred.setdefault(self.same[behind[gradient][0]], f"d{after.get(text, text)}")
        self.gradients: set[int] = set()
        for place, node in enumerate(self.nodes):
            if node.op == "d_state" or not self.gradients.isdisjoint(node.args):
                self.gradients.add(place)
        self.numbers = itertools.count(1)

    def after(self, state: str) -> str:
        return f"d{self.symbols[state, self.notation.past]}"

    def leaf(self, node: Node) -> tuple[str, int]:
        if node.op == "d_state":
            return f"d{self.symbols[node.name, self.notation.now]}", ATOM
        return (node.name, ATOM) if node.op == "known" else super().leaf(node)

    def formula(self, place: int) -> tuple[str, int]:
        node = self.nodes[place]
        if node.op != "product_back":
            return super().formula(place)
        rows = tuple(self.text(arg, ATOM if len(node.args) == 1 else 0) for arg in node.args)
        whole = self.rows.get(rows) or (rows[0] if len(rows) == 1 else f"({', '.join(rows)})")
        matrix = self.notation.transposed(self.row(replace(node, op="product")))
        return self.notation.templates["product"].format(whole, matrix=matrix), self.notation.binds["product"][0]

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


Rows = list[list[int]]
"""The places of the vectors of each node."""


def _in_single_vectors(derived: Passes, builder: Builder, whole: Rows) -> tuple[Rows, Rows]:
    """Both passes as single vectors in the builder of the whole program, where loading a value is the value itself."""
    nodes = derived.forward.nodes
    norms = [nodes[place] for place in numbered(nodes, "normalize")]
    ahead: Rows = []
    behind: Rows = []

    def rows(node: Node, values: Rows) -> list[int]:
        args = tuple(values[arg][0] for arg in node.args)
        match node.op:
            case "window" | "static":
                read = derived.split.windows if node.op == "window" else derived.split.vectors
                return whole[read[node.index]]
            case "part":
                return [values[node.args[0]][node.index]]
            case "before":
                return [builder.put(Node("state", name=node.name))]
            case "after":
                return ahead[derived.forward.states[node.name]]
            case "saved":
                return ahead[derived.forward.saved[node.size][node.index]]
            case "operand":
                return ahead[derived.operands[node.index].node]
            case "normalized":
                node = norms[node.index]
            case "normalize_back":
                norm = norms[node.index]
                args = (ahead[norm.args[0]][0], args[0])
                op = "rms_normalize_back" if norm.index else node.op
                node = replace(node, op=op, number=norm.number)
            case "product_back":
                product = derived.products[node.index]
                node = replace(node, name=product.name, index=product.index)
            case "greater" if (condition := _condition(builder, args)) is not None:
                return [condition]
        if values is behind and node.op in ("mul", "div"):  # −a ⊙ b rather than (−a) ⊙ b
            opposites = [builder.opposite(arg) for arg in args]
            args = tuple(arg if each is None else each for arg, each in zip(args, opposites, strict=True))
            result = builder.apply(node.op, *args, size=node.size)
            return [result if opposites.count(None) != 1 else builder.apply("sub", builder.constant(0.0), result)]
        if node.op in (*UNARY, *BINARY, "where"):
            return [builder.apply(node.op, *args, size=node.size)]
        place = builder.put(replace(node, args=args))
        return [builder.part(place, k) for k in range(node.count)]

    for node in nodes:
        ahead.append(rows(node, ahead))
    for node in derived.backward.nodes:
        behind.append(rows(node, behind))
    return ahead, behind


def _condition(builder: Builder, args: tuple[int, ...]) -> int | None:
    """The condition that is read from what the forward pass saved, if the arguments are such: a 1 or 0 and 0.5, or an
    exponential and the least that it can be."""
    first, second = (builder.nodes[arg] for arg in args)
    of_first, of_second = ([builder.nodes[arg] for arg in node.args] for node in (first, second))
    choices = [node.number for node in of_first[1:] if node.op == "constant"]
    if first.op == "where" and choices == [1.0, 0.0] and second.number == 0.5:
        return first.args[0]
    if first.op == "constant" and second.op == "exp" and of_second[0].op == "max":
        for bound, other in itertools.permutations(of_second[0].args):
            node = builder.nodes[bound]
            if node.op == "constant" and math.isclose(math.exp(node.number), first.number, rel_tol=1e-5):
                return builder.apply("greater", bound, other)
    return None
