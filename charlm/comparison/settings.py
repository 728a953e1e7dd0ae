"""The settings of the kinds that are compared: chosen for each, made equal in what the plan asks for."""

import bisect
import json
import statistics
from dataclasses import asdict
from pathlib import Path
from typing import Any

from charlm.cells import CELLS, Cell
from charlm.cells.cell import is_in_file
from charlm.cells.file import load_cell
from charlm.choice.families import Request
from charlm.choice.suggest import Suggestion, suggest
from charlm.comparison.plan import Plan
from charlm.config import Config, Settings, merged, parse_config
from charlm.errors import ConfigError
from charlm.model import count_parameters
from charlm.report.run import COMPARISON, COMPARISON_BYTES
from charlm.runs import VERSION, check_version
from charlm.system.console import say
from charlm.system.files import read_file, replace_file
from charlm.system.formatting import format_duration, to_json
from charlm.training.fine_tuning import settings_of_run
from charlm.version import __version__

EVALUATIONS = 10
"""Of each training, so that scores can be compared before its end."""
_PLAIN = {
    "model": {"layers": 1, "residual": False, "embedding": 64, "dropout": 0},
    "train": {"activation_penalty": 0, "ema": 0, "read_share": 1, "patience": 0},
    "optimizer": {"name": "adamw", "lr": 3e-3, "clip_norm": 10, "schedule": {"name": "linear", "warmup_steps": 100}},
}
"""What all trainings of a plain comparison have in common."""
_NORMALIZATIONS = ("model.cell.layer_norm", "model.cell.normalize")
"""Options of cells that a plain comparison turns off."""


def configs_of(plan: Plan, folder: Path) -> dict[str, Config]:
    """The config of each kind: those of the folder, or chosen now and kept there.

    ConfigError for a folder with another comparison, or a text without a validation share.
    """
    path = folder / COMPARISON
    asked = json.loads(to_json(asdict(plan)))
    if not path.exists():
        configs = dict(zip(plan.cells, _chosen(plan), strict=True))
        folder.mkdir(parents=True, exist_ok=True)
        raw = {name: config.model_dump(mode="json") for name, config in configs.items()}
        header = {"version": str(VERSION), "charlm": __version__}
        replace_file(path, to_json({**header, "plan": asked, "configs": raw}).encode())
        return configs
    try:
        kept = json.loads(read_file(path, COMPARISON_BYTES))
        check_version(path, kept)
        others = [f"{key}: {kept['plan'].get(key)}" for key in asked if kept["plan"].get(key) != asked[key]]
        if others:
            found = f"found a comparison with {', '.join(others)}"
            raise ConfigError(f"{folder}: {found}; allowed: the same, or another --out")
        raw = {name: kept["configs"][name] for name in plan.cells}
        for name, config in raw.items():  # the folder is data: the plan alone names a Python file that is run
            config["model"]["cell"]["kind"] = name
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        raise ConfigError(
            f"{path}: damaged; allowed: the file of a comparison; delete it, or take another --out"
        ) from None
    return {name: parse_config(raw[name], f"{path}: {name}", own_cell=load_cell) for name in plan.cells}


def _chosen(plan: Plan) -> list[Config]:
    fixed = _fixed(plan)
    say("compare", f"settings of {', '.join(plan.cells)} for {format_duration(60 * plan.minutes)} each")
    suggestions: list[Suggestion] = []
    same: dict[str, Any] = {}
    for cell in plan.cells:
        suggestions.append(_suggested(plan, cell, same, fixed[cell]))
        # How much of the text is for validation follows from the speed of a kind; all are scored on the same.
        same["data.split"] = list(suggestions[0].config.data.split)
    if plan.equal == "time":
        return [suggestion.config for suggestion in suggestions]
    vocabulary_size = len(suggestions[0].vocabulary)
    sizes = [count_parameters(suggestion.config.model, vocabulary_size) for suggestion in suggestions]
    parameters = statistics.median_low(sizes)
    like = suggestions[0].config.train
    same |= {"train.batch_size": like.batch_size, "train.bptt": like.bptt}
    sized = []
    for cell, suggestion in zip(plan.cells, suggestions, strict=True):
        model = settings_of_run(suggestion.config)
        hidden = {"model.cell.hidden": hidden_for(suggestion.config, vocabulary_size, parameters)}
        sized.append(_suggested(plan, cell, model, hidden, same, fixed[cell]))
    if plan.equal == "parameters":
        return [suggestion.config for suggestion in sized]
    steps = max(1, min(suggestion.updates for suggestion in sized))
    limits = {"max_steps": steps, "max_minutes": None, "max_epochs": None}
    return [_with_training(suggestion.config, limits) for suggestion in sized]


def _suggested(plan: Plan, cell: str, *options: Settings) -> Suggestion:
    """What charlm chooses for a kind with these options, with evaluations that can be compared."""
    kind = {"model.cell.kind": cell, "model.members": 1}
    request = Request(plan.text, plan.minutes, merged(kind, *options))
    suggestion = suggest(request)
    config = suggestion.config
    if config.data.valid_source is None and not config.data.split[1]:
        raise ConfigError(
            "data.split: found no validation share; kinds are compared by their validation score; allowed: a share "
            "above 0, or data.valid_source"
        )
    if request.gives("train.eval_every"):
        return suggestion
    every = max(1, suggestion.updates // EVALUATIONS)
    return suggestion._replace(config=_with_training(config, {"eval_every": every}))


def _with_training(config: Config, options: dict[str, int | None]) -> Config:
    return config.model_copy(update={"train": config.train.model_copy(update=options)})


def _fixed(plan: Plan) -> dict[str, Settings]:
    """What is not chosen for each kind. An option of some cells is left out for those that lack it."""
    defaults: dict[str, dict[str, Any]] = {}
    for name in plan.cells:
        cell = load_cell(name) if is_in_file(name) else CELLS.get(name, Cell)()
        defaults[name] = {f"model.cell.{option}": value for option, value in cell.options().items()}
    every_option = set().union(*defaults.values())
    fixed: dict[str, Settings] = {}
    for name, own in defaults.items():
        foreign = every_option - own.keys()
        fixed[name] = {key: value for key, value in plan.overrides.items() if key not in foreign}
        if plan.plain:
            off = {option: False for option in _NORMALIZATIONS if option in own}
            fixed[name] = merged(_PLAIN, own, off, fixed[name])
    return fixed


def hidden_for(config: Config, vocabulary_size: int, parameters: int) -> int:
    """The hidden units with which the model has the number of parameters that comes nearest."""

    def count(hidden: int) -> int:
        cell = config.model.cell.model_copy(update={"hidden": hidden})
        return count_parameters(config.model.model_copy(update={"cell": cell}), vocabulary_size)

    high = 1 + bisect.bisect_left(range(1, 100_000), parameters, key=count)
    return min(max(high - 1, 1), high, key=lambda hidden: abs(count(hidden) - parameters))
