"""Cells compared on one text: each trained with settings that fit it, one after the other, and then measured."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from charlm import __version__
from charlm.choice.families import Request
from charlm.choice.suggest import suggest
from charlm.config import Config, parse_config
from charlm.errors import ComparisonError
from charlm.inference import TrainedModel, load
from charlm.inference.gradients import gradient_norms
from charlm.look import opening
from charlm.look.predictions import context_curve, read
from charlm.model import CharLM, count_parameters
from charlm.report import RunRecord, read_run, report_page
from charlm.runs import describe_run
from charlm.system.console import say
from charlm.system.files import replace_file
from charlm.system.formatting import to_json
from charlm.training.loop import Outcome
from charlm.training.signals import SIGNALS
from charlm.training.start import resume_run, settings_of_run, start_run

PLAN = "comparison.json"
EQUAL = ("parameters", "time", "updates")
EVALUATIONS = 10
"""Of each training, so that scores can be compared before its end."""
BACK = 100
"""How many steps back the gradient is measured."""
_PASSAGE, _CONTINUED = 600, 400
"""Characters of the passage and of a continuation on the page."""
_MEASURED = 20_000
"""Characters at most of the validation text that memory and gradients are measured on."""
_SAME = 0.02
"""Bits per character: a context this close to the longest one is as good."""


@dataclass(frozen=True)
class Plan:
    """What is compared."""

    text: str
    minutes: float
    """Of each training."""
    cells: tuple[str, ...]
    """Kinds, or files with a cell of one's own."""
    equal: str = "parameters"
    """One of EQUAL.

    parameters: all have as many as the smallest model that charlm would choose, and the same batch and window.
    updates: the same, and as many updates as the slowest makes in its minutes.
    time: the size that charlm chooses for each.
    """
    seeds: int = 1
    overrides: tuple[str, ...] = ()
    """KEY=VALUE: options that keep the value given, in all trainings."""


@dataclass(frozen=True)
class Row:
    """What came out for a kind; means over the seeds. None: unknown, for instance because the text is too short."""

    cell: str
    layers: int
    hidden: int
    parameters: int
    chars_per_s: float
    nats: float | None
    """Best validation score per character."""
    spread: float | None
    """Standard deviation of it over the seeds; None for one."""
    nats_after_updates: float | None
    """Validation score after as many updates as the run with the fewest made."""
    nats_after_chars: float | None
    """The same after as many characters."""
    nats_after_time: float | None
    """The same after as many seconds."""
    memory: int | None
    """Characters of context with which the score is within 0.02 bits of that with 256."""
    gradient: float | None
    """Norm of the gradient of a character's loss by the state 100 steps before it, divided by that by the state 1 step
    before it; of all layers together, see `gradient_norms`."""


def compare(plan: Plan, folder: Path) -> tuple[list[Row], str]:
    """Train what is not trained yet, and measure; the name of a signal that stopped it, or "", with the rows so far.

    A folder that holds a part of the same comparison is continued; ComparisonError if it holds another. For other
    errors see `suggest` and `start_run`.
    """
    if plan.equal not in EQUAL:
        raise ComparisonError(f"equal: found {plan.equal!r}; allowed: {', '.join(EQUAL)}")
    configs = _configs(plan, folder)
    for seed in range(1, plan.seeds + 1):
        for name, config in configs.items():
            outcome = _train(config.model_copy(update={"seed": seed}), folder / run_name(name, seed))
            if outcome and outcome.reason in SIGNALS:
                return [], outcome.reason
    return _rows(plan, configs, folder), ""


def run_name(cell: str, seed: int) -> str:
    """The name of a training's folder."""
    return f"{Path(cell).stem}-{seed}"


def _train(config: Config, run_dir: Path) -> Outcome | None:
    """Start or resume a run; None if it has reached its end."""
    state = describe_run(run_dir).state if run_dir.is_dir() else ""
    if state == "finished":
        return None
    say("compare", str(run_dir))
    return resume_run(run_dir) if state == "resumable" else start_run(config, run_dir)


# Settings


def _configs(plan: Plan, folder: Path) -> dict[str, Config]:
    """The config of each kind: those of the folder, or chosen now and kept there."""
    path = folder / PLAN
    asked = json.loads(to_json(asdict(plan)))
    if path.is_file():
        kept = _kept(path)
        if kept["plan"] != asked:
            other = [f"{key}: {kept['plan'].get(key)}" for key in asked if kept["plan"].get(key) != asked[key]]
            raise ComparisonError(
                f"{folder}: found a comparison with {', '.join(other)}; allowed: the same, or another --out"
            )
        return {name: parse_config(raw, f"{path}: {name}") for name, raw in kept["configs"].items()}
    configs = dict(zip(plan.cells, _chosen(plan), strict=True))
    folder.mkdir(parents=True, exist_ok=True)
    raw = {name: config.model_dump(mode="json") for name, config in configs.items()}
    replace_file(path, to_json({"charlm": __version__, "plan": asked, "configs": raw}).encode())
    return configs


def _kept(path: Path) -> dict[str, Any]:
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(kept["plan"], dict) and isinstance(kept["configs"], dict):
            return kept
    except (OSError, ValueError, KeyError, TypeError):
        pass
    raise ComparisonError(f"{path}: damaged; allowed: the file of a comparison; delete it, or take another --out")


def _chosen(plan: Plan) -> list[Config]:
    def ask(cell: str, *options: str) -> tuple[Config, int, int]:
        """The settings for a kind, its updates, and the size of the vocabulary."""
        request = Request(plan.text, plan.minutes, [f"model.cell.kind={cell}", *options, *plan.overrides])
        suggestion = suggest(request)
        config, updates = suggestion.config, suggestion.updates
        if not request.gives("train.eval_every"):
            train = config.train.model_copy(update={"eval_every": max(1, updates // EVALUATIONS)})
            config = config.model_copy(update={"train": train})
        return config, updates, len(suggestion.vocabulary)

    say("compare", f"settings of {', '.join(plan.cells)} for {plan.minutes:g} minutes each")
    # How much of the text is for validation follows from the speed of a kind; all are scored on the same.
    asked = [ask(plan.cells[0])]
    split = f"data.split={list(asked[0][0].data.split)}"
    asked += [ask(cell, split) for cell in plan.cells[1:]]
    if plan.equal == "time":
        return [config for config, _, _ in asked]
    vocabulary_size = asked[0][2]
    smallest = min(count_parameters(config.model, vocabulary_size) for config, _, _ in asked)
    like = asked[0][0].train
    same = [split, f"train.batch_size={like.batch_size}", f"train.bptt={like.bptt}"]
    sized = []
    for cell, (config, _, _) in zip(plan.cells, asked, strict=True):
        hidden = hidden_for(config, vocabulary_size, smallest)
        sized.append(ask(cell, *settings_of_run(config), f"model.cell.hidden={hidden}", *same))
    if plan.equal == "parameters":
        return [config for config, _, _ in sized]
    steps = max(1, min(updates for _, updates, _ in sized))
    return [_for_steps(config, steps) for config, _, _ in sized]


def hidden_for(config: Config, vocabulary_size: int, parameters: int) -> int:
    """The hidden units with which the model has the number of parameters that comes nearest."""

    def count(hidden: int) -> int:
        cell = config.model.cell.model_copy(update={"hidden": hidden})
        return count_parameters(config.model.model_copy(update={"cell": cell}), vocabulary_size)

    low, high = 1, 2
    while count(high) < parameters:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if count(middle) < parameters else (low, middle)
    return min(low, high, key=lambda hidden: abs(count(hidden) - parameters))


def _for_steps(config: Config, steps: int) -> Config:
    train = config.train.model_copy(update={"max_steps": steps, "max_minutes": None, "max_epochs": None})
    return config.model_copy(update={"train": train})


# Measures


def _rows(plan: Plan, configs: dict[str, Config], folder: Path) -> list[Row]:
    records = {name: [read_run(folder / run_name(name, seed)) for seed in range(1, plan.seeds + 1)] for name in configs}
    ends = {
        place: min((float(record.splits["valid"][place].max()) for each in records.values() for record in each
                    if len(record.splits["valid"][place])), default=math.nan)
        for place in ("step", "chars", "elapsed_s")
    }  # fmt: skip
    return [_row(name, config, records[name], ends) for name, config in configs.items()]


def _row(name: str, config: Config, records: Sequence[RunRecord], ends: dict[str, float]) -> Row:
    best = [record.about.best_nats for record in records]
    known = [nats for nats in best if nats is not None]
    trained = load(records[0].path, "cpu", "fp32")
    ids = trained.split("valid")[:_MEASURED]
    return Row(
        cell=name,
        layers=config.model.layers,
        hidden=config.model.cell.hidden,
        parameters=records[0].about.parameters or 0,
        chars_per_s=float(np.mean([np.nanmedian(record.splits["train"]["chars_per_s"]) for record in records])),
        nats=_mean(known),
        spread=float(np.std(known, ddof=1)) if len(known) > 1 else None,
        nats_after_updates=_mean([_at(record, "step", ends["step"]) for record in records]),
        nats_after_chars=_mean([_at(record, "chars", ends["chars"]) for record in records]),
        nats_after_time=_mean([_at(record, "elapsed_s", ends["elapsed_s"]) for record in records]),
        memory=_memory(trained.network, ids),
        gradient=gradient_back(trained.network, ids),
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None and math.isfinite(value)]
    return float(np.mean(known)) if known else None


def _at(record: RunRecord, place: str, end: float) -> float | None:
    """The best validation score up to this place, interpolated between evaluations; None before the first one."""
    columns = record.splits["valid"]
    at, nats = columns[place], np.minimum.accumulate(columns["nats"])
    if not len(at) or not end >= at[0]:
        return None
    return float(np.interp(math.log(end), np.log(at), nats))


def _memory(model: CharLM, ids: np.ndarray) -> int | None:
    curve, _ = context_curve(model, ids)
    return next((length for length, bits in curve if bits <= curve[-1][1] + _SAME), None)


def gradient_back(model: CharLM, ids: np.ndarray) -> float | None:
    """See `Row.gradient`; None for a text of 2 · BACK characters or less."""
    norms_LK = gradient_norms(model, ids, BACK)
    if norms_LK.shape[1] < BACK:
        return None
    norms_K = np.sqrt(np.square(norms_LK).sum(0))
    return float(norms_K[-1] / norms_K[0]) if norms_K[0] > 0 else None


# The page


def comparison_page(plan: Plan, folder: Path, prompt: str = "") -> str:
    """The report of the trainings, with a passage that all read and a prompt that all continue, shaded by surprise."""
    records = [read_run(folder / run_name(cell, 1)) for cell in plan.cells]
    models = [load(record.path, "cpu", "fp32") for record in records]
    passage = models[0].vocabulary.decode(opening(models[0], _PASSAGE)).lstrip("\n")
    prompt = prompt or f"{passage.partition(chr(10))[0][:60]}\n"
    return report_page(
        records,
        [
            ("The same passage, as each reads it", [_shaded(model, passage) for model in models]),
            ("The same beginning, continued by each", [_continued(model, prompt) for model in models]),
        ],
    )


def _shaded(model: TrainedModel, text: str) -> dict[str, Any]:
    bits = read(model.network, model.vocabulary.encode(text)).bits_N
    return {"step": None, "text": text, "bits": [None if math.isnan(value) else float(value) for value in bits]}


def _continued(model: TrainedModel, prompt: str) -> dict[str, Any]:
    text = prompt + model.sample(prompt, length=_CONTINUED, temperature=0.7, seed=1)
    return _shaded(model, text)
