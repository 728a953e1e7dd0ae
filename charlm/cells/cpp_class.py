"""The frame of a C++ class that computes a step in stages: loops over units, and buffers between stages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from charlm.cells.operations import BINARY, UNARY
from charlm.cells.passes import Normalization, numbered, stages
from charlm.cells.program import Node, Size

Put = Callable[["LoopText", str], str]
"""(loop, name of a value) → the statement that stores it."""


def units(size: Size) -> str:
    """A size in C++."""
    return f"a.{size}" if isinstance(size, str) else str(size)


def norm_sizes(norms: Iterable[Normalization]) -> list[Size]:
    """The distinct sizes of normalizations, in the order of the table `partials`."""
    return list(dict.fromkeys(size for size, _, _ in norms))


class ClassText:
    """The text of one pass: a class with a constructor and `step`."""

    name = ""
    functions = ""
    """Further functions of the class."""
    of_step = ("Index t", "t")
    """The parameter and the argument of `step` and of each stage."""
    begin = ""
    end = ""

    def __init__(
        self, nodes: Sequence[Node], norms: Sequence[Normalization], ends: Iterable[int], *, mixes_sizes: bool
    ) -> None:
        self.nodes, self.norms = nodes, norms
        self.products, self.normalized = numbered(nodes, "product"), numbered(nodes, "normalize")
        self.stages = stages(nodes, ends)
        self.home = {place: k for k, stage in enumerate(self.stages) for place in (*stage.begins, *stage.nodes)}
        self.same = {"I": "H"} if mixes_sizes else {}
        self.puts: dict[tuple[int, Size], list[tuple[int, Put]]] = {}
        self.last: dict[tuple[int, Size], list[tuple[int, Put]]] = {}
        self.measured: dict[
            tuple[int, Size], list[tuple[Size, str, str]]
        ] = {}  # (size, totals, statement after the loop)
        self.adds_up: set[tuple[int, Size]] = set()
        self.slots: dict[Size, dict[int, int]] = {}
        self.members: list[str] = []  # declarations
        self.initial: list[str] = []  # initializers
        self.constructed: list[str] = []

    # What subclasses describe

    def leaf(self, loop: LoopText, node: Node, part: int) -> str | None:
        """The expression that loads a value; None if the pass does not load it."""
        return None

    def begins(self, place: int) -> list[str]:
        """Statements that compute a product or normalization, at the beginning of its stage."""
        return []

    # Building

    def declare(self, member: str, arguments: str) -> None:
        """Declare a member, which the constructor makes from these arguments."""
        self.members.append(f"{member};")
        self.initial.append(f"{member.split()[-1]}({arguments})")

    def declare_product(self, p: int, node: Node, columns: Size, weights: int) -> None:
        """Declare a product with a matrix, a.weights[weights], that has `node.count` rows per unit."""
        matrix = f"slice_{self.key(node.size)}, {node.count}, a.weights[{weights}], scratch"
        self.declare(
            f"const Product<Operand> product{p}", f"Product<Operand>::forward(a.B, {units(columns)}, {matrix})"
        )

    def put(self, place: int, size: Size, put: Put, *, stage: int | None = None, last: bool = False) -> None:
        """Store a value in the stage in which it is computed, or in a later one."""
        at = self.home.get(place, 0) if stage is None else stage
        (self.last if last else self.puts).setdefault((at, self.key(size)), []).append((place, put))

    def put_row(self, place: int, size: Size, name: str, row: str, offset: str) -> None:
        """Store a value as a vector of the row `name`."""
        self.put(place, size, lambda loop, v: f"store({loop.row(name, row, 'float*')} + {offset} + u, {v}, n);")

    def append(self, node: Node, stage: int) -> int:
        """Add a node to this stage."""
        self.nodes = [*self.nodes, node]
        self.home[len(self.nodes) - 1] = stage
        return len(self.nodes) - 1

    def key(self, size: Size) -> Size:
        return self.same.get(size, size) if isinstance(size, str) else size

    def slot(self, place: int) -> int:
        """The slot of a value in the stage buffer; its own stage then stores it there."""
        size = self.key(self.nodes[place].size)
        slots = self.slots.setdefault(size, {})
        if place not in slots:
            slots[place] = len(slots)
            one = "({} ? Floats{{}} + 1.0f : Floats{{}})" if self.nodes[place].op == "greater" else "{}"
            slot = slots[place]
            self.put(
                place, size, lambda loop, value: f"store({loop.stage_buffer(size, slot)} + i * W, {one.format(value)});"
            )
        return slots[place]

    def text(self) -> str:
        functions, calls = [], []
        # From the last stage to the first, because a later stage adds stores to earlier ones.
        for stage in reversed(range(len(self.stages))):
            keys = dict.fromkeys(size for at, size in (*self.puts, *self.last) if at == stage)
            called = []
            for size in keys:
                loop = LoopText(self, stage, size)
                functions.insert(0, loop.text())
                rows = (
                    "for (Index b = 0; b < a.B; b++) {};"
                    if (stage, size) in self.adds_up
                    else "member.each_row(a.B, [&](Index b) {{ {}; }});"
                )
                called.append(rows.format(f"stage{stage}_{size}({self.of_step[1]}, b)"))
            begins = [line for place in self.stages[stage].begins for line in self.begins(place)]
            meets = ["member.meet();"] if self.needs_meeting(self.stages[stage].begins) else []
            calls = [*meets, *begins, *called, *calls]
        sizes = dict.fromkeys(self.key(node.size) for node in self.nodes if node.size != "")
        slices = [f"const Slice slice_{size};" for size in sizes]
        buffers = [f"const StageBuffer buffer_{size};" for size in self.slots]
        initial = [f"slice_{size}(member, {units(size)})" for size in sizes]
        initial += [f"buffer_{size}(a.B, {len(slots)}, slice_{size}, scratch)" for size, slots in self.slots.items()]
        constructed = "".join(f"      {line}\n" for line in self.constructed)
        body = "".join(f"      {line}\n" for line in [*self.begin.splitlines(), *calls, *self.end.splitlines()])
        members = "".join(f"    {line}\n" for line in [*slices, *buffers, *self.members])
        initial = "".join(f",\n          {line}" for line in [*initial, *self.initial])
        return (
            f"  template <class Operand>\n  struct {self.name} {{\n"
            f"    const Arguments& a;\n    const Member& member;\n{members}\n"
            f"    {self.name}(const Arguments& a, const Member& member, Scratch& scratch)\n"
            f"        : a(a), member(member){initial} {{\n{constructed}    }}\n"
            f"    void step({self.of_step[0]}) {{\n{body}    }}\n{''.join(functions)}{self.functions}  }};\n"
        )

    def normalizations(self, offset: int = 0) -> None:
        """Declare the `Partials` of normalizations."""
        for index, size in enumerate(norm_sizes(self.norms)):
            count = sum(norm.size == size for norm in self.norms)
            shared = f"a.partials[{index + offset}]"
            self.declare(f"Partials partials_{size}", f"member, {count}, a.B, {units(size)}, {shared}, scratch")
            self.begin += f"partials_{size}.turn();\n"

    def of_size(self, index: int) -> tuple[Size, int]:
        """The size of a normalization, and its index among those of this size."""
        size = self.norms[index].size
        return size, sum(norm.size == size for norm in self.norms[:index])

    def moments(self, index: int) -> str:
        """The address of the saved moments of a normalization."""
        return f"(a.moments + (a.saved_row(t, b) * {len(self.norms)} + {index}) * 2)"

    def measure(self, place: int) -> None:
        """Exchange the moments of a normalization's argument, in the stage before it."""
        index = self.normalized[place]
        size, k = self.of_size(index)
        [argument] = self.nodes[place].args
        stage, slot = self.home[place] - 1, self.slot(argument)
        self.put(argument, size, lambda _, value: f"total{index} += first_lanes({value}, n);", stage=stage)
        row = f"buffer_{self.key(size)}.row(b, {slot})"
        after = f"partials_{size}.put_moments(part, slice_{self.key(size)}, part_units, {k}, b, total{index}, {row});"
        self.measured.setdefault((stage, self.key(size)), []).append((size, f"total{index}", after))

    def merge(self, place: int) -> list[str]:
        """Statements that combine the moments of a normalization."""
        index = self.normalized[place]
        size, k = self.of_size(index)
        _, epsilon, centered = self.norms[index]
        return [f"partials_{size}.merge({k}, {epsilon!r}f, {str(centered).lower()});"]

    def needs_meeting(self, places: Sequence[int]) -> bool:
        """Whether a stage that begins with these products and normalizations needs a barrier."""
        return bool(places)

    def of_product(self, loop: LoopText, place: int, part: int) -> str:
        p = self.products[place]
        row = loop.row(f"sums{p}", f"product{p}.row(b)")
        return f"load({row} + (i * {self.nodes[place].count} + {part}) * W)"


class LoopText:
    """One loop over units: the values of one size that a stage computes."""

    def __init__(self, owner: ClassText, stage: int, size: Size) -> None:
        self.owner, self.stage, self.size = owner, stage, size
        self.rows: dict[str, str] = {}  # statements before the loop
        self.lines: list[str] = []
        self.names: dict[int, str] = {}

    def text(self) -> str:
        owner, at = self.owner, (self.stage, self.size)
        written = 0
        puts = owner.puts.get(at, [])
        while written < len(puts):  # the list grows while values are computed
            place, put = puts[written]
            self.lines.append(put(self, self.value(place)))
            written += 1
        for place, put in owner.last.get(at, []):
            self.lines.append(put(self, self.value(place)))
        inner = "".join(f"          {line}\n" for line in self.lines)
        rows = "".join(f"      {line}\n" for line in self.rows.values())
        name = f"stage{self.stage}_{self.size}({owner.of_step[0]}, Index b)"
        head = f"    [[gnu::flatten]] void {name} const {{\n{rows}"
        slice_name = f"slice_{self.size}"
        if measured := owner.measured.get(at):
            totals = "".join(f"        Floats {names}{{}};\n" for _, total, _ in measured for names in total.split())
            after = "".join(f"        {line}\n" for _, _, line in measured)
            return (
                f"{head}      partials_{measured[0][0]}.each_part([&](int part, const Slice& part_units) {{\n{totals}"
                f"        {slice_name}.each_group_of(part_units, [&](Index u, Index n, Index i) {{\n{inner}"
                f"        }});\n{after}      }});\n    }}\n"
            )
        return f"{head}      {slice_name}.each_group([&](Index u, Index n, Index i) {{\n{inner}      }});\n    }}\n"

    def row(self, name: str, value: str, kind: str = "const float*") -> str:
        """A value that is the same for all units, computed before the loop."""
        self.rows.setdefault(name, f"{kind} {name} = {value};")
        return name

    def stage_buffer(self, size: Size, slot: int) -> str:
        """The row of a slot of the stage buffer."""
        return self.row(f"buffer{slot}", f"buffer_{size}.row(b, {slot})", "float*")

    def value(self, place: int) -> str:
        """The name of a value, which is computed here unless it has a name already."""
        stack = [place]
        while stack:  # no recursion: a step may have thousands of operations
            if missing := [arg for arg in self.needed(stack[-1]) if arg not in self.names]:
                stack += reversed(missing)
            elif (last := stack.pop()) not in self.names:
                self.define(last)
        return self.names[place]

    def needed(self, place: int) -> tuple[int, ...]:
        """The arguments of a value that is computed here."""
        node = self.owner.nodes[place]
        computed = node.op in (*UNARY, *BINARY, "where", "stop")
        return node.args if computed and self.owner.home[place] == self.stage else ()

    def define(self, place: int) -> None:
        """Load or compute a value whose arguments have names."""
        node, owner = self.owner.nodes[place], self.owner
        if (number := self.number(place)) is not None:
            self.names[place] = f"(Floats{{}} + {number})"
            return
        whole, part = (owner.nodes[node.args[0]], node.index) if node.op == "part" else (node, 0)
        whole_place = node.args[0] if node.op == "part" else place
        kind = "auto" if node.op == "greater" else "Floats"
        if (loaded := owner.leaf(self, whole, part)) is not None:
            expression = loaded
        elif whole.op in ("product", "product_back"):
            expression = owner.of_product(self, whole_place, part)
        elif node.op == "normalize":
            expression = self.normalized(place, node)
        elif node.op == "normalize_back":
            expression = self.back_from_norm(node)
        elif owner.home[place] < self.stage:
            expression = f"load({self.stage_buffer(self.size, owner.slot(place))} + i * W)"
            expression += " > 0.5f" if node.op == "greater" else ""
        else:
            expression = self.computed(node)
        self.names[place] = f"v{place}"
        self.lines.append(f"const {kind} v{place} = {expression};")

    def number(self, place: int) -> str | None:
        """A constant in C++."""
        node = self.owner.nodes[place]
        return f"{node.number!r}f" if node.op == "constant" else None

    def computed(self, node: Node) -> str:
        if node.op in _OPERATORS:
            a, b = (self.number(arg) or self.value(arg) for arg in node.args)
            return f"{a} {_OPERATORS[node.op]} {b}"
        if node.op == "where":
            condition, a, b = node.args
            return f"{self.value(condition)} ? {self.value(a)} : {self.value(b)}"
        if node.op == "stop":
            return self.value(node.args[0])
        return f"{_FUNCTIONS.get(node.op, node.op)}({', '.join(map(self.value, node.args))})"

    def normalized(self, place: int, node: Node) -> str:
        owner = self.owner
        size, k = owner.of_size(owner.normalized[place])
        v = f"load({self.stage_buffer(owner.key(size), owner.slot(node.args[0]))} + i * W)"
        mean = self.row(f"mean{k}", f"partials_{size}.first({k})[b]", "const float")
        scale = self.row(f"scale{k}", f"partials_{size}.second({k})[b]", "const float")
        return f"({v} - {mean}) * {scale}"

    def back_from_norm(self, node: Node) -> str:
        owner = self.owner
        size, k = owner.of_size(node.index)
        d = f"load({self.stage_buffer(owner.key(size), owner.slot(node.args[0]))} + i * W)"
        x = self.value(node.args[1])
        scale = self.row(f"saved_scale{node.index}", f"{owner.moments(node.index)}[0]", "const float")
        first = self.row(f"mean_d{node.index}", f"partials_{size}.first({k})[b]", "const float")
        second = self.row(f"mean_dx{node.index}", f"partials_{size}.second({k})[b]", "const float")
        centered = f" - {first}" if owner.norms[node.index].centered else ""
        return f"({d}{centered} - {x} * {second}) * {scale}"


_OPERATORS = {"add": "+", "sub": "-", "mul": "*", "div": "/", "greater": ">"}
_FUNCTIONS = {"max": "maximum", "min": "minimum", "sqrt": "square_root"}
