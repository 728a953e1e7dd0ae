"""A cell's program as lines `name = expression`."""

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import ClassVar

from charlm.cells.operations import ATOM, LEAVES, OPERATIONS, UNARY
from charlm.cells.program import EPSILON, Node, Program, needed

_LONGEST = 100
"""The most characters of an expression within another."""
SYMBOL = re.compile(r"^_*[^\W\d_]+|\d+$|[^_]+")
_FUNCTIONS = (*UNARY, "max", "min", "normalize", "rms_normalize", "where", "else")
_DIGITS = "₀₁₂₃₄₅₆₇₈₉"
_LOWERED = str.maketrans("0123456789", _DIGITS)


_READABLE = {
    "neg": ("−{0}", "-{0}", (2, 3)),
    "scale": ("{0} {1}", r"{0} \, {1}", (3, 4, 4)),
    "square": ("{0}²", "{{{0}}}^{{2}}", (4, ATOM)),
    "product": ("{matrix} {0}", r"{matrix} \, {0}", (4, ATOM)),
    "log_sigmoid": ("log σ({0})", r"\log \sigma({0})", ()),
}
"""Operations that only equations have: text, LaTeX and precedence, see `Operation`."""


def notation_of(op: str) -> tuple[str, str, tuple[int, ...]]:
    """The text, LaTeX and precedence of an operation; "" stands for a call of its name."""
    if op in _READABLE:
        return _READABLE[op]
    own = OPERATIONS.get(op)
    return (own.text, own.latex or own.text, own.precedence) if own else ("", "", ())


class Notation:
    """How lines are written: here in Unicode, as a paper writes equations."""

    letters = "abeklmpquvy"
    """What names of unnamed values are made of: papers call gates, candidates and states by the others."""
    input, now, past, minus, prime = "xₜ", "ₜ", "ₜ₋₁", "−", "′"

    def template(self, op: str) -> str:
        """The text of an operation; "": a call of `function`."""
        return notation_of(op)[0]

    def precedence(self, op: str) -> tuple[int, ...]:
        return notation_of(op)[2]

    def symbol(self, name: str, *below: str) -> str:
        """A name with subscripts: its own digits and words after a `_`, then those in `below`."""
        text, *words = SYMBOL.findall(name)
        for word in (*words, *below):
            lowered = word.translate(_LOWERED)
            comma = "," if text[-1] in _DIGITS else ""
            text += f"_{lowered}" if word in words and not word.isdigit() else comma + lowered
        return text

    def again(self, symbol: str) -> str:
        """Another name, for one that looks like `symbol`."""
        return f"{symbol}*"

    def number(self, number: float) -> str:
        """Six digits; the root of a short number as such, which six digits would only come near."""
        square = float(f"{number * number:.4g}")
        if float(f"{number:.6g}") != number and math.isclose(square, number * number, rel_tol=1e-14):
            return (self.minus if number < 0 else "") + self.template("sqrt").format(f"{square:g}")
        return f"{number:.6g}".replace("-", self.minus)

    def function(self, op: str) -> str:
        return op

    def numbered(self, name: str, number: int) -> str:
        """One of the vectors or matrices in a value or parameter."""
        return f"{name}[{number}]"

    def transposed(self, matrix: str) -> str:
        return f"{matrix}ᵀ"


class Lines:
    """Writes what the new states need.

    A value gets a line of its own if it is a new state, if people look at it (then it has the name they see), if it is
    used more than once, if it has several vectors that are used one by one, or if it is long. All others become parts
    of these expressions.
    """

    leaves: ClassVar[tuple[str, ...]] = (*LEAVES, "part", "known")
    """Operations that never get a line. A value that is known is one by its name."""

    def __init__(
        self, program: Program, notation: Notation, ends: Iterable[int] = (), known: Mapping[int, str] | None = None
    ) -> None:
        """ends: nodes besides the results that get a line. known: names of values that other lines give."""
        self.program, self.notation = program, notation
        self.parameters = {parameter.name: parameter for parameter in program.parameters}
        self.nodes, self.same = _readable(program.nodes, known or {})
        self.results = [self.same[place] for place in program.results]
        ends = {self.same[place] for place in ends}
        self.places = needed(self.nodes, (*self.results, *ends))
        self.uses = Counter(arg for place in self.places for arg in self.nodes[place].args)
        self.taken = {notation.input, *map(notation.symbol, _FUNCTIONS)}
        """Names of states, parameters, gates and functions, and of their gradients."""
        self.symbols = self._symbols()
        looked_at = (*program.gates, *program.shown)
        # What values are called, if the name is still free where they are computed.
        self.preferred = {self.same[place]: self._free(notation.symbol(name)) for name, place in looked_at}
        self.preferred |= {place: self.after(name) for name, place in zip(program.states, self.results, strict=True)}
        self.own_line = {*self.preferred, *ends}
        self.own_line |= {self.nodes[place].args[0] for place in self.places if self.nodes[place].op == "part"}
        # Arguments of normalizations get a line, so that the derivative can name their vectors.
        normalized = [node for node in self.nodes if node.op.endswith("normalize") and node.count > 1]
        self.own_line |= {arg for node in normalized for arg in node.args}
        self.names: dict[int, str] = {}
        """Of the values that have a line."""
        parameters = {self.row(node) for node in self.nodes if node.name in self.parameters}
        states = [self.symbols[state, ""] for state in program.states]
        self.used_names = {"", "d", notation.input, *states, *parameters}

    def _symbols(self) -> dict[tuple[str, ...], str]:
        """How states and parameters are written: by (state, subscript) and (parameter,). No two look the same."""
        texts: dict[tuple[str, ...], str] = {}
        for state in self.program.states:
            for below in ("", self.notation.past, self.notation.now):
                texts[state, below] = self.notation.symbol(state, *([below] if below else []))
        for name, parameter in self.parameters.items():
            letter = "w" if parameter.columns == "" else "W"
            texts[(name,)] = self.notation.symbol(re.sub("^weight", letter, re.sub("^bias", "b", name)))
        for key, text in texts.items():
            while not self._free(text):
                text = self.notation.again(text)
            texts[key] = text
            self.taken |= {text, f"d{text}"}
        return texts

    def _free(self, text: str) -> str:
        """The name, or "" if it or its gradient is taken."""
        return "" if {text, f"d{text}"} & self.taken else text

    def lines(self) -> Iterator[tuple[str, str]]:
        """Names and their expressions, in the order of computation."""
        fresh = self.fresh()
        for place in self.places:
            if self.nodes[place].op in self.leaves:
                continue
            text, _ = self.formula(place)
            again = self.uses[place] > 1 and not self.repeats(place)
            if place in self.own_line or again or len(text) > _LONGEST:
                name = self.preferred.get(place, "")
                self.names[place] = name if name not in self.used_names else self.unnamed(place, fresh)
                self.used_names.add(self.names[place])
                yield self.names[place], text
        for state, place in zip(self.program.states, self.results, strict=True):
            if self.names.get(place) != self.after(state):
                yield self.after(state), self.text(place)

    def repeats(self, place: int) -> bool:
        """Whether a value that is used more than once is repeated in each expression, without a line of its own."""
        return False

    def text(self, place: int, lowest: int = 0) -> str:
        """A value by its name or as an expression, in parentheses if its precedence is below `lowest`."""
        text, binds = (self.names[place], ATOM) if place in self.names else self.formula(place)
        return text if binds >= lowest else f"({text})"

    def formula(self, place: int) -> tuple[str, int]:
        """The expression of a value, and its precedence."""
        node = self.nodes[place]
        if node.op in self.leaves:
            return self.leaf(node)
        binds, *lowest = self.notation.precedence(node.op) or (ATOM, *[0] * len(node.args))
        if node.op in ("add", "mul") and self.nodes[node.args[1]].op == node.op:  # a + (b + c)
            lowest[1] = binds
        args = [self.text(arg, each) for arg, each in zip(node.args, lowest, strict=True)]
        template = self.notation.template(node.op)
        if not template:
            if "normalize" in node.op and node.number != EPSILON:
                args.append(self.notation.number(node.number))
            return f"{self.function(node.op)}({', '.join(args)})", binds
        matrix = self.row(node) if node.op == "product" else ""
        return template.format(*args, matrix=matrix), binds

    def leaf(self, node: Node) -> tuple[str, int]:
        match node.op:
            case "known":
                return node.name, ATOM
            case "input":
                return self.notation.input, ATOM
            case "state":
                return self.symbols[node.name, self.notation.past], ATOM
            case "constant":
                return self.notation.number(node.number), ATOM if node.number >= 0 else self.notation.precedence("neg")[
                    0
                ]
            case "part":
                return self.notation.numbered(self.text(node.args[0]), node.index + 1), ATOM
        return self.row(node), ATOM

    def function(self, op: str) -> str:
        return self.notation.function(op)

    def after(self, state: str) -> str:
        """The name of a result."""
        return self.symbols[state, self.notation.now]

    def row(self, node: Node) -> str:
        """What a product or vector takes from its parameter: W_ih for weight_ih, with a number if it has several."""
        declared = self.parameters[node.name]
        name = self.symbols[(node.name,)]
        if node.op == "product":
            return self.notation.numbered(name, node.index + 1) if declared.stack else name
        if declared.stack != 1 and node.count == declared.gates * max(declared.stack, 1):
            return name
        in_stack, gate = divmod(node.index, declared.gates)
        if declared.stack:
            name = self.notation.numbered(name, in_stack + 1)
        return self.notation.numbered(name, gate + 1) if node.count < declared.gates else name

    def fresh(self) -> Iterator[str]:
        """Short names that are free."""
        letters = self.notation.letters
        initials = {name[0] for name in (*self.used_names, *self.preferred.values()) if name}
        initials |= {name[1] for name in self.taken if name[0] == "d" and len(name) > 1}  # their gradients
        yield from (letter for letter in letters if letter not in initials)
        longer = ("".join(word) for length in itertools.count(2) for word in itertools.product(letters, repeat=length))
        yield from (name for name in map(self.notation.symbol, longer) if name not in self.used_names)

    def unnamed(self, place: int, fresh: Iterator[str]) -> str:
        """The name of a value that has none; `fresh` are free names."""
        return next(fresh)


def _readable(nodes: Iterable[Node], known: Mapping[int, str]) -> tuple[list[Node], list[int]]:
    """The nodes, rewritten with `_READABLE`, `rms_normalize`, rows and known values, and the new place of each."""
    readable: list[Node] = []
    same: list[int] = []
    for place, old in enumerate(nodes):
        node = replace(old, args=tuple(same[arg] for arg in old.args))
        if place in known:
            node = Node("known", name=known[place])
        args, alike = [readable[arg] for arg in node.args], place
        if node.op == "part" and args[0].op == "vector":
            node = replace(args[0], count=1, index=args[0].index + node.index)
        elif node.op == "normalize" and node.index:
            node = replace(node, op="rms_normalize")
        elif node.op == "sub" and args[0].op == "constant" and args[0].number == 0:
            node = replace(node, op="neg", args=node.args[1:])
            if args[1].op == "softplus" and readable[args[1].args[0]].op == "neg":
                node = replace(node, op="log_sigmoid", args=readable[args[1].args[0]].args)
            elif args[1].op == "neg":
                alike = args[1].args[0]
        elif node.op == "mul" and "constant" in (args[0].op, args[1].op):
            node = replace(node, op="scale", args=node.args if args[0].op == "constant" else node.args[::-1])
        elif node.op == "mul" and node.args[0] == node.args[1]:
            node = replace(node, op="square", args=node.args[:1])
        same.append(alike)
        readable.append(node)
    return readable, same
