"""What a comparison adds to the page of its runs, which is that of `charlm report`."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from charlm.comparison.compare import MEASURED, Row, gradient_left
from charlm.comparison.notes import notes
from charlm.comparison.plan import Plan, run_name, short_name
from charlm.data.reading import LINES
from charlm.data.vocabulary import Ids
from charlm.inference.options import SamplingOptions
from charlm.inference.sampling import sample_many
from charlm.inference.trained import TrainedModel
from charlm.look import opening, shown_text
from charlm.look.predictions import predict
from charlm.report.page import text_data
from charlm.report.run import COMPARISON, COMPARISON_BYTES
from charlm.system.files import read_file, replace_file
from charlm.system.formatting import source_name, to_json
from charlm.web.page import packed

PASSAGE, WRITTEN = 600, 400
"""Characters of the passage, and of what each model writes."""
_RECORDS = 10
"""Records that a model of records writes."""


def comparison_data(plan: Plan, rows: Sequence[Row], models: Sequence[TrainedModel]) -> dict[str, Any]:
    """What the page shows, in the order of the rows. runs: the name of each kind by the folder of its first run."""
    passage = opening(models[0], models[0].split("valid"), PASSAGE).ids
    return {
        "text": source_name(plan.text),
        "symbol": models[0].vocabulary.unit,
        "minutes": plan.minutes,
        "equal": plan.equal,
        "seeds": plan.seeds,
        "runs": {run_name(row["cell"], 1): short_name(row["cell"]) for row in rows},
        "rows": rows,
        "notes": notes(plan, rows),
        "gradients": [_gradients(model) for model in models],
        "passages": [_shaded(model, passage) for model in models],
        "written": [_shaded(model, _written(model)) for model in models],
    }


def keep(folder: Path, page: dict[str, Any]) -> None:
    """Add what the page shows to the folder's COMPARISON, for `charlm report`."""
    kept = json.loads(read_file(folder / COMPARISON, COMPARISON_BYTES))
    replace_file(folder / COMPARISON, to_json(kept | {"page": page}).encode())


def _gradients(model: TrainedModel) -> dict[str, Any]:
    """What is left of the gradient after training, and with random weights."""
    ids = model.split("valid").ids[:MEASURED]
    states = {"trained": model, "untrained": model.untrained()}
    return {name: packed(gradient_left(each.single_network, ids).astype(np.float32)) for name, each in states.items()}


def _shaded(model: TrainedModel, ids: Ids) -> dict[str, Any]:
    """The text, with its bits."""
    return text_data(shown_text(model, ids), predict(model.network, ids).bits_N)


def _written(model: TrainedModel) -> Ids:
    """What the model writes from the start of a line on; from a model of records, some of them."""
    options = SamplingOptions(length=WRITTEN, temperature=0.7)
    seeds = range(1, 1 + (_RECORDS if model.network.reads_records else 1))
    separator = model.config.data.records or LINES
    samples = sample_many(model.network, model.vocabulary, "", options, seeds)
    return model.encode(separator.join(text for _, text in samples)).ids
