"""The models among which `suggest` chooses: families that differ in size only."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from charlm.cells import Cell
from charlm.config import Config, from_file, of_run, override_config, parse_config
from charlm.data.vocabulary import Vocabulary

_SMALL = (96, 128, 192, 256, 384, 512)
_DEEP = (160, 224, 320, 448, 640, 896)
_LARGE = (256, 384, 512, 768, 1024, 1536, 2048)


@dataclass(frozen=True)
class Family:
    """A kind and a number of layers."""

    kind: str
    layers: int
    hidden: tuple[int, ...]
    """Sizes, the smallest first."""
    lr: float
    """Peak learning rate for 16 streams, up to `lr_hidden` units."""
    lr_hidden: int = 384
    short_lr: float = 1.5
    """Its factor at most in runs of a few hundred updates."""
    embedding: int = 64
    least_updates: int = 30
    """It is not chosen for runs of fewer unless all families are too slow. Wide models need 1 / `width_factor` as many.
    """
    forget_bias_updates: int = 0
    """Runs of fewer start with a forget bias of 1."""
    worth: float = 1.0
    """What a parameter is worth after 1,000 updates, relative to the first family; see `rule`."""
    worth_gain: float = 0.0
    """How fast that grows: a power of the number of updates."""
    cell: dict[str, Any] = field(default_factory=dict)
    """Options of the kind."""

    def width_factor(self, hidden: int) -> float:
        """Learning rate relative to that of narrow models: 1 up to `lr_hidden` units, then in inverse proportion."""
        return min(self.lr_hidden / hidden, 1.0)

    def model(self, hidden: int) -> dict[str, Any]:
        """The section `model` of a config, without dropout."""
        return {
            "cell": {"kind": self.kind, "hidden": hidden, **self.cell},
            "layers": self.layers,
            "residual": self.layers > 1,
            "embedding": self.embedding,
        }


USUAL = (
    Family(
        "lstm",
        1,
        _SMALL,
        1.2e-2,
        short_lr=2.0,
        forget_bias_updates=5000,
        cell={"forget_bias": None, "layer_norm": True},
    ),
    Family(
        "rhn",
        1,
        _DEEP,
        8e-3,
        320,
        short_lr=1.0,
        least_updates=2000,
        worth=0.73,
        worth_gain=0.21,
        cell={"depth": 4, "gate_bias": -2.0},
    ),
    Family(
        "lstm",
        2,
        _LARGE,
        1.2e-2,
        embedding=256,
        forget_bias_updates=2000,
        worth=0.54,
        worth_gain=0.26,
        cell={"forget_bias": None},
    ),
)
"""The families to choose from."""

PLAIN = Family(
    "lstm",
    1,
    _SMALL,
    1.2e-2,
    forget_bias_updates=2000,
    worth=0.62,
    worth_gain=0.2,
    cell={"forget_bias": None},
)
"""One more family where there are no kernels: PyTorch's own operator computes it several times as fast as a loop in
Python computes the normalized LSTM and the RHN.
"""

_ON_REQUEST = {
    "gru": Family("gru", 1, (128, 192, 256, 384, 512, 768), 8e-3, 256, worth=0.7),
    "rnn": Family("rnn", 2, _LARGE, 1.5e-3, 512, worth=0.2),
    "slstm": Family("slstm", 1, _SMALL, 8e-3),
}


def on_request(kind: str) -> Family:
    """The family of a kind that is chosen only if it is asked for."""
    return _ON_REQUEST.get(kind) or Family(kind, 1, _SMALL, 3e-3)


@dataclass(frozen=True)
class Candidate:
    """A model of a family, with the batch."""

    family: Family
    settings: dict[str, Any]
    """Options that decide how long an update takes, without the user's."""
    config: Config
    """The same with the user's."""
    parameters: int


@dataclass(frozen=True)
class Request:
    """What the user asks for."""

    source: str
    minutes: float
    overrides: Sequence[str] = ()
    """KEY=VALUE, options that keep the value given."""
    initial: str = ""
    """The run whose model and weights the new run starts from, if it starts from one."""
    vocabulary: Vocabulary | None = None
    """That of this run."""
    cell: Cell | None = None
    """That of this run: then no file of a cell is run."""

    def gives(self, option: str) -> bool:
        """Whether the user gives this option, or one below it."""
        keys = [override.partition("=")[0].strip() for override in self.overrides]
        return any(key == option or key.startswith(f"{option}.") for key in keys)

    def config(self, settings: dict[str, Any], overrides: Sequence[str] | None = None) -> Config:
        """The config of these settings, with the user's; ConfigError if they do not fit."""
        where = f"the settings for {self.source}"
        given = self.overrides if overrides is None else overrides
        own = of_run(self.cell) if self.cell else from_file
        return override_config(parse_config(settings, where, own=own), where, given, own)

    def base(self) -> Config:
        """The text and the machine, before anything is chosen."""
        parts = ("data.", "device=", "precision=", "threads=")
        return self.config(
            {"data": {"source": self.source}}, [text for text in self.overrides if text.startswith(parts)]
        )

    def settings(self, family: Family, hidden: int, batch_size: int, bptt: int) -> dict[str, Any]:
        """The options of a candidate."""
        return {
            "data": {"source": self.source},
            "model": family.model(hidden),
            "train": {"batch_size": batch_size, "bptt": bptt, "ema": 0.99, "max_minutes": self.minutes},
            "optimizer": {"name": "adamw", "schedule": {"name": "cosine"}},
        }
