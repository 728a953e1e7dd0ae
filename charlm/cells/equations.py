"""A cell's equations for people, from its program, and their derivative.

W v is a matrix times a vector, ⊙ a product unit by unit, and a[1], a[2], … are the vectors or matrices in a.

In the backward pass, dv is the gradient of the loss with respect to v; δ₁, δ₂, … are gradients of unnamed values. The
pass goes from gradients after the step, such as dhₜ, to dxₜ and to those before the step, such as dhₜ₋₁. A parameter's
gradient is a sum over steps and streams: of da vᵀ and da for W and b in a = W v + b, of v daᵀ for W in a = Wᵀ v, of dw
for any other w.
"""

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from charlm.cells.derivative import GradientGraph
from charlm.cells.notation import EXPLAINED, notation, number_text, readable_nodes, symbol
from charlm.cells.operations import ATOM, LEAVES, OPERATIONS, UNARY
from charlm.cells.program import EPSILON, Builder, Node, Program, needed, scalars

_LONGEST = 100
"""The most characters of an expression within another."""
_LETTERS = "abeklmpquvy"
"""What names of unnamed values are made of: papers call gates, candidates and states by the others."""
_FUNCTIONS = (*UNARY, "max", "min", "normalize", "rms_normalize", "where", "else")
_NO_LINE = (*LEAVES, "part", "known", "d_state")
"""Operations that never get a line. A value that is known is one by its name."""


def equations(program: Program) -> list[str]:
    """A line for each equation, such as `cₜ = f ⊙ cₜ₋₁ + i ⊙ g`."""
    return [f"{name} = {text}" for name, text in Lines(program).lines()]


def derivative(program: Program) -> list[str]:
    """The equations of the backward pass, such as `dcₜ₋₁ = dc ⊙ f`, with the names of the forward equations."""
    return [f"{name} = {text}" for name, text in _backward_lines(program).lines()]


def notes(lines: Iterable[str]) -> list[str]:
    """What those functions in the equations are that have no common name."""
    text = "\n".join(lines)
    return [what for name, what in EXPLAINED.items() if re.search(rf"\b{name}\(", text)]


class Lines:
    """Writes what the new states need, as names and expressions.

    A value gets its own line if it is a new state, if people look at it (under the name they see), if it is used more
    than once, if its vectors are used one by one, or if it is long. All others become parts of expressions.

        symbols      state and subscript, or parameter → how it is written
        preferred    place → the name of its line: a new state, or what people see; "" if that name is reserved
        own_line     places that get a line even if they are short and used once
        names        place → the name of its line; filled by `lines`
        named_ends   names and places of lines that stand even if the value has another name
        of_gradients places of gradients, which only the backward pass has
        wholes       the names of gradients of vectors side by side → the name of all together
        reserved     names of states, parameters and functions, and of their gradients: not allowed as preferred names
        used_names   names that no further line may have; `lines` adds its own
    """

    def __init__(
        self,
        program: Program,
        names: Sequence[str] = (),
        ends: Iterable[int] = (),
        known: Mapping[int, str] | None = None,
    ) -> None:
        """names: of the results, if they are not the states. ends: nodes besides the results that get a line.

        known: names of values that other lines give.
        """
        self.program = program
        self.parameters = {parameter.name: parameter for parameter in program.parameters}
        self.nodes, self.same = readable_nodes(program.nodes, known or {})
        self.results = [self.same[place] for place in program.results]
        ends = {self.same[place] for place in ends}
        self.places = needed(self.nodes, (*self.results, *ends))
        self.uses = Counter(arg for place in self.places for arg in self.nodes[place].args)
        self.reserved = {"xₜ", *map(symbol, _FUNCTIONS)}
        self.symbols = self._symbols()
        self.preferred: dict[int, str] = {}
        for name, place in (*program.gates, *program.shown):
            self.preferred[self.same[place]] = self._unreserved(symbol(name))
        after = names or [self.symbols[state, "ₜ"] for state in program.states]
        self.named_ends = [*zip(after, self.results, strict=True)]
        self.preferred |= {place: name for name, place in self.named_ends}
        self.own_line = {*self.preferred, *ends}
        self.own_line |= {self.nodes[place].args[0] for place in self.places if self.nodes[place].op == "part"}
        for node in self.nodes:
            if node.op.endswith("normalize") and node.count > 1:  # the derivative names the argument's vectors
                self.own_line.update(node.args)
        self.names: dict[int, str] = {}
        self.wholes: dict[tuple[str, ...], str] = {}
        self.of_gradients: set[int] = set()
        for place, node in enumerate(self.nodes):
            if node.op == "d_state" or not self.of_gradients.isdisjoint(node.args):
                self.of_gradients.add(place)
        parameters = {self.row(node) for node in self.nodes if node.name in self.parameters}
        states = [self.symbols[state, ""] for state in program.states]
        self.used_names = {"", "d", "xₜ", *states, *parameters}

    def _symbols(self) -> dict[tuple[str, ...], str]:
        """How states and parameters are written: by (state, subscript) and (parameter,). No two look the same."""
        texts: dict[tuple[str, ...], str] = {}
        for state in self.program.states:
            for below in ("", "ₜ₋₁", "ₜ"):
                texts[state, below] = symbol(state, below)
        for name, parameter in self.parameters.items():
            letter = "w" if parameter.columns == "" else "W"
            short = re.sub("^weight", letter, re.sub("^bias", "b", name))
            texts[(name,)] = symbol(short)
        for key, text in texts.items():
            while not self._unreserved(text):
                text += "*"
            texts[key] = text
            self.reserved |= {text, f"d{text}"}
        return texts

    def _unreserved(self, text: str) -> str:
        """The name, or "" if it or that of its gradient is reserved."""
        return "" if {text, f"d{text}"} & self.reserved else text

    def lines(self) -> Iterator[tuple[str, str]]:
        """Names and their expressions, in the order of computation."""
        fresh, numbers = self.fresh(), itertools.count(1)
        for place in self.places:
            if self.nodes[place].op in _NO_LINE:
                continue
            text, _ = self.formula(place)
            again = self.uses[place] > 1 and not self.repeats(place)
            if place in self.own_line or again or len(text) > _LONGEST:
                name = self.preferred.get(place, "")
                if name in self.used_names:  # as "" is
                    name = symbol("δ", str(next(numbers))) if place in self.of_gradients else next(fresh)
                self.names[place] = name
                self.used_names.add(name)
                yield name, text
        for name, place in self.named_ends:
            if self.names.get(place) != name:
                yield name, self.text(place)

    def text(self, place: int, lowest: int = 0) -> str:
        """A value by its name or as an expression, in parentheses if its precedence is below `lowest`."""
        if place in self.names:
            return self.names[place]
        text, binds = self.formula(place)
        return text if binds >= lowest else f"({text})"

    def formula(self, place: int) -> tuple[str, int]:
        """The expression of a value, and its precedence."""
        node = self.nodes[place]
        match node.op:
            case "known":
                return node.name, ATOM
            case "input":
                return "xₜ", ATOM
            case "state":
                return self.symbols[node.name, "ₜ₋₁"], ATOM
            case "d_state":
                return f"d{self.symbols[node.name, 'ₜ']}", ATOM
            case "constant":
                _, (minus, _) = notation("neg")
                return number_text(node.number), minus if node.number < 0 else ATOM
            case "part":
                return f"{self.text(node.args[0])}[{node.index + 1}]", ATOM
            case "vector":
                return self.row(node), ATOM
            case "product_back":
                return self.product_back(node)
        template, precedence = notation(node.op)
        binds, *lowest = precedence or (ATOM, *[0] * len(node.args))
        if node.op in ("add", "mul") and self.nodes[node.args[1]].op == node.op:  # a + (b + c)
            lowest[1] = binds
        args = [self.text(arg, each) for arg, each in zip(node.args, lowest, strict=True)]
        if template:
            matrix = self.row(node) + "ᵀ" * node.transposed if node.op == "product" else ""
            return template.format(*args, matrix=matrix), binds
        if "normalize" in node.op and node.number != EPSILON:
            args.append(number_text(node.number))
        return f"{node.op.replace('_back', '′')}({', '.join(args)})", binds

    def product_back(self, node: Node) -> tuple[str, int]:
        """The gradient of a product's operand, and its precedence."""
        is_single = len(node.args) == 1
        rows = tuple(self.text(arg, ATOM if is_single else 0) for arg in node.args)
        whole = rows[0] if is_single else f"({', '.join(rows)})"
        template, precedence = notation("product")
        matrix = self.row(replace(node, op="product")) + "ᵀ" * (not node.transposed)
        return template.format(self.wholes.get(rows, whole), matrix=matrix), precedence[0]

    def repeats(self, place: int) -> bool:
        """Whether a value that is used often has no line: in the backward pass an operation on named values."""
        node = self.nodes[place]
        named = all(arg in self.names or self.nodes[arg].op in _NO_LINE for arg in node.args)
        return bool(self.of_gradients) and named and not node.op.endswith("_back")

    def row(self, node: Node) -> str:
        """What a product or vector takes from its parameter: W_ih for weight_ih, with a number if it has several."""
        declared = self.parameters[node.name]
        name = self.symbols[(node.name,)]
        if node.op == "product":
            return f"{name}[{node.index + 1}]" if declared.stack else name
        if declared.stack != 1 and node.count == declared.gates * max(declared.stack, 1):
            return name
        in_stack, gate = divmod(node.index, declared.gates)
        if declared.stack:
            name = f"{name}[{in_stack + 1}]"
        return f"{name}[{gate + 1}]" if node.count < declared.gates else name

    def fresh(self) -> Iterator[str]:
        """Short names that are free."""
        initials = {name[0] for name in (*self.used_names, *self.preferred.values()) if name}
        initials |= {name[1] for name in self.reserved if name[0] == "d" and len(name) > 1}  # their gradients
        yield from (letter for letter in _LETTERS if letter not in initials)
        for length in itertools.count(2):
            for letters in itertools.product(_LETTERS, repeat=length):
                if (name := "".join(letters)) not in self.used_names:
                    yield name


def _backward_lines(program: Program) -> Lines:
    """The backward pass, in which values that the forward equations name have these names."""
    forward = Lines(program)
    list(forward.lines())  # which names values
    in_vectors = Builder()
    vectors = scalars(in_vectors, program.nodes)
    single = program._replace(gates=(), shown=())
    single = single.rebuilt(in_vectors.nodes, [places[0] for places in vectors])
    known: dict[int, str] = {}
    wholes: dict[tuple[str, ...], str] = {}
    for place, name in forward.names.items():
        node, count = program.nodes[place], len(vectors[place])
        names = [name] if count == 1 else [f"{name}[{k + 1}]" for k in range(count)]
        wholes[tuple(f"d{one}" for one in names)] = f"d{name}"
        same = (place, *node.args) if node.op == "stop" else (place,)  # the backward pass reads its argument
        for each in same:
            for vector, one in zip(vectors[each], names, strict=True):
                known.setdefault(vector, one)

    graph = GradientGraph(single)
    both = Builder(graph.forward.nodes)  # the forward pass, and behind it the backward pass
    gradients = _put_gradients(both, graph)
    results = _state_gradients(both, graph, gradients)
    fixed = {parameter.name for parameter in program.parameters if parameter.fixed}
    ends = []
    for place, rows in graph.rows.items():
        if single.nodes[place].op != "vector" or single.nodes[place].name not in fixed:
            ends += [gradients[row] for row in rows]
    backward = single._replace(nodes=tuple(both.nodes), results=results)
    names = [f"d{forward.symbols[state, 'ₜ₋₁']}" for state in program.states]
    back = Lines(backward, names, ends, known)
    back.wholes = wholes
    back.used_names |= forward.used_names

    # The names of gradients: of values that have names themselves, and then of parameters and the input.
    of_results = {forward.symbols[state, "ₜ"]: forward.symbols[state, ""] for state in program.states}
    # A bias needs no line: its gradient is that of the product to which it is added.
    products = {row for place, rows in graph.rows.items() if single.nodes[place].op == "product" for row in rows}
    preferred: dict[int, str] = {}
    for place, gradient in sorted(graph.of.items(), key=lambda pair: (pair[0] not in known, pair[0])):
        node, end = back.nodes[place], back.same[gradients[gradient]]
        if node.op not in ("known", "vector", "input"):
            continue
        text, _ = back.formula(place)
        name = f"d{of_results.get(text, text)}"
        if node.op == "vector":
            if gradient in products or node.name in fixed:
                continue
            back.named_ends.append((name, end))
        preferred.setdefault(end, name)
    back.preferred = preferred | back.preferred
    return back


def _put_gradients(builder: Builder, graph: GradientGraph) -> list[int]:
    """Put the nodes of a program's gradients into the builder of their values; returns their places."""
    products = [node for node in graph.loop.nodes if node.op == "product"]
    norms = [node for node in graph.loop.nodes if node.op == "normalize"]
    places: list[int] = []
    for node in graph.back.nodes:
        args = tuple(places[arg] for arg in node.args)
        if node.op == "value":
            value = graph.forward.nodes[node.index]
            places.append(value.args[0] if value.op == "stop" else node.index)
        elif node.op in OPERATIONS:
            places.append(_with_sign_in_front(builder, node, args))
        elif node.op == "normalize_back":
            norm = norms[node.index]
            op = "rms_normalize_back" if norm.is_rms else node.op
            args = (norm.args[0], args[0])
            places.append(builder.put(replace(node, op=op, args=args, number=norm.number)))
        elif node.op == "product_back":
            places.append(builder.put(replace(products[node.index], op=node.op, args=args, count=1)))
        else:
            places.append(builder.put(node))
    return places


def _with_sign_in_front(builder: Builder, node: Node, args: tuple[int, ...]) -> int:
    """An operation; −(a ⊙ b) rather than (−a) ⊙ b."""
    if node.op not in ("mul", "div"):
        return builder.apply(node.op, *args, size=node.size)
    positive: list[int] = []
    is_negative = False
    for arg in args:
        opposite = builder.opposite(arg)
        is_negative ^= opposite is not None
        positive.append(arg if opposite is None else opposite)
    result = builder.apply(node.op, *positive, size=node.size)
    return builder.apply("sub", builder.constant(0.0), result) if is_negative else result


def _state_gradients(builder: Builder, graph: GradientGraph, gradients: Sequence[int]) -> tuple[int, ...]:
    """The gradient of each state before the step, with the share of the products that read it."""
    nodes = graph.loop.nodes
    products = [node for node in nodes if node.op == "product"]
    results = []
    for name in graph.loop.states:
        state = nodes.index(Node("state", name=name))
        total = gradients[graph.states[name]] if name in graph.states else builder.constant(0.0)
        for node, place in zip(graph.back.nodes, gradients, strict=True):
            if node.op == "product_back" and products[node.index].args[0] == state:
                total = builder.apply("add", total, place)
        results.append(total)
    return tuple(results)
