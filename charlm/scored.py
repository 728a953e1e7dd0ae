"""What a score is of, and which scores can be compared: those of the same text.

A score is a cross-entropy in nats per character of the text, also for a model of bytes. Whatever ranks scores of
several texts, or shows them side by side, asks here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from charlm.system.formatting import counted, format_share

_LISTED = 4
"""Texts that a line names at most."""


@dataclass(frozen=True)
class ScoredText:
    """The text that a score is of."""

    name: str
    """For people: "last 4.7% of plays.txt"."""
    sha256: str
    """Of what was read."""
    chars: int
    """Characters that are scored. A byte that is not UTF-8 counts as one."""
    size_bytes: int
    """Bytes that are scored, in UTF-8."""
    unknown: int = 0
    """Characters that the model does not know: skipped, or read as the symbol for rare ones."""
    seen: float | None = None
    """Share of the text that the weights were trained on: then a score is too good. None: not known."""

    @property
    def label(self) -> str:
        """The name, and what was left out."""
        return f"{self.name}, {counted(self.unknown, 'unknown character')}" if self.unknown else self.name

    @classmethod
    def from_json(cls, value: Any) -> "ScoredText | None":
        """The text that a file names; None if it names none. ValueError for what charlm does not write."""
        match value:
            case {"name": str(), "sha256": str(), "chars": int(), "size_bytes": int(), "unknown": int(), **more}:
                seen = more.get("seen")
                is_share = seen is None or (isinstance(seen, float) and 0 <= seen <= 1)
                if [*more] == ["seen"] and is_share and min(value["chars"], value["size_bytes"], value["unknown"]) >= 0:
                    return cls(**value)
        if value:
            raise ValueError(f"scored: found {str(value)[:40]}")
        return None


def text_names(texts: Sequence[ScoredText | None]) -> list[str | None]:
    """The names of texts: equal for scores that can be compared, of the same text and equally new to the weights."""
    of_text: dict[str, str] = {}
    for text in filter(None, texts):
        of_text.setdefault(text.sha256, text.label)
    labels = [*of_text.values()]
    names: list[str | None] = []
    for text in texts:
        if text is None:
            names.append(None)
            continue
        name = of_text[text.sha256]
        if labels.count(name) > 1:
            name = f"{name} ({text.sha256[:6]})"
        if text.seen is None:
            name += ", perhaps trained on"
        elif text.seen:
            name += f", {format_share(text.seen)} of it trained on"
        names.append(name)
    return names


def apart(texts: Sequence[ScoredText | None]) -> str:
    """That scores on these texts cannot be compared, in a line; "" if they can."""
    names = [*dict.fromkeys(filter(None, text_names(texts)))]
    if len(names) < 2:
        return ""
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    listed = "; ".join(f"{name:.200}" for name in names[:_LISTED])
    return f"Scores on different texts cannot be compared: {listed}{more}."
