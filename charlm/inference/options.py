"""How text is drawn. Imports no torch, so that the command line can check options first."""

from dataclasses import dataclass

from charlm.system.number import LARGEST, in_range


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
        for name, least, most in (
            ("length", 0, LARGEST),
            ("temperature", 0.0, LARGEST),
            ("top_k", 0, LARGEST),
            ("top_p", 0.0, 1.0),
        ):
            object.__setattr__(self, name, in_range(name, getattr(self, name), least, most))
