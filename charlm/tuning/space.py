"""What a study searches: an Optuna distribution for each option.

KEY=LOW..HIGH        numbers, evenly; integers if the option is one
KEY=LOW..HIGH:log    numbers, evenly in their logarithm
KEY=LOW..HIGH:STEP   numbers on a grid that starts at LOW
KEY=A,B,C            one of these values
"""

import difflib
import math
import re
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import optuna
from optuna.distributions import CategoricalDistribution as OneOf
from optuna.distributions import FloatDistribution as Floats
from optuna.distributions import IntDistribution as Integers

from charlm.choice.families import USUAL, on_request
from charlm.config import Config, flatten, override_config
from charlm.config.yaml import dump_flow, load_yaml
from charlm.errors import ConfigError

Distribution = OneOf | Floats | Integers
Space = dict[str, Distribution]

SEARCHABLE = ("model.", "train.", "optimizer.")
"""Sections whose options trials may differ in."""
# fmt: off
SCHEDULED = (
    "train.max_steps", "train.max_epochs", "train.max_minutes", "train.eval_every", "train.watch_gradients",
    "train.save_every", "train.sample_every", "train.patience", "train.keep_checkpoints",
)
# fmt: on
"""Options that the study sets for all of its trials."""


def ends(option: Distribution) -> list[str]:
    """Values that the config must allow, as YAML."""
    if isinstance(option, OneOf):
        return list(map(dump_flow, option.choices))
    return [f"{option.low:.12g}", f"{option.high:.12g}"]


def as_text(option: Distribution) -> str:
    """The text that `parse_space` reads as this distribution."""
    if isinstance(option, OneOf):
        return dump_flow(list(option.choices))[1:-1]
    has_grid = option.step is not None and not (isinstance(option, Integers) and option.step == 1)
    return "..".join(ends(option)) + (":log" if option.log else f":{option.step:.12g}" if has_grid else "")


def trial_value(trial: optuna.Trial, key: str, option: Distribution) -> Any:
    """A value for a trial; numbers have three digits, so that configs stay readable."""
    if isinstance(option, OneOf):
        return trial.suggest_categorical(key, option.choices)
    if isinstance(option, Integers):
        return trial.suggest_int(key, option.low, option.high, step=option.step, log=option.log)
    number = trial.suggest_float(key, option.low, option.high, step=option.step, log=option.log)
    return min(max(float(f"{number:.3g}"), option.low), option.high)


def nearest(option: Distribution, value: Any) -> Any:
    """The value of a distribution that is nearest to an option's; null counts as 0."""
    if isinstance(option, OneOf):
        numbers = [each for each in option.choices if type(each) in (int, float)]
        if value in option.choices or not numbers or type(value) not in (int, float):
            return value if value in option.choices else option.choices[0]
        return min(numbers, key=lambda number: abs(number - value))
    value = min(max(value or 0, option.low), option.high)
    if option.step:
        value = float(f"{option.low + round((value - option.low) / option.step) * option.step:.12g}")
    return int(value) if isinstance(option, Integers) else value


def overrides(values: Mapping[str, Any]) -> list[str]:
    """Values of options as KEY=VALUE."""
    return [f"{key}={dump_flow(value)}" for key, value in values.items()]


def short_names(keys: Iterable[str]) -> dict[str, str]:
    """Options without the name of their section: optimizer.lr → lr."""
    return {key: re.sub(r"^(model\.cell|model|train|optimizer)\.", "", key) for key in keys}


# From text


def parse_space(texts: Iterable[str], config: Config) -> Space:
    """What `--over` asks for. The ConfigError names all faults at once."""
    space: Space = {}
    faults: list[str] = []
    for text in texts:
        try:
            key, option = _parse(text, config)
            if key in space:
                raise ConfigError(f"found {key} twice; allowed: once")
            space[key] = option
        except ConfigError as error:
            faults += [f"--over {text}: {fault}" for fault in error.faults]
    if faults:
        raise ConfigError(*faults)
    return space


def _parse(text: str, config: Config) -> tuple[str, Distribution]:
    key, equals, values = (word.strip() for word in text.partition("="))
    if not (equals and values):
        raise ConfigError("found no KEY=VALUES; allowed: for example --over optimizer.lr=1e-3..3e-2:log")
    known = flatten(config)
    searchable = [each for each in known if each.startswith(SEARCHABLE) and each not in SCHEDULED]
    if key not in searchable:
        near = [] if key in known else difflib.get_close_matches(key, searchable, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ConfigError(
            f"found {key}; allowed: options of model, train and optimizer in this config, no limits{hint}"
        )
    option = _range(values, known[key]) if ".." in values else _choices(values)
    for value in ends(option):
        try:
            override_config(config, "the config", [f"{key}={value}"])
        except ConfigError as error:
            raise ConfigError(*(fault.partition(": ")[2] for fault in error.faults)) from None
    return key, option


def _range(values: str, now: Any) -> Floats | Integers:
    low_text, _, rest = values.partition("..")
    high_text, colon, grid = (word.strip() for word in rest.partition(":"))
    low, high, log = _number(low_text), _number(high_text), grid == "log"
    step = _number(grid) if colon and not log else None
    whole = type(low) is int and type(high) is int and not isinstance(now, float)
    if low >= high:
        raise ConfigError(f"found {low_text} to {high_text}; allowed: the lower number first")
    if log and low <= 0:
        raise ConfigError(f"found {low_text} with :log; allowed: numbers above 0")
    if step is not None and (not 0 < step <= high - low or (whole and type(step) is not int)):
        raise ConfigError(f"found a step of {grid}; allowed: log, or a step that fits into the range")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Optuna warns if it lowers HIGH to the last number of the grid
        return Integers(low, high, log, step or 1) if whole else Floats(low, high, log, step)  # type: ignore[arg-type]


def _number(written: str) -> float:
    value = load_yaml(written, "VALUES")
    if type(value) not in (int, float) or not abs(value) < 2**53:  # nan is not below either
        raise ConfigError(f"found {written!r}; allowed: a number, as in 1e-3..3e-2:log")
    return value


def _choices(values: str) -> OneOf:
    choices = load_yaml(f"[{values}]", "VALUES")
    if not choices or any(isinstance(value, list | dict) for value in choices):
        raise ConfigError(f"found {values!r}; allowed: single values, as in 8,16,32")
    return OneOf(tuple(dict.fromkeys(choices)))


# By default


def default_space(config: Config, suggested: Config | None = None) -> Space:
    """What is searched around a config: ranges around its own values that include sensible ones.

    `suggested`: what charlm would choose for these options; its values are in the ranges too.
    """
    model, ours = config.model, flatten(config)
    theirs = ours | flatten(suggested or config)

    def both(key: str) -> tuple[Any, Any]:
        return ours[key], theirs[key]

    space: Space = {"optimizer.lr": _learning_rates(config, suggested)}
    if config.optimizer.name in ("adamw", "muon"):
        decays = both("optimizer.weight_decay")  # 0 has no logarithm
        space["optimizer.weight_decay"] = (
            Floats(min(*decays, 0.01), max(*decays, 1.0), log=True) if decays[0] else Floats(0.0, 0.3)
        )
    if config.optimizer.schedule.name == "constant":
        falling = theirs["optimizer.schedule.name"] if suggested else "cosine"
        space["optimizer.schedule.name"] = OneOf(tuple(dict.fromkeys(("constant", falling))))
    space["model.cell.hidden"] = _sizes(*both("model.cell.hidden"))
    depth = "model.cell.depth" if "model.cell.depth" in ours else "model.layers"
    space[depth] = _counts(*both(depth))
    for option, p in model.dropout:
        high = {"output": 0.6, "weights": 0.5}.get(option)
        without_effect = option == "between_layers" and model.layers == 1 and "model.layers" not in space
        if option != "variational" and (high or p) and not without_effect:
            space[f"model.dropout.{option}"] = _probabilities(p, high or 0.5)
    if model.zoneout:
        space["model.zoneout"] = _probabilities(model.zoneout, 0.3)
    space["train.batch_size"] = OneOf(tuple(sorted({8, 16, 32, 64, *both("train.batch_size")})))
    if not 32 <= ours["train.bptt"] <= 256:
        space["train.bptt"] = OneOf((ours["train.bptt"], 64))
    return space


def _around(value: float, factor: float, low: float, high: float) -> tuple[float, float]:
    """From `factor` below a value to `factor` above it, and all from `low` to `high`.

    A value outside of these is an end of the range: beyond it, things get worse.
    """
    return (
        value if value < low else min(value / factor, low),
        value if value > high else max(value * factor, high),
    )


def _learning_rates(config: Config, suggested: Config | None) -> Floats:
    kind, optimizer = config.model.cell.kind, config.optimizer
    rates = [family.lr for family in USUAL if family.kind == kind] or [on_request(kind).lr]
    usual = _USUAL_RATES.get(optimizer.name) or (min(rates) / 8, 2 * max(rates))
    known = [*usual, *([suggested.optimizer.lr] if suggested else [])]
    low, high = (float(f"{rate:.2g}") for rate in _around(optimizer.lr, 4, min(known), max(known)))
    return Floats(min(low, optimizer.lr), max(high, optimizer.lr), log=True)


_USUAL_RATES = {"sgd": (0.01, 2.0), "rmsprop": (3e-4, 1e-2), "adagrad": (3e-3, 0.1)}
"""Learning rates of optimizers for which the kind's own, those of Adam, are no guide."""


def _sizes(ours: int, theirs: int) -> Integers:
    """Multiples of up to 16, counted from the config's own size, because kernels compute them faster."""
    low, high = _around(ours, 2, theirs / 1.5, theirs * 1.5)
    step = max(1, min(16, 2 ** int(math.log2(max(high - low, 1) / 12))))
    low = ours - step * math.floor((ours - low) / step)
    high = ours + step * math.floor((high - ours) / step)
    return Integers(low, max(high, low + step), step=step)


def _counts(ours: int, theirs: int) -> Integers:
    """From half to double, at least one less and one more."""
    return Integers(max(1, min(ours - 1, ours // 2, theirs)), max(ours + 1, 2 * ours if ours > 3 else 0, theirs))


def _probabilities(ours: float, high: float) -> Floats:
    """From 0, on a grid, so that 0 itself is tried."""
    on_grid = math.isclose(ours * 20, round(ours * 20), abs_tol=1e-9)
    return Floats(0.0, max(high, ours), step=0.05 if on_grid else None)
