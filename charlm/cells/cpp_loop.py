"""Prints a loop over units of a plan in C++.

The function of a loop first names rows: pointers that are the same for all units. Then it computes W units at a time:
u is the first, n how many there are, i the number of the group among those of this thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from charlm.cells.operations import OPERATIONS, in_code
from charlm.cells.passes import Passes
from charlm.cells.plan import PLAIN, Load, Loop, Plan, Store, Vector
from charlm.cells.program import Node, Size

_ROWS = {
    "input": "x + b * {size}",
    "window": "a.windows[{index}] + a.input_row(t, b) * {width}",
    "static": "a.vectors[{index}]",
    "given": "a.given({index}, t, b)",
    "state": "a.state({index}, t, b)",
    "after": "a.state({index}, t + 1, b)",
    "operand": "a.operands[{stored}] + (operand_step(t) * a.B + b) * {size}",
    "saved": "a.saved[{index}] + a.saved_row(t, b) * Slice::groups_of({size}) * W * {count}",
    "product": "product{index}.row(b)",
    "later": "buffer_{name}.row(b, {index})",
    "d_product": "a.d_products[{index}] + (t * a.B + b) * {width}",
    "d_window": "a.d_windows[{index}] + (t * a.B + b) * {width}",
    "d_vector": "sums{index}.row()",
    "window_before": "const_cast<float*>(a.windows[{index}]) + b * {width}",
}
"""The row of vectors side by side, by their kind. See `Arguments` in recurrence.h, and the members in cpp.py."""
_GROUPS = {"saved": "u", "product": "i * W", "later": "i * W", "d_vector": "i * W"}
"""Rows in which groups of W units of each vector alternate, and where a group begins. In others the vectors follow one
another, each of exactly `size` units."""


def units(size: Size) -> str:
    """A size in C++."""
    return f"a.{size}" if isinstance(size, str) else str(size)


@dataclass(frozen=True)
class CppPass:
    """A plan, and what its loops refer to."""

    passes: Passes
    plan: Plan
    norms: tuple[Node, ...]
    operands: tuple[int, ...] = ()
    """The distinct operands of products; of a forward pass."""
    is_before: bool = False
    """Whether it is the part before the loop over time, of a single step."""

    @property
    def time(self) -> str:
        """The parameter of `step`, which it passes on to its stages."""
        return "const float* x" if self.is_before else "Index t"

    def of_size(self, norm: int) -> tuple[Size, int]:
        """The size of a normalization, and its index among those of this size."""
        size = self.norms[norm].size
        return size, sum(other.size == size for other in self.norms[:norm])

    def moments(self, norm: int) -> str:
        """The address of the saved moments of a normalization."""
        return f"(a.moments + a.saved_row(t, b) * {2 * len(self.norms)} + {2 * norm})"

    def operand_address(self, k: int, t: str = "t") -> str:
        """The address of the rows of an operand for its products at step t."""
        if self.is_before:
            return "x"
        operand = self.passes.operands[k]
        if operand.state:
            return f"a.state({self.passes.states.index(operand.state)}, {t}, 0)"
        return self.row(Vector("operand", k, operand.size)).replace(" + b)", ")")

    def row(self, vector: Vector) -> str:
        """The address of the row of a vector."""
        kind, index, size, count, _ = vector
        width = units(size) if count == 1 else f"{count} * {units(size)}"
        stored = self.passes.stored_operands.index(index) if kind == "operand" else 0
        return _ROWS[kind].format(index=index, stored=stored, name=size, size=units(size), width=width, count=count)

    def address(self, vector: Vector, row: str) -> str:
        """The address of a vector's units in its row."""
        kind, _, size, count, k = vector
        if kind in _GROUPS:
            return f"{row} + {_GROUPS[kind]}" + (f" * {count} + {k} * W" if count > 1 else "")
        return f"{row} + {k} * {units(size)} + u" if count > 1 else f"{row} + u"

    def state_gradient(self, name: str, address: Callable[[Vector], str]) -> str:
        """The arguments for a state's gradient, see `StateGradients` in recurrence.h.

        Its number, whether the step reads it other than by products, and its gradient through the products.
        """
        s, has_skip = self.passes.states.index(name), str(name in self.passes.backward.states).lower()
        through = [f"load({address(Vector('product', p))})" for p in self.passes.through[name]]
        return f"{s}, {has_skip}, {' + '.join(through) or 'Floats{}'}"


class LoopText:
    """The text of one loop: pointers, which are the same for all units, and then the lines of each unit."""

    def __init__(self, of: CppPass, stage: int, loop: Loop) -> None:
        self.of, self.nodes, self.stage, self.loop = of, of.plan.nodes, stage, loop
        self.rows: dict[str, str] = {}

    def text(self) -> str:
        """The function of a stage."""
        size = self.loop.size
        lines = list(map(self.line, self.loop.steps))
        sums = [store for store in self.loop.stores if store.vector.kind in _TOTALS]
        after = [self.exchanged(store) for store in sums]
        rows = [f"const auto {name} = {value};" for name, value in self.rows.items()]
        head = [f"[[gnu::flatten]] void stage{self.stage}_{size}({self.of.time}, Index b) const {{", *rows]
        if not sums:
            body = [f"slice_{size}.each_group([&](Index u, Index n, Index i) {{", *lines, "});"]
        else:
            totals = [_TOTALS[store.vector.kind].format(store.vector.item) for store in sums]
            body = [
                f"partials_{sums[0].vector.size}.each_part([&](int part, const Slice& part_units) {{",
                *totals,
                f"slice_{size}.each_group_of(part_units, [&](Index u, Index n, Index i) {{",
                *lines,
                "});",
                *after,
                "});",
            ]
        return "\n".join([*head, *body, "}"])

    def line(self, step: Load | Store | int) -> str:
        if isinstance(step, Store):
            return self.stored(step)
        if isinstance(step, Load):
            return self.declared(step.value, self.loaded(step))
        return self.declared(step, self.computed(step))

    def declared(self, place: int, value: str) -> str:
        kind = "auto" if self.nodes[place].op == "greater" else "Floats"
        return f"const {kind} v{place} = {value};"

    def pointer(self, name: str, value: str) -> str:
        """The name of a value that is computed before the loop."""
        self.rows.setdefault(name, value)
        return name

    def address(self, vector: Vector) -> str:
        return self.of.address(vector, self.pointer(f"{vector.kind}{vector.item}_row", self.of.row(vector)))

    def name(self, place: int) -> str:
        node = self.nodes[place]
        return f"(Floats{{}} + {node.number!r}f)" if node.op == "constant" else f"v{place}"

    def loaded(self, load: Load) -> str:
        """A value in memory."""
        vector, node = load.vector, self.nodes[load.value]
        if vector.size == "":
            return self.pointer(f"given{vector.item}", f"Floats{{}} + *{self.of.row(vector)}")
        address = self.address(vector)
        value = f"load({address})" if vector.kind in _GROUPS else f"load({address}, n)"
        return f"{value} > 0.5f" if node.op == "greater" else value

    def computed(self, place: int) -> str:
        """The expression of a value."""
        node = self.nodes[place]
        match node.op:
            case "d_state":
                return f"gradients.after_step({self.of.state_gradient(node.name, self.address)}, t, b, u, n, i)"
            case "normalized":
                mean = self.pointer(f"saved_mean{node.index}", f"{self.of.moments(node.index)}[1]")
                return f"({self.name(node.args[0])} - {mean}) * {self.saved_scale(node.index)}"
            case "normalize" | "normalize_back":
                return self.normalization(place)
        args = list(map(self.name, node.args))
        if OPERATIONS[node.op].precedence:  # infix operators take numbers as they are
            for k, arg in enumerate(node.args):
                if self.nodes[arg].op == "constant":
                    args[k] = f"{self.nodes[arg].number!r}f"
        return in_code("cpp", node.op, *args)

    def saved_scale(self, norm: int) -> str:
        """1/σ of a normalization, as the forward pass has saved it."""
        return self.pointer(f"saved_scale{norm}", f"{self.of.moments(norm)}[0]")

    def normalization(self, place: int) -> str:
        """A normalization, or its gradient, from the sums that threads have exchanged."""
        node, norm = self.nodes[place], self.of.plan.numbers[place]
        size, k = self.of.of_size(norm)
        first = self.pointer(f"first{norm}", f"partials_{size}.first({k})[b]")
        second = self.pointer(f"second{norm}", f"partials_{size}.second({k})[b]")
        args = list(map(self.name, node.args))
        if node.op == "normalize":
            return f"({args[0]} - {first}) * {second}"
        centered = "" if self.of.norms[norm].is_rms else f" - {first}"
        return f"({args[0]}{centered} - {args[1]} * {second}) * {self.saved_scale(norm)}"

    def stored(self, store: Store) -> str:
        """The line that stores a value."""
        kind, index, *_ = vector = store.vector
        value = self.name(store.value)
        match kind:
            case "operand" | "d_product":
                return f"store({self.address(vector)}, {value}, n); {self.copied(store, value)}"
            case "operand_before":
                return self.copied(store, value)
            case "d_window" | "window_before":
                return f"store({self.address(vector)}, {value}, n);"
            case "saved" | "later":
                is_condition = self.nodes[store.value].op == "greater"
                number = f"({value} ? Floats{{}} + 1.0f : Floats{{}})" if is_condition else value
                return f"store({self.address(vector)}, {number});"
            case "d_vector":
                address = self.address(vector)
                return f"store({address}, load({address}) + {value});"
            case "state":
                put = f"store(a.state({index}, t + 1, b) + u, {value}, n);"
                state = self.of.passes.states[index]
                copies = [k for k, operand in enumerate(self.of.passes.operands) if operand.state == state]
                return f"{put} copies{copies[0]}.put(b, u, n, {value});" if copies else put
            case "d_state":
                return f"gradients.put({index}, b, i, {value});"
            case "no_d_state":
                return ""
            case "moments":
                return f"total{index} += first_lanes({value}, n);"
            case "d_moments":
                result = self.name(store.values[1])
                total = f"total{index} += first_lanes({value}, n);"
                return f"{total} products{index} += first_lanes({value} * {result}, n);"
        raise AssertionError(store)

    def copied(self, store: Store, value: str) -> str:
        """The line that copies a value for its product."""
        _, index, size, count, k = store.vector
        start = f"{k} * {units(size)} + u" if count > 1 else "u"
        return f"copies{index}.put(b, {start}, n, {value});"

    def exchanged(self, store: Store) -> str:
        """The line after the loop that exchanges the sums over the units of a thread's part."""
        kind, index, *_ = store.vector
        size, k = self.of.of_size(index)
        if kind == "d_moments":
            return f"partials_{size}.put(part, {k}, b, sum(total{index}), sum(products{index}));"
        steps = [step for step in self.loop.steps if isinstance(step, Load | Store) and step.value == store.value]
        [vector, *_] = [step.vector for step in steps if isinstance(step, Load) or step.vector.kind in PLAIN]
        value = self.loaded(Load(store.value, vector))
        slices = f"slice_{self.loop.size}, part_units"
        values = f"[&](Index u, Index n, Index i) {{ return {value}; }}"
        return f"partials_{size}.put_moments(part, {slices}, {k}, b, total{index}, {values});"


_TOTALS = {"moments": "Floats total{0}{{}};", "d_moments": "Floats total{0}{{}}, products{0}{{}};"}
"""Sums over units, by the kind of a store."""
