"""How text is drawn. Imports no torch, so that the command line can check options first."""

from dataclasses import dataclass
from typing import Literal

from charlm.system.number import LARGEST, in_range


@dataclass(frozen=True)
class SamplingOptions:
    """How to draw text; ValueError or TypeError for a value that is not allowed.

    top_p is a share of the probability that top_k leaves.
    """

    length: int = 500
    """Characters to write; bytes for a byte model."""
    temperature: float = 0.8
    """Below 1 is safer, above 1 is wilder; 0 always takes the likeliest character."""
    top_k: int = 0
    """Draw from the K likeliest characters only; 0 for all."""
    top_p: float = 1.0
    """Draw from the likeliest characters that together have this probability."""
    least: int = 0
    """Characters to write before a stop text may end the sample."""
    ban: str = ""
    """Characters that are never drawn."""
    stop: str | list[str] | tuple[str, ...] = ()
    """End the sample as soon as it contains this text, or one of these; kept as a tuple."""

    def __post_init__(self) -> None:
        for name, least, most in (
            ("length", 0, LARGEST),
            ("least", 0, LARGEST),
            ("temperature", 0.0, LARGEST),
            ("top_k", 0, LARGEST),
            ("top_p", 1e-9, 1.0),
        ):
            object.__setattr__(self, name, in_range(name, getattr(self, name), least, most))
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
