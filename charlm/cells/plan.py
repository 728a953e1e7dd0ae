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
    d_state                 backward: the gradient of state `index` before the step, without its products' share
    no_d_state              backward: the same where nothing but zoneout passes a gradient on
    window, operand_before  before the loop: vector k of window `index`; operand `index` of the products there
    later                   number `index` of the values for later stages
    moments, d_moments      sums over units for the next stage: of the argument of normalization `index`; of the
                            gradient d of its result x, and of d x
    """

    kind: str
    index: int
    value: int
    """The node that is stored."""
    size: Size
    k: int = 0
    count: int = 1
    """How many vectors are side by side."""
    arrival: int | None = None
    """d_moments: the gradient d. d_state: the node `d_state`, if the same stage computes it."""

    @property
    def values(self) -> tuple[int, ...]:
        """The nodes that it needs."""
        return (self.value,) if self.arrival is None else (self.arrival, self.value)


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
        ends = states_last if self.team else self._by_value(size, states_last, nodes)
        steps: dict[int | Store, None] = {}
        for end in ends:
            needs = end.values if isinstance(end, Store) else (end,)
            values = [value for value in needs if self.nodes[value].op != "constant"]
            before = ordered(values, functools.partial(self.arguments, stage), known=steps)
            steps |= dict.fromkeys((*before, end))
        return tuple(steps)

    def _by_value(self, size: Size, stores: Iterable[Store], nodes: Iterable[int]) -> list[int | Store]:
        """The values that a stage computes, in order, each with its stores behind it: so few occupy registers."""
        stores_of: dict[int, list[Store]] = {}
        for store in stores:
            stores_of.setdefault(store.value, []).append(store)
        computed: set[int] = set()
        for place in nodes:
            in_memory = self.operation(place) in (*_LEAVES, *_PRODUCTS)
            if not in_memory and self.unified(self.nodes[place].size) == size:
                computed.add(place)
        ends: list[int | Store] = []
        for place in sorted(computed | stores_of.keys()):
            if place in computed:
                ends.append(place)
            ends += stores_of.get(place, [])
        return ends


def in_stages(nodes: Sequence[Node], ends: Iterable[int], *, team: bool, mixes_sizes: bool) -> Staged:
    """The nodes that `ends` need, each with its stage, in the order of stages.

    A product begins the stage after its operand's. The forward pass of an RHN of depth 2:

                                     earliest   home
        s, operand of R₁ s           0          0
        window = W x + b₁            0          1, where it is used
        R₁ s, h₁, g₁, s₁             1          1
        static = b₂                  0          2, where it is used
        R₂ s₁, h₂, g₂, s₂            2          2
    """
    order = needed(nodes, ends)
    begins = (*_PRODUCTS, *_NORMS) if team else _PRODUCTS
    # What depends on leaves and products comes as late as possible, so that few values pass from stage to stage.
    # For a team also what depends on d_state: an LSTM with layer normalization then passes on 5 values instead of 6.
    # On a GPU, where each of them costs a store and a load, it stays early: an RHN passes on half as many.
    leaves = (*_LEAVES, "d_state") if team else _LEAVES
    earliest: dict[int, int] = {}
    movable: set[int] = set()
    for place in order:
        node = nodes[place]
        earliest[place] = max((earliest[arg] for arg in node.args), default=0)
        if node.op in begins:
            earliest[place] += 1
        if node.op in (*leaves, *begins) or (node.args and movable.issuperset(node.args)):
            movable.add(place)
    home = dict(earliest)
    latest: dict[int, int] = {}  # the first stage that needs the value
    for place in reversed(order):
        node = nodes[place]
        if place in movable and node.op not in begins and place in latest:
            home[place] = max(latest[place], earliest[place])
        needed_at = home[place] - 1 if node.op in begins else home[place]
        for arg in node.args:
            latest[arg] = min(latest.get(arg, needed_at), needed_at)
    places = sorted(order, key=lambda place: (home[place], nodes[place].op not in begins, place))
    return Staged(nodes, {place: home[place] for place in places}, team, mixes_sizes)


def forward_plan(passes: Passes, *, team: bool) -> Plan:
    """The plan of the forward pass. team: see `Staged`."""
    forward, nodes = passes.forward, passes.forward.nodes
    staged = in_stages(nodes, passes.forward_ends, team=team, mixes_sizes=passes.mixes_sizes)
    home = staged.home
    stores: list[tuple[int, Store]] = []
    for k in passes.stored_operands:
        operand = passes.operands[k]
        stores.append((home[operand.node], Store("operand", k, operand.node, operand.size)))
    for index, (size, places) in enumerate(forward.saved.items()):
        for k, place in enumerate(places):
            stores.append((home[place], Store("saved", index, place, size, k, len(places))))
    for s, (name, place) in enumerate(forward.states.items()):
        # No earlier stage may overwrite the copy of a state that others still multiply.
        stage = home[place]
        for product, p in numbered(nodes, "product").items():
            if passes.operands[passes.products[p].operand].state == name:
                stage = max(stage, home[product])
        if nodes[place].op in _LEAVES:
            stage = staged.length - 1
        stores.append((stage, Store("state", s, place, "H")))
    return planned(staged, stores)


def backward_plan(passes: Passes, *, team: bool) -> Plan:
    """The plan of the backward pass. team: see `Staged`."""
    back, whole = passes.backward, passes.split.program.nodes
    staged = in_stages(back.nodes, passes.backward_ends, team=team, mixes_sizes=passes.mixes_sizes)
    home, end = staged.home, staged.length - 1
    arrivals = {name: back.nodes.index(Node("d_state", name=name)) for name in passes.states}
    for arrival in arrivals.values():
        home.setdefault(arrival, end)  # no gradient needs it, but zoneout may pass it on
    stores: list[tuple[int, Store]] = []

    def put(kind: str, gradients: Mapping[int, Rows], sizes: Sequence[Size]) -> None:
        for index, rows in gradients.items():
            for k, place in enumerate(rows):
                stores.append((home[place], Store(kind, index, place, sizes[index], k, len(rows))))

    put("d_product", dict(sorted(back.products.items())), [product.size for product in passes.products])
    windows = {k: rows for k, rows in back.windows.items() if k not in passes.like_windows}
    put("d_window", windows, [whole[place].size for place in passes.split.windows])
    vectors = {k: rows for k, rows in back.vectors.items() if k not in passes.like_vectors}
    put("d_vector", vectors, [whole[place].size for place in passes.split.vectors])
    for s, (name, arrival) in enumerate(arrivals.items()):
        if name not in back.states:
            stores.append((home[arrival], Store("no_d_state", s, arrival, "H")))
            continue
        place = back.states[name]
        stage = end if back.nodes[place].op in _LEAVES else max(home[place], home[arrival])
        same_stage = stage == home[arrival]
        stores.append((stage, Store("d_state", s, place, "H", arrival=arrival if same_stage else None)))
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
            put(home[place], Store("later", numbers[place], place, nodes[place].size))

    for stage, store in stores:
        put(stage, store)
    norms = numbered(nodes, "normalize")
    for place in home if team else ():
        node = nodes[place]
        if node.op == "normalize":
            keep(node.args[0])
            put(home[place] - 1, Store("moments", norms[place], node.args[0], node.size))
        elif node.op == "normalize_back":
            d, result = node.args
            put(home[place] - 1, Store("d_moments", node.index, result, node.size, arrival=d))
    of_stage: list[list[int]] = [[] for _ in groups]
    for place in home:
        of_stage[home[place]].append(place)
    # From the last stage to the first: what a stage reads from earlier ones is one more store there, so the stores of a
    # stage are complete when its turn comes.
    stages: list[Stage] = []
    for stage in reversed(range(staged.length)):
        loops: list[Loop] = []
        for size, group in groups[stage].items():
            loops.append(Loop(size, staged.steps(stage, size, group, of_stage[stage])))
        for loop in loops:
            for step in loop.steps:
                if not isinstance(step, int):
                    continue
                if team and nodes[step].op == "normalize_back":  # the argument of `normalize` is kept above
                    keep(nodes[step].args[0])
                elif staged.is_from_earlier(step, stage):
                    keep(step)
        begins = tuple(place for place in of_stage[stage] if nodes[place].op in staged.begins)
        stages.append(Stage(begins, tuple(loops)))
    return Plan(nodes, home, tuple(stages[::-1]), slots)
