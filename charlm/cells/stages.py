"""The stages of a pass: the computations between products, in order."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from charlm.cells.program import Node, needed


class Stage(NamedTuple):
    """The computation between two barriers."""

    begins: tuple[int, ...]
    """Products and normalizations that are computed first."""
    nodes: tuple[int, ...]
    """Elementwise operations, in order."""


_BOUNDARIES = ("product", "product_back", "normalize", "normalize_back")
ANYWHERE = ("window", "static", "before", "after", "saved", "operand", "constant", "state", "input")
"""Leaves that can be read in any stage."""


def stages(
    nodes: Sequence[Node],
    ends: Iterable[int],
    *,
    split_norms: bool = True,
    anywhere: tuple[str, ...] = (*ANYWHERE, "d_state"),
) -> list[Stage]:
    """The nodes that `ends` need, by the stage in which they are computed.

    A product or normalization begins a stage, because it needs all units of its argument. Nodes that need only leaves
    and products are computed as late as possible, so that fewer values pass from stage to stage.
    split_norms: False if a thread has all units of a stream, so that only products begin stages. anywhere: leaves that
    can be read in any stage.
    """
    order = needed(nodes, ends)
    begins = [op for op in _BOUNDARIES if split_norms or op.startswith("product")]
    earliest: dict[int, int] = {}
    loose: set[int] = set()
    for place in order:
        node = nodes[place]
        first = max((earliest[arg] for arg in node.args), default=0)
        earliest[place] = first + (node.op in begins)
        if node.op in (*anywhere, *begins) or (node.args and all(arg in loose for arg in node.args)):
            loose.add(place)
    at = dict(earliest)
    users: dict[int, list[int]] = {}
    for place in reversed(order):
        node = nodes[place]
        if place in loose and node.op not in begins and users.get(place):
            at[place] = max(min(users[place]), earliest[place])
        for arg in node.args:
            users.setdefault(arg, []).append(at[place] - (node.op in begins))
    count = 1 + max(at.values(), default=0)
    return [
        Stage(
            tuple(place for place in order if at[place] == stage and nodes[place].op in begins),
            tuple(place for place in order if at[place] == stage and nodes[place].op not in begins),
        )
        for stage in range(count)
    ]
