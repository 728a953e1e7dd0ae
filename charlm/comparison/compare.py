"""The trainings, one after the other, and what is measured of each kind."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from charlm.comparison.plan import Plan
from charlm.comparison.settings import configs_of
from charlm.config import Config
from charlm.data.corpus import load_corpus
from charlm.data.vocabulary import Ids
from charlm.inference.gradients import gradient_norms
from charlm.inference.loading import load
from charlm.inference.texts import score_texts
from charlm.inference.trained import TrainedModel
from charlm.model import CharLM
from charlm.report import RunRecord, read_run
from charlm.runs import describe_run
from charlm.system.console import say
from charlm.system.formatting import bits_to_nats
from charlm.training.loop import Outcome
from charlm.training.signals import SIGNALS
from charlm.training.start import resume_run, start_run

BACK = 100
"""How many steps back the gradient is measured."""
_POSITIONS = 128
"""How many predictions it is averaged over."""
CONTEXT = 256
"""The longest memory that is measured, in characters."""
_MEASURED = 20_000
"""Characters at most of the validation text that memory and gradients are measured on."""
_SAME = 0.02
"""Bits per character: a context this close to a much longer one is as good."""


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
    """Characters of context with which the score is within 0.02 bits of that with 256 more; at most 256."""
    gradient: float | None
    """Norm of the gradient of a character's loss by the state 100 steps before it, divided by that by the state 1 step
    before it; of all layers together, see `gradient_norms`."""


@dataclass(frozen=True)
class Compared:
    """A kind after its trainings."""

    row: Row
    records: list[RunRecord]
    """One for each seed."""
    model: TrainedModel
    """Of the first seed."""
    gradients: dict[str, npt.NDArray[np.float64]]
    """See `gradient_left`: of the model, "trained", and of the same with random weights, "untrained"."""


def compare(plan: Plan, folder: Path, prompt: str = "") -> tuple[list[Compared], str]:
    """Train what is not trained yet, and measure; the best kind first. Beside it "", or the name of a signal that
    stopped it, and then no kinds.

    A folder that holds a part of the same comparison is continued. For errors see `configs_of` and `start_run`.
    prompt: VocabularyError if the text lacks one of its characters.
    """
    configs = configs_of(plan, folder)
    if prompt:
        vocabulary = load_corpus(next(iter(configs.values())).data).vocabulary
        if unknown := vocabulary.unknown(prompt):
            raise vocabulary.unknown_error(unknown, "--prompt")
    trainings = [(seed, name) for seed in range(1, plan.seeds + 1) for name in configs]
    for place, (seed, name) in enumerate(trainings, 1):
        run_dir, config = plan.run_dir(folder, name, seed), configs[name].model_copy(update={"seed": seed})
        outcome = _train(config, run_dir, f"{place} of {len(trainings)}: {run_dir}")
        if outcome and outcome.reason in SIGNALS:
            return [], outcome.reason
    records = {name: [read_run(plan.run_dir(folder, name, seed + 1)) for seed in range(plan.seeds)] for name in configs}
    return _compared(configs, records), ""


def _train(config: Config, run_dir: Path, progress: str) -> Outcome | None:
    """Start or resume a run; None if it has reached its end."""
    state = describe_run(run_dir).state if run_dir.is_dir() else ""
    if state == "finished":
        return None
    say("compare", progress)
    return resume_run(run_dir) if state == "resumable" else start_run(config, run_dir)


def _compared(configs: dict[str, Config], records: dict[str, list[RunRecord]]) -> list[Compared]:
    ends = {
        place: min((float(record.splits["valid"][place].max()) for each in records.values() for record in each
                    if len(record.splits["valid"][place])), default=math.nan)
        for place in ("step", "chars", "elapsed_s")
    }  # fmt: skip
    models = {name: load(each[0].path, "cpu", "fp32").first_member("compare") for name, each in records.items()}
    ids = next(iter(models.values())).split("valid")[:_MEASURED]
    compared = []
    for name, config in configs.items():
        say("measure", f"memory and gradient of {name}")
        states = {"trained": models[name], "untrained": models[name].untrained()}
        networks = {state: model.network.first_member("compare") for state, model in states.items()}
        gradients = {state: gradient_left(network, ids) for state, network in networks.items()}
        measured = memory(networks["trained"], ids), _gradient_back(gradients["trained"])
        row = _row(name, config, records[name], ends, *measured)
        compared.append(Compared(row, records[name], models[name], gradients))
    return sorted(compared, key=lambda kind: math.inf if kind.row.nats is None else kind.row.nats)


def _row(
    name: str,
    config: Config,
    records: Sequence[RunRecord],
    ends: dict[str, float],
    memory: int | None,
    gradient: float | None,
) -> Row:
    best = [record.about.best_nats for record in records]
    known = [nats for nats in best if nats is not None]
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
        memory=memory,
        gradient=gradient,
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


def memory(model: CharLM, ids: Ids) -> int | None:
    """See `Row.memory`; at most an eighth of the text. None for less than 16 characters.

    Stretches of 2 · C characters, read from the zero state, begin every C characters. So each character is scored with
    k < C characters of context, and with C + k. What the longer context gains is averaged over contexts near k.
    """
    C = min(CONTEXT, len(ids) // 8)
    if C < 2:
        return None
    stretches = [ids[start : start + 2 * C] for start in range(0, len(ids) - 2 * C + 1, C)]
    nats_BT = np.stack(score_texts(model, stretches, model.device)).astype(np.float64)
    gained_K = (nats_BT[1:, : C - 1] - nats_BT[:-1, C:]).mean(0)  # with 1 … C − 1 characters of context
    for k in range(1, C):
        if gained_K[math.ceil(0.8 * k) - 1 : math.floor(1.25 * k)].mean() <= bits_to_nats(_SAME):
            return k
    return C


def gradient_left(model: CharLM, ids: Ids) -> npt.NDArray[np.float64]:
    """Norms of the gradient of a character's loss by the states 1 … K steps before it, divided by the first: [K].

    Of all layers together, see `gradient_norms`. K is BACK, or less for a text of 2 · BACK characters or less.
    """
    norms_K = np.sqrt(np.square(gradient_norms(model, ids, BACK, _POSITIONS)).sum(0))
    return norms_K / max(norms_K[0], 1e-300)


def _gradient_back(left_K: npt.NDArray[np.float64]) -> float | None:
    """See `Row.gradient`; None for a short text, and for lines that are all shorter."""
    return float(left_K[-1]) if len(left_K) == BACK and left_K[-1] > 0 else None
