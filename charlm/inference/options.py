"""How text is drawn: what options of the command line mean. Imports no torch."""

from dataclasses import dataclass, field, fields
from typing import Any


def _option(default: Any, metavar: str, help: str, lowest: int | None = 0, highest: int | None = None) -> Any:
    return field(default=default, metadata={"metavar": metavar, "help": help, "min": lowest, "max": highest})


@dataclass(frozen=True)
class SamplingOptions:
    """How to draw text; ValueError for a value that is not allowed.

    Of top_k and top_p the stricter holds. Each field is also an option of `charlm sample`, with this help.
    """

    length: int = _option(500, "N", "Characters to write; bytes for a byte model.", highest=10**9)
    temperature: float = _option(
        0.8, "X", "Below 1 is safer, above 1 is wilder; 0 always takes the likeliest character."
    )
    top_k: int = _option(0, "K", "Draw from the K likeliest characters only; 0 for all.")
    top_p: float = _option(1.0, "P", "Draw from the likeliest characters that together have probability P.", highest=1)
    stop: str = _option("", "TEXT", "End the sample as soon as it contains this text.", lowest=None)

    def __post_init__(self) -> None:
        for option in fields(self):
            value, lowest, highest = getattr(self, option.name), option.metadata["min"], option.metadata["max"]
            if lowest is None or lowest <= value <= (highest or 1e308):
                continue
            number = "an integer" if option.type is int else "a finite number"
            allowed = f"{number} ≥ {lowest}" if highest is None else f"{lowest} to {highest:,}"
            raise ValueError(f"{option.name}: found {value}; allowed: {allowed}")
