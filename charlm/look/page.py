"""The page of a text: everything that charlm/web/look/ shows, computed and packed."""

from pathlib import Path
from typing import Any

import numpy as np

from charlm.cells import Cell
from charlm.data.lines import as_records
from charlm.data.reading import NEWLINE
from charlm.data.vocabulary import Ids, readable
from charlm.errors import DataError, VocabularyError
from charlm.inference.novelty import copied_stretches, copied_windows
from charlm.inference.trained import TrainedModel
from charlm.look.features import Tracked, correlations, features_of, most_telling, tracked
from charlm.look.gradients import influence_data, norms_data
from charlm.look.hardest import better_words, hardest_lines, hardest_words
from charlm.look.predictions import Predictions, Series, activations, context_curve, read
from charlm.system.console import say
from charlm.system.formatting import counted, printable
from charlm.web.page import html_page, packed

UNITS = 24
"""How many units the page shows."""
_WITH_GATES = 6
"""For how many of them it has the gates too, and the other states, such as those after each depth."""
_LEAST_TO_TRACK = 200
"""A shorter text says nothing about what units track."""
_NEAREST = 4
LEAST_CORRELATION = 0.3
"""A weaker correlation, positive or negative, is taken for noise."""
_MOST_BITS = 65.0


def look_page(
    trained: TrainedModel,
    text: str | Ids,
    other: TrainedModel | None = None,
    *,
    units: int = UNITS,
    gradients: bool = False,
) -> str:
    """A page of HTML about what the model does with the text, and where another does better.

    text: a text, or its ids as `TrainedModel.scored_ids` gives them. gradients: with what flows back to the states and
    characters before each prediction. The models compute on the CPU in float32.
    VocabularyError if a model does not know a character, DataError for less than two characters.
    """
    trained = trained.first_member("look").on_cpu_in_float32()
    ids = trained.scored_ids(trained.vocabulary.encode(text)) if isinstance(text, str) else text
    if len(ids) < 2:
        raise DataError(f"look: found a text of {counted(len(ids), 'character')}; allowed: 2 or more")
    hidden = trained.unseen_ids
    shown = shown_text(trained, ids[hidden:])
    as_read = read(trained.network, ids)
    predictions = as_read.of_text(hidden)
    data = _predicted(trained, predictions) | {
        "text": shown,
        "words": hardest_words(shown, predictions.bits_N),
        "lines": hardest_lines(shown, predictions.bits_N),
        "memory": _context(trained, ids, as_read.bits_N),
        "copied": _copied(trained, ids[hidden:]),
        "units": _units(trained, ids, hidden, shown, units),
    }
    if other is not None:
        data["compare"] = _compared(trained, ids[hidden:], other, shown, predictions, gradients=gradients)
    if gradients:
        data["gradients"] = norms_data(trained, ids) | {"influence": influence_data(trained, ids, hidden)}
    return html_page("look", f"{data['name']} · charlm look", data)


def opening(trained: TrainedModel, length: int) -> Ids:
    """The beginning of the validation text: at most `length` characters, from the first start of a line on.

    With a model of lines, and the newline that it reads first. DataError if there is no validation text.
    """
    valid, train = trained.split("valid"), trained.split("train")
    if trained.network.is_line_model:
        return valid[: length + 1]
    vocabulary = trained.vocabulary
    if vocabulary.unknown(NEWLINE):
        return valid[:length]
    ends = [vocabulary.encode(end)[0] for end in ("\r", NEWLINE) if not vocabulary.unknown(end)]
    skipped = 0 if train[-1] == ends[-1] else _line_start(valid[:length], ends)
    return valid[skipped : skipped + length]


def _line_start(ids: Ids, ends: list[int]) -> int:
    """The first character after the first line ends, the last of which is a newline; 0 if there is none."""
    newlines = np.flatnonzero(ids == ends[-1])
    return int(newlines[0] + (~np.isin(ids[newlines[0] :], ends)).argmax()) if len(newlines) else 0


def shown_text(trained: TrainedModel, ids: Ids) -> str:
    """A character for each id. The last byte of a character shows it, others show a dot."""
    text = trained.vocabulary.decode(ids.tolist(), "surrogateescape")
    if trained.vocabulary.level == "char":
        return text
    sizes = [len(character.encode("utf-8", "surrogateescape")) for character in text]
    return "".join("·" * (size - 1) + readable(c) for size, c in zip(sizes, text, strict=True))


def model_facts(trained: TrainedModel) -> dict[str, Any]:
    """What a page says about a model. Its name is that of the run's folder, or of the file if there is none."""
    return {
        "name": printable(trained.path.absolute().parent.parent.name or trained.path.name),
        "kind": trained.kind,
        "parameters": trained.parameters,
        "source": _source_name(trained.config.data.source),
        "step": trained.progress.get("step"),
        "elapsed": trained.progress.get("elapsed_s"),
        "symbol": "byte" if trained.vocabulary.level == "byte" else "character",
    }


def _source_name(source: str) -> str:
    """How people call a text: its file or folder; a name with ":" or a pattern as it is."""
    return printable(source if ":" in source or "*" in source else Path(source).name or source)


def _predicted(trained: TrainedModel, predictions: Predictions) -> dict[str, Any]:
    """The facts of a model and its predictions."""
    return model_facts(trained) | {
        "bits": float(np.nanmean(predictions.bits_N)),
        "symbols": _symbols(trained),
        "reading": _packed(predictions, len(trained.vocabulary)),
    }


def _symbols(trained: TrainedModel) -> list[str]:
    """How each id is named."""
    if trained.vocabulary.level == "byte":
        return [chr(value) if 32 <= value < 127 or value == 10 else f"byte {value:02X}" for value in range(256)]
    return list(trained.vocabulary.characters)


def _packed(predictions: Predictions, vocabulary_size: int) -> dict[str, Any]:
    """Bits in thousandths, probabilities in 65535ths; 65535 for bits that are unknown."""
    narrow = np.min_scalar_type(max(vocabulary_size, 1))

    def thousandths(bits_N: np.ndarray) -> dict[str, Any]:
        return packed(
            np.where(np.isnan(bits_N), 65535, np.minimum(bits_N, _MOST_BITS) * 1000).round().astype(np.uint16)
        )

    return {
        "bits": thousandths(predictions.bits_N),
        "entropy": thousandths(predictions.entropy_N),
        "rank": packed(predictions.rank_N.astype(np.min_scalar_type(vocabulary_size + 1))),
        "top": packed(predictions.top_ids_NK.astype(narrow).reshape(-1)),
        "p": packed((predictions.top_p_NK * 65535).round().astype(np.uint16).reshape(-1)),
        "likeliest": predictions.top_ids_NK.shape[1],
    }


def _context(trained: TrainedModel, ids: Ids, bits_N: np.ndarray) -> dict[str, Any]:
    """The loss by length of context; bits_N: of all `ids`."""
    curve, positions = context_curve(trained.network.first_member("look"), ids)
    whole = float(np.mean(bits_N[positions])) if curve else None
    return {"curve": curve, "whole": whole, "targets": len(positions)}


def _copied(trained: TrainedModel, ids: Ids) -> dict[str, Any]:
    try:
        corpus = trained.training_splits("copied stretches")["train"]
    except DataError as error:
        say("skipped", str(error))
        return {"stretches": [], "why_not": "The training text has changed or is gone, so copies were not looked for."}
    return {"stretches": copied_stretches(copied_windows(ids, corpus)), "why_not": None}


def tracking_units(trained: TrainedModel, ids: Ids, count: int) -> list[dict[str, Any]]:
    """The units that go most with a feature of the text, `count` at most, as `_named` tells of each."""
    hidden = trained.unseen_ids
    units, _ = _tracked(trained, ids, hidden, shown_text(trained, ids[hidden:]))
    return [_named(series, unit, units[series, unit]) for series, unit in most_telling(units, count)]


def shaded_units(trained: TrainedModel, ids: Ids, count: int, length: int) -> list[dict[str, Any]]:
    """The same units, each with "meaning" and "shades": how far its state is from its mean over a part of the text.

    The part is the first `length` characters.
    """
    hidden = trained.unseen_ids
    units, _ = _tracked(trained, ids, hidden, shown_text(trained, ids[hidden:]))
    chosen = most_telling(units, count)
    curves = _curves(trained, ids[: hidden + length], hidden, chosen)
    states, cell = [curve[series] for (series, _), curve in zip(chosen, curves, strict=True)], trained.config.model.cell
    return [
        _named(series, unit, units[series, unit])
        | {"meaning": meaning(cell, series.name), "shades": _quantized(values_N - values_N.mean())}
        for (series, unit), values_N in zip(chosen, states, strict=True)
    ]


def _units(trained: TrainedModel, ids: Ids, hidden: int, shown: str, count: int) -> dict[str, Any]:
    """The units that track something, with their activations, and how many were left out."""
    units, changing = _tracked(trained, ids, hidden, shown)
    if changing is None:
        why_not = f"To find what units track takes {_LEAST_TO_TRACK} characters of text."
        return {"shown": [], "left_out": 0, "why_not": why_not}
    if not units:
        why_not = f"No unit goes with a feature: no correlation is {LEAST_CORRELATION} or more."
        return {"shown": [], "left_out": changing, "why_not": why_not}
    chosen, cell = most_telling(units, count), trained.config.model.cell
    curves = _curves(trained, ids, hidden, chosen)
    nearest = _nearest(np.array([curves[index][series] for index, (series, _) in enumerate(chosen)]))
    shown_units = [
        _named(series, unit, units[series, unit])
        | {
            "like": nearest[index],
            "curves": [
                {"name": each.name, "gate": each.gate, "meaning": meaning(cell, each.name)} | _quantized(values_N)
                for each, values_N in curves[index].items()
            ],
        }
        for index, (series, unit) in enumerate(chosen)
    ]
    return {"shown": shown_units, "left_out": changing - len(shown_units), "why_not": None}


def _tracked(
    trained: TrainedModel, ids: Ids, hidden: int, shown: str
) -> tuple[dict[tuple[Series, int], Tracked], int | None]:
    """What units track, if it is more than noise, and the number of units that change; None for a short text."""
    features = features_of(shown)
    if len(shown) < _LEAST_TO_TRACK or not features:
        return {}, None
    # The newline that a model of lines reads first gets the features of the next character.
    features_FN = np.array([np.concatenate([values[:hidden], values]) for values in features.values()])
    units = tracked(*correlations(activations(trained.network.first_member("look"), ids), features_FN), list(features))
    changing = len({(series.layer, unit) for series, unit in units})
    return {unit: each for unit, each in units.items() if abs(each.correlation) >= LEAST_CORRELATION}, changing


def _named(series: Series, unit: int, tracks: Tracked) -> dict[str, Any]:
    """The name of a unit's state, and what it tracks."""
    named = {"layer": series.layer + 1, "state": series.name, "unit": unit}
    return named | {"feature": tracks.feature, "correlation": tracks.correlation}


def meaning(cell: Cell, name: str) -> tuple[str, ...]:
    """What the cell's `meanings` say of a state or gate, () if nothing; an RHN's g3 is its g at depth 3."""
    return cell.meanings.get(name) or cell.meanings.get(name.rstrip("0123456789"), ())


def _curves(
    trained: TrainedModel, ids: Ids, hidden: int, chosen: list[tuple[Series, int]]
) -> list[dict[Series, np.ndarray]]:
    """For each chosen unit its state over the text, [N]; for the first of them its other states and its gates too."""
    curves: list[dict[Series, list[np.ndarray]]] = [{series: []} for series, _ in chosen]
    for stretch in activations(trained.network.first_member("look"), ids):
        for index, (series, unit) in enumerate(chosen):
            for each, values_TH in stretch.items():
                if each == series or (index < _WITH_GATES and each.layer == series.layer):
                    curves[index].setdefault(each, []).append(values_TH[:, unit].copy())
    return [{series: np.concatenate(values)[hidden:] for series, values in unit.items()} for unit in curves]


def _quantized(values_N: np.ndarray) -> dict[str, Any]:
    """Eight bits a value: value = byte · scale."""
    scale = max(float(np.abs(values_N).max()), 1e-9) / 127
    return packed(np.round(values_N / scale).astype(np.int8)) | {"scale": scale}


def _nearest(values_UN: np.ndarray) -> list[list[tuple[int, float]]]:
    """For each unit, the others that correlate most with it over the whole text, positively or negatively."""
    if len(values_UN) < 2:
        return [[] for _ in values_UN]
    centered_UN = values_UN.astype(np.float64) - values_UN.mean(1, keepdims=True)
    centered_UN /= np.maximum(np.linalg.norm(centered_UN, axis=1, keepdims=True), 1e-12)
    nearest = []
    for unit, row_U in enumerate(centered_UN @ centered_UN.T):
        order = [int(other) for other in np.argsort(-np.abs(row_U), kind="stable") if other != unit]
        alike = [other for other in order if abs(row_U[other]) >= LEAST_CORRELATION]
        nearest.append([(other, float(row_U[other])) for other in alike[:_NEAREST]])
    return nearest


def _compared(
    trained: TrainedModel, ids: Ids, other: TrainedModel, shown: str, predictions: Predictions, *, gradients: bool
) -> dict[str, Any]:
    """The second model's predictions of the same characters, and the words where each of the two is better."""
    if other.vocabulary.level != trained.vocabulary.level:
        raise DataError(
            f"--compare: found a model of level {other.vocabulary.level}; allowed: one of level "
            f"{trained.vocabulary.level}, as the first"
        )
    other = other.first_member("--compare").on_cpu_in_float32()
    try:
        same = other.vocabulary.encode(trained.vocabulary.decode(ids.tolist(), "surrogateescape"))
    except VocabularyError as error:
        raise VocabularyError(f"--compare: {error}; use text without them or a second model that knows them") from None
    same = as_records(same, other.network.reset_id, ended=False)
    as_read = read(other.network, same)
    second = as_read.of_text(other.unseen_ids)
    return _predicted(other, second) | {
        "memory": _context(other, same, as_read.bits_N),
        "words": better_words(shown, predictions.bits_N, second.bits_N),
        "gradients": norms_data(other, same) if gradients else None,
    }
