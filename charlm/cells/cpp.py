"""C++ of a cell's passes: classes for charlm/native/recurrence.cpp, built from those in recurrence.h."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence

from charlm.cells.cpp_class import ClassText, LoopText, norm_sizes, units
from charlm.cells.loop import Before, before_loop
from charlm.cells.passes import ANYWHERE, Normalization, Operand, Passes, Rows
from charlm.cells.program import Node, Size


def cpp(programs: Sequence[Passes]) -> str:
    """The steps of several programs; Arguments::variant chooses one."""
    cells = "\n".join(_cell(variant, derived) for variant, derived in enumerate(programs))
    cases = "".join(f"  if (variant == {k}) return function(Cell{k}{{}});\n" for k in range(len(programs)))
    dispatch = f"template <class Function>\nvoid with_cell(Index variant, const Function& function) {{\n{cases}}}\n"
    return f"{cells}\n{dispatch}"


def _cell(variant: int, derived: Passes) -> str:
    classes = [_Forward(derived), _Backward(derived), _BeforeLoop(derived, before_loop(derived.split))]
    text = "\n".join(pass_class.text() for pass_class in classes)
    states = f"  static constexpr Index STATES = {len(derived.split.loop.states)};\n"
    return f"struct Cell{variant} {{\n{states}{_work(derived)}\n{text}}};\n"


def _work(derived: Passes) -> str:
    """Multiplications of a step between two barriers; without products the multiplications of a window."""
    rows = [
        f"{product.gates} * {units(product.size)} * {units(derived.operands[product.operand].size)}"
        for product in derived.products
    ]
    work = f"a.B * ({' + '.join(rows)}) / {len(derived.operands)}" if rows else "a.T * a.B * a.H * 16"
    return f"  static Index work(const Arguments& a) {{ return {work}; }}\n"


class _OfPasses(ClassText):
    """A pass of the loop."""

    def __init__(self, derived: Passes, nodes: Sequence[Node], ends: Iterable[int]) -> None:
        super().__init__(nodes, derived.normalizations, ends, mixes_sizes=derived.mixes_sizes)
        self.derived = derived
        self.sizes = list(derived.forward.saved)
        self.states = derived.split.loop.states

    def leaf(self, loop: LoopText, node: Node, part: int) -> str | None:
        derived, size = self.derived, units(node.size)
        if node.op == "window":
            width = f"{node.count} * {size}"
            row = loop.row(f"window{node.index}", f"a.windows[{node.index}] + a.input_row(t, b) * {width}")
            return f"load({row} + {part} * {size} + u, n)"
        if node.op == "static":
            row = loop.row(f"vector{node.index}", f"a.vectors[{node.index}]")
            return f"load({row} + {part} * {size} + u, n)"
        if node.op in ("state", "before", "after"):
            function = "after" if node.op == "after" else "state"
            s = self.states.index(node.name)
            return f"load({loop.row(f'{function}{s}', f'a.{function}({s}, t, b)')} + u, n)"
        if node.op == "saved":
            row, count = self.saved_row(loop, node.size)
            return f"load({row} + u * {count} + {node.index} * W)"
        if node.op == "operand":
            stored = derived.stored_operands.index(node.index)
            return f"load({loop.row(f'operand{stored}', self.operand_row(stored, size))} + u, n)"
        if node.op == "normalized":
            moments = self.moments(node.index)
            scale = loop.row(f"saved_scale{node.index}", f"{moments}[0]", "const float")
            mean = loop.row(f"saved_mean{node.index}", f"{moments}[1]", "const float")
            return f"({loop.value(node.args[0])} - {mean}) * {scale}"
        return None

    def saved_row(self, loop: LoopText, size: Size) -> tuple[str, int]:
        index, count = self.sizes.index(size), len(self.derived.forward.saved[size])
        row = f"a.saved[{index}] + a.saved_row(t, b) * Slice::groups_of({units(size)}) * W * {count}"
        return loop.row(f"saved{index}", row, "float*"), count

    def operand_row(self, stored: int, size: str, b: str = "b") -> str:
        return f"a.operands[{stored}] + (operand_step(t) * a.B + {b}) * {size}"


class _Forward(_OfPasses):
    name = "Forward"
    begin = "turn ^= 1;\n"
    functions = "    Index operand_step(Index t) const { return a.saved_steps > 1 ? t : turn; }\n"

    def __init__(self, derived: Passes) -> None:
        forward = derived.forward
        super().__init__(derived, forward.nodes, derived.forward_ends)
        self.declare("const Zoneout zoneout", f"a, {len(self.states)}")
        self.members.append("int turn = 1;")
        self.normalizations()
        for k, operand in enumerate(derived.operands):
            mask = "a.mask" if operand.size == "H" else "nullptr"
            self.declare(f"Copies<Operand> copies{k}", f"a.B, {units(operand.size)}, {mask}, a.copies[{k}]")
        for place, p in self.products.items():
            self.declare_product(p, self.nodes[place], derived.operands[derived.products[p].operand].size, p)
        for k, operand in enumerate(derived.operands):
            if operand.state:
                s = self.states.index(operand.state)
                self.constructed.append(f"copies{k}.begin(slice_H, a.state({s}, 0, 0));")
            else:
                self.put(operand.node, operand.size, functools.partial(self.put_operand, k))
        for size, places in forward.saved.items():
            for slot, place in enumerate(places):
                self.put(place, size, functools.partial(self.put_saved, size, slot))
        for place in (place for place in self.home if self.nodes[place].op == "normalize"):
            self.measure(place)
        for s, (name, place) in enumerate(forward.states.items()):
            # No earlier stage may overwrite the copy of a state that members still multiply.
            multiply = [at for at, p in self.products.items() if self.operand_of(p).state == name]
            stage = max([self.home.get(place, 0), *(self.home[at] for at in multiply)])
            stage = stage if self.nodes[place].op not in ANYWHERE else len(self.stages) - 1
            self.put(place, "H", functools.partial(self.put_state, s, name), stage=stage, last=True)

    def operand_of(self, p: int) -> Operand:
        return self.derived.operands[self.derived.products[p].operand]

    def put_state(self, s: int, name: str, loop: LoopText, value: str) -> str:
        put = f"put_state(a, zoneout, {s}, t, b, u, n, {value})"
        copied = [k for k, operand in enumerate(self.derived.operands) if operand.state == name]
        return f"copies{copied[0]}.put(b, u, n, {put});" if copied else f"{put};"

    def put_saved(self, size: Size, slot: int, loop: LoopText, value: str) -> str:
        row, count = self.saved_row(loop, size)
        return f"store({row} + u * {count} + {slot} * W, {value});"

    def put_operand(self, k: int, loop: LoopText, value: str) -> str:
        stored = self.derived.stored_operands.index(k)
        row = loop.row(f"operand{stored}", self.operand_row(stored, units(self.derived.operands[k].size)), "float*")
        return f"store({row} + u, {value}, n); copies{k}.put(b, u, n, {value});"

    def begins(self, place: int) -> list[str]:
        node = self.nodes[place]
        if node.op == "normalize":
            index = self.normalized[place]
            size, k = self.of_size(index)
            store = f"m[0] = partials_{size}.second({k})[b], m[1] = partials_{size}.first({k})[b]"
            loop = f"for (Index b = 0; b < a.B; b++) {{ float* m = {self.moments(index)}; {store}; }}"
            return [*self.merge(place), f"if (member.id == 0) {loop}"]
        p = self.products[place]
        k = self.derived.products[p].operand
        operand, first = self.derived.operands[k], [product.operand for product in self.derived.products].index(k)
        if operand.state:
            row = f"a.state({self.states.index(operand.state)}, t, 0)"
        else:
            size = units(operand.size)
            row = self.operand_row(self.derived.stored_operands.index(k), size, "0")
        take = [f"const Operand* read{k} = copies{k}.take({row});"] if p == first else []
        return [*take, f"product{p}.multiply(read{k});"]


class _Backward(_OfPasses):
    name = "Backward"

    def __init__(self, derived: Passes) -> None:
        back = derived.backward
        inner = [place for place, node in enumerate(back.nodes) if node.op == "normalize_back"]
        super().__init__(derived, back.nodes, derived.backward_ends)
        self.functions = (
            "    Index operand_step(Index t) const { return a.saved_steps > 1 ? t : 0; }\n"
            "    Floats masked(Floats d, Index b, Index u, Index n) const {\n"
            "      return a.mask ? d * load(a.mask + b * a.H + u, n) : d;\n    }\n"
        )
        self.declare("const StateGradients gradients", f"a, {len(self.states)}, slice_H, scratch")
        self.normalizations()
        for p, product in enumerate(derived.products):
            operand = derived.operands[product.operand]
            width = f"{product.gates} * {units(product.size)}"
            self.declare(f"Copies<Operand> copies{p}", f"a.B, {width}, nullptr, a.copies[{p}]")
            matrix = f"slice_{self.key(operand.size)}, a.weights[{p}], scratch"
            self.declare(f"const Product<Operand> product{p}", f"Product<Operand>::backward(a.B, {width}, {matrix})")
            for k, place in enumerate(back.products[p]):
                self.put(place, product.size, functools.partial(self.put_product, p, k))
        windows = {k: vectors for k, vectors in back.windows.items() if k not in derived.like_windows}
        for index, vectors in windows.items():
            whole = derived.split.program.nodes[derived.split.windows[index]]
            for k, place in enumerate(vectors):
                row = f"a.d_windows[{index}] + (t * a.B + b) * {whole.count} * {units(whole.size)}"
                self.put_row(place, whole.size, f"d_window{index}", row, f"{k} * {units(whole.size)}")
        self.sums: dict[Size, int] = {}
        for index, vectors in back.vectors.items():
            if index not in derived.like_vectors:
                self.add_up(index, vectors)
        for place in inner:
            if place in self.home:
                self.exchange(place)
        for s, name in enumerate(self.states):
            self.put_skip(s, name)
        self.after_step()

    def put_product(self, p: int, k: int, loop: LoopText, value: str) -> str:
        product = self.derived.products[p]
        size = units(product.size)
        row = loop.row(f"d_product{p}", f"a.d_products[{p}] + (t * a.B + b) * {product.gates} * {size}", "float*")
        store = f"store({row} + {k} * {size} + u, {value}, n);"
        return f"{store} copies{p}.put(b, {k} * {size} + u, n, {value});"

    def add_up(self, index: int, vectors: Rows) -> None:
        """Sum the gradients of a static value: over the streams of a step first, which rounds less."""
        whole = self.derived.split.program.nodes[self.derived.split.vectors[index]]
        size = self.key(whole.size)
        for k, place in enumerate(vectors):
            slot = self.sums.setdefault(size, 0)
            self.sums[size] += 1
            row = f"sums_{size}.row(0, {slot}) + i * W"

            def put(loop: LoopText, value: str, slot: int = slot) -> str:
                sums = f"{loop.row(f'sum{slot}', f'sums_{size}.row(0, {slot})', 'float*')} + i * W"
                return f"store({sums}, load({sums}) + {value});"

            self.put(place, size, put)
            self.adds_up.add((self.home.get(place, 0), size))
            target = f"a.d_vectors[{index}] + {k} * {units(size)} + u"
            add = f"store({target}, load({target}, n) + load({row}), n);"
            self.end += f"slice_{size}.each_group([&](Index u, Index n, Index i) {{ {add} }});\n"

    def exchange(self, place: int) -> None:
        """Exchange the sums that the gradient of a normalization needs, in the stage before it."""
        d, x = self.nodes[place].args
        index = self.nodes[place].index
        size, k = self.of_size(index)
        stage = self.home[place] - 1
        product = self.append(Node("mul", (d, x), 1, size), stage)
        self.put(d, size, lambda _, value: f"total{index} += first_lanes({value}, n);", stage=stage)
        self.put(product, size, lambda _, value: f"products{index} += first_lanes({value}, n);", stage=stage)
        after = f"partials_{size}.put(part, {k}, b, sum(total{index}), sum(products{index}));"
        self.measured.setdefault((stage, self.key(size)), []).append((size, f"total{index} products{index}", after))

    def put_skip(self, s: int, name: str) -> None:
        place = self.derived.backward.states.get(name)
        arrival = self.state_gradient(name)
        end = len(self.stages) - 1
        if arrival is None:  # no other value needs it
            arrival = self.append(Node("d_state", name=name), end)
        if place is None:
            self.put(arrival, "H", lambda _, value: f"gradients.put_none({s}, b, i);", last=True)
            return
        known = self.nodes[place].op in ANYWHERE
        stage = end if known else max(self.home[place], self.home[arrival])
        if self.home[arrival] >= stage:
            self.put(arrival, "H", lambda _, value: f"(void){value};", stage=stage)
        self.put(place, "H", lambda _, value: f"gradients.put({s}, b, i, {value});", stage=stage, last=True)

    def state_gradient(self, name: str) -> int | None:
        return next((p for p in self.home if self.nodes[p].op == "d_state" and self.nodes[p].name == name), None)

    def through(self, name: str, loop: LoopText | None = None) -> str:
        """The gradient of a state through the products that read it."""
        products = {p: f"product{p}.row(b)" for p in self.derived.through[name]}
        rows = [loop.row(f"sums{p}", row) if loop else row for p, row in products.items()]
        return " + ".join(f"masked(load({row} + i * W), b, u, n)" for row in rows) or "Floats{}"

    def leaf(self, loop: LoopText, node: Node, part: int) -> str | None:
        if node.op == "d_state":
            s, place = self.states.index(node.name), self.state_gradient(node.name)
            if self.home[place] == loop.stage:  # type: ignore[index]
                has_skip = str(node.name in self.derived.backward.states).lower()
                return f"gradients.after_step({s}, {has_skip}, {self.through(node.name, loop)}, t, b, u, n, i)"
            return None
        return super().leaf(loop, node, part)

    def begins(self, place: int) -> list[str]:
        node = self.nodes[place]
        if node.op == "normalize_back":
            size, k = self.of_size(node.index)
            return [f"partials_{size}.average({k});"]
        return [self.multiply(node.index)]

    def multiply(self, p: int) -> str:
        product = self.derived.products[p]
        row = f"a.d_products[{p}] + t * a.B * {product.gates} * {units(product.size)}"
        return f"product{p}.multiply(copies{p}.take({row}));"

    def of_product(self, loop: LoopText, place: int, part: int) -> str:
        p = self.nodes[place].index
        value = f"load({loop.row(f'sums{p}', f'product{p}.row(b)')} + i * W)"
        operand = self.derived.operands[self.derived.products[p].operand]
        return f"masked({value}, b, u, n)" if operand.size == "H" else value

    def after_step(self) -> None:
        """The products that the previous step reads, and `finish`."""
        last = [self.multiply(p) for products in self.derived.through.values() for p in products]
        self.end += "\n".join(["member.meet();", *last] if last else []) + "\n"
        for size, count in self.sums.items():
            self.declare(f"const StageBuffer sums_{size}", f"1, {count}, slice_{size}, scratch")
            self.begin += f"sums_{size}.clear(1);\n"
        lines = []
        for s, name in enumerate(self.states):
            has_skip = str(name in self.derived.backward.states).lower()
            lines.append(f"        gradients.finish({s}, {has_skip}, {self.through(name)}, b, u, n, i);\n")
        self.functions += (
            "    // After step 0: store the gradients of the states before it.\n    void finish() const {\n"
            "      for (Index b = 0; b < a.B; b++) slice_H.each_group([&](Index u, Index n, Index i) {\n"
            f"{''.join(lines)}      }});\n    }}\n"
        )


class _BeforeLoop(ClassText):
    """The part before the loop, one step at a time: generation gets the input of a layer step by step."""

    name = "Before"
    of_step = ("const float* x", "x")

    def __init__(self, derived: Passes, before: Before) -> None:
        nodes, self.split = before.program.nodes, derived.split
        norms = [Normalization(node.size, node.number, not node.index) for node in before.norms]
        super().__init__(nodes, norms, before.program.results, mixes_sizes=derived.mixes_sizes)
        self.normalizations(len(norm_sizes(derived.normalizations)))
        self.operands = before.operands
        for k, place in enumerate(self.operands):
            size = nodes[place].size
            if nodes[place].op == "input":
                self.declare(f"OwnCopy<Operand> copies{k}", f"a.B, {units(size)}, scratch")
            else:
                buffer = f"a.copies[{k + len(derived.operands)}]"
                self.declare(f"Copies<Operand> copies{k}", f"a.B, {units(size)}, nullptr, {buffer}, true")
                self.put(place, size, lambda _, value, k=k: f"copies{k}.put(b, u, n, {value});")
        for p, place in enumerate(before.products):
            self.declare_product(p, nodes[place], nodes[nodes[place].args[0]].size, p + len(derived.products))
        for place in (place for place in self.home if nodes[place].op == "normalize"):
            self.measure(place)
        rows = iter(before.program.results)
        for index, whole in enumerate(derived.split.program.nodes[place] for place in derived.split.windows):
            for k in range(whole.count):
                row = f"const_cast<float*>(a.windows[{index}]) + b * {whole.count} * {units(whole.size)}"
                self.put_row(next(rows), whole.size, f"window{index}", row, f"{k} * {units(whole.size)}")

    def leaf(self, loop: LoopText, node: Node, part: int) -> str | None:
        if node.op == "input":
            return f"load({loop.row('row', 'x + b * a.I')} + u, n)"
        if node.op == "static":
            row = loop.row(f"vector{node.index}", f"a.vectors[{node.index + len(self.split.vectors)}]")
            return f"load({row} + {part} * {units(node.size)} + u, n)"
        return None

    def begins(self, place: int) -> list[str]:
        if self.nodes[place].op == "normalize":
            return self.merge(place)
        p, k = self.products[place], self.operands.index(self.nodes[place].args[0])
        first = next(q for at, q in self.products.items() if self.nodes[at].args == self.nodes[place].args)
        take = [f"const Operand* read{k} = copies{k}.take(x);"] if p == first else []
        return [*take, f"product{p}.multiply(read{k});"]

    def needs_meeting(self, places: Sequence[int]) -> bool:
        return any(
            self.nodes[place].op != "product" or self.nodes[self.nodes[place].args[0]].op != "input" for place in places
        )
