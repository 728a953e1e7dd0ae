"""What a study is to do, decided once, before its first trial."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from optuna.distributions import distribution_to_json, json_to_distribution

from charlm.choice.families import Request
from charlm.choice.suggest import suggest
from charlm.config import Config, differences, flatten, override_config, parse_config
from charlm.data.corpus import load_corpus
from charlm.data.sources import with_absolute_paths, with_found_paths
from charlm.errors import CharlmError, ConfigError
from charlm.system.console import say
from charlm.system.device import resolve_device
from charlm.system.formatting import format_duration
from charlm.tuning.space import (
    SCHEDULED,
    SEARCHABLE,
    OneOf,
    Space,
    as_text,
    default_space,
    ends,
    nearest,
    overrides,
    parse_space,
)

_SHARE = 0.1
"""Share of the study's time that a trial takes at most, unless --minutes says otherwise."""
_RUN = ["eval_every=0", "watch_gradients=0", "save_every=0", "sample_every=0", "patience=0", "keep_checkpoints=1"]
"""Options of the section `train` for trials: the study says when they are evaluated; `last` and `best` are kept."""
_KINDS = ("model.cell.kind", "optimizer.name", "optimizer.schedule.name")
_OF_THE_STUDY = (*SCHEDULED, "train.log_every", "train.sample_length", "train.sample_temperature")


FirstTrial = tuple[dict[str, Any], dict[str, Any]]
"""Values of searched options, and attributes of Optuna's trial.

Only charlm's own choice, which may lie outside of the space, has attributes: `chosen`, its config, and `values`, its
kinds and its searched options.
"""


@dataclass(frozen=True)
class StudySettings:
    """What is the same for all trials, and for all processes that work on a study."""

    config: Config
    space: Space
    limits: tuple[str, ...] = ()
    """Overrides that say how long a trial trains, where this differs from the config."""

    @property
    def minutes(self) -> float | None:
        """How long a trial trains; None if steps or epochs limit it."""
        return override_config(self.config, "the config", self.limits).train.max_minutes

    def tuned(self, values: dict[str, Any], chosen: dict[str, Any] | None = None) -> Config:
        """The config with the values of a trial, or charlm's own choice. ConfigError if values exclude one another."""
        if chosen:
            return parse_config(chosen, "charlm's own choice").model_copy(update={"data": self.config.data})
        return override_config(self.config, "the config", overrides(values))

    def trial_config(self, values: dict[str, Any], minutes: float, chosen: dict[str, Any] | None = None) -> Config:
        """The config that a trial trains with, for so many minutes at most."""
        run = [f"train.{option}" for option in (*_RUN, f"max_minutes={minutes}")]
        return override_config(self.tuned(values, chosen), "the config", [*self.limits, *run])

    def as_json(self) -> dict[str, Any]:
        space = {key: distribution_to_json(option) for key, option in self.space.items()}
        return {"config": self.config.model_dump(mode="json"), "space": space, "limits": list(self.limits)}

    @classmethod
    def from_json(cls, saved: dict[str, Any], folder: Path) -> "StudySettings":
        """The settings of the study in a folder, with its texts where they are now: they may have moved together."""
        config = with_found_paths(parse_config(saved["config"], str(folder)), folder)
        space: Any = {key: json_to_distribution(text) for key, text in saved["space"].items()}
        return cls(config, space, tuple(saved["limits"]))

    def check_same(self, config: Config | None, over: Iterable[str], minutes: float | None) -> None:
        """ConfigError unless what is given is what the study has."""
        differing = differences(self.config, with_absolute_paths(config)) if config else {}
        pairs: list[tuple[str, Any, Any]] = [(key, repr(new), repr(old)) for key, (old, new) in differing.items()]
        for key, option in parse_space(over, self.config).items():
            if option != (ours := self.space.get(key)):
                pairs.append((f"--over {key}", as_text(option), as_text(ours) if ours else "no such option"))
        if minutes is not None and minutes != self.minutes:
            pairs.append(("--minutes", f"{minutes:g}", self.minutes or "none"))
        allowed = "allowed: the same; leave it out to continue, or take another --study"
        if pairs:
            raise ConfigError(*(f"{key}: found {new}, the study has {old}; {allowed}" for key, new, old in pairs))


def choose_settings(
    config: Config, over: Iterable[str], hours: float, minutes: float | None
) -> tuple[StudySettings, list[FirstTrial]]:
    """The settings of a new study, and its first trials: the config, charlm's settings in it, and charlm's own choice.

    Raises ConfigError for a wrong space, and what a run would raise for its text or device.
    """
    asked = parse_space(over, config)
    if "valid" not in load_corpus(config.data).splits:
        raise ConfigError(
            "data.split: found no validation share; trials are compared by their validation score; allowed: a share "
            "above 0, or data.valid_source"
        )
    config = with_absolute_paths(config)
    resolve_device(config.device)
    settings = StudySettings(config, {}, _limits(config, hours, minutes))
    trial_minutes, ours = settings.minutes or 60 * hours * _SHARE, flatten(config)
    searched = {*default_space(config), *asked}
    fixed = {key: value for key, value in ours.items() if not (key in searched or key in SCHEDULED)}
    fixed = {key: value for key, value in fixed.items() if not _belongs(key, searched)}
    try:
        suggested = suggest(Request(config.data.source, trial_minutes, overrides(fixed))).config
    except CharlmError as error:
        say("suggest", f"nothing ({error}); the search begins with the config alone")
        suggested = None
    space = _of_all_kinds(config, asked, default_space(config, suggested)) | asked
    settings = replace(settings, space=space)
    first: list[FirstTrial] = [({key: nearest(option, ours[key]) for key, option in space.items()}, {})]
    if suggested:
        theirs = ours | flatten(suggested)
        second = {key: nearest(option, theirs[key]) for key, option in space.items()}
        first.append((second, {}))
        if chosen := _own_choice(settings, asked, trial_minutes, settings.tuned(second)):
            known = flatten(chosen)
            values = {key: known[key] for key in (*space, *_KINDS) if key in known}
            first.append(({}, {"chosen": chosen.model_dump(mode="json"), "values": values}))
    return settings, first


def _limits(config: Config, hours: float, minutes: float | None) -> tuple[str, ...]:
    """Overrides that say how long a trial trains."""
    if minutes is not None:
        return (f"train.max_minutes={minutes}", "train.max_steps=null", "train.max_epochs=null")
    most = float(f"{60 * hours * _SHARE:.3g}")
    own = config.train.max_minutes
    if own is None or own <= most:
        return ()
    say("limit", f"trials train for {format_duration(60 * most)} each, a tenth of --hours; --minutes M sets another")
    return (f"train.max_minutes={most}",)


def _own_choice(settings: StudySettings, asked: Space, minutes: float, second: Config) -> Config | None:
    """What charlm would choose for the text and the machine if it kept nothing of the config but what --over asks for.

    An option of a cell, an optimizer or a schedule in `asked` keeps the config's kind. None if charlm cannot choose, or
    if the choice differs in searched options only from `second`, the config of the second trial.
    """
    space, ours = settings.space, flatten(settings.config)
    given = {key: value for key, value in ours.items() if not key.startswith(SEARCHABLE)}
    given |= {kind: ours[kind] for kind in _KINDS if any(_belongs(key, [kind]) for key in asked)}
    fixed = {key: option for key, option in asked.items() if isinstance(option, OneOf) and len(option.choices) == 1}
    given |= {key: option.choices[0] for key, option in fixed.items()}
    try:
        config = suggest(Request(settings.config.data.source, minutes, overrides(given))).config
        values = flatten(config)
        within = {key: nearest(option, values[key]) for key, option in asked.items() if key in values}
        limits = {key: value for key, value in ours.items() if key in _OF_THE_STUDY}
        chosen = override_config(config, "the settings", overrides(within | limits))
    except CharlmError as error:
        say("suggest", f"no trial of charlm's own choice ({error})")
        return None
    if all(key in space or key in _OF_THE_STUDY or _belongs(key, space) for key in differences(second, chosen)):
        return None
    say("suggest", f"charlm's own choice, {chosen.model.description}, {chosen.optimizer.name}: a trial")
    return chosen


def _belongs(key: str, searched: Iterable[str]) -> bool:
    """Whether an option is one of a cell, optimizer or schedule whose kind is searched."""
    sections = tuple(f"{kind.rpartition('.')[0]}." for kind in searched if kind in _KINDS)
    return key.startswith(sections) and key not in (*_KINDS, "model.cell.hidden")


def _of_all_kinds(config: Config, asked: Space, space: Space) -> Space:
    """The options that exist for every kind of cell, optimizer and schedule that --over asks for."""
    for kind in _KINDS:
        for value in ends(asked[kind]) if kind in asked else ():
            known = flatten(override_config(config, "the config", [f"{kind}={value}"]))
            space = {key: option for key, option in space.items() if key in known}
    return space
