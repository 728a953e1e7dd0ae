"""How text is drawn: what `charlm sample`, `TrainedModel.sample` and the sampler read. Imports no torch."""

from dataclasses import dataclass, field, fields
from typing import Any


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
