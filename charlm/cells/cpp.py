"""C++ of a cell's passes: classes for charlm/native/recurrence.cpp, built from those in recurrence.h."""

from collections import Counter
from collections.abc import Iterable, Sequence

from charlm.cells.cpp_loop import CppPass, LoopText, units
from charlm.cells.passes import Passes
from charlm.cells.plan import Store, backward_plan, forward_plan, in_stages, planned
from charlm.cells.program import Node, Size
from charlm.cells.split import Before, before_loop

Members = list[tuple[str, str, str]]
"""Type and name of each member, and the arguments from which the constructor makes it; "" if it makes none."""


def cpp(variants: Sequence[Passes]) -> str:
    """The passes of a kind's layers; Arguments::variant chooses one of these variants."""
    cells = "\n".join(_cell(variant, derived) for variant, derived in enumerate(variants))
    cases = "".join(f"  if (variant == {k}) return function(Cell{k}{{}});\n" for k in range(len(variants)))
    dispatch = f"template <class Function>\nvoid with_cell(Index variant, const Function& function) {{\n{cases}}}\n"
    return f"{cells}\n{dispatch}"


def norm_counts(norms: Iterable[Node]) -> Counter[Size]:
    """The number of normalizations of each size, in the order of the table `partials`."""
    return Counter(norm.size for norm in norms)


def _cell(variant: int, derived: Passes) -> str:
    text = "\n".join([_forward(derived), _backward(derived), _before(derived, before_loop(derived.split))])
    states = f"  static constexpr Index STATES = {len(derived.states)};\n"
    return f"struct Cell{variant} {{\n{states}{_work(derived)}\n{text}}};\n"


def _work(derived: Passes) -> str:
    """Multiplications of a step between two barriers; without products the multiplications of a window."""
    rows = [
        f"{product.gates} * {units(product.size)} * {units(derived.operands[product.operand].size)}"
        for product in derived.products
    ]
    work = f"a.B * ({' + '.join(rows)}) / {len(derived.operands)}" if rows else "a.T * a.B * a.H * 16"
    return f"  static Index work(const Arguments& a) {{ return {work}; }}\n"


def _forward(derived: Passes) -> str:
    """The forward pass."""
    of = CppPass(derived, forward_plan(derived, team=True))
    states = derived.states
    members = [("const Zoneout", "zoneout", f"a, {len(states)}"), ("int", "turn = 1", ""), *_partials(of)]
    constructed = []
    for k, operand in enumerate(derived.operands):
        mask = "a.mask" if operand.size == "H" else "nullptr"
        members.append(("Copies<Operand>", f"copies{k}", f"a.B, {units(operand.size)}, {mask}, a.copies[{k}]"))
        if operand.state:
            constructed.append(f"copies{k}.begin(slice_H, a.state({states.index(operand.state)}, 0, 0));")
    body = ["turn ^= 1;", *_turns(of), *_calls(of)]
    functions = "    Index operand_step(Index t) const { return a.saved_steps > 1 ? t : turn; }\n"
    return _class("Forward", of, [*members, *_products(of)], body, constructed) + functions + "  };\n"


def _backward(derived: Passes) -> str:
    """The backward pass."""
    of = CppPass(derived, backward_plan(derived, team=True))
    members = [("const StateGradients", "gradients", f"a, {len(derived.states)}, slice_H, scratch"), *_partials(of)]
    for p, product in enumerate(derived.products):
        width = f"{product.gates} * {units(product.size)}"
        members.append(("Copies<Operand>", f"copies{p}", f"a.B, {width}, nullptr, a.copies[{p}]"))
        matrix = f"slice_{of.key(derived.operands[product.operand].size)}, a.weights[{p}], scratch"
        arguments = f"Product<Operand>::backward(a.B, {width}, {matrix})"
        members.append(("const Product<Operand>", f"product{p}", arguments))
    sums = Counter(size for size, _ in of.sums.values())
    for size, count in sums.items():
        members.append(("const StageBuffer", f"sums_{size}", f"1, {count}, slice_{size}, scratch"))
    calls = _calls(of)
    for (index, k), (size, slot) in of.sums.items():
        target = f"a.d_vectors[{index}] + {k} * {units(size)} + u"
        add = f"store({target}, load({target}, n) + load(sums_{size}.row(0, {slot}) + i * W), n);"
        calls.append(f"slice_{size}.each_group([&](Index u, Index n, Index i) {{ {add} }});")
    # The next call, for step t − 1, reads what these multiply.
    last = [_multiplied_back(of, p) for products in derived.through.values() for p in products]
    calls += ["member.meet();", *last] if last else []
    body = [*_turns(of), *(f"sums_{size}.clear(1);" for size in sums), *calls]
    functions = (
        "    Index operand_step(Index t) const { return a.saved_steps > 1 ? t : 0; }\n"
        "    Floats masked(Floats d, Index b, Index u, Index n) const {\n"
        "      return a.mask ? d * load(a.mask + b * a.H + u, n) : d;\n    }\n"
    )
    return _class("Backward", of, members, body) + functions + _finish(of) + "  };\n"


def _finish(of: CppPass) -> str:
    """The function `finish` of the backward pass."""
    lines = []
    for s, name in enumerate(of.passes.states):
        has_skip = str(name in of.passes.backward.states).lower()
        through = of.through({p: f"product{p}.row(b)" for p in of.passes.through[name]})
        lines.append(f"        gradients.finish({s}, {has_skip}, {through}, b, u, n, i);\n")
    return (
        "    // After step 0: store the gradients of the states before it.\n    void finish() const {\n"
        "      for (Index b = 0; b < a.B; b++) slice_H.each_group([&](Index u, Index n, Index i) {\n"
        f"{''.join(lines)}      }});\n    }}\n"
    )


def _before(derived: Passes, before: Before) -> str:
    """The part before the loop, one step at a time: generation gets the input of a layer step by step."""
    nodes, split = before.program.nodes, derived.split
    staged = in_stages(nodes, before.program.results, team=True, mixes_sizes=derived.mixes_sizes)
    stores: list[tuple[int, Store]] = []
    for k, place in enumerate(before.operands):
        if nodes[place].op != "input":
            stores.append((staged.home[place], Store("operand_before", k, place, nodes[place].size)))
    rows = iter(before.program.results)
    for index, window in enumerate(split.windows):
        whole = split.program.nodes[window]
        for k in range(whole.count):
            place = next(rows)
            stores.append((staged.home[place], Store("window", index, place, whole.size, k, whole.count)))
    of = CppPass(derived, planned(staged, stores), before)
    members = _partials(of, first=len(norm_counts(derived.normalizations)))
    for k, place in enumerate(before.operands):
        size = units(nodes[place].size)
        if nodes[place].op == "input":
            members.append(("OwnCopy<Operand>", f"copies{k}", f"a.B, {size}, scratch"))
        else:
            buffer = f"a.copies[{k + len(derived.operands)}]"
            members.append(("Copies<Operand>", f"copies{k}", f"a.B, {size}, nullptr, {buffer}, true"))
    members += _products(of, first=len(derived.products))
    return _class("Before", of, members, [*_turns(of), *_calls(of)]) + "  };\n"


# Parts of the classes


def _class(name: str, of: CppPass, members: Members, body: Sequence[str], constructed: Sequence[str] = ()) -> str:
    """A class with a constructor, `step`, and a function for each loop; without its end.

    For example, shortened:

        template <class Operand>
        struct Forward {
          const Arguments& a;
          const Member& member;
          const Slice slice_H;
          const Product<Operand> product0;

          Forward(const Arguments& a, const Member& member, Scratch& scratch)
              : a(a), member(member),
                slice_H(member, a.H),
                product0(Product<Operand>::forward(a.B, a.H, slice_H, 4, a.weights[0], scratch)) {}
          void step(Index t) { …; member.meet(); product0.multiply(read0); member.each_row(…stage1_H(t, b)…); }
          void stage1_H(Index t, Index b) const { … }
    """
    sizes = dict.fromkeys(of.key(node.size) for node in of.plan.nodes if node.size != "")
    all_members = [("const Slice", f"slice_{size}", f"member, {units(size)}") for size in sizes]
    for size, slots in of.plan.slots.items():
        all_members.append(("const StageBuffer", f"buffer_{size}", f"a.B, {len(slots)}, slice_{size}, scratch"))
    all_members += members
    declared = "".join(f"    {kind} {member};\n" for kind, member, _ in all_members)
    initial = "".join(f",\n          {member}({arguments})" for _, member, arguments in all_members if arguments)
    in_constructor = "".join(f"      {line}\n" for line in constructed)
    in_step = "".join(f"      {line}\n" for line in body)
    loops = [LoopText(of, at, loop).text() for at, stage in enumerate(of.plan.stages) for loop in stage.loops[::-1]]
    return (
        f"  template <class Operand>\n  struct {name} {{\n"
        f"    const Arguments& a;\n    const Member& member;\n{declared}\n"
        f"    {name}(const Arguments& a, const Member& member, Scratch& scratch)\n"
        f"        : a(a), member(member){initial} {{\n{in_constructor}    }}\n"
        f"    void step({of.of_step}) {{\n{in_step}    }}\n{''.join(loops)}"
    )


def _calls(of: CppPass) -> list[str]:
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
            call = f"stage{k}_{loop.size}({of.of_step.split()[-1]}, b)"
            if any(store.kind == "d_vector" for store in loop.stores):
                lines.append(f"for (Index b = 0; b < a.B; b++) {call};")
            else:
                lines.append(f"member.each_row(a.B, [&](Index b) {{ {call}; }});")
    return lines


def _begin(of: CppPass, place: int) -> list[str]:
    """The lines for a product or a normalization with which a stage begins."""
    node, number = of.plan.nodes[place], of.plan.numbers[place]
    match node.op:
        case "product":
            [operand] = node.args
            k, is_first = [*of.operands].index(operand), of.operands[operand] == place
            take = [f"const Operand* read{k} = copies{k}.take({of.operand_address(k)});"] if is_first else []
            return [*take, f"product{number}.multiply(read{k});"]
        case "product_back":
            return [_multiplied_back(of, number)]
    size, k = of.of_size(number)
    if node.op == "normalize_back":
        return [f"partials_{size}.average({k});"]
    merge = f"partials_{size}.merge({k}, {node.number!r}f, {str(not node.is_rms).lower()});"
    if of.before:
        return [merge]
    save = f"m[0] = partials_{size}.second({k})[b], m[1] = partials_{size}.first({k})[b]"
    return [
        merge,
        f"if (member.id == 0) for (Index b = 0; b < a.B; b++) {{ float* m = {of.moments(number)}; {save}; }}",
    ]


def _multiplied_back(of: CppPass, p: int) -> str:
    """The line that multiplies the gradient of a product with its matrix."""
    product = of.passes.products[p]
    row = f"a.d_products[{p}] + t * a.B * {product.gates} * {units(product.size)}"
    return f"product{p}.multiply(copies{p}.take({row}));"


def _products(of: CppPass, first: int = 0) -> Members:
    """The products of a forward pass. first: the number of the first one's matrix in `a.weights`."""
    members = []
    nodes = of.plan.nodes
    products = [node for node in nodes if node.op == "product"]
    for p, node in enumerate(products):
        columns = units(nodes[node.args[0]].size)
        matrix = f"slice_{of.key(node.size)}, {node.count}, a.weights[{p + first}], scratch"
        arguments = f"Product<Operand>::forward(a.B, {columns}, {matrix})"
        members.append(("const Product<Operand>", f"product{p}", arguments))
    return members


def _partials(of: CppPass, first: int = 0) -> Members:
    """What threads exchange for normalizations. first: in the table `partials`."""
    members = []
    for index, (size, count) in enumerate(norm_counts(of.norms).items(), first):
        arguments = f"member, {count}, a.B, {units(size)}, a.partials[{index}], scratch"
        members.append(("Partials", f"partials_{size}", arguments))
    return members


def _turns(of: CppPass) -> list[str]:
    return [f"partials_{size}.turn();" for size in norm_counts(of.norms)]
