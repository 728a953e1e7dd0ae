"""The trainings, one after the other, and what is measured of each kind."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from charlm.comparison.plan import Plan, run_name
from charlm.comparison.settings import configs_of
from charlm.config import Config
from charlm.data.vocabulary import Ids
from charlm.inference.loading import load
from charlm.inference.reach import LONGEST, context_curve, gradient_norms, least_context
from charlm.inference.texts import score_texts
from charlm.inference.trained import TrainedModel
from charlm.model import CharLM
from charlm.report.run import COMPARISON, ReportedRun, read_run
from charlm.runs import describe_run
from charlm.system.arrays import Floats
from charlm.system.console import say
from charlm.system.files import refuse_links
from charlm.training.folder import refusing_os_errors
from charlm.training.run import Run
from charlm.training.signals import SIGNALS
from charlm.training.start import resume_run, start_run

PAGE = "comparison.html"
_POSITIONS = 128
"""How many predictions the gradient is averaged over."""
MEASURED = 20_000
"""Characters at most of the validation text that memory and gradients are measured on."""

Row = dict[str, Any]
"""What came out for a kind; docs/compare.md describes the entries. None: unknown, as for a text that is too short."""


def compare(plan: Plan, folder: Path) -> list[tuple[Row, ReportedRun, TrainedModel]]:
    """Train the missing models, and measure all: (row, run, model) for each kind, the best first.

    Run and model are those of the first seed. Continues a folder with a part of the same comparison. KeyboardInterrupt
    with the name of a signal that stopped the training; for errors see `configs_of` and `start_run`.
    """
    seeds = range(1, plan.seeds + 1)
    trainings = [(seed, cell) for seed in seeds for cell in plan.cells]
    with refusing_os_errors(folder):
        refuse_links(folder, (COMPARISON, PAGE, *(run_name(cell, seed) for seed, cell in trainings)))
    configs = configs_of(plan, folder)
    for place, (seed, cell) in enumerate(trainings, 1):
        run_dir = folder / run_name(cell, seed)
        run = _train(configs[cell], seed, run_dir, f"{place} of {len(trainings)}: {run_dir}")
        if run and run.reason in SIGNALS:
            raise KeyboardInterrupt(run.reason)
    records = {cell: [read_run(folder / run_name(cell, seed)) for seed in seeds] for cell in plan.cells}
    fewest = min(record.splits["valid"]["chars"].max(initial=0) for each in records.values() for record in each)
    compared = []
    for cell, each in records.items():
        model = load(each[0].about.path, "cpu", "fp32").first_member("compare")
        compared.append((_row(cell, configs[cell], each, fewest, model), each[0], model))
    return sorted(compared, key=lambda kind: math.inf if kind[0]["nats"] is None else kind[0]["nats"])


def _train(config: Config, seed: int, run_dir: Path, progress: str) -> Run | None:
    """Start or resume a run; None if it has reached its end."""
    state = describe_run(run_dir).state if run_dir.is_dir() else ""
    if state == "finished":
        return None
    say("compare", progress)
    return resume_run(run_dir) if state == "resumable" else start_run(config.model_copy(update={"seed": seed}), run_dir)


def _row(cell: str, config: Config, records: Sequence[ReportedRun], fewest: float, model: TrainedModel) -> Row:
    """fewest: characters read by the run that read the fewest."""
    best = [record.about.best_nats for record in records if record.about.best_nats is not None]
    after_chars = [nats for record in records if (nats := _best_until(record, fewest)) is not None]
    speeds = [record.splits["train"]["chars_per_s"] for record in records]
    medians = [np.nanmedian(speed) for speed in speeds if np.isfinite(speed).any()]
    say("measure", f"memory and gradient of {cell}")
    ids = model.split("valid").ids[:MEASURED]
    network = model.single_network
    left_K = gradient_left(network, ids)
    return {
        "cell": cell,
        "layers": config.model.layers,
        "hidden": config.model.cell.hidden,
        "parameters": model.parameters,
        "chars_per_s": float(np.mean(medians)) if medians else None,
        "nats": float(np.mean(best)) if best else None,
        "spread": float(np.std(best, ddof=1)) if len(best) > 1 else None,
        "seed_nats": best,
        "updates": [record.about.step for record in records],
        "nats_after_chars": float(np.mean(after_chars)) if after_chars else None,
        "memory": memory(network, ids),
        "gradient": float(left_K[-1]) if len(left_K) == LONGEST and left_K[-1] > 0 else None,
    }


def _best_until(record: ReportedRun, chars: float) -> float | None:
    """The best validation score up to this place, interpolated between evaluations; None before the first one."""
    columns = record.splits["valid"]
    at, nats = columns["chars"], np.minimum.accumulate(columns["nats"])
    return float(np.interp(math.log(chars), np.log(at), nats)) if len(at) and chars >= at[0] else None


def memory(model: CharLM, ids: Ids) -> int | None:
    """`least_context` of a text; None for fewer than 8 characters."""
    [nats_N] = score_texts(model, [ids])
    return least_context(context_curve(model, ids, nats_N))


def gradient_left(model: CharLM, ids: Ids) -> Floats:
    """Norms of the gradient with respect to the layers' inputs 1 … K steps back, over the first: [K].

    Of all layers together, see `TrainedModel.gradient_norms`.
    """
    norms_K = np.sqrt(np.square(gradient_norms(model, ids, positions=_POSITIONS)).sum(0))
    return norms_K / max(norms_K[0], 1e-300)
