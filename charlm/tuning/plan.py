"""What a study is to do, decided once, before its first trial."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from charlm.choice.families import Request
from charlm.choice.suggest import suggest
from charlm.config import Config, differences, flatten, from_file, override_config, parse_config, unless_same
from charlm.data.corpus import load_configured_corpus
from charlm.data.places import with_absolute_paths, with_found_paths
from charlm.data.sources import check_exists
from charlm.errors import CharlmError, ConfigError
from charlm.system.console import quiet, say
from charlm.system.device import resolve_device
from charlm.system.formatting import format_duration
from charlm.tuning.space import (
    CHOSEN,
    DEFAULTS,
    PLAIN,
    SCHEDULED,
    SEARCHABLE,
    SUGGESTED,
    Choices,
    Space,
    default_space,
    describe,
    is_chosen,
    overrides,
    parse_space,
)

T = TypeVar("T")

_SHARE = 0.1
"""Share of the study's time that a trial takes at most, unless --minutes says otherwise."""
_RUN = ["eval_every=0", "save_every=0", "sample_every=0", "patience=0", "keep_checkpoints=1"]
"""Options of the section `train` for trials: the study says when they are evaluated; `last` and `best` are kept."""


@dataclass(frozen=True)
class Plan:
    """What is the same for all trials, and for all processes that work on a study."""

    config: Config
    space: Space
    limits: tuple[str, ...] = ()
    """Overrides that say how long a trial trains, where this differs from the config."""
    suggested: dict[str, Any] = field(default_factory=dict)
    """What charlm would choose for options that are not searched and have their defaults in the config."""
    chosen: Config | None = None
    """What charlm would choose if the config had only the text and the machine: a trial of its own; None: no trial."""

    @property
    def minutes(self) -> float | None:
        """How long a trial trains; None if steps or epochs limit it."""
        return override_config(self.config, "the config", self.limits).train.max_minutes

    def tuned(self, values: dict[str, Any]) -> Config:
        """The config with the values of a trial. ConfigError if they exclude one another."""
        if self.chosen and is_chosen(values):
            return self.chosen
        others = self.suggested if values.get(DEFAULTS) == SUGGESTED else {}
        options = {key: value for key, value in values.items() if key != DEFAULTS}
        return override_config(self.config, "the config", overrides(others | options))

    def trial_config(self, values: dict[str, Any], minutes: float) -> Config:
        """The config that a trial trains with, for so many minutes at most."""
        run = [f"train.{option}" for option in (*_RUN, f"max_minutes={minutes}")]
        return override_config(self.tuned(values), "the config", [*self.limits, *run])

    def found_from(self, folder: Path) -> "Plan":
        """The same plan, with its texts where they are now: the study in the folder may have moved with them."""
        config = with_found_paths(self.config, folder)
        with quiet():  # said already
            return replace(self, config=config, chosen=self.chosen and with_found_paths(self.chosen, folder))

    def check_texts(self) -> None:
        """DataError for a text that is not there. Reads none."""
        for source in (self.config.data.source, self.config.data.valid_source, self.config.data.test_source):
            if source is not None:
                check_exists(source)

    def chosen_values(self) -> dict[str, Any]:
        """The values of the trial of `chosen`: its kinds, and the options that are searched, as far as it has them."""
        values = flatten(self.chosen) if self.chosen else {}
        return {key: values[key] for key in (*self.space, *_KINDS) if key in values} | {DEFAULTS: CHOSEN}

    # To and from the study's journal

    def as_json(self) -> dict[str, Any]:
        return {
            "config": self.config.model_dump(mode="json"),
            "space": {key: str(option) for key, option in self.space.items()},
            "limits": list(self.limits),
            "suggested": self.suggested,
            "chosen": self.chosen.model_dump(mode="json") if self.chosen else None,
        }

    @classmethod
    def from_json(cls, saved: dict[str, Any], where: str) -> "Plan":
        config = parse_config(saved["config"], where)
        space = parse_space([f"{key}={option}" for key, option in saved["space"].items()], config)
        chosen = parse_config(saved["chosen"], where) if saved.get("chosen") else None  # older studies have none
        return cls(config, space, tuple(saved["limits"]), saved["suggested"], chosen)


def make_plan(
    config: Config, over: Iterable[str], hours: float, minutes: float | None
) -> tuple[Plan, list[dict[str, Any]]]:
    """The plan of a new study, and the values of its first trials: the config's own, and those that charlm suggests.

    The trial of the plan's `chosen` is not among them: its values may lie outside of the space.

    Raises ConfigError for a wrong space, and what a run would raise for its text or device.
    """
    asked = parse_space(over, config)
    _check_validation(config)
    config = with_absolute_paths(config)
    resolve_device(config.device)
    limits = _limits(config, hours, minutes)
    keys = {*default_space(config), *asked}
    trial_minutes = Plan(config, {}, limits).minutes or 60 * hours * _SHARE
    found = _suggestion(config, keys, trial_minutes)
    space, others = default_space(config, found), _others(config, found or config, keys)
    space, others = _of_all_kinds(config, asked, space), _of_all_kinds(config, asked, others)
    if others and asked.get(DEFAULTS) != _ONLY_PLAIN:
        space[DEFAULTS] = Choices((PLAIN, SUGGESTED))
        say("suggest", f"{describe(others)}: tried as {DEFAULTS} {SUGGESTED}")
    plan = Plan(config, space | asked, limits, others)
    wanted = [flatten(config) | {DEFAULTS: PLAIN}]
    if found:
        wanted.append(wanted[0] | flatten(found) | {DEFAULTS: SUGGESTED})
    first = [{key: option.nearest(values[key]) for key, option in plan.space.items()} for values in wanted]
    if found and asked.get(DEFAULTS) != _ONLY_PLAIN:
        plan = replace(plan, chosen=_free_choice(plan, asked, trial_minutes, first[1]))
    return plan, first


def _check_validation(config: Config) -> None:
    if "valid" not in load_configured_corpus(config.data).splits:
        raise ConfigError(
            "data.split: found no validation share; trials are compared by their validation score; allowed: a share "
            "above 0, or data.valid_source"
        )


def _limits(config: Config, hours: float, minutes: float | None) -> tuple[str, ...]:
    """Overrides that say how long a trial trains."""
    if minutes is not None:
        return (f"train.max_minutes={minutes}", "train.max_steps=null", "train.max_epochs=null")
    most = float(f"{60 * hours * _SHARE:.3g}")
    own = config.train.max_minutes
    if own is None or own <= most:
        return ()
    say(
        "limit",
        f"trials train for {format_duration(60 * most)} each, a tenth of the time; train.max_minutes says {own:g}; "
        "--minutes M sets another",
    )
    return (f"train.max_minutes={most}",)


def _suggestion(config: Config, keys: set[str], minutes: float) -> Config | None:
    """What charlm would choose for the options that are searched and for all defaults; None if it cannot choose."""
    try:
        return suggest(Request(config.data.source, minutes, overrides(_kept(config, keys)))).config
    except CharlmError as error:
        say("suggest", f"nothing ({error}); the search begins with the config alone")
        return None


def _free_choice(plan: Plan, asked: Space, minutes: float, second: dict[str, Any]) -> Config | None:
    """What charlm would choose for the text and the machine if it kept nothing of the config but what --over asks for.

    An option of a cell, an optimizer or a schedule in `asked` keeps the config's kind. None if charlm cannot choose, or
    if the choice differs in searched options only from the trial with the values `second`.
    """
    config, ours = plan.config, flatten(plan.config)
    given = {key: value for key, value in ours.items() if not key.startswith(SEARCHABLE)}
    given |= {key: ours[key] for key in _KINDS if any(_belongs(other, key) for other in asked)}
    single = {key: option.values for key, option in asked.items() if isinstance(option, Choices) and key != DEFAULTS}
    given |= {key: values[0] for key, values in single.items() if len(values) == 1}
    try:
        found = suggest(Request(config.data.source, minutes, overrides(given))).config
        values = flatten(found)
        within = {key: option.nearest(values[key]) for key, option in asked.items() if key in values}
        limits = {key: value for key, value in ours.items() if key in _OF_THE_STUDY}
        chosen = override_config(found, "the settings", overrides(within | limits))
        differing = differences(plan.tuned(second), chosen)
    except CharlmError as error:
        say("suggest", f"no trial of charlm's own choice ({error})")
        return None
    searched = [key for key in _KINDS if key in plan.space]
    if all(
        key in plan.space or key in _OF_THE_STUDY or any(_belongs(key, kind) for kind in searched) for key in differing
    ):
        return None
    cell, layers, optimizer = chosen.model.cell, chosen.model.layers, chosen.optimizer.name
    say("suggest", f"charlm's own choice, {cell.name}, {layers} × {cell.hidden}, {optimizer}: a trial")
    return chosen


def _belongs(key: str, kind: str) -> bool:
    """Whether an option is one of the section whose kind of cell, optimizer or schedule another one, `kind`, names."""
    return key.startswith(f"{kind.rpartition('.')[0]}.") and key not in (*_KINDS, "model.cell.hidden")


def _kept(config: Config, keys: set[str]) -> dict[str, Any]:
    """The options that every trial takes from the config: those that are not searched and differ from the defaults."""
    ours = flatten(config)
    cell, optimizer, schedule = config.model.cell.kind, config.optimizer.name, config.optimizer.schedule.name
    kinds = {"model": {"cell": {"kind": cell}}, "optimizer": {"name": optimizer, "schedule": {"name": schedule}}}
    differing = differences(parse_config(kinds, "the defaults", own=unless_same(config.model.cell, from_file)), config)
    return {
        key: value
        for key, value in ours.items()
        if key not in keys
        and key not in SCHEDULED
        and (key in differing or key in _KINDS or not key.startswith(SEARCHABLE))
    }


def _others(config: Config, suggested: Config, keys: set[str]) -> dict[str, Any]:
    """The defaults of the config for which charlm suggests another value."""
    ours, theirs = flatten(config), flatten(suggested)
    found = {key: theirs[key] for key in ours if key in theirs and ours[key] != theirs[key]}
    return {key: value for key, value in found.items() if key not in keys and key not in _OF_THE_STUDY}


def _of_all_kinds(config: Config, asked: Space, options: dict[str, T]) -> dict[str, T]:
    """The options that exist for every kind of cell, optimizer and schedule that --over asks for."""
    for kind in _KINDS:
        for value in asked[kind].ends() if kind in asked else ():
            known = flatten(override_config(config, "the config", overrides({kind: value})))
            options = {key: option for key, option in options.items() if key in known}
    return options


_KINDS = ("model.cell.kind", "optimizer.name", "optimizer.schedule.name")
_ONLY_PLAIN = Choices((PLAIN,))
_OF_THE_STUDY = (*SCHEDULED, "train.log_every", "train.sample_length", "train.sample_temperature")


def check_same(plan: Plan, config: Config | None, over: Iterable[str], minutes: float | None) -> None:
    """ConfigError unless what is given is the plan's."""
    found = differences(plan.config, with_absolute_paths(config) if config else plan.config)
    faults = [f"{key}: found {after!r}, the study has {before!r}" for key, (before, after) in found.items()]
    for key, option in parse_space(over, plan.config).items():
        if option != plan.space.get(key):
            faults.append(f"--over {key}: found {option}, the study has {plan.space.get(key, 'no such option')}")
    if minutes is not None and minutes != plan.minutes:
        faults.append(f"--minutes: found {minutes:g}, the study has {plan.minutes or 'none'}")
    if faults:
        allowed = "allowed: the same; leave it out to continue, or take another --study"
        raise ConfigError(*(f"{fault}; {allowed}" for fault in faults))
