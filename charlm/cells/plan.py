"""What a pass does between barriers, as data: which stage loads, computes and stores what. C++, Triton and C print it.

A stage begins with operations that need all units of their operands, such as products, and goes on with a loop over
units for each size. The forward pass of an LSTM, whose window W x + b was computed before the loop over time:

    stage 0   nothing: the operand of the product, h, is in memory
    stage 1   begins with the product R h, then a loop over H units:
                  i = σ(window, vector 0 + product, vector 0)      store saved 0
                  f = σ(window, vector 1 + product, vector 1)      store saved 1
                  g = tanh(window, vector 2 + product, vector 2)   store saved 2
                  o = σ(window, vector 3 + product, vector 3)      store saved 3
                  c = f ⊙ (load state c) + i ⊙ g
                  h = o ⊙ tanh(c)                                  store state h, store state c

An RHN of depth 2 also has a stage 2: it begins with the product of what stage 1 has computed. A value of stage 1 that
stage 2 needs is stored there: as `later`, unless it is stored anyway.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from typing import NamedTuple

from charlm.cells.passes import Passes, Rows, numbers
from charlm.cells.program import Node, Size, needed

PRODUCTS = ("product", "product_back")
NORMALIZATIONS = ("normalize", "normalize_back")
"""They begin a stage only where threads share the units of a stream; else a thread computes them amid a loop."""


class Vector(NamedTuple):
    """A place in memory: vector k of `width` vectors side by side.

        input              the input of the part before the loop
        window, static     window or static value `item` of the `Split`
        given              tensor `item` of a call; size "": a number for each stream
        state, after       state `item` before the step; after it
        operand, saved     operand `item` of the products; saved values of size number `item`
        product            the result of product `item`; in the backward pass the gradient of its operand
        d_product          the gradient of product `item`
        d_window, d_vector the gradient of window or static value `item`; the latter is added up
        later              number `item` of the values of this size for later stages

    These are no memory that a loop reads, but stored all the same:

        d_state            the gradient of state `item` before the step, without its products' share
        no_d_state         the same where the step reads the state by products only: 0
        window_before, operand_before   before the loop: window `item`; operand `item` of the products there
        moments, d_moments sums over units for the next stage: of the argument of normalization `item`; of the gradient
                           d of its result x, and of d ⊙ x
    """

    kind: str
    item: int = 0
    size: Size = "H"
    width: int = 1
    k: int = 0


class Load(NamedTuple):
    """A value that a loop loads."""

    value: int
    vector: Vector


class Store(NamedTuple):
    """Values that a loop stores."""

    vector: Vector
    values: Rows
    """One; for d_moments the gradient d of a normalization's result x, and x."""

    @property
    def value(self) -> int:
        return self.values[0]


class Loop(NamedTuple):
    """A loop over the units of one size."""

    size: Size
    steps: tuple[Load | Store | int, ...]
    """In order; a number is a node to compute."""

    @property
    def stores(self) -> list[Store]:
        return [step for step in self.steps if isinstance(step, Store)]


class Stage(NamedTuple):
    """The computation between two barriers."""

    begins: Rows
    """The nodes that are computed first, because they need all units of their operands."""
    loops: tuple[Loop, ...]


class Plan(NamedTuple):
    """A pass in stages."""

    nodes: Sequence[Node]
    stages: tuple[Stage, ...]
    numbers: dict[int, int]
    """See `numbers`."""


PLAIN = ("operand", "saved", "d_product", "d_window", "later")
"""Stores from which later stages can load the value."""
_STATES = ("state", "d_state")
"""Stores that overwrite what the step reads: they come last."""


def forward_plan(passes: Passes, begins: Collection[str]) -> Plan:
    """The plan of the forward pass. begins: the operations that begin a stage."""
    forward, stores = passes.forward, list[Store]()
    for k in passes.stored_operands:
        stores.append(Store(Vector("operand", k, passes.operands[k].size), (passes.operands[k].node,)))
    for index, (size, places) in enumerate(forward.saved.items()):
        for k, place in enumerate(places):
            stores.append(Store(Vector("saved", index, size, len(places), k), (place,)))
    for s, place in enumerate(forward.states.values()):
        stores.append(Store(Vector("state", s), (place,)))
    return planned(forward.nodes, memory_of(passes, forward.nodes), stores, begins, passes.loop_size)


def backward_plan(passes: Passes, begins: Collection[str]) -> Plan:
    """The plan of the backward pass. begins: the operations that begin a stage."""
    back, whole, stores = passes.backward, passes.split.program.nodes, list[Store]()
    windows = {k: rows for k, rows in back.windows.items() if k not in passes.like_windows}
    for kind, gradients, sizes in (
        ("d_product", dict(sorted(back.products.items())), [product.size for product in passes.products]),
        ("d_window", windows, [whole[place].size for place in passes.split.windows]),
        ("d_vector", passes.summed_vectors, [whole[place].size for place in passes.split.vectors]),
    ):
        for index, rows in gradients.items():
            for k, place in enumerate(rows):
                stores.append(Store(Vector(kind, index, sizes[index], len(rows), k), (place,)))
    for s, name in enumerate(passes.states):
        if name in back.states:
            stores.append(Store(Vector("d_state", s), (back.states[name],)))
        else:
            arriving = back.nodes.index(Node("d_state", name=name))
            stores.append(Store(Vector("no_d_state", s), (arriving,)))
    return planned(back.nodes, memory_of(passes, back.nodes), stores, begins, passes.loop_size)


def stages_of(nodes: Sequence[Node], ends: Iterable[int], begins: Collection[str]) -> dict[int, int]:
    """The nodes that `ends` need, and the stage in which each is computed.

    A product begins the stage after its operand's. The forward pass of an RHN of depth 2:

                                     earliest   home
        s, operand of R₁ s           0          0
        window = W x + b₁            0          1, where it is used
        R₁ s, h₁, g₁, s₁             1          1
        static = b₂                  0          2, where it is used
        R₂ s₁, h₂, g₂, s₂            2          2
    """
    order = needed(nodes, ends)
    earliest: dict[int, int] = {}
    fixed: set[int] = set()
    for place in order:
        node = nodes[place]
        earliest[place] = max((earliest[arg] for arg in node.args), default=0)
        if node.op in begins:
            earliest[place] += 1
        elif node.op == "d_state" or not fixed.isdisjoint(node.args):
            fixed.add(place)
    # All else comes as late as possible, so that few values pass from stage to stage.
    home = dict(earliest)
    latest: dict[int, int] = {}  # the first stage that needs the value
    for place in reversed(order):
        node = nodes[place]
        if place in latest and place not in fixed and node.op not in begins:
            home[place] = max(latest[place], earliest[place])
        needed_at = home[place] - 1 if node.op in begins else home[place]
        for arg in node.args:
            latest[arg] = min(latest.get(arg, needed_at), needed_at)
    return home


def memory_of(passes: Passes, nodes: Sequence[Node]) -> dict[int, Vector]:
    """Where those values of a pass are that no loop computes; of several vectors, each has a node `part`."""
    memory: dict[int, Vector] = {}
    number_of = numbers(nodes)
    saved = list(passes.forward.saved)
    for place, node in enumerate(nodes):
        whole, k = (node.args[0], node.index) if node.op == "part" else (place, 0)
        op, index, count = nodes[whole].op, nodes[whole].index, nodes[whole].count
        if op == "given":
            memory[place] = Vector(op, passes.given.index(nodes[whole].name), node.size, count, k)
        elif op in ("input", "window", "static", "operand"):
            memory[place] = Vector(op, index, node.size, count, k)
        elif op in ("state", "before", "after"):
            memory[place] = Vector("after" if op == "after" else "state", passes.states.index(node.name))
        elif op == "saved":
            rows = passes.forward.saved[node.size]
            memory[place] = Vector(op, saved.index(node.size), node.size, len(rows), index)
        elif op in PRODUCTS:
            memory[place] = Vector("product", number_of[whole], node.size, count, k)
    return memory


def planned(
    nodes: Sequence[Node],
    memory: Mapping[int, Vector],
    ends: Sequence[Store],
    begins: Collection[str],
    loop_size: Callable[[Size], Size],
) -> Plan:
    """The plan of a pass.

    memory: where values are that no loop computes, such as leaves and products. ends: what is stored, operands of
    products too; values that a stage reads from an earlier one are stored besides. loop_size: the size of the loop that
    computes values of a size.
    """
    # Zoneout may pass on the gradient of a state that nothing else needs.
    arriving = [place for place, node in enumerate(nodes) if node.op == "d_state"]
    home = stages_of(nodes, [*arriving, *(store.value for store in ends)], begins)
    last = max(home.values(), default=0)
    stores = [(last if store.vector.kind in _STATES else home[store.value], store) for store in ends]
    number_of = numbers(nodes)
    for place, stage in home.items():
        node = nodes[place]
        if node.op in begins and place not in memory:  # a normalization: the stage before sums up over units
            kind = "moments" if node.op == "normalize" else "d_moments"
            stores.append((stage - 1, Store(Vector(kind, number_of[place], node.size), node.args)))
    where = dict(memory)
    for _, store in stores:
        if store.vector.kind in PLAIN:
            where.setdefault(store.value, store.vector)

    read, computed = _needed_where(nodes, home, memory, stores, begins)
    counts: Counter[Size] = Counter()
    for place in sorted(computed):
        if place not in where and not read[place] <= computed[place]:
            size = loop_size(nodes[place].size)
            where[place] = Vector("later", counts[size], size)
            counts[size] += 1
            stores.append((home[place], Store(where[place], (place,))))

    values_of: dict[tuple[int, Size], list[int]] = defaultdict(list)
    stores_of: dict[tuple[int, Size], list[Store]] = defaultdict(list)
    for place in sorted(computed):
        for stage in computed[place]:
            values_of[stage, loop_size(nodes[place].size)].append(place)
    for stage, store in stores:
        stores_of[stage, loop_size(store.vector.size)].append(store)
    loops: list[list[Loop]] = [[] for _ in range(last + 1)]
    for stage, size in dict.fromkeys((*values_of, *stores_of)):
        loops[stage].append(Loop(size, _steps(nodes, where, values_of[stage, size], stores_of[stage, size])))
    firsts: list[list[int]] = [[] for _ in loops]
    for place in sorted(home):
        if nodes[place].op in begins:
            firsts[home[place]].append(place)
    stages = [Stage(tuple(first), tuple(of_stage)) for first, of_stage in zip(firsts, loops, strict=True)]
    return Plan(nodes, tuple(stages), number_of)


def _needed_where(
    nodes: Sequence[Node],
    home: Mapping[int, int],
    memory: Container[int],
    stores: Iterable[tuple[int, Store]],
    begins: Collection[str],
) -> tuple[dict[int, set[int]], dict[int, set[int]]]:
    """The stages whose loops read each value, and the stages whose loops compute it."""
    read: dict[int, set[int]] = defaultdict(set)
    for stage, store in stores:
        for value in store.values:
            read[value].add(stage)
    computed: dict[int, set[int]] = {}
    for place in sorted(home, reverse=True):  # what needs a value comes before it
        node = nodes[place]
        if place in memory or node.op == "constant":
            continue
        # A normalized value is computed again from what is stored of its argument.
        again = node.op in begins or node.op == "normalized"
        computed[place] = read[place] if again else {home[place]}
        for arg in node.args:
            read[arg] |= computed[place]
    return read, computed


def _steps(
    nodes: Sequence[Node], where: Mapping[int, Vector], values: Sequence[int], stores: Sequence[Store]
) -> tuple[Load | Store | int, ...]:
    """Values in order, each behind its loads and before its stores, so that few occupy registers; states last."""
    steps: list[Load | Store | int] = []
    ready: set[int] = set()

    def load(places: Iterable[int]) -> None:
        for place in places:
            if place not in ready and nodes[place].op != "constant":
                ready.add(place)
                steps.append(Load(place, where[place]))

    stores_at: dict[int, list[Store]] = defaultdict(list)
    for store in stores:
        place = len(nodes) if store.vector.kind in _STATES else max(store.values)
        stores_at[place].append(store)
    computed = {*values}
    for place in sorted(computed | stores_at.keys()):
        if place in computed:
            load(nodes[place].args)
            ready.add(place)
            steps.append(place)
        for store in stores_at[place]:
            load(store.values)
            steps.append(store)
    return tuple(steps)
