"""A model as one page of HTML, which runs it in a browser; charlm/web/model/ is the page.

The weights are int8 or float32, see `html_model.py`. What rounding them costs is measured on validation text.
"""

import math
from typing import Any

from charlm.data.vocabulary import Ids
from charlm.errors import CharlmError, DataError
from charlm.export.html_model import packed_model
from charlm.inference.evaluation import Evaluation, evaluate
from charlm.inference.trained import TrainedModel
from charlm.look.page import model_facts, opening, tracking_units
from charlm.model import overflow
from charlm.web.page import html_page

MOST_LOSS = 0.005
"""The share of its nats that a model may lose."""
_LEAST_NATS = 0.001
"""A loss below counts as this one; a text of one character has 0."""
_LEAST_SCORED, _MOST_SCORED = 10_000, 100_000
"""Characters of validation text that are scored, if there are so many."""
_SCORED_WORK = 10**11
"""Characters times parameters that are scored: a few seconds on two cores."""
_UNITS_LENGTH = 5000
"""Characters of validation text by which units get their names."""
_EXAMPLE_LENGTH = 240


def html_file(trained: TrainedModel, *, int8: bool = True) -> tuple[bytes, str]:
    """The page, and the nats that it costs. CharlmError if int8 weights lose more than MOST_LOSS of the nats."""
    trained = trained.on_cpu_in_float32()
    ids, why_not = _validation_text(trained)
    units, example = ([], "") if ids is None else _of_validation_text(trained)
    before = _score(trained, ids)
    data = model_facts(trained) | packed_model(trained, int8=int8)
    after = _score(trained, ids)
    precision = "int8" if int8 else "float32"
    if before is None or after is None:
        cost = f"{precision}; nats not compared: {why_not}"
    else:
        cost = f"{precision}: {_compared(before, after)}"
    data |= {
        "precision": precision,
        "validNats": trained.progress.get("valid_nats"),
        "nats": None if after is None else after.nats_per_char,
        "scored": 0 if after is None else after.targets,
        "units": units,
        "example": example,
    }
    return html_page("model", f"{data['name']} · charlm", data, wasm=True).encode(), cost


def _of_validation_text(trained: TrainedModel) -> tuple[list[dict[str, Any]], str]:
    """The units that go with a feature of it, as a page of charlm look names them, and a text to complete and to score.

    The latter is its beginning up to a space.
    """
    ids = opening(trained, _UNITS_LENGTH)
    text = trained.vocabulary.decode(ids[:_EXAMPLE_LENGTH].tolist()).strip("\n")
    return [*tracking_units(trained, ids).values()], text.rpartition(" ")[0] or text


def _validation_text(trained: TrainedModel) -> tuple[Ids | None, str]:
    """The ids to score; None, and why, if that text is gone."""
    length = min(max(_SCORED_WORK // trained.parameters, _LEAST_SCORED), _MOST_SCORED)
    try:
        return trained.split("valid")[:length], ""
    except DataError as error:
        return None, str(error)


def _score(trained: TrainedModel, ids: Ids | None) -> Evaluation | None:
    if ids is None:
        return None
    score = evaluate(trained.network, ids)
    if not math.isfinite(score.nats_sum):
        raise overflow()
    return score


def _compared(before: Evaluation, after: Evaluation) -> str:
    """Both scores in words; CharlmError if too much is lost."""
    nats, rounded = before.nats_per_char, after.nats_per_char
    loss = (rounded - nats) / max(nats, _LEAST_NATS)
    if loss > MOST_LOSS:
        raise CharlmError(
            f"html: int8 weights raise the loss from {nats:.4f} to {rounded:.4f} nats per character, by {loss:.2%}; "
            f"allowed: {MOST_LOSS:.1%}; use --float32"
        )
    return (
        f"{nats:.4f} nats per character before, {rounded:.4f} after ({loss:+.2%}), on {before.targets:,} characters of "
        "validation text"
    )
