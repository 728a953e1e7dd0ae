"""The page of a comparison: everything that charlm/web/compare/ shows."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from charlm import __version__
from charlm.comparison.compare import MEASURED, Row, gradient_left
from charlm.comparison.plan import Plan, short_name
from charlm.data.reading import NEWLINE
from charlm.data.vocabulary import Ids
from charlm.inference.options import SamplingOptions
from charlm.inference.sampling import sample_many
from charlm.inference.trained import TrainedModel
from charlm.look import opening, shown_text
from charlm.look.predictions import predict
from charlm.report.page import curves_data, settings_data, text_data
from charlm.report.run import RunRecord
from charlm.system.formatting import one_line
from charlm.web.page import html_page, packed, text_name

PASSAGE, WRITTEN = 600, 400
"""Characters of the passage, and of what each model writes."""
_LINES = 10
"""Lines that a model of lines writes."""


def comparison_page(plan: Plan, compared: Sequence[tuple[Row, RunRecord, TrainedModel]]) -> str:
    """A page of HTML about the kinds, in the order given."""
    rows, records, models = ([*column] for column in zip(*compared, strict=True))
    passage = opening(models[0], PASSAGE)
    names = [one_line(short_name(row["cell"])) for row in rows]
    data = {
        "version": __version__,
        "text": text_name(plan.text),
        "symbol": "byte" if models[0].vocabulary.level == "byte" else "character",
        "minutes": plan.minutes,
        "equal": plan.equal,
        "seeds": plan.seeds,
        "rows": rows,
        "gradients": [_gradients(model) for model in models],
        "runs": [curves_data(name, record) for name, record in zip(names, records, strict=True)],
        "settings": settings_data(records),
        "passages": [_shaded(model, passage) for model in models],
        "written": [_shaded(model, _written(model)) for model in models],
    }
    return html_page("compare", f"{len(names)} kinds of cells · charlm compare", data)


def _gradients(model: TrainedModel) -> dict[str, Any]:
    """What is left of the gradient after training, and with random weights."""
    ids = model.split("valid")[:MEASURED]
    states = {"trained": model, "untrained": model.untrained()}
    return {name: packed(gradient_left(each.single_network, ids).astype(np.float32)) for name, each in states.items()}


def _shaded(model: TrainedModel, ids: Ids) -> dict[str, Any]:
    """The text, with its bits."""
    return text_data(shown_text(model, ids), predict(model.network, ids).bits_N)


def _written(model: TrainedModel) -> Ids:
    """What the model writes from the start of a line on; from a model of lines, some lines."""
    options = SamplingOptions(length=WRITTEN, temperature=0.7)
    seeds = range(1, 1 + (_LINES if model.network.is_line_model else 1))
    samples = sample_many(model.network, model.vocabulary, "", options, seeds)
    return model.scored_ids(model.vocabulary.encode(NEWLINE.join(text for _, text in samples)))
