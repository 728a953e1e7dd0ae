"""What a study searches: for each option a range of numbers or a list of values.

KEY=LOW..HIGH        numbers, evenly; integers if the option is one
KEY=LOW..HIGH:log    numbers, evenly in their logarithm
KEY=LOW..HIGH:STEP   numbers on a grid that starts at LOW
KEY=A,B,C            one of these values
"""

import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from charlm.choice.families import USUAL, on_request
from charlm.config import Config, flatten, override_config
from charlm.config.yaml import dump_flow, load_yaml
from charlm.errors import ConfigError


@dataclass(frozen=True)
class Range:
    """The numbers from `low` to `high`."""

    low: float
    high: float
    log: bool = False
    step: float | None = None
    """Distance of the numbers, counted from `low`; None: all of them."""
    whole: bool = False

    def __str__(self) -> str:
        """The text from which `parse_space` makes it."""
        grid = ":log" if self.log else "" if self.step is None else f":{dump_flow(self.step)}"
        return f"{dump_flow(self.low)}..{dump_flow(self.high)}{grid}"

    def ends(self) -> list[Any]:
        """Values that must be allowed."""
        return [self.low, self.high]

    def suggest(self, trial: Any, key: str) -> float:
        """A number for an Optuna trial; of three digits, so that configs stay readable."""
        if self.whole:
            return trial.suggest_int(key, int(self.low), int(self.high), step=int(self.step or 1), log=self.log)
        return self._clipped(
            float(f"{trial.suggest_float(key, self.low, self.high, step=self.step, log=self.log):.3g}")
        )

    def nearest(self, value: Any) -> Any:
        """The number of the range that is nearest to an option's value; null counts as 0."""
        value = self._clipped(value or 0)
        if step := 1 if self.whole and self.step is None else self.step:
            steps = min(round((value - self.low) / step), math.floor((self.high - self.low) / step + 1e-9))
            value = float(f"{self.low + steps * step:.12g}")
        return int(value) if self.whole else value

    def _clipped(self, value: float) -> float:
        return min(max(value, self.low), self.high)


@dataclass(frozen=True)
class Choices:
    """A list of values."""

    values: tuple[Any, ...]

    def __str__(self) -> str:
        """The text from which `parse_space` makes it."""
        return dump_flow(list(self.values))[1:-1]

    def ends(self) -> list[Any]:
        """Values that must be allowed."""
        return list(self.values)

    def suggest(self, trial: Any, key: str) -> Any:
        """A value for an Optuna trial."""
        return trial.suggest_categorical(key, self.values)

    def nearest(self, value: Any) -> Any:
        """The value itself if it is in the list, else the nearest number, else the first."""
        if value in self.values:
            return value
        numbers = [each for each in self.values if type(each) in (int, float)]
        if numbers and type(value) in (int, float):
            return min(numbers, key=lambda number: abs(number - value))
        return self.values[0]


Space = dict[str, Range | Choices]


def overrides(values: Mapping[str, Any]) -> list[str]:
    """Values of options as KEY=VALUE."""
    return [f"{key}={dump_flow(value)}" for key, value in values.items()]


_SECTIONS = ("model.cell.", "model.", "train.", "optimizer.")


def short_names(keys: Iterable[str]) -> dict[str, str]:
    """Options without the name of their section: optimizer.lr → lr."""
    return {key: key.removeprefix(next((s for s in _SECTIONS if key.startswith(s)), "")) for key in keys}


def describe(values: Mapping[str, Any]) -> str:
    """The values of a trial on one line."""
    return " · ".join(f"{name} {dump_flow(values[key])}" for key, name in short_names(values).items())


# From text


def parse_space(texts: Iterable[str], config: Config) -> Space:
    """What `--over` asks for. The ConfigError names all faults at once."""
    space: Space = {}
    faults: list[str] = []
    for text in texts:
        try:
            key, option = _parse(text, config)
            if key in space:
                raise _fault(text, f"found {key} twice; allowed: once")
            space[key] = option
        except ConfigError as error:
            faults += error.faults
    if faults:
        raise ConfigError(*faults)
    return space


def _parse(text: str, config: Config) -> tuple[str, Range | Choices]:
    key, equals, values = (part.strip() for part in text.partition("="))
    if not (equals and values):
        raise _fault(text, "found no KEY=VALUES; allowed: for example --over optimizer.lr=1e-3..3e-2:log")
    if key == DEFAULTS:
        return key, _defaults(text, values)
    known = flatten(config)
    _check_key(text, key, known)
    option = _range(text, values, known[key]) if ".." in values else _choices(text, values)
    for value in option.ends():
        try:
            override_config(config, "the config", overrides({key: value}))
        except ConfigError as error:
            raise _fault(text, *(fault.partition(": ")[2] for fault in error.faults)) from None
    return key, option


DEFAULTS = "defaults"
"""The name of a choice about all options that are not searched and have their defaults in the config."""
PLAIN, SUGGESTED, CHOSEN = "plain", "suggested", "chosen"
"""They stay so, or they are what charlm would choose. CHOSEN is not in the space: in one trial all options are."""


def is_chosen(values: Mapping[str, Any]) -> bool:
    """Whether these are the values of the trial of charlm's own choice."""
    return values.get(DEFAULTS) == CHOSEN


def _defaults(text: str, values: str) -> Choices:
    option = _choices(text, values)
    if not {*option.values} <= {PLAIN, SUGGESTED}:
        raise _fault(text, f"found {values!r}; allowed: {PLAIN} | {SUGGESTED}")
    return option


def _check_key(text: str, key: str, known: Iterable[str]) -> None:
    """ConfigError unless trials may differ in this option and can still be compared."""
    searchable = [each for each in known if each.startswith(SEARCHABLE) and each not in SCHEDULED]
    if key in searchable:
        return
    if key in known:
        raise _fault(
            text,
            f"found {key}, which is the same in all trials; allowed: options of the model, its training and the "
            "optimizer, but no limits",
        )
    near = difflib.get_close_matches(key, searchable, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise _fault(text, f"unknown option; allowed: one of this config, see `charlm config options`{hint}")


SEARCHABLE = ("model.", "train.", "optimizer.")
"""Sections whose options trials may differ in."""
SCHEDULED = (
    "train.max_steps",
    "train.max_epochs",
    "train.max_minutes",
    "train.eval_every",
    "train.save_every",
    "train.sample_every",
    "train.patience",
    "train.keep_checkpoints",
)
"""Options that the study sets for all of its trials."""


def _range(text: str, values: str, now: Any) -> Range:
    low_text, _, rest = values.partition("..")
    high_text, colon, grid = (part.strip() for part in rest.partition(":"))
    low, high = _number(text, low_text), _number(text, high_text)
    if low >= high:
        raise _fault(text, f"found {low_text} to {high_text}; allowed: the lower number first")
    whole = type(low) is int and type(high) is int and not isinstance(now, float)
    if not colon:
        return Range(low, high, whole=whole)
    if grid == "log":
        if low <= 0:
            raise _fault(text, f"found {low_text} with :log; allowed: numbers above 0")
        return Range(low, high, log=True, whole=whole)
    step = _number(text, grid)
    if not 0 < step <= high - low or (whole and type(step) is not int):
        raise _fault(text, f"found a step of {grid}; allowed: log, or a step that fits into the range")
    return Range(low, high, step=step, whole=whole)


def _number(text: str, written: str) -> float:
    value = load_yaml(written, f"--over {text}")
    if type(value) not in (int, float) or not abs(value) < 2**53:  # nan is not below either
        raise _fault(text, f"found {written!r}; allowed: a number, as in 1e-3..3e-2:log")
    return value


def _choices(text: str, values: str) -> Choices:
    found = load_yaml(f"[{values}]", f"--over {text}")
    if not found or any(isinstance(value, list | dict) for value in found):
        raise _fault(text, f"found {values!r}; allowed: single values, as in 8,16,32")
    return Choices(tuple(dict.fromkeys(found)))


def _fault(text: str, *faults: str) -> ConfigError:
    return ConfigError(*(f"--over {text}: {fault}" for fault in faults))


# By default


def default_space(config: Config, suggested: Config | None = None) -> Space:
    """What is searched around a config: ranges around its own values that include sensible ones.

    `suggested`: what charlm would choose for these options; its values are in the ranges too.
    """
    model, optimizer = config.model, config.optimizer
    ours = flatten(config)
    theirs = ours | flatten(suggested or config)

    def both(key: str) -> tuple[Any, Any]:
        return ours[key], theirs[key]

    space: Space = {"optimizer.lr": _learning_rates(config, suggested)}
    if optimizer.name in ("adamw", "muon"):
        space["optimizer.weight_decay"] = _weight_decays(*both("optimizer.weight_decay"))
    if optimizer.schedule.name == "constant":
        falling = theirs["optimizer.schedule.name"] if suggested else "cosine"
        space["optimizer.schedule.name"] = Choices(tuple(dict.fromkeys(("constant", falling))))
    if not model.tie_embeddings:
        space["model.cell.hidden"] = _sizes(*both("model.cell.hidden"))
    depth = "model.cell.depth" if "model.cell.depth" in ours else "model.layers"
    space[depth] = _few(*both(depth))
    for place, p in model.dropout:
        high = {"output": 0.6, "weights": 0.5}.get(place)
        without_effect = place == "between_layers" and model.layers == 1 and "model.layers" not in space
        if place != "variational" and (high or p) and not without_effect:
            space[f"model.dropout.{place}"] = _probabilities(p, high or 0.5)
    if model.zoneout:
        space["model.zoneout"] = _probabilities(model.zoneout, 0.3)
    space["train.batch_size"] = Choices(tuple(sorted({8, 16, 32, 64, *both("train.batch_size")})))
    if not 32 <= ours["train.bptt"] <= 256:
        space["train.bptt"] = Choices((ours["train.bptt"], 64))
    return space


def _around(value: float, factor: float, low: float, high: float) -> tuple[float, float]:
    """From `factor` below a value to `factor` above it, and all from `low` to `high`.

    A value outside of these is an end of the range: beyond it, things get worse.
    """
    return (
        value if value < low else min(value / factor, low),
        value if value > high else max(value * factor, high),
    )


def _learning_rates(config: Config, suggested: Config | None) -> Range:
    kind, optimizer = config.model.cell.kind, config.optimizer
    rates = [family.lr for family in USUAL if family.kind == kind] or [on_request(kind).lr]
    sensible = _SENSIBLE_RATES.get(optimizer.name) or (min(rates) / 8, 2 * max(rates))
    known = [*sensible, *([suggested.optimizer.lr] if suggested else [])]
    low, high = (float(f"{rate:.2g}") for rate in _around(optimizer.lr, 4, min(known), max(known)))
    return Range(min(low, optimizer.lr), max(high, optimizer.lr), log=True)


_SENSIBLE_RATES = {"sgd": (0.01, 2.0), "rmsprop": (3e-4, 1e-2), "adagrad": (3e-3, 0.1)}
"""Learning rates of optimizers for which the kind's own, those of Adam, are no guide."""


def _weight_decays(ours: float, theirs: float) -> Range:
    if ours == 0:  # has no logarithm
        return Range(0.0, 0.3)
    return Range(min(ours, theirs, 0.01), max(ours, theirs, 1.0), log=True)


def _sizes(ours: int, theirs: int) -> Range:
    """Multiples of up to 16, counted from the config's own size, because kernels compute them faster."""
    low, high = _around(ours, 2, theirs / 1.5, theirs * 1.5)
    step = max(1, min(16, 2 ** int(math.log2(max(high - low, 1) / 12))))
    low = ours - step * math.floor((ours - low) / step)
    high = ours + step * math.floor((high - ours) / step)
    return Range(low, max(high, low + step), step=step, whole=True)


def _few(ours: int, theirs: int) -> Range:
    """From half to double, at least one less and one more."""
    low = max(1, min(ours - 1, ours // 2, theirs))
    return Range(low, max(ours + 1, 2 * ours if ours > 3 else 0, theirs), whole=True)


def _probabilities(ours: float, high: float) -> Range:
    """From 0, on a grid, so that 0 itself is tried."""
    on_grid = math.isclose(ours * 20, round(ours * 20), abs_tol=1e-9)
    return Range(0.0, max(high, ours), step=0.05 if on_grid else None)
