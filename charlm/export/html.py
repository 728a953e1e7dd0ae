"""A model as one page of HTML, which runs it in a browser; charlm/web/model/ is the page."""

from typing import Any

from charlm.errors import DataError
from charlm.export.html_model import packed_model
from charlm.export.rounding import Weights, at_a_cost
from charlm.inference.trained import TrainedModel
from charlm.look.page import model_facts, tracking_units
from charlm.look.part import opening
from charlm.web.page import html_page

_UNITS_LENGTH = 5000
"""Characters of validation text by which units get their names."""
_EXAMPLE_LENGTH = 240


def html_file(trained: TrainedModel, *, weights: Weights = "int8") -> tuple[bytes, str]:
    """The page, and the nats that it costs, see `at_a_cost`; ValueError for bfloat16, which the page cannot read."""
    if weights == "bfloat16":
        raise ValueError("weights: found 'bfloat16'; allowed for html: 'float32' or 'int8'")
    trained = trained.on_cpu_in_float32()
    units, example = _of_validation_text(trained)
    packed, after, cost = at_a_cost(trained, weights, lambda: packed_model(trained, weights))
    data = model_facts(trained) | packed
    data |= {
        "precision": weights,
        "score": None if after is None else {"bits": after.bits_per_char, "of": after.of.name},
        "units": units,
        "example": example,
    }
    return html_page("model", f"{data['name']} · charlm", data, wasm=True).encode(), cost


def _of_validation_text(trained: TrainedModel) -> tuple[list[dict[str, Any]], str]:
    """The units that track a feature of it, as on a page of charlm look, and a text to complete and to score.

    The text is its beginning, up to a space. Nothing if the validation text is gone.
    """
    try:
        ids = opening(trained, trained.split("valid"), _UNITS_LENGTH).ids
    except DataError:
        return [], ""
    text = trained.vocabulary.decode(ids[:_EXAMPLE_LENGTH].tolist()).strip("\n")
    return [*tracking_units(trained, ids).values()], text.rpartition(" ")[0] or text
