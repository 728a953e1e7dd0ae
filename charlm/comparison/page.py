"""What a comparison adds to the page of its runs, which is that of `charlm report`."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from charlm.comparison.compare import MEASURED, Row, gradient_left
from charlm.comparison.plan import Plan, run_name, short_name
from charlm.data.records import LINE_END
from charlm.data.vocabulary import Ids
from charlm.inference.options import SamplingOptions
from charlm.inference.reader import predict
from charlm.inference.sampling import sample_many
from charlm.inference.trained import TrainedModel
from charlm.look import opening, shown_text
from charlm.report.page import text_data
from charlm.report.run import COMPARISON, COMPARISON_BYTES
from charlm.system.files import read_file, replace_file
from charlm.system.formatting import one_line, source_name, to_json
from charlm.web.page import packed

PASSAGE, WRITTEN = 600, 400
"""Characters of the passage, and of what each model writes."""
_RECORDS = 10
"""Records that a model of records writes."""
_DIFFERENT = 1.05
"""Ratio of the most to the fewest updates of a kind above which its trainings were not alike."""
_CHANCE_NATS = 0.02
"""How much the scores of two seeds of one kind differ."""


def comparison_data(plan: Plan, rows: Sequence[Row], models: Sequence[TrainedModel]) -> dict[str, Any]:
    """What the page shows, in the order of the rows, the best first.

    runs: the name of each kind by the folder of its first run. notes: a line for each thing to know about the table.
    """
    valid = models[0].split("valid")
    passage = opening(models[0], valid, PASSAGE).ids
    notes = [_uneven(plan, rows), _chance(plan, rows)]
    return {
        "text": source_name(plan.text),
        "scored": one_line(valid.name),
        "symbol": models[0].vocabulary.unit,
        "minutes": plan.minutes,
        "equal": plan.equal,
        "seeds": plan.seeds,
        "runs": {run_name(row["cell"], 1): short_name(row["cell"]) for row in rows},
        "rows": rows,
        "notes": [*filter(None, notes)],
        "gradients": [_gradients(model) for model in models],
        "passages": [_shaded(model, passage) for model in models],
        "written": [_shaded(model, _written(model)) for model in models],
    }


def _uneven(plan: Plan, rows: Sequence[dict[str, Any]]) -> str:
    """Which kinds' trainings made different numbers of updates in the same minutes."""
    if plan.equal == "updates":
        return ""
    uneven = [row for row in rows if max(row["updates"]) > _DIFFERENT * min(row["updates"])]
    if not uneven:
        return ""
    made = []
    for row in uneven:
        updates = ", ".join(f"{each:,}" for each in row["updates"])
        made.append(f"{short_name(row['cell'])}: {updates}")
    return (
        f"seeds made different numbers of updates ({'; '.join(made)}), on a busy machine or because of early "
        "stopping: the scores are not of equal trainings; --plain --equal updates does not depend on speed"
    )


def _chance(plan: Plan, rows: Sequence[dict[str, Any]]) -> str:
    """Which kinds are not told apart from the best one."""
    scored = [row for row in rows if row["seed_nats"]]
    if len(scored) < 2:
        return ""
    best, *others = scored
    if plan.seeds == 1:
        return f"one training of each kind: differences of about {_CHANCE_NATS} nats may be chance; see --seeds"
    worst_of_best = max(best["seed_nats"])
    near = [short_name(row["cell"]) for row in others if min(row["seed_nats"]) <= worst_of_best]
    name = short_name(best["cell"])
    if not near:
        return f"every seed of {name} is better than every seed of the other kinds"
    return f"{name} and {', '.join(near)}: their seeds overlap, so the difference may be chance"


def keep(folder: Path, page: dict[str, Any]) -> None:
    """Add what the page shows to the folder's COMPARISON, for `charlm report`."""
    kept = json.loads(read_file(folder / COMPARISON, COMPARISON_BYTES))
    replace_file(folder / COMPARISON, to_json(kept | {"page": page}).encode())


def _gradients(model: TrainedModel) -> dict[str, Any]:
    """What is left of the gradient after training, and with random weights."""
    ids = model.split("valid").ids[:MEASURED]
    states = {"trained": model, "untrained": model.untrained()}
    left = {name: gradient_left(each.single_network, ids) for name, each in states.items()}
    return {name: packed(left_K.astype(np.float32)) for name, left_K in left.items()}


def _shaded(model: TrainedModel, ids: Ids) -> dict[str, Any]:
    return text_data(shown_text(model, ids), predict(model.network, ids)["bits"])


def _written(model: TrainedModel) -> Ids:
    """What the model writes from the start of a line on; from a model of records, some of them."""
    options = SamplingOptions(length=WRITTEN, temperature=0.7)
    seeds = range(1, 1 + (_RECORDS if model.network.reads_records else 1))
    separator = model.config.data.records or LINE_END
    samples = sample_many(model.network, model.vocabulary, "", options, seeds)
    return model.encode(separator.join(text for _, text in samples)).ids
