"""The models to choose from, in families that differ in size only, and what the user asks for."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from charlm.cells import Cell
from charlm.cells.file import load_cell
from charlm.config import Config, Settings, parse_config
from charlm.config.parse import OwnCell
from charlm.errors import ConfigError

if TYPE_CHECKING:
    from charlm.checkpoint import Checkpoint

_SMALL = (96, 128, 192, 256, 384, 512)
_MIDDLE = (128, 192, 256, 384, 512, 768)
_DEEP = (160, 224, 320, 448, 640, 896)
_LARGE = (256, 384, 512, 768, 1024, 1536, 2048)


@dataclass(frozen=True)
class Family:
    """A kind of cell and a number of layers."""

    kind: str
    layers: int
    hidden: tuple[int, ...]
    """Hidden units of each size, the smallest first."""
    units: int
    """Hidden units up to which the rates hold; with more they fall in inverse proportion."""
    rates: tuple[float, float, float, float, float]
    """Peak learning rate with 16 streams of 64 characters, in runs of 250, 500, 1,000, 20,000 and 20 million updates;
    in between on a line of logarithms."""
    worth: tuple[float, float] = (1.0, 1.0)
    """What a parameter counts beside one of the one-layer LSTM, in runs of 250 and 8,000 updates; see `rule`."""
    least_updates: int = 30
    """Shorter runs take another family. Wide models need 1 / `width_factor` as many updates."""
    forget_bias_updates: int = 0
    """Shorter runs start with a forget bias of 1."""
    activation_penalty: bool = True
    cell: dict[str, Any] = field(default_factory=dict)
    """Options of the cell."""
    model: dict[str, Any] = field(default_factory=dict)
    """Other options of the model."""

    def width_factor(self, hidden: int) -> float:
        """Learning rate relative to that of `units`."""
        return min(self.units / hidden, 1.0)

    def rate(self, updates: int) -> float:
        """Learning rate of a run of so many updates, see `rates`."""
        return _between((250, 500, 1_000, 20_000, 20_000_000), self.rates, updates)

    def worth_of_parameter(self, updates: int) -> float:
        """In a run of so many updates, see `worth`."""
        return _between((250, 8_000), self.worth, updates)


def _between(columns: Sequence[int], row: Sequence[float], updates: int) -> float:
    """The value of a row for so many updates; beyond the columns, that of the nearest one."""
    return float(np.exp(np.interp(np.log(updates), np.log(columns), np.log(row))))


# fmt: off
USUAL = (
    #                  up to units,  rate at 250    500    1,000  20,000  20M updates, worth at 250 and 8,000 updates
    Family("lstm", 1, _SMALL, 256, (3.6e-2, 2.5e-2, 1.8e-2, 1.8e-2, 4.5e-3), (1.0, 1.0), least_updates=20,
           forget_bias_updates=5000, cell={"forget_bias": None, "layer_norm": True}),
    Family("rhn", 1, _DEEP,   320, (8.0e-3, 8.0e-3, 8.0e-3, 8.0e-3, 2.0e-3), (0.43, 0.90), least_updates=2000,
           cell={"depth": 4, "gate_bias": -2.0}),
    Family("lstm", 2, _LARGE, 384, (1.8e-2, 1.7e-2, 1.2e-2, 1.2e-2, 3.0e-3), (0.38, 0.93),
           forget_bias_updates=2000, cell={"forget_bias": None}, model={"embedding": 256}),
)
"""The families to choose from where there are kernels."""
PLAIN = Family("lstm", 1, _SMALL, 384, (1.8e-2, 1.7e-2, 1.2e-2, 1.2e-2, 3.0e-3), (0.47, 0.94),
               forget_bias_updates=2000, cell={"forget_bias": None})
"""One more where there are no kernels: PyTorch's operator is several times as fast as a loop for the other families."""
_PARALLEL = (9.0e-3, 8.5e-3, 6.0e-3, 6.0e-3, 1.5e-3)
_OTHER = (4.5e-3, 4.2e-3, 3.0e-3, 3.0e-3, 7.5e-4)
ON_REQUEST = {
    "gru": Family("gru", 1, _MIDDLE, 256, (1.2e-2, 1.1e-2, 8.0e-3, 8.0e-3, 2.0e-3), (0.7, 0.7)),
    "rnn": Family("rnn", 2, _LARGE, 512, (2.2e-3, 2.1e-3, 1.5e-3, 1.5e-3, 3.8e-4), (0.2, 0.2)),
    **{kind: Family(kind, 1, _SMALL, 384, (1.2e-2, 1.1e-2, 8.0e-3, 8.0e-3, 2.0e-3)) for kind in ("slstm", "mogrifier")},
    "sru": Family("sru", 4, _LARGE, 384, _PARALLEL, activation_penalty=False,
                  cell={"highway_bias": -2.0}, model={"residual": False}),
    **{kind: Family(kind, 4, _LARGE, 384, _PARALLEL, activation_penalty=False) for kind in ("mingru", "minlstm")},
}
"""Families of kinds that are chosen only if the user asks for them."""
# fmt: on


@dataclass(frozen=True)
class Request:
    """What the user asks for."""

    source: str
    minutes: float
    given: Settings = field(default_factory=dict)
    """Options that keep the value given."""
    initial: "Checkpoint | None" = None
    """Where the new run takes model, vocabulary and weights from."""
    own_cell: OwnCell = load_cell

    def gives(self, option: str) -> bool:
        """Whether the user gives this option, one below it, or the section that it is in if that names its kind."""
        return any(f"{key}.".startswith(f"{option}.") or option.startswith(f"{key}.") for key in self.given)

    def config(self, settings: dict[str, Any]) -> Config:
        """The config of these settings, with the user's; ConfigError if they do not fit."""
        return parse_config(settings, f"the settings for {self.source}", self.given, self.own_cell)

    def base(self) -> Config:
        """The text and the machine, before anything is chosen."""
        parts = ("data", "device", "precision", "threads")
        given = {key: value for key, value in self.given.items() if key.partition(".")[0] in parts}
        return replace(self, given=given).config({"data": {"source": self.source}})

    def settings(self, family: Family, hidden: int, batch_size: int, bptt: int) -> dict[str, Any]:
        """Without the user's: what decides how long an update takes, and what is the same for all models."""
        return {
            "data": {"source": self.source},
            "model": {
                "cell": {"kind": family.kind, "hidden": hidden, **family.cell},
                "layers": family.layers,
                "residual": family.layers > 1,
                "embedding": 64,
                **family.model,
            },
            "train": {"batch_size": batch_size, "bptt": bptt, "ema": 0.99, "max_minutes": self.minutes},
            "optimizer": {"name": "adamw", "schedule": {"name": "cosine"}},
        }

    def families(self) -> list[tuple[Family, Cell]]:
        """The families that take the user's options, with their cells, or that of the kind asked for; ConfigError.

        Of several, those with the number of layers that was fitted.
        """
        found: list[tuple[Family, Cell]] = []
        altered: list[tuple[Family, Cell]] = []  # with another number of layers than they were fitted with
        faults: list[ConfigError] = []
        for family in (PLAIN, *USUAL):
            try:
                model = self.config(self.settings(family, family.hidden[0], 16, 64)).model
            except ConfigError as error:
                faults.append(error)
                continue
            cell = model.cell
            if cell.kind == family.kind:
                like = found if model.layers == family.layers else altered
                like.append((family, cell))
            elif cell.kind not in {usual.kind for usual in USUAL}:
                requested = ON_REQUEST.get(cell.kind) or Family(cell.kind, 1, _SMALL, 384, _OTHER)
                return [(requested, cell)]
        if not found and not altered:
            raise faults[0]
        return found or altered
