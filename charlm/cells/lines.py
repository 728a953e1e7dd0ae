"""A cell's program as lines `name = expression`, in any notation."""

import itertools
import string
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import ClassVar

from charlm.cells.program import Node, Program, needed

ATOM = 5
"""The precedence of a name or a call; no operation has a higher one."""


class Lines:
    """Writes what the new states need. A subclass is a notation.

    A value gets a line of its own if it is a new state, if people look at it (then it has the name they see), if it is
    used more than once, if it has several vectors that are used one by one, or if it is long. All others become parts
    of these expressions.
    """

    templates: ClassVar[dict[str, str]]
    """Operation → its text; a missing one is written as a call of `function`."""
    binds: ClassVar[dict[str, tuple[int, ...]]] = {
        "greater": (1, 2, 2),
        "add": (2, 2, 3),
        "sub": (2, 2, 3),
        "neg": (2, 3),
        "mul": (3, 3, 4),
        "scale": (3, 4, 4),
        "div": (3, 3, 4),
        "product": (4, ATOM),
        "square": (4, ATOM),
    }
    """Operation → its precedence, and the precedence that each argument needs to stand without parentheses. Arguments
    of a missing operation never need any."""
    leaves: ClassVar[tuple[str, ...]] = ("input", "state", "constant", "vector", "part")
    """Operations that never get a line."""
    longest: ClassVar[int] = 100
    """The most characters of an expression within another."""
    letters: ClassVar = string.ascii_lowercase
    """What names of unnamed values are made of."""

    def __init__(self, program: Program, ends: Iterable[int] = ()) -> None:
        """ends: nodes besides the results that get a line."""
        self.program = program
        self.parameters = {parameter.name: parameter for parameter in program.parameters}
        self.nodes, same = _readable(program.nodes)
        self.results = [same[place] for place in program.results]
        self.ends = {same[place] for place in ends}
        self.places = needed(self.nodes, (*self.results, *self.ends))
        uses = [arg for place in self.places for arg in self.nodes[place].args]
        self.uses = Counter(uses)
        unpacked = {self.nodes[place].args[0] for place in self.places if self.nodes[place].op == "part"}
        self.preferred = {same[place]: self.looked_at(name) for name, place in (*program.gates, *program.shown)}
        self.preferred |= {place: self.after(name) for name, place in zip(program.states, self.results, strict=True)}
        self.own_line = {*self.preferred, *unpacked, *self.ends}
        self.same = same
        self.names: dict[int, str] = {}
        self.used_names = {"", *self.reserved()}

    def lines(self) -> Iterator[tuple[str, str]]:
        """Names and their expressions, in the order of computation."""
        fresh = self.fresh()
        for place in self.places:
            if self.nodes[place].op in self.leaves:
                continue
            text, _ = self.formula(place)
            again = self.uses[place] > 1 and not self.repeats(place)
            if place in self.own_line or again or len(text) > self.longest:
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
        binds, *lowest = self.binds.get(node.op, (ATOM, *[0] * len(node.args)))
        args = [self.text(arg, each) for arg, each in zip(node.args, lowest, strict=True)]
        if node.op in ("add", "mul") and self.nodes[node.args[1]].op == node.op:  # a + (b + c)
            args[1] = self.text(node.args[1], binds)
        if node.op not in self.templates:
            return f"{self.function(node.op)}({', '.join(args)})", binds
        matrix = self.row(node) if node.op == "product" else ""
        return self.templates[node.op].format(*args, matrix=matrix, node=node), binds

    def leaf(self, node: Node) -> tuple[str, int]:
        match node.op:
            case "input":
                return self.input, ATOM
            case "state":
                return self.before(node.name), ATOM
            case "constant":
                return self.number(node.number), ATOM if node.number >= 0 else self.binds["neg"][0]
            case "part":
                return self.part(self.text(node.args[0]), node.index), ATOM
        return self.row(node), ATOM

    def fresh(self) -> Iterator[str]:
        """Short names that are free."""
        initials = {name[0] for name in (*self.used_names, *self.preferred.values()) if name}
        yield from (letter for letter in self.letters if letter not in initials)
        longer = (word for length in itertools.count(2) for word in itertools.product(self.letters, repeat=length))
        yield from (name for word in longer if (name := self.looked_at("".join(word))) not in self.used_names)

    def unnamed(self, place: int, fresh: Iterator[str]) -> str:
        """The name of a value that has none; `fresh` are free names."""
        return next(fresh)

    # The notation

    input: ClassVar[str]

    def before(self, state: str) -> str:
        """A state before the step."""
        raise NotImplementedError

    def after(self, state: str) -> str:
        """A state after the step."""
        raise NotImplementedError

    def looked_at(self, name: str) -> str:
        """The name of a gate."""
        return name

    def function(self, op: str) -> str:
        """The name of a function."""
        return op

    def number(self, number: float) -> str:
        raise NotImplementedError

    def part(self, whole: str, index: int) -> str:
        """One of several vectors side by side."""
        raise NotImplementedError

    def row(self, node: Node) -> str:
        """The matrix or rows that a product or vector takes from its parameter."""
        raise NotImplementedError

    def reserved(self) -> set[str]:
        """Names that are taken."""
        raise NotImplementedError


def _readable(nodes: Iterable[Node]) -> tuple[list[Node], list[int]]:
    """The nodes, rewritten with `neg`, `scale`, `log_sigmoid`, `rms_normalize` and rows, and the new place of each."""
    readable: list[Node] = []
    same: list[int] = []
    for place, old in enumerate(nodes):
        node = replace(old, args=tuple(same[arg] for arg in old.args))
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
        elif node.op == "stop":
            alike = node.args[0]
        same.append(alike)
        readable.append(node)
    return readable, same
