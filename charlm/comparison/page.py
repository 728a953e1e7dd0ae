"""The page of a comparison: everything that charlm/web/compare/ shows beside the curves and settings of a report."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from charlm.comparison.compare import Compared
from charlm.comparison.plan import Plan, short_name
from charlm.data.reading import NEWLINE
from charlm.data.vocabulary import Ids
from charlm.inference.many_samples import sample_many
from charlm.inference.options import SamplingOptions
from charlm.inference.trained import TrainedModel
from charlm.look import opening, shaded_units, shown_text
from charlm.look.predictions import read
from charlm.report import report_data, sample_data
from charlm.system.formatting import one_line
from charlm.web.page import html_page, packed

PASSAGE, CONTINUED = 600, 400
"""Characters of the passage and of a continuation."""
UNITS = 4
"""How many units of each kind the page shades the passage by, at most."""
_NAMED_BY = 2000
"""Characters of text, the passage first, by which units are named."""
_PROMPT = 60


def comparison_page(plan: Plan, compared: Sequence[Compared], prompt: str = "") -> str:
    """A page of HTML about the kinds, in the order given. The models must know the prompt's characters."""
    models = [kind.model for kind in compared]
    vocabulary, hidden = models[0].vocabulary, models[0].unseen_ids
    ids = opening(models[0], _NAMED_BY)
    if not prompt and not hidden:  # a model of lines writes lines of its own
        passage = vocabulary.decode(ids[hidden : hidden + PASSAGE], "ignore")
        prompt = passage.lstrip("\r\n").partition("\n")[0][:_PROMPT].rstrip("\r")
    names = [one_line(short_name(kind.row.cell)) for kind in compared]
    data = report_data([kind.records[0] for kind in compared], names)
    return html_page(
        "compare",
        f"{len(names)} kinds of cells · charlm compare",
        data
        | {
            "text": one_line(Path(plan.text).name or plan.text),
            "symbol": "byte" if vocabulary.level == "byte" else "character",
            "minutes": plan.minutes,
            "equal": plan.equal,
            "seeds": plan.seeds,
            "rows": [asdict(kind.row) for kind in compared],
            "gradients": [
                {state: packed(left_K.astype(np.float32)) for state, left_K in kind.gradients.items()}
                for kind in compared
            ],
            "passages": [_shaded(model, ids[: hidden + PASSAGE]) for model in models],
            "continued": [_shaded(model, _continued(model, prompt)) for model in models],
            "units": [shaded_units(model, ids, UNITS, PASSAGE) for model in models],
        },
    )


def _shaded(model: TrainedModel, ids: Ids) -> dict[str, Any]:
    """The text, with its bits."""
    hidden = model.unseen_ids
    bits = read(model.network, ids).of_text(hidden).bits_N
    return sample_data({"step": None, "text": shown_text(model, ids[hidden:]), "bits": bits})


def _continued(model: TrainedModel, prompt: str) -> Ids:
    """The prompt and what the model writes after it; of a model of lines, several lines that begin with the prompt."""
    options = SamplingOptions(length=CONTINUED, temperature=0.7)
    count = CONTINUED if model.network.is_line_model else 1
    lines, missing = [], CONTINUED
    for _, line in sample_many(model, prompt, options, seed=1, count=count):
        lines.append(prompt + line[:missing])
        missing -= len(line) + len(NEWLINE)
        if missing <= 0:
            break
    return model.scored_ids(model.vocabulary.encode(NEWLINE.join(lines)))
