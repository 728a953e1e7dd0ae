"""What is compared. Imports no torch: the command line reads its options from here."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from charlm.errors import ComparisonError

KINDS = ("rnn", "lstm", "gru", "rhn", "sru")
"""The kinds that are compared unless others are named."""
Equal = Literal["parameters", "time", "updates"]
"""What the models have in common.

parameters: all have as many as the middle one of the models that charlm would choose, and one batch and window.
time: the minutes alone; each has the size that charlm chooses for it.
updates: the same parameters, and as many updates as the slowest makes in its minutes.
"""
EQUAL: tuple[str, ...] = get_args(Equal)


@dataclass(frozen=True)
class Plan:
    """What is compared. ComparisonError for what cannot be."""

    text: str
    minutes: float
    """Of each training."""
    cells: tuple[str, ...]
    """Kinds, or files with a cell of one's own."""
    equal: Equal = "parameters"
    seeds: int = 1
    overrides: tuple[str, ...] = ()
    """KEY=VALUE: options that keep the value given, in all trainings."""

    def __post_init__(self) -> None:
        names = [*map(short_name, self.cells)]
        if len(names) < 2 or len({*names}) < len(names):
            found = ", ".join(self.cells) or "none"
            raise ComparisonError(f"cells: found {found}; allowed: two kinds or more, each once, for example rnn, lstm")
        if self.equal not in EQUAL:
            raise ComparisonError(f"equal: found {self.equal!r}; allowed: {', '.join(EQUAL)}")
        if self.seeds < 1:
            raise ComparisonError(f"seeds: found {self.seeds}; allowed: 1 or more")

    def run_dir(self, folder: Path, cell: str, seed: int) -> Path:
        """The folder of a training."""
        return folder / f"{short_name(cell)}-{seed}"


def short_name(cell: str) -> str:
    """How a kind, or a file with a cell, is called."""
    return Path(cell).stem
