"""What a pass does between barriers, as data: which stage loads, computes and stores what. C++ and Triton print it.

A stage begins with products, which need all units of their operands, and goes on with a loop over units for each size.
"""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from charlm.cells.passes import Passes, Rows, numbered
from charlm.cells.program import Node, Size, needed, ordered


@dataclass(frozen=True)
class Store:
    """A store in a loop over units.

    operand, saved, state   forward: operand `index` of the products; saved value k of size number `index`; state
                            `index` after the step
    d_product, d_window     backward: gate k of the gradient of product or window `index`
    d_vector                backward: vector k of the gradient of static value `index`, added up
    d_state                 backward: the gradient of state `index` before the step, without its products' share,
                            which is the last value; the one before it must be complete here, too
    no_d_state              backward: the same where nothing but zoneout passes a gradient on
    window                  before the loop: vector k of window `index`
    later                   number `index` of the values for later stages
    moments, d_moments      sums over units for the next stage: of the argument of normalization `index`; of the
                            gradient d of its result x, and of d x
    """

    kind: str
    index: int
    values: tuple[int, ...]
    """The nodes that it needs."""
    size: Size
    k: int = 0
    count: int = 1
    """How many vectors are side by side."""


class Loop(NamedTuple):
    """A loop over the units of one size."""

    size: Size
    steps: tuple[int | Store, ...]
    """In order: nodes to load or to compute, and stores."""

    @property
    def stores(self) -> list[Store]:
        return [step for step in self.steps if isinstance(step, Store)]


class Stage(NamedTuple):
    """The computation between two barriers."""

    begins: tuple[int, ...]
    """Products, and normalizations of a team, that are computed first."""
    loops: tuple[Loop, ...]


class Plan(NamedTuple):
    """A pass in stages."""

    nodes: Sequence[Node]
    home: dict[int, int]
    """The stage that computes a node."""
    stages: tuple[Stage, ...]
    slots: dict[Size, dict[int, int]]
    """The values that later stages read, by size, and a number for each."""


_LEAVES = ("window", "static", "before", "after", "saved", "operand", "constant", "state", "input")
"""Values in memory, which any stage can load."""
_PRODUCTS = ("product", "product_back")
_NORMS = ("normalize", "normalize_back")


def stages_of(nodes: Sequence[Node], ends: Iterable[int], *, team: bool) -> dict[int, int]:
    """The stage in which each node that `ends` need is computed, in the order of stages.

    Nodes that need only leaves and products are computed as late as possible, so that fewer values pass from stage to
    stage. team: whether threads share the units of a stream, so that normalizations begin stages, too; else a thread
    has them all.
    """
    order = needed(nodes, ends)
    begins = (*_PRODUCTS, *_NORMS) if team else _PRODUCTS
    leaves = (*_LEAVES, "d_state") if team else _LEAVES
    earliest: dict[int, int] = {}
    loose: set[int] = set()
    for place in order:
        node = nodes[place]
        first = max((earliest[arg] for arg in node.args), default=0)
        earliest[place] = first + (node.op in begins)
        if node.op in (*leaves, *begins) or (node.args and loose.issuperset(node.args)):
            loose.add(place)
    at = dict(earliest)
    users: dict[int, list[int]] = {}
    for place in reversed(order):
        node = nodes[place]
        if place in loose and node.op not in begins and users.get(place):
            at[place] = max(min(users[place]), earliest[place])
        for arg in node.args:
            users.setdefault(arg, []).append(at[place] - (node.op in begins))
    return dict(sorted(at.items(), key=lambda item: (item[1], nodes[item[0]].op not in begins, item[0])))


def forward_plan(passes: Passes, *, team: bool) -> Plan:
    """The plan of the forward pass. team: see `stages_of`."""
    forward, nodes = passes.forward, passes.forward.nodes
    home = stages_of(nodes, passes.forward_ends, team=team)
    stores: list[tuple[int, Store]] = []
    for k in passes.stored_operands:
        operand = passes.operands[k]
        stores.append((home[operand.node], Store("operand", k, (operand.node,), operand.size)))
    for index, (size, places) in enumerate(forward.saved.items()):
        for k, place in enumerate(places):
            stores.append((home[place], Store("saved", index, (place,), size, k, len(places))))
    for s, (name, place) in enumerate(forward.states.items()):
        # No earlier stage may overwrite the copy of a state that others still multiply.
        stage = home[place]
        for product, p in numbered(nodes, "product").items():
            if passes.operands[passes.products[p].operand].state == name:
                stage = max(stage, home[product])
        if nodes[place].op in _LEAVES:
            stage = max(home.values())
        stores.append((stage, Store("state", s, (place,), "H")))
    return planned(nodes, home, stores, team=team, mixes_sizes=passes.mixes_sizes)


def backward_plan(passes: Passes, *, team: bool) -> Plan:
    """The plan of the backward pass. team: see `stages_of`."""
    back, whole = passes.backward, passes.split.program.nodes
    home = stages_of(back.nodes, passes.backward_ends, team=team)
    stores: list[tuple[int, Store]] = []

    def put(kind: str, gradients: Mapping[int, Rows], sizes: Sequence[Size]) -> None:
        for index, rows in gradients.items():
            for k, place in enumerate(rows):
                stores.append((home[place], Store(kind, index, (place,), sizes[index], k, len(rows))))

    put("d_product", dict(sorted(back.products.items())), [product.size for product in passes.products])
    windows = {k: rows for k, rows in back.windows.items() if k not in passes.like_windows}
    put("d_window", windows, [whole[place].size for place in passes.split.windows])
    vectors = {k: rows for k, rows in back.vectors.items() if k not in passes.like_vectors}
    put("d_vector", vectors, [whole[place].size for place in passes.split.vectors])
    end = max(home.values(), default=0)
    for s, name in enumerate(passes.split.loop.states):
        arrival = back.nodes.index(Node("d_state", name=name))
        arrives = home.setdefault(arrival, end)
        if name not in back.states:
            stores.append((arrives, Store("no_d_state", s, (arrival,), "H")))
            continue
        place = back.states[name]
        stage = end if back.nodes[place].op in _LEAVES else max(home[place], arrives)
        values = (arrival, place) if arrives == stage else (place,)
        stores.append((stage, Store("d_state", s, values, "H")))
    return planned(back.nodes, home, stores, team=team, mixes_sizes=passes.mixes_sizes)


def planned(
    nodes: Sequence[Node],
    home: Mapping[int, int],
    stores: Iterable[tuple[int, Store]],
    *,
    team: bool,
    mixes_sizes: bool,
) -> Plan:
    """The plan of a pass with these stores, each in a stage. home: see `stages_of`.

    mixes_sizes: whether H and I are the same number, so that one loop computes both.
    """
    count = 1 + max(home.values(), default=0)
    loops: list[dict[Size, list[Store]]] = [{} for _ in range(count)]
    slots: dict[Size, dict[int, int]] = {}
    anywhere = (*_LEAVES, *_PRODUCTS, *_NORMS, "normalized") if team else (*_LEAVES, *_PRODUCTS)

    def unified(size: Size) -> Size:
        return "H" if mixes_sizes and size == "I" else size

    def put(stage: int, store: Store) -> None:
        loops[stage].setdefault(unified(store.size), []).append(store)

    def keep(place: int) -> None:
        """Store a value for later stages."""
        numbers = slots.setdefault(unified(nodes[place].size), {})
        if place not in numbers:
            numbers[place] = len(numbers)
            put(home[place], Store("later", numbers[place], (place,), nodes[place].size))

    def operation(place: int) -> str:
        """What gives a value; of one of several vectors, what gives these."""
        node = nodes[place]
        return nodes[node.args[0]].op if node.op == "part" else node.op

    def is_elsewhere(place: int, stage: int) -> bool:
        """Whether an earlier stage must have stored the value."""
        return operation(place) not in anywhere and home[place] < stage

    def arguments(stage: int, place: int) -> list[int]:
        """The nodes that a loop needs to compute another one."""
        node = nodes[place]
        args = node.args
        if node.op in ("part", *_PRODUCTS) or is_elsewhere(place, stage):
            args = ()
        elif team and node.op in _NORMS:  # the first one is stored for later
            args = node.args[1:]
        return [arg for arg in args if nodes[arg].op != "constant"]

    states = [(stage, store) for stage, store in stores if store.kind in ("state", "d_state", "no_d_state")]
    for stage, store in stores:
        if (stage, store) not in states:
            put(stage, store)
    norms = numbered(nodes, "normalize")
    for place in home if team else ():
        node = nodes[place]
        if node.op == "normalize":
            keep(node.args[0])
            put(home[place] - 1, Store("moments", norms[place], node.args, node.size))
        elif node.op == "normalize_back":
            put(home[place] - 1, Store("d_moments", node.index, node.args, node.size))
    of_stage: list[list[int]] = [[] for _ in range(count)]
    for place in home:
        of_stage[home[place]].append(place)
    # From the last stage to the first, because a stage stores what later ones need.
    stages: list[Stage] = []
    for stage in reversed(range(count)):
        for at, store in states:
            if at == stage:
                put(stage, store)
        computed = [place for place in of_stage[stage] if operation(place) not in (*_LEAVES, *_PRODUCTS)]
        done: list[Loop] = []
        for size, group in loops[stage].items():
            ends: list[int | Store] = [*group]
            if not team:
                ends += [place for place in computed if unified(nodes[place].size) == size]
                ends.sort(key=_by_value)
            done.append(Loop(size, _steps(nodes, ends, functools.partial(arguments, stage))))
        for place in (step for loop in done for step in loop.steps if isinstance(step, int)):
            if team and nodes[place].op in _NORMS:
                keep(nodes[place].args[0])
            elif is_elsewhere(place, stage):
                keep(place)
        begins = _PRODUCTS + _NORMS if team else _PRODUCTS
        stages.insert(0, Stage(tuple(place for place in of_stage[stage] if nodes[place].op in begins), tuple(done)))
    return Plan(nodes, dict(home), tuple(stages), slots)


def _by_value(end: int | Store) -> tuple[int, bool]:
    """The order in which a kernel computes values; each is stored at once, so that few occupy registers."""
    return (end.values[-1], True) if isinstance(end, Store) else (end, False)


def _steps(
    nodes: Sequence[Node], ends: Iterable[int | Store], arguments: Callable[[int], Iterable[int]]
) -> tuple[int | Store, ...]:
    """The steps of a loop: before each end, what it needs and is not there yet."""
    steps: dict[int | Store, None] = {}
    for end in ends:
        values = end.values if isinstance(end, Store) else (end,)
        values = [value for value in values if nodes[value].op != "constant"]
        steps |= dict.fromkeys((*ordered(values, arguments, known=steps), end))
    return tuple(steps)
