"""What is compared. Imports no torch: the command line reads its options from here."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from charlm.system.files import plain_name
from charlm.system.number import in_range
from charlm.training.budget import DEFAULT_MINUTES, check_minutes

MOST_SEEDS = 100
Equal = Literal["parameters", "time", "updates"]
"""What the models have in common.

parameters: all have as many as the middle one of the models that charlm would choose, and one batch and window.
time: the minutes alone; each has the size that charlm chooses for it.
updates: the same parameters, and as many updates as the slowest makes in its minutes.
"""
EQUAL: tuple[str, ...] = get_args(Equal)


@dataclass(frozen=True)
class Plan:
    """What is compared. ValueError for what cannot be."""

    text: str
    minutes: float = DEFAULT_MINUTES
    """Of each training."""
    cells: tuple[str, ...] = ("rnn", "lstm", "gru", "rhn", "sru")
    """Kinds, or files with a cell of one's own."""
    equal: Equal = "parameters"
    seeds: int = 1
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """Options to set; a cell's option applies to the kinds that have it."""
    plain: bool = False
    """The cells alone: one layer, no normalization, and the same settings for all."""

    def __post_init__(self) -> None:
        if len(self.cells) < 2:
            found = ", ".join(self.cells) or "none"
            raise ValueError(f"cells: found {found}; allowed: two kinds or more, for example rnn, lstm")
        names = [run_name(cell, 1).casefold() for cell in self.cells]  # as many systems compare names of folders
        for name, cell in zip(names, self.cells, strict=True):
            if names.count(name) > 1:
                raise ValueError(f"cells: found {cell} and another {short_name(cell)!r}; allowed: each name once")
        if self.equal not in EQUAL:
            raise ValueError(f"equal: found {self.equal!r}; allowed: {', '.join(EQUAL)}")
        object.__setattr__(self, "seeds", in_range("seeds", self.seeds, 1, MOST_SEEDS))
        decided = {"model.cell.kind": "cells", "seed": "seeds"}
        if self.equal != "time":
            decided["model.cell.hidden"] = f"equal {self.equal}"
        for option in self.overrides.keys() & decided.keys():
            raise ValueError(f"set {option}: found an option that --{decided[option]} decides; leave it out")
        if "model.cell" in self.overrides:
            raise ValueError("set model.cell: found a whole section; allowed: its options, as model.cell.depth=3")

    def check_early(self) -> None:
        """ConfigError or DataError for minutes or a text that cannot be. Needs no torch."""
        from charlm.data.sources import check_exists

        check_minutes(self.minutes, self.overrides)
        check_exists(self.text)


def short_name(cell: str) -> str:
    """How a kind is called; an own cell by its class, if that is given, or by its file."""
    file, is_named, class_name = cell.partition(".py:")
    return class_name if is_named else Path(file).stem


def run_name(cell: str, seed: int) -> str:
    return f"{plain_name(short_name(cell))}-{seed}"


def comparison_folder(text: str) -> Path:
    return Path("comparisons") / plain_name(Path(text).stem)
