"""C++ of a cell's passes: classes for charlm/native/recurrence.cpp, built from those in recurrence.h.

tests/cells/gru.cpp is the text of a GRU, with the function that prints each part.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from charlm.cells.cpp_loop import CppPass, LoopText, units
from charlm.cells.passes import Passes
from charlm.cells.plan import (
    NORMALIZATIONS,
    PRODUCTS,
    Store,
    Vector,
    backward_plan,
    forward_plan,
    memory_of,
    planned,
)
from charlm.cells.program import Node, Size
from charlm.cells.split import before_loop

BEGINS = (*PRODUCTS, *NORMALIZATIONS)
"""What begins a stage: threads share the units of a stream."""


def cpp(variants: Sequence[Passes]) -> str:
    """The passes of a kind's layers; Arguments::variant chooses one of these variants."""
    cells = [_cell(variant, derived) for variant, derived in enumerate(variants)]
    cases = [f"if (variant == {k}) return function(Cell{k}{{}});" for k in range(len(variants))]
    dispatch = ["template <class Function>", "void with_cell(Index variant, const Function& function) {", *cases, "}"]
    return _indented("\n".join([*cells, *dispatch]))


def _indented(text: str) -> str:
    """The text, each line indented by the braces that are open."""
    lines, depth = [], 0
    for line in text.splitlines():
        closing = line.startswith("}")
        lines.append("  " * (depth - closing) + line)
        depth += line.count("{") - line.count("}")
    return "\n".join(lines) + "\n"


def norm_counts(norms: Iterable[Node]) -> Counter[Size]:
    """The number of normalizations of each size, in the order of the table `partials`."""
    return Counter(norm.size for norm in norms)


def _cell(variant: int, derived: Passes) -> str:
    head = [f"struct Cell{variant} {{", f"static constexpr Index STATES = {len(derived.states)};", _work(derived)]
    return "\n".join([*head, _forward(derived), _backward(derived), _before(derived), "};"])


def _work(derived: Passes) -> str:
    """Multiplications of a step between two barriers; without products the multiplications of a window."""
    rows = [
        f"{product.gates} * {units(product.size)} * {units(derived.operands[product.operand].size)}"
        for product in derived.products
    ]
    work = f"a.B * ({' + '.join(rows)}) / {len(derived.operands)}" if rows else "a.T * a.B * a.H * 16"
    return f"static Index work(const Arguments& a) {{ return {work}; }}"


def _forward(derived: Passes) -> str:
    operands = tuple(operand.node for operand in derived.operands)
    of = CppPass(derived, forward_plan(derived, BEGINS), derived.normalizations, operands)
    members = _partials(of)
    for k, operand in enumerate(derived.operands):
        first = f", slice_H, {of.operand_address(k, '0')}" if operand.state else ""
        members.append(f"Copies<Operand> copies{k}{{a.B, {units(operand.size)}, a.copies[{k}]{first}}};")
    return _class("Forward", of, [*members, *_products(of)], [*_stages(of), "turn ^= 1;"])


def _backward(derived: Passes) -> str:
    of = CppPass(derived, backward_plan(derived, BEGINS), derived.normalizations)
    members = [f"const StateGradients gradients{{a, {len(derived.states)}, slice_H, scratch}};", *_partials(of)]
    for p, product in enumerate(derived.products):
        width = f"{product.gates} * {units(product.size)}"
        columns = derived.loop_size(derived.operands[product.operand].size)
        members.append(f"Copies<Operand> copies{p}{{a.B, {width}, a.copies[{p}]}};")
        arguments = f"a.B, {width}, slice_{columns}, a.weights[{p}], scratch"
        members.append(f"const Product<Operand> product{p} = Product<Operand>::backward({arguments});")
    for index, rows in derived.summed_vectors.items():
        size = derived.split.program.nodes[derived.split.vectors[index]].size
        arguments = f"slice_{derived.loop_size(size)}, {len(rows)}, {units(size)}, a.d_vectors[{index}], scratch"
        members.append(f"const VectorSums sums{index}{{{arguments}}};")
    clear = [f"sums{index}.clear();" for index in derived.summed_vectors]
    add = [f"sums{index}.add();" for index in derived.summed_vectors]
    # The next call, for step t − 1, reads what these multiply.
    last = [_multiplied_back(of, p) for products in derived.through.values() for p in products]
    if last:
        last = ["member.meet();", *last]
    return _class("Backward", of, members, [*clear, *_stages(of), *add, *last], _finish(of))


def _finish(of: CppPass) -> list[str]:
    lines = []
    for name in of.passes.states:
        gradient = of.state_gradient(name, lambda vector: of.address(vector, of.row(vector)))
        lines.append(f"gradients.finish({gradient}, b, u, n, i);")
    return [
        "// After step 0: store the gradients of the states before it.",
        "void finish() const {",
        "for (Index b = 0; b < a.B; b++) slice_H.each_group([&](Index u, Index n, Index i) {",
        *lines,
        "});",
        "}",
    ]


def _before(derived: Passes) -> str:
    """The part before the loop, one step at a time: generation gets the input of a layer step by step."""
    split, before = derived.split, before_loop(derived.split)
    nodes = before.program.nodes
    stores: list[Store] = []
    for k, place in enumerate(before.operands):
        if nodes[place].op != "input":
            stores.append(Store(Vector("operand_before", k, nodes[place].size), (place,)))
    rows = iter(before.program.results)
    for index, window in enumerate(split.windows):
        whole = split.program.nodes[window]
        for k in range(whole.count):
            stores.append(Store(Vector("window_before", index, whole.size, whole.count, k), (next(rows),)))
    memory = memory_of(derived, nodes)
    for place, vector in memory.items():
        if vector.kind == "static":  # in `a.vectors`, those of the loop come first
            memory[place] = vector._replace(item=vector.item + len(split.vectors))
    plan = planned(nodes, memory, stores, BEGINS, derived.loop_size)
    of = CppPass(derived, plan, before.norms, before.operands, is_before=True)
    members = _partials(of, first=len(norm_counts(derived.normalizations)))
    for k, place in enumerate(before.operands):
        size = units(nodes[place].size)
        if nodes[place].op == "input":
            members.append(f"OwnCopy<Operand> copies{k}{{a.B, {size}, scratch}};")
        else:
            buffer = f"a.copies[{k + len(derived.operands)}]"
            members.append(f"Copies<Operand> copies{k}{{a.B, {size}, {buffer}, true}};")
    members += _products(of, first=len(derived.products))
    return _class("Before", of, members, _stages(of))


# Parts of the classes


def _class(name: str, of: CppPass, members: Sequence[str], step: Sequence[str], functions: Sequence[str] = ()) -> str:
    """A class with `step`, a function for each loop, and others."""
    plan, lines = of.plan, []
    for size in dict.fromkeys(of.passes.loop_size(node.size) for node in plan.nodes if node.size != ""):
        lines.append(f"const Slice slice_{size}{{member, {units(size)}}};")
    loops = [(at, loop) for at, stage in enumerate(plan.stages) for loop in stage.loops]
    stores = [store for _, loop in loops for store in loop.stores]
    for size, count in Counter(store.vector.size for store in stores if store.vector.kind == "later").items():
        lines.append(f"const StageBuffer buffer_{size}{{a.B, {count}, slice_{size}, scratch}};")
    return "\n".join(
        [
            "template <class Operand>",
            f"struct {name} : Pass {{",
            "using Pass::Pass;",
            *lines,
            *members,
            f"void step({of.time}) {{",
            *(f"partials_{size}.turn();" for size in norm_counts(of.norms)),
            *step,
            "}",
            *(LoopText(of, at, loop).text() for at, loop in loops),
            *functions,
            "};",
        ]
    )


def _stages(of: CppPass) -> list[str]:
    """The lines of `step` that run the stages: a barrier, products and normalizations, and the loops."""
    nodes = of.plan.nodes
    lines: list[str] = []
    for k, stage in enumerate(of.plan.stages):
        # Only products of a layer's input do not wait for other threads.
        if any(nodes[place].op != "product" or nodes[nodes[place].args[0]].op != "input" for place in stage.begins):
            lines.append("member.meet();")
        for place in stage.begins:
            lines += _begin(of, place)
        for loop in stage.loops:
            call = f"stage{k}_{loop.size}({of.time.split()[-1]}, b)"
            if any(store.vector.kind == "d_vector" for store in loop.stores):
                lines.append(f"for (Index b = 0; b < a.B; b++) {call};")
            else:
                lines.append(f"member.each_row(a.B, [&](Index b) {{ {call}; }});")
    return lines


def _begin(of: CppPass, place: int) -> list[str]:
    """The lines for a product or a normalization with which a stage begins."""
    node, number = of.plan.nodes[place], of.plan.numbers[place]
    if node.op == "product":
        k = of.operands.index(node.args[0])
        products = [p for p, other in enumerate(of.plan.nodes) if other.op == "product" and other.args == node.args]
        take = f"const Operand* read{k} = copies{k}.take({of.operand_address(k)});"
        return [*([take] if place == products[0] else []), f"product{number}.multiply(read{k});"]
    if node.op == "product_back":
        return [_multiplied_back(of, number)]
    size, k = of.of_size(number)
    if node.op == "normalize_back":
        return [f"partials_{size}.average({k});"]
    merge = f"partials_{size}.merge({k}, {node.number!r}f, {str(not node.is_rms).lower()});"
    if of.is_before:
        return [merge]
    stride = 2 * len(of.norms)
    save = f"partials_{size}.save({k}, a.moments + a.saved_row(t, 0) * {stride} + {2 * number}, {stride});"
    return [merge, save]


def _multiplied_back(of: CppPass, p: int) -> str:
    """The line that multiplies the gradient of a product with its matrix."""
    product = of.passes.products[p]
    row = f"a.d_products[{p}] + t * a.B * {product.gates} * {units(product.size)}"
    return f"product{p}.multiply(copies{p}.take({row}));"


def _products(of: CppPass, first: int = 0) -> list[str]:
    """The products of a forward pass. first: the number of the first one's matrix in `a.weights`."""
    members: list[str] = []
    nodes = of.plan.nodes
    for node in nodes:
        if node.op == "product":
            p = len(members)
            columns, slices = units(nodes[node.args[0]].size), f"slice_{of.passes.loop_size(node.size)}"
            arguments = f"a.B, {columns}, {slices}, {node.count}, a.weights[{p + first}], scratch"
            members.append(f"const Product<Operand> product{p} = Product<Operand>::forward({arguments});")
    return members


def _partials(of: CppPass, first: int = 0) -> list[str]:
    """What threads exchange for normalizations. first: in the table `partials`."""
    members = []
    for index, (size, count) in enumerate(norm_counts(of.norms).items(), first):
        arguments = f"member, {count}, a.B, {units(size)}, a.partials[{index}], scratch"
        members.append(f"Partials partials_{size}{{{arguments}}};")
    return members
