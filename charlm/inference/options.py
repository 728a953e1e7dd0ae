"""How text is drawn, and bounds on the scores of lines: what options of the command line mean. Imports no torch."""

import re
from dataclasses import dataclass, field, fields
from typing import Any, Literal

_LIMIT = re.compile(r"(?P<percentile>p)?(?P<number>\d+(?:\.\d*)?|\.\d+)(?P<unit>bits|nats)?", re.ASCII)


def _option(default: Any, metavar: str, help: str, lowest: int | None = 0, highest: int | None = None) -> Any:
    return field(default=default, metadata={"metavar": metavar, "help": help, "min": lowest, "max": highest})


@dataclass(frozen=True)
class SamplingOptions:
    """How to draw text; ValueError for a value that is not allowed.

    Of top_k, top_p and min_p the strictest holds. min_p acts after the temperature (Nguyen et al. 2024,
    arXiv:2407.01082). Each field is also an option of `charlm sample`, with this help.
    """

    length: int = _option(500, "N", "Characters to write; bytes for a byte model.", highest=10**9)
    temperature: float = _option(
        0.8, "X", "Below 1 is safer, above 1 is wilder; 0 always takes the likeliest character."
    )
    top_k: int = _option(0, "K", "Draw from the K likeliest characters only; 0 for all.")
    top_p: float = _option(1.0, "P", "Draw from the likeliest characters that together have probability P.", highest=1)
    min_p: float = _option(
        0.0, "P", "Draw from the characters at least P times as likely as the likeliest; 0 for all.", highest=1
    )
    stop: str = _option("", "TEXT", "End the sample as soon as it contains this text.", lowest=None)

    def __post_init__(self) -> None:
        for option in fields(self):
            value, lowest, highest = getattr(self, option.name), option.metadata["min"], option.metadata["max"]
            if lowest is None or lowest <= value <= (highest or 1e308):
                continue
            number = "an integer" if option.type is int else "a finite number"
            allowed = f"{number} ≥ {lowest}" if highest is None else f"{lowest} to {highest:,}"
            raise ValueError(f"{option.name}: found {value}; allowed: {allowed}")

    @property
    def of_a_character(self) -> dict[str, float]:
        """The options that say how a single character is drawn."""
        return {name: value for name, value in vars(self).items() if name not in ("length", "stop")}


@dataclass(frozen=True)
class Limit:
    """A bound on a line's score, per character; see `limit_nats`."""

    number: float
    unit: Literal["bits", "nats", "percentile"]

    @classmethod
    def parse(cls, text: str) -> "Limit":
        """The limit that 3.2, 3.2bits, 2.1nats or p99 stands for; a bare number is one of bits. ValueError."""
        match = _LIMIT.fullmatch(text)
        if not match or (match["percentile"] and (match["unit"] or float(match["number"]) > 100)):
            raise ValueError(
                f"found {text!r}; allowed: bits per character (3.2 or 3.2bits), nats per character (2.1nats), or a "
                "percentile of the validation lines, p0 to p100 (p99)"
            )
        number = float(match["number"])
        if match["percentile"]:
            return cls(number, "percentile")
        return cls(number, "nats" if match["unit"] == "nats" else "bits")
