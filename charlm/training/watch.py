"""Who looks at a run while it trains, and may end it early."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


def _never(share: float, nats: float) -> bool:
    return False


@dataclass(frozen=True)
class Watch:
    """Sees the metrics of a run, evaluates it after given shares of it, and may end it."""

    shares: Sequence[float] = ()
    """0 to 1, ascending. Runs with a time limit have no common steps at which to compare them."""
    stops: Callable[[float, float], bool] = _never
    """Called after each evaluation with its share and its score in nats per character; True ends the run as pruned."""
    sees: Callable[[dict[str, Any]], object] | None = None
    """Called with each row of metrics.jsonl after it is written, in the process that writes."""

    def passed(self, before: float, now: float) -> float | None:
        """The last of the shares above `before` and up to `now`."""
        return max((share for share in self.shares if before < share <= now), default=None)
