"""The models to choose from, in families that differ in size only, and what the user asks for."""

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from charlm.cells import Cell
from charlm.cells.file import load_cell
from charlm.config import Config, parse_config
from charlm.config.parse import OwnCell, Settings
from charlm.errors import ConfigError

if TYPE_CHECKING:
    from charlm.checkpoint import Checkpoint

_SMALL = (96, 128, 192, 256, 384, 512)
_DEEP = (160, 224, 320, 448, 640, 896)
_LARGE = (256, 384, 512, 768, 1024, 1536, 2048)


@dataclass(frozen=True)
class Family:
    """A kind of cell and a number of layers."""

    kind: str
    layers: int
    hidden: tuple[int, ...]
    """Hidden units of each size, the smallest first."""
    lr: float
    """Peak learning rate for 16 streams and `lr_hidden` units."""
    lr_hidden: int = 384
    most_narrow_lr: float = 1.0
    """Largest factor of the learning rate for fewer units."""
    most_short_lr: float = 1.5
    """Largest factor of the learning rate in runs of a few hundred updates."""
    embedding: int = 64
    least_updates: int = 30
    """Shorter runs take another family. Wide models need 1 / `width_factor` as many updates."""
    forget_bias_updates: int = 0
    """Shorter runs start with a forget bias of 1."""
    multiplier: float = 1.0
    """What a parameter counts, relative to the one-layer LSTM at 1,000 updates; see `rule`."""
    multiplier_power: float = 0.0
    """The multiplier grows with this power of the number of updates."""
    residual: bool = True
    activation_penalty: bool = True
    cell: dict[str, Any] = field(default_factory=dict)
    """Options of the cell."""

    def width_factor(self, hidden: int) -> float:
        """Learning rate relative to that of `lr_hidden` units: in inverse proportion, up to `most_narrow_lr`."""
        return min(self.lr_hidden / hidden, self.most_narrow_lr)


# fmt: off
USUAL = (
    Family("lstm", 1, _SMALL, 1.2e-2, most_narrow_lr=1.5, most_short_lr=2.0, forget_bias_updates=5000,
           cell={"forget_bias": None, "layer_norm": True}),
    Family("rhn", 1, _DEEP, 8e-3, lr_hidden=320, most_short_lr=1.0, least_updates=2000, multiplier=0.58,
           multiplier_power=0.21, cell={"depth": 4, "gate_bias": -2.0}),
    Family("lstm", 2, _LARGE, 1.2e-2, embedding=256, forget_bias_updates=2000, multiplier=0.54, multiplier_power=0.26,
           cell={"forget_bias": None}),
)
"""The families to choose from where there are kernels."""
PLAIN = Family("lstm", 1, _SMALL, 1.2e-2, forget_bias_updates=2000, multiplier=0.62, multiplier_power=0.2,
               cell={"forget_bias": None})
"""One more where there are no kernels: PyTorch's operator is several times as fast as a loop for the other families."""
ON_REQUEST = {
    "gru": Family("gru", 1, (128, 192, 256, 384, 512, 768), 8e-3, lr_hidden=256, multiplier=0.7),
    "rnn": Family("rnn", 2, _LARGE, 1.5e-3, lr_hidden=512, multiplier=0.2),
    "slstm": Family("slstm", 1, _SMALL, 8e-3),
    "mogrifier": Family("mogrifier", 1, _SMALL, 8e-3),
    "sru": Family("sru", 4, _LARGE, 6e-3, residual=False, activation_penalty=False, cell={"highway_bias": -2.0}),
    **{kind: Family(kind, 4, _LARGE, 6e-3, activation_penalty=False) for kind in ("mingru", "minlstm")},
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
                "residual": family.residual and family.layers > 1,
                "embedding": family.embedding,
            },
            "train": {"batch_size": batch_size, "bptt": bptt, "ema": 0.99, "max_minutes": self.minutes},
            "optimizer": {"name": "adamw", "schedule": {"name": "cosine"}},
        }

    def families(self) -> list[tuple[Family, Cell]]:
        """The families that take the user's options, with their cells, or that of the kind asked for; ConfigError."""
        found: list[tuple[Family, Cell]] = []
        faults: list[ConfigError] = []
        for family in (PLAIN, *USUAL):
            try:
                cell = self.config(self.settings(family, family.hidden[0], 16, 64)).model.cell
            except ConfigError as error:
                faults.append(error)
                continue
            if cell.kind == family.kind:
                found.append((family, cell))
            elif cell.kind not in {usual.kind for usual in USUAL}:
                requested = ON_REQUEST.get(cell.kind) or Family(cell.kind, 1, _SMALL, 3e-3)
                return [(requested, cell)]
        if not found:
            raise faults[0]
        return found
