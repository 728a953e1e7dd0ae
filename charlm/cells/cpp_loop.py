"""Prints a loop over units of a plan in C++."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from charlm.cells.operations import OPERATIONS, in_code
from charlm.cells.passes import Passes
from charlm.cells.plan import Loop, Plan, Store
from charlm.cells.program import Node, Size
from charlm.cells.split import Before


def units(size: Size) -> str:
    """A size in C++."""
    return f"a.{size}" if isinstance(size, str) else str(size)


@dataclass(frozen=True)
class CppPass:
    """A plan, and what its loops refer to."""

    passes: Passes
    plan: Plan
    before: Before | None = None
    """The program of the plan, if it is that of the part before the loop."""

    @property
    def norms(self) -> tuple[Node, ...]:
        return self.before.norms if self.before else self.passes.normalizations

    @property
    def of_step(self) -> str:
        """The parameter of `step`, which it passes on to its stages."""
        return "const float* x" if self.before else "Index t"

    @functools.cached_property
    def operands(self) -> dict[int, int]:
        """The operands of a forward pass's products → the first product of each."""
        products = ((place, node) for place, node in enumerate(self.plan.nodes) if node.op == "product")
        found: dict[int, int] = {}
        for place, node in products:
            found.setdefault(node.args[0], place)
        return found

    def key(self, size: Size) -> Size:
        """The size, with H in place of I if both are the same."""
        return "H" if size == "I" and self.passes.mixes_sizes else size

    def of_size(self, norm: int) -> tuple[Size, int]:
        """The size of a normalization, and its index among those of this size."""
        size = self.norms[norm].size
        return size, sum(other.size == size for other in self.norms[:norm])

    def moments(self, norm: int) -> str:
        """The address of the saved moments of a normalization."""
        return f"(a.moments + (a.saved_row(t, b) * {len(self.norms)} + {norm}) * 2)"

    def operand_address(self, k: int) -> str:
        """The address of the rows of an operand for its products."""
        if self.before:
            return "x"
        state = self.passes.operands[k].state
        return f"a.state({self.passes.states.index(state)}, t, 0)" if state else self.operand_row(k, "0")

    def operand_row(self, k: int, b: str = "b") -> str:
        """The address of an operand that is stored."""
        stored = self.passes.stored_operands.index(k)
        return f"a.operands[{stored}] + (operand_step(t) * a.B + {b}) * {units(self.passes.operands[k].size)}"

    @functools.cached_property
    def sums(self) -> dict[tuple[int, int], tuple[Size, int]]:
        """The size and the slot in `sums` of each vector of a static value whose gradient is added up."""
        found: dict[tuple[int, int], tuple[Size, int]] = {}
        counts: dict[Size, int] = {}
        for index, rows in self.passes.backward.vectors.items():
            if index in self.passes.like_vectors:
                continue
            whole = self.passes.split.program.nodes[self.passes.split.vectors[index]]
            size = self.key(whole.size)
            for k in range(len(rows)):
                found[index, k] = size, counts.get(size, 0)
                counts[size] = counts.get(size, 0) + 1
        return found

    def through(self, rows: dict[int, str]) -> str:
        """The sum of the gradients of a state through products that read it. rows: of the products."""
        return " + ".join(f"masked(load({row} + i * W), b, u, n)" for row in rows.values()) or "Floats{}"


class LoopText:
    """The text of one loop: pointers, which are the same for all units, and then the lines of each unit."""

    def __init__(self, of: CppPass, stage: int, loop: Loop) -> None:
        self.of, self.nodes, self.stage, self.loop = of, of.plan.nodes, stage, loop
        self.rows: dict[str, str] = {}

    def text(self) -> str:
        """The function of a stage."""
        lines = [self.stored(step) if isinstance(step, Store) else self.computed(step) for step in self.loop.steps]
        inner = "".join(f"          {line}\n" for line in lines)
        rows = "".join(f"      {line}\n" for line in self.rows.values())
        size = self.loop.size
        name = f"stage{self.stage}_{size}({self.of.of_step}, Index b)"
        head = f"    [[gnu::flatten]] void {name} const {{\n{rows}"
        sums = [store for store in self.loop.stores if store.kind in ("moments", "d_moments")]
        if not sums:
            return f"{head}      slice_{size}.each_group([&](Index u, Index n, Index i) {{\n{inner}      }});\n    }}\n"
        totals = "".join(
            f"        Floats {name}{{}};\n"
            for store in sums
            for name in _TOTALS[store.kind].format(store.index).split()
        )
        after = "".join(f"        {self.after_part(store)}\n" for store in sums)
        return (
            f"{head}      partials_{sums[0].size}.each_part([&](int part, const Slice& part_units) {{\n{totals}"
            f"        slice_{size}.each_group_of(part_units, [&](Index u, Index n, Index i) {{\n{inner}"
            f"        }});\n{after}      }});\n    }}\n"
        )

    def after_part(self, store: Store) -> str:
        """Exchange the sums over the units of a thread's part."""
        index = store.index
        size, k = self.of.of_size(index)
        if store.kind == "d_moments":
            return f"partials_{size}.put(part, {k}, b, sum(total{index}), sum(products{index}));"
        key = self.of.key(size)
        row = f"buffer_{key}.row(b, {self.of.plan.slots[key][store.value]})"
        return f"partials_{size}.put_moments(part, slice_{key}, part_units, {k}, b, total{index}, {row});"

    def row(self, name: str, value: str, kind: str = "const float*") -> str:
        """The name of a value that is computed before the loop."""
        self.rows.setdefault(name, f"{kind} {name} = {value};")
        return name

    def later(self, place: int) -> str:
        """Where the value stands that an earlier stage stored, or that this one stores for later."""
        size = self.of.key(self.nodes[place].size)
        slot = self.of.plan.slots[size][place]
        return f"{self.row(f'buffer{slot}', f'buffer_{size}.row(b, {slot})', 'float*')} + i * W"

    def saved(self, index: int, k: int) -> str:
        size, rows = list(self.of.passes.forward.saved.items())[index]
        row = f"a.saved[{index}] + a.saved_row(t, b) * Slice::groups_of({units(size)}) * W * {len(rows)}"
        return f"{self.row(f'saved{index}', row, 'float*')} + u * {len(rows)} + {k} * W"

    # Values

    def name(self, place: int) -> str:
        """A value by its name."""
        node = self.nodes[place]
        return f"(Floats{{}} + {node.number!r}f)" if node.op == "constant" else f"v{place}"

    def computed(self, place: int) -> str:
        """The line that loads or computes a value."""
        kind = "auto" if self.nodes[place].op == "greater" else "Floats"
        return f"const {kind} v{place} = {self.expression(place)};"

    def expression(self, place: int) -> str:
        of, node = self.of, self.nodes[place]
        whole, part = (node.args[0], node.index) if node.op == "part" else (place, 0)
        if (loaded := self.loaded(whole, part)) is not None:
            return loaded
        if node.op == "normalized":
            moments = of.moments(node.index)
            scale = self.row(f"saved_scale{node.index}", f"{moments}[0]", "const float")
            mean = self.row(f"saved_mean{node.index}", f"{moments}[1]", "const float")
            return f"({self.name(node.args[0])} - {mean}) * {scale}"
        if node.op in ("normalize", "normalize_back"):
            return self.normalization(place)
        if of.plan.home[place] < self.stage:
            return f"load({self.later(place)})" + (" > 0.5f" if node.op == "greater" else "")
        if node.op == "d_state":
            s = of.passes.states.index(node.name)
            has_skip = str(node.name in of.passes.backward.states).lower()
            rows = {p: self.row(f"sums{p}", f"product{p}.row(b)") for p in of.passes.through[node.name]}
            return f"gradients.after_step({s}, {has_skip}, {of.through(rows)}, t, b, u, n, i)"
        args = list(map(self.name, node.args))
        if OPERATIONS[node.op].precedence:  # infix operators take numbers as they are
            numbers = [f"{self.nodes[arg].number!r}f" for arg in node.args]
            is_number = [self.nodes[arg].op == "constant" for arg in node.args]
            args = [number if known else arg for number, known, arg in zip(numbers, is_number, args, strict=True)]
        return in_code("cpp", node.op, *args)

    def loaded(self, place: int, part: int) -> str | None:
        """A vector of a value in memory; None for other values."""
        of, node = self.of, self.nodes[place]
        index, size = node.index, units(node.size)
        match node.op:
            case "input":
                row = self.row("row", "x + b * a.I")
            case "window":
                width = f"{node.count} * {size}"
                row = self.row(f"window{index}", f"a.windows[{index}] + a.input_row(t, b) * {width}")
                return f"load({row} + {part} * {size} + u, n)"
            case "static":
                first = len(of.passes.split.vectors) if of.before else 0
                row = self.row(f"vector{index}", f"a.vectors[{index + first}]")
                return f"load({row} + {part} * {size} + u, n)"
            case "state" | "before" | "after":
                function = "after" if node.op == "after" else "state"
                s = of.passes.states.index(node.name)
                row = self.row(f"{function}{s}", f"a.{function}({s}, t, b)")
            case "operand":
                row = self.row(f"operand{of.passes.stored_operands.index(index)}", of.operand_row(index))
            case "saved":
                return f"load({self.saved(list(of.passes.forward.saved).index(node.size), index)})"
            case "product":
                p = self.of.plan.numbers[place]
                row = self.row(f"sums{p}", f"product{p}.row(b)")
                return f"load({row} + (i * {node.count} + {part}) * W)"
            case "product_back":
                value = f"load({self.row(f'sums{index}', f'product{index}.row(b)')} + i * W)"
                operand = of.passes.operands[of.passes.products[index].operand]
                return f"masked({value}, b, u, n)" if operand.size == "H" else value
            case _:
                return None
        return f"load({row} + u, n)"

    def normalization(self, place: int) -> str:
        """A normalization, or its gradient, from the sums that threads have exchanged."""
        node = self.nodes[place]
        index = self.of.plan.numbers[place]
        size, k = self.of.of_size(index)
        v = f"load({self.later(node.args[0])})"
        first, second = (f"partials_{size}.{name}({k})[b]" for name in ("first", "second"))
        if node.op == "normalize":
            mean, scale = self.row(f"mean{k}", first, "const float"), self.row(f"scale{k}", second, "const float")
            return f"({v} - {mean}) * {scale}"
        scale = self.row(f"saved_scale{index}", f"{self.of.moments(index)}[0]", "const float")
        mean_d = self.row(f"mean_d{index}", first, "const float")
        mean_dx = self.row(f"mean_dx{index}", second, "const float")
        centered = f" - {mean_d}" if not self.of.norms[index].is_rms else ""
        return f"({v}{centered} - {self.name(node.args[1])} * {mean_dx}) * {scale}"

    # Stores

    def stored(self, store: Store) -> str:
        """The line that stores a value."""
        of, index, k = self.of, store.index, store.k
        value, size = self.name(store.value), units(store.size)
        states, operands = of.passes.states, of.passes.operands
        match store.kind:
            case "operand":
                row = self.row(f"operand{of.passes.stored_operands.index(index)}", of.operand_row(index), "float*")
                return f"store({row} + u, {value}, n); copies{index}.put(b, u, n, {value});"
            case "operand_before":
                return f"copies{index}.put(b, u, n, {value});"
            case "saved":
                return f"store({self.saved(index, k)}, {value});"
            case "state":
                put = f"put_state(a, zoneout, {index}, t, b, u, n, {value})"
                copies = [number for number, operand in enumerate(operands) if operand.state == states[index]]
                return f"copies{copies[0]}.put(b, u, n, {put});" if copies else f"{put};"
            case "d_product":
                row = f"a.d_products[{index}] + (t * a.B + b) * {store.count} * {size}"
                at = f"{self.row(f'd_product{index}', row, 'float*')} + {k} * {size} + u"
                return f"store({at}, {value}, n); copies{index}.put(b, {k} * {size} + u, n, {value});"
            case "d_window":
                row = f"a.d_windows[{index}] + (t * a.B + b) * {store.count} * {size}"
                return f"store({self.row(f'd_window{index}', row, 'float*')} + {k} * {size} + u, {value}, n);"
            case "window":
                row = f"const_cast<float*>(a.windows[{index}]) + b * {store.count} * {size}"
                return f"store({self.row(f'window{index}', row, 'float*')} + {k} * {size} + u, {value}, n);"
            case "d_vector":
                key, slot = of.sums[index, k]
                sums = f"{self.row(f'sum{slot}', f'sums_{key}.row(0, {slot})', 'float*')} + i * W"
                return f"store({sums}, load({sums}) + {value});"
            case "d_state":
                complete = f"(void){self.name(store.arrival)}; " if store.arrival is not None else ""
                return f"{complete}gradients.put({index}, b, i, {value});"
            case "no_d_state":
                return f"gradients.put_none({index}, b, i);"
            case "later":
                is_condition = self.nodes[store.value].op == "greater"
                number = f"({value} ? Floats{{}} + 1.0f : Floats{{}})" if is_condition else value
                return f"store({self.later(store.value)}, {number});"
            case "moments":
                return f"total{index} += first_lanes({value}, n);"
            case "d_moments":
                assert store.arrival is not None
                d = self.name(store.arrival)
                total = f"total{index} += first_lanes({d}, n);"
                return f"{total} products{index} += first_lanes({d} * {value}, n);"
        raise AssertionError(store)


_TOTALS = {"moments": "total{0}", "d_moments": "total{0} products{0}"}
"""Sums over units, by the kind of a store."""
