"""The page of a text: everything that charlm/web/look/ shows, computed and packed."""

from typing import Any

import numpy as np

from charlm.cells import Cell
from charlm.data.encoded import EncodedText
from charlm.data.vocabulary import Ids
from charlm.errors import DataError, VocabularyError
from charlm.inference.reach import context_curve, least_context
from charlm.inference.reader import Predictions, Series, predict
from charlm.inference.seen import copied_stretches, space_ids
from charlm.inference.trained import TrainedModel
from charlm.look.features import Unit, activations_shown, hardest_words, most_telling, tracked_units
from charlm.look.part import check_alike, names_of, seen_note
from charlm.system.arrays import Array
from charlm.system.console import say
from charlm.system.formatting import bits_to_nats, nats_to_bits, one_line, readable, source_name
from charlm.web.page import html_page, packed

UNITS = 8
"""How many units a page names."""
_PART = "\uffff"
"""Stands for a byte of a character whose last byte shows it; no character of a text."""
_LEAST_SAVED = 0.5
"""Bits; a smaller difference between two models on a word means nothing."""


def look_page(
    trained: TrainedModel,
    text: str | EncodedText,
    other: TrainedModel | None = None,
    *,
    gradients: bool = False,
) -> str:
    """A page of HTML about what the model does with the text, and where another does better.

    gradients: also show how far gradients reach. The models compute on the CPU in float32. VocabularyError if a model
    does not know a character, DataError for less than two characters.
    """
    given, trained = trained, trained.first_member("look").on_cpu_in_float32()
    if isinstance(text, str):
        text = trained.encode(text)
    text.check_scorable("look")
    ids = text.ids
    shown = shown_part(trained, ids)
    predictions = predict(trained.network, ids)
    data = _described(trained, text, predictions, gradients=gradients) | {
        "text": shown_text(trained, shown),
        "shown": one_line(text.scored.label),
        "words": hardest_words(trained.vocabulary, shown, shown_part(trained, predictions["bits"]), 20),
        **_copied(given, shown),  # which may have loaded the training text already; its copy has not
        "units": _units(trained, ids),
    }
    if other is not None:
        data["compare"] = _compared(trained, text, other, predictions, gradients=gradients)
        data["name"], data["compare"]["name"] = names_of((given, other))
        data["seen"] = one_line(seen_note(text, (given, other)))
        say("compare", data["seen"])
    return html_page("look", f"{data['name']} · charlm look", data)


def shown_part(trained: TrainedModel, values_N: Array) -> Array:
    """What the page shows and counts, of ids or their values: not the end of a record that a model is given first."""
    return values_N[1:] if trained.network.reads_records else values_N


def shown_text(trained: TrainedModel, ids: Ids) -> str:
    """A character for each id. The last byte of a character shows it, others are _PART."""
    text = trained.vocabulary.decode(ids, "surrogateescape")
    sizes = trained.vocabulary.sizes(text).tolist()
    return "".join(_PART * (size - 1) + readable(c) for size, c in zip(sizes, text, strict=True))


def model_facts(trained: TrainedModel) -> dict[str, Any]:
    return {
        "name": trained.name,
        "kind": trained.kind,
        "parameters": trained.parameters,
        "source": source_name(trained.config.data.source),
        "step": trained.progress.get("step"),
        "elapsed": trained.progress.get("elapsed_s"),
        "weights": trained.weights,
        "symbol": trained.vocabulary.unit,
    }


def _described(
    trained: TrainedModel, text: EncodedText, predictions: Predictions, *, gradients: bool
) -> dict[str, Any]:
    """What the page says of each of two models: facts, predictions, memory, and norms of gradients [L][K]."""
    ids = text.ids
    curve = context_curve(trained.single_network, ids, bits_to_nats(1) * predictions["bits"][1:])
    memory = {"curve": [(k, nats_to_bits(nats)) for k, nats in curve], "least": least_context(curve)}
    described = model_facts(trained) | {
        "bits": float(predictions["bits"][text.given :].sum()) / max(text.scored.chars, 1),
        "symbols": _symbols(trained),
        "reading": _packed(trained, ids, predictions),
        "memory": memory | {"whole": float(np.nanmean(predictions["bits"]))},
    }
    if gradients:
        say("look", "following gradients back through the layers, in the model and in one with random weights ...")
        models = {"trained": trained, "untrained": trained.untrained()}
        described["gradients"] = {name: model.gradient_norms(text).tolist() for name, model in models.items()}
    return described


def _symbols(trained: TrainedModel) -> list[str]:
    """How each id is named."""
    if trained.vocabulary.level == "byte":
        return [chr(value) if 32 <= value < 127 or value == 10 else f"byte {value:02X}" for value in range(256)]
    return list(trained.vocabulary.characters)


def _packed(trained: TrainedModel, ids: Ids, predictions: Predictions) -> dict[str, Any]:
    """Ids, their bits, nan if unknown, and the probabilities of the likeliest characters in 65535ths."""
    narrow = np.min_scalar_type(len(trained.vocabulary) + 1)
    columns = {
        "bits": predictions["bits"].astype(np.float32),
        "entropy": predictions["entropy"].astype(np.float32),
        "ids": ids.astype(narrow),
        "rank": predictions["rank"].astype(narrow),
        "top": predictions["top"].astype(narrow),
        "p": (predictions["p"] * 65535).round().astype(np.uint16),
    }
    reading: dict[str, Any] = {name: packed(shown_part(trained, values)) for name, values in columns.items()}
    return reading | {"likeliest": predictions["top"].shape[1]}


def _copied(trained: TrainedModel, ids: Ids) -> dict[str, Any]:
    """The copied stretches, and which texts were not searched for them."""
    try:
        seen, unread = trained.seen
    except DataError as error:
        say("skipped", f"copied stretches: {error}")
        return {"copied": [], "unread": one_line(str(error))}
    [(copied, _)] = copied_stretches([ids], seen, space_ids(trained.vocabulary, trained.config.data.records))
    return {"copied": copied, "unread": one_line("; ".join(unread))}


def tracking_units(trained: TrainedModel, ids: Ids) -> dict[Unit, dict[str, Any]]:
    """The units that go most with a feature of the text: how the page names each, and what it tracks."""
    named = {}
    units = tracked_units(trained.single_network, trained.vocabulary, ids)
    for (series, unit), (feature, correlation) in most_telling(units, UNITS).items():
        layer, state, _ = series
        name = {"layer": layer + 1, "state": state, "unit": unit}
        named[series, unit] = name | {"feature": feature, "correlation": correlation}
    return named


def _units(trained: TrainedModel, ids: Ids) -> list[dict[str, Any]]:
    """The same units, each with the curves of its states and gates over the text."""
    named = tracking_units(trained, ids)
    values: dict[Unit, dict[Series, list[np.ndarray]]] = {unit: {} for unit in named}
    for stretch in activations_shown(trained.single_network, ids):
        for ((layer, _, _), unit), own in values.items():
            for series, values_TH in stretch.items():
                if series[0] == layer:
                    own.setdefault(series, []).append(values_TH[:, unit].copy())
    units = []
    for unit, own in values.items():
        curves = [_curve(trained, series, np.concatenate(parts)) for series, parts in own.items()]
        units.append(named[unit] | {"curves": curves})
    return units


def _curve(trained: TrainedModel, series: Series, values_N: np.ndarray) -> dict[str, Any]:
    """A state or gate over the shown text, in eight bits: value = byte · scale."""
    values_N = shown_part(trained, values_N)
    scale = max(float(np.abs(values_N).max()), 1e-9) / 127
    _, name, is_gate = series
    what = meaning(trained.config.model.cell, name)
    named = {"name": name, "gate": is_gate, "meaning": what, "scale": scale}
    return named | {"values": packed(np.round(values_N / scale).astype(np.int8))}


def meaning(cell: Cell, name: str) -> tuple[str, ...]:
    """What the cell's `meanings` say of a state or gate, () if nothing; an RHN's g3 is its g at depth 3."""
    return cell.meanings.get(name) or cell.meanings.get(name.rstrip("0123456789"), ())


def _compared(
    trained: TrainedModel, text: EncodedText, other: TrainedModel, predictions: Predictions, *, gradients: bool
) -> dict[str, Any]:
    """The second model's predictions of the same characters, and the words where each of the two is better."""
    check_alike((trained, other))
    other = other.first_member("--compare").on_cpu_in_float32()
    try:
        same = text.in_vocabulary(other.vocabulary)
    except VocabularyError as error:
        raise VocabularyError(f"--compare: {error}; use another text or another model") from None
    if same.scored.sha256 != text.scored.sha256:
        raise DataError(
            "--compare: found a model that reads other rare characters as one; allowed: the same data.min_count"
        )
    second = predict(other.network, same.ids)
    shown, saved_N = (shown_part(trained, each) for each in (text.ids, second["bits"] - predictions["bits"]))
    words = [hardest_words(trained.vocabulary, shown, each_N, 12, _LEAST_SAVED) for each_N in (saved_N, -saved_N)]
    return _described(other, same, second, gradients=gradients) | {"words": words}
