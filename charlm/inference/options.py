"""How text is drawn. Imports no torch, so that the command line can check options first."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class SamplingOptions:
    """How to draw text; ValueError for a value that is not allowed. Of top_k and top_p the stricter holds."""

    length: int = 500
    """Characters to write; bytes for a byte model."""
    temperature: float = 0.8
    """Below 1 is safer, above 1 is wilder; 0 always takes the likeliest character."""
    top_k: int = 0
    """Draw from the K likeliest characters only; 0 for all."""
    top_p: float = 1.0
    """Draw from the likeliest characters that together have this probability."""
    stop: str = ""
    """End the sample as soon as it contains this text."""

    def __post_init__(self) -> None:
        for name, highest, allowed in (
            ("length", 10**9, "0 to 1,000,000,000"),
            ("temperature", 1e308, "a finite number ≥ 0"),
            ("top_k", math.inf, "an integer ≥ 0"),
            ("top_p", 1, "0 to 1"),
        ):
            value = getattr(self, name)
            if not 0 <= value <= highest:
                raise ValueError(f"{name}: found {value}; allowed: {allowed}")
