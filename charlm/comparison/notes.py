"""What a comparison says, and what it cannot say, in words."""

from collections.abc import Sequence
from typing import Any

from charlm.comparison.plan import Plan, short_name
from charlm.system.formatting import counted

_DIFFERENT = 1.05
"""Ratio of the most to the fewest updates of a kind above which its trainings were not alike."""
_CHANCE_NATS = 0.02
"""How much the scores of two seeds of one kind differ."""


def notes(plan: Plan, rows: Sequence[dict[str, Any]]) -> list[str]:
    """A line for each thing that a reader of the table must know. rows: the best first."""
    return [*filter(None, [*(_uneven(plan, row) for row in rows), _chance(plan, rows)])]


def _uneven(plan: Plan, row: dict[str, Any]) -> str:
    """Whether the trainings of a kind made different numbers of updates in the same minutes."""
    updates = row["updates"]
    if plan.equal == "updates" or max(updates) <= _DIFFERENT * min(updates):
        return ""
    made = f"{', '.join(f'{each:,}' for each in updates[:-1])} and {counted(updates[-1], 'update')}"
    return (
        f"{short_name(row['cell'])}: its seeds made {made}, because other programs took a part of the machine; the "
        "scores are not of equal trainings; --plain --equal updates does not depend on speed"
    )


def _chance(plan: Plan, rows: Sequence[dict[str, Any]]) -> str:
    """Which kinds are not told apart from the best one."""
    scored = [row for row in rows if row["seed_nats"]]
    if len(scored) < 2:
        return ""
    best, *others = scored
    if plan.seeds == 1:
        return f"one training of each kind: differences of about {_CHANCE_NATS} nats may be chance; see --seeds"
    worst_of_best = max(best["seed_nats"])
    near = [short_name(row["cell"]) for row in others if min(row["seed_nats"]) <= worst_of_best]
    name = short_name(best["cell"])
    if not near:
        return f"every seed of {name} is better than every seed of the other kinds"
    return f"{name} and {', '.join(near)}: their seeds overlap, so the difference may be chance"
