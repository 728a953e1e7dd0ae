"""What a score is of, and which scores can be compared: those of the same text.

A score is a cross-entropy in nats per character of the text, also for a model of bytes. Whatever ranks scores of
several texts, or shows them side by side, asks here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from charlm.system.formatting import format_share

_LISTED = 4
"""Texts that a line names at most."""


@dataclass(frozen=True)
class ScoredText:
    """The text that a score is of."""

    name: str
    """For people: "last 4.7 % of plays.txt"."""
    sha256: str
    """Of what was read."""
    chars: int
    """Characters that are scored. In a text that is not UTF-8, each byte counts as one."""
    size_bytes: int
    """Bytes that are scored, of the text in UTF-8."""
    unknown: int = 0
    """Characters that the model does not know: skipped, or read as the symbol for rare ones."""
    seen: float = 0.0
    """Share of the text that the weights were trained on in an earlier run: then a score is too good."""

    @classmethod
    def from_json(cls, value: Any) -> "ScoredText | None":
        """The text that a file names; None if it names none. ValueError for what charlm does not write."""
        if not value:
            return None
        types = {field.name: type(getattr(_ANY, field.name)) for field in fields(cls)}
        if not isinstance(value, dict) or {name: type(each) for name, each in value.items()} != types:
            raise ValueError(f"scored: found {str(value)[:40]}")
        return cls(**value)


_ANY = ScoredText("", "", 0, 0)


def text_names(texts: Sequence[ScoredText | None]) -> list[str | None]:
    """The names of texts. Scores can be compared if the names are equal: of the same text, and seen by no weights."""
    known = {text.sha256: text.name for text in texts if text}
    names = [*known.values()]
    unique = {sha256: name if names.count(name) == 1 else f"{name} ({sha256[:6]})" for sha256, name in known.items()}
    shown: list[str | None] = []
    for text in texts:
        seen = f", {format_share(text.seen)} of it trained on" if text and text.seen else ""
        shown.append(f"{unique[text.sha256]}{seen}" if text else None)
    return shown


def apart(texts: Sequence[ScoredText | None]) -> str:
    """That scores on these texts cannot be compared, in a line; "" if they can."""
    names = [*dict.fromkeys(filter(None, text_names(texts)))]
    if len(names) < 2:
        return ""
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return f"Scores on different texts cannot be compared: {', '.join(names[:_LISTED])}{more}."
