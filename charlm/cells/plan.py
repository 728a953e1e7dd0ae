"""What a pass does between barriers, as data: which stage loads, computes and stores what. C++ and Triton print it.

A stage begins with products, which need all units of their operands, and goes on with a loop over units for each size.
The forward pass of an LSTM, whose window W x + b was computed before the loop over time:

    stage 0   nothing: the operand of the product, h, is in memory
    stage 1   begins with the product R h, then a loop over H units:
                  i = σ(window, vector 0 + product, vector 0)      store saved 0
                  f = σ(window, vector 1 + product, vector 1)      store saved 1
                  g = tanh(window, vector 2 + product, vector 2)   store saved 2
                  o = σ(window, vector 3 + product, vector 3)      store saved 3
                  c = f ⊙ (load state c) + i ⊙ g
                  h = o ⊙ tanh(c)                                  store state h, store state c

An RHN of depth 2 also has a stage 2: it begins with the product of what stage 1 has computed. A value of stage 1 that
stage 2 needs is stored there as `later`.
"""

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from charlm.cells.passes import Passes, Rows, numbered, numbers
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
    window, operand_before  before the loop: vector k of window `index`; operand `index` of the products there
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


@dataclass(frozen=True, eq=False)
class Plan:
    """A pass in stages."""

    nodes: Sequence[Node]
    home: dict[int, int]
    """The stage that computes a node."""
    stages: tuple[Stage, ...]
    slots: dict[Size, dict[int, int]]
    """The values that later stages read, by size, and a number for each."""

    @functools.cached_property
    def numbers(self) -> dict[int, int]:
        """See `numbers`."""
        return numbers(self.nodes)


_LEAVES = ("window", "static", "before", "after", "saved", "operand", "constant", "state", "input")
"""Values in memory, which any stage can load."""
_PRODUCTS = ("product", "product_back")
_NORMS = ("normalize", "normalize_back")


class Staged(NamedTuple):
    """The nodes of a pass, and the stage in which each is computed."""

    nodes: Sequence[Node]
    home: dict[int, int]
    team: bool
    """Whether threads share the units of a stream, so that normalizations begin stages; else a thread has them all."""
    mixes_sizes: bool
    """Whether H and I are the same number, so that one loop computes both."""

    @property
    def length(self) -> int:
        """The number of stages."""
        return 1 + max(self.home.values(), default=0)

    @property
    def begins(self) -> tuple[str, ...]:
        return (*_PRODUCTS, *_NORMS) if self.team else _PRODUCTS

    def unified(self, size: Size) -> Size:
        return "H" if self.mixes_sizes and size == "I" else size

    def operation(self, place: int) -> str:
        """What gives a value; of one of several vectors, what gives these."""
        node = self.nodes[place]
        return self.nodes[node.args[0]].op if node.op == "part" else node.op

    def is_from_earlier(self, place: int, stage: int) -> bool:
        """Whether an earlier stage must have stored the value."""
        anywhere = (*_LEAVES, *self.begins, "normalized") if self.team else (*_LEAVES, *self.begins)
        return self.operation(place) not in anywhere and self.home[place] < stage

    def arguments(self, stage: int, place: int) -> list[int]:
        """The nodes that a loop needs to compute another one."""
        node = self.nodes[place]
        args = node.args
        if node.op in ("part", *_PRODUCTS) or self.is_from_earlier(place, stage):
            args = ()
        elif self.team and node.op in _NORMS:  # the first one is stored for later
            args = node.args[1:]
        return [arg for arg in args if self.nodes[arg].op != "constant"]

    def steps(self, stage: int, size: Size, stores: Iterable[Store], nodes: Iterable[int]) -> tuple[int | Store, ...]:
        """The steps of a loop: before each store what it needs, states last. nodes: those of the stage."""
        states_last = sorted(stores, key=lambda store: store.kind in ("state", "d_state", "no_d_state"))
        ends: list[int | Store] = [*states_last]
        if not self.team:
            for place in nodes:
                in_memory = self.operation(place) in (*_LEAVES, *_PRODUCTS)
                if not in_memory and self.unified(self.nodes[place].size) == size:
                    ends.append(place)
            # Each value is stored as soon as it is computed, so that few occupy registers.
            ends.sort(key=lambda end: (end.values[-1], True) if isinstance(end, Store) else (end, False))
        steps: dict[int | Store, None] = {}
        for end in ends:
            values = end.values if isinstance(end, Store) else (end,)
            values = [value for value in values if self.nodes[value].op != "constant"]
            steps |= dict.fromkeys((*ordered(values, functools.partial(self.arguments, stage), known=steps), end))
        return tuple(steps)


def in_stages(nodes: Sequence[Node], ends: Iterable[int], *, team: bool, mixes_sizes: bool) -> Staged:
    """The nodes that `ends` need, each with its stage, in the order of stages."""
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
    # What needs only leaves and products comes as late as possible, so that few values pass from stage to stage.
    at = dict(earliest)
    users: dict[int, list[int]] = {}
    for place in reversed(order):
        node = nodes[place]
        if place in loose and node.op not in begins and users.get(place):
            at[place] = max(min(users[place]), earliest[place])
        for arg in node.args:
            users.setdefault(arg, []).append(at[place] - (node.op in begins))
    places = sorted(order, key=lambda place: (at[place], nodes[place].op not in begins, place))
    return Staged(nodes, {place: at[place] for place in places}, team, mixes_sizes)


def forward_plan(passes: Passes, *, team: bool) -> Plan:
    """The plan of the forward pass. team: see `Staged`."""
    forward, nodes = passes.forward, passes.forward.nodes
    staged = in_stages(nodes, passes.forward_ends, team=team, mixes_sizes=passes.mixes_sizes)
    home = staged.home
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
            stage = staged.length - 1
        stores.append((stage, Store("state", s, (place,), "H")))
    return planned(staged, stores)


def backward_plan(passes: Passes, *, team: bool) -> Plan:
    """The plan of the backward pass. team: see `Staged`."""
    back, whole = passes.backward, passes.split.program.nodes
    staged = in_stages(back.nodes, passes.backward_ends, team=team, mixes_sizes=passes.mixes_sizes)
    home, end = staged.home, staged.length - 1
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
    for s, name in enumerate(passes.states):
        arrival = back.nodes.index(Node("d_state", name=name))
        arrives = home.setdefault(arrival, end)
        if name not in back.states:
            stores.append((arrives, Store("no_d_state", s, (arrival,), "H")))
            continue
        place = back.states[name]
        stage = end if back.nodes[place].op in _LEAVES else max(home[place], arrives)
        values = (arrival, place) if arrives == stage else (place,)
        stores.append((stage, Store("d_state", s, values, "H")))
    return planned(staged, stores)


def planned(staged: Staged, stores: Iterable[tuple[int, Store]]) -> Plan:
    """The plan of a pass with these stores, each in a stage."""
    nodes, home, team = staged.nodes, staged.home, staged.team
    groups: list[dict[Size, list[Store]]] = [{} for _ in range(staged.length)]
    slots: dict[Size, dict[int, int]] = {}

    def put(stage: int, store: Store) -> None:
        groups[stage].setdefault(staged.unified(store.size), []).append(store)

    def keep(place: int) -> None:
        """Store a value for later stages."""
        numbers = slots.setdefault(staged.unified(nodes[place].size), {})
        if place not in numbers:
            numbers[place] = len(numbers)
            put(home[place], Store("later", numbers[place], (place,), nodes[place].size))

    for stage, store in stores:
        put(stage, store)
    norms = numbered(nodes, "normalize")
    for place in home if team else ():
        node = nodes[place]
        if node.op == "normalize":
            keep(node.args[0])
            put(home[place] - 1, Store("moments", norms[place], node.args, node.size))
        elif node.op == "normalize_back":
            put(home[place] - 1, Store("d_moments", node.index, node.args, node.size))
    of_stage: list[list[int]] = [[] for _ in groups]
    for place in home:
        of_stage[home[place]].append(place)
    # From the last stage to the first, because a stage stores what later ones need.
    stages: list[Stage] = []
    for stage in reversed(range(staged.length)):
        loops = [Loop(size, staged.steps(stage, size, group, of_stage[stage])) for size, group in groups[stage].items()]
        for place in (step for loop in loops for step in loop.steps if isinstance(step, int)):
            if team and nodes[place].op in _NORMS:
                keep(nodes[place].args[0])
            elif staged.is_from_earlier(place, stage):
                keep(place)
        begins = tuple(place for place in of_stage[stage] if nodes[place].op in staged.begins)
        stages.append(Stage(begins, tuple(loops)))
    return Plan(nodes, home, tuple(stages[::-1]), slots)
