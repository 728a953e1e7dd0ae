"""A model as one page of HTML, which runs it in a browser; charlm/web/model/ is the page.

The weights are int8 or float32, see `html_model.py`. What rounding them costs is measured on validation text.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from charlm.errors import DataError, ExportError
from charlm.export.agreement import plain_copy
from charlm.export.html_copies import Copies, copies_of
from charlm.export.html_model import html_nats, packed_model
from charlm.inference import TrainedModel
from charlm.inference.evaluation import Ids, evaluate
from charlm.look.page import model_facts
from charlm.model import overflow
from charlm.system.formatting import format_bytes
from charlm.web.page import html_page

MOST_LOSS = 0.005
"""The share of its nats that a model may lose."""
_LEAST_NATS = 0.001
"""Smaller losses count as this one: a text that repeats one character has 0."""
_LEAST_SCORED, _MOST_SCORED = 10_000, 100_000
"""Characters of validation text that are scored, if there are so many."""
_SCORED_WORK = 10**11
"""Characters times parameters that are scored: a few seconds on two cores."""


@dataclass(frozen=True)
class Costs:
    """What the page costs, in nats and in bytes."""

    precision: str
    """int8 or float32."""
    before_nats: float | None
    """Nats per character of the model, on `scored` characters of validation text; None if that is gone."""
    after_nats: float | None
    """Nats per character with the page's weights."""
    scored: int
    why_not: str
    """Why nothing was scored."""
    copies: Copies | None
    copies_bytes: int
    """Their share of the page, in bytes."""

    @property
    def loss(self) -> float:
        """The share of nats lost; 0 if it is not known. A model that loses hardly any nats is measured against
        _LEAST_NATS."""
        if self.before_nats is None or self.after_nats is None:
            return 0.0
        return (self.after_nats - self.before_nats) / max(self.before_nats, _LEAST_NATS)

    def __str__(self) -> str:
        if self.before_nats is None:
            sentences = [f"{self.precision}; nats not compared: {self.why_not}"]
        else:
            sentences = [
                f"{self.precision}: {self.before_nats:.4f} nats per character before, {self.after_nats:.4f} after "
                f"({self.loss:+.2%}), on {self.scored:,} characters of validation text"
            ]
        if self.copies is not None:
            extent = "" if self.copies.covered == self.copies.total else f"the first {self.copies.covered:,} of "
            sentences.append(
                f"copies: {format_bytes(self.copies_bytes)} for {extent}{self.copies.total:,} characters of training "
                f"text; a window of 20 that is new is taken for a copy once in {1 / max(self.copies.chance, 1e-9):,.0f}"
            )
        return "; ".join(sentences)


def write_html(trained: TrainedModel, path: Path, *, int8: bool = True, novelty: bool = False) -> Costs:
    """Write the page.

    novelty: with the windows of the training text, so that the page underlines copies; DataError if that text has
    changed or is gone. ExportError if int8 weights lose more than MOST_LOSS of the nats.
    """
    copies = copies_of(trained.training_splits("--novelty")["train"]) if novelty else None
    before, after, scored, why_not = _nats(trained, int8)
    copied = copies and copies.packed()
    size = sum(len(copied[name]["data"]) for name in ("counts", "fingerprints")) if copied else 0
    costs = Costs("int8" if int8 else "float32", before, after, scored, why_not, copies, size)
    if not costs.loss <= MOST_LOSS:
        raise ExportError(
            f"html: {costs.precision} weights raise the loss from {before:.4f} to {after:.4f} nats per character, by "
            f"{costs.loss:.2%}; allowed: {MOST_LOSS:.1%}; use --float32"
        )
    data = _facts(trained, costs) | packed_model(trained, int8=int8) | {"copies": copied}
    page = html_page("model", f"{data['name']} · charlm", data, wasm=True).encode()
    path.write_bytes(page)
    return costs


def _nats(trained: TrainedModel, int8: bool) -> tuple[float | None, float | None, int, str]:
    """Nats per character before and after, of how many characters; or None, and why not."""
    network = plain_copy(trained)
    parameters = sum(parameter.numel() for parameter in network.parameters())
    length = min(max(_SCORED_WORK // parameters, _LEAST_SCORED), _MOST_SCORED)
    try:
        ids: Ids = trained.split("valid")[:length]
        before = evaluate(network, ids, trained.device)
    except DataError as error:
        return None, None, 0, str(error)
    if not math.isfinite(before.nats_sum):
        raise overflow()
    return before.nats_per_char, html_nats(trained, ids, int8=int8), before.targets, ""


def _facts(trained: TrainedModel, costs: Costs) -> dict[str, Any]:
    """What the page says about the model."""
    return model_facts(trained) | {
        "precision": costs.precision,
        "validNats": trained.progress.get("valid_nats"),
        "nats": costs.after_nats,
        "scored": costs.scored,
        "labels": [*trained.labels],
        "separator": trained.config.data.label_separator or "",
    }
