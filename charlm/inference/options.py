"""How text is drawn. Imports no torch, so that the command line can check options first."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from charlm.system.number import LARGEST, in_range


def _option(default: Any, about: str, least: float | None = None, most: float = LARGEST) -> Any:
    """A field with its sentence for --help, and its range if it is a number."""
    return field(default=default, metadata={"about": about, "least": least, "most": most})


@dataclass(frozen=True)
class SamplingOptions:
    """How to draw text; ValueError or TypeError for a value that is not allowed."""

    length: int = _option(500, "Characters to write (bytes for a byte model).", 0)
    temperature: float = _option(
        0.8, "Below 1 is safer, above 1 is wilder; 0 always takes the likeliest character.", 0.0
    )
    top_k: int = _option(0, "Draw from the K likeliest characters only; 0 for all.", 0)
    top_p: float = _option(1.0, "Draw from the likeliest characters that together have probability P.", 1e-9, 1.0)
    """A share of the probability that top_k leaves."""
    least: int = _option(0, "Characters to write before a stop text may end the sample.", 0)
    ban: str = _option("", "Characters that are never drawn.")
    stop: str | Sequence[str] = _option((), "End the sample as soon as it contains this text")
    """One text, or a list or tuple of several; kept as a tuple."""

    @classmethod
    def of_call(cls, function: str, options: Mapping[str, Any]) -> "SamplingOptions":
        """The options that a function was called with; TypeError, which names the function, for an unknown one."""
        known = [each.name for each in fields(cls)]
        if unknown := [name for name in options if name not in known]:
            from charlm.system.faults import nearest

            allowed = f"{', '.join(('prompt', 'seed', *known))}{nearest(unknown[0], known)}"
            raise TypeError(f"{function}: found the argument {unknown[0]}; allowed: {allowed}")
        return cls(**options)

    def __post_init__(self) -> None:
        for each in fields(self):
            least, most = each.metadata["least"], each.metadata["most"]
            if least is not None:
                object.__setattr__(self, each.name, in_range(each.name, getattr(self, each.name), least, most))
        if not isinstance(self.ban, str):
            raise TypeError(f"ban: found {type(self.ban).__name__}; allowed: str")
        stops = tuple(self.stop) if isinstance(self.stop, list | tuple) else (self.stop,)
        object.__setattr__(self, "stop", stops)
        for stop in stops:
            if not isinstance(stop, str):
                raise TypeError(f"stop: found {type(stop).__name__}; allowed: str, or a list of str")
            if not stop:
                raise ValueError("stop: found an empty text, which ends no sample; allowed: at least one character")

    def ended_by(self, text: str, level: str) -> Literal["stop", "length", "record"]:
        """What ended a sample, without its prompt: a stop text, its length, or the end of its record."""
        data = _bytes(text)
        if any(data.endswith(_bytes(stop)) for stop in self.stop):
            return "stop"
        size = len(data) if level == "byte" else len(text)
        return "length" if size == self.length else "record"


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
