"""Which part of which text a page is about, and what of it two models were trained on."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from charlm.data.encoded import EncodedText
from charlm.errors import CharlmError, DataError
from charlm.inference.seen import COPIED, NOTED, SEARCHED, seen_places
from charlm.inference.trained import TrainedModel
from charlm.system.arrays import Bools
from charlm.system.formatting import format_share, printable

_LEAST = 500
"""Symbols of a text that say which of two models is better."""

Two = tuple[TrainedModel, TrainedModel]


def opening(trained: TrainedModel, text: EncodedText, length: int) -> EncodedText:
    """The `beginning` of a text that was cut anywhere, from the first start of a line on."""
    if not trained.network.reads_records:
        vocabulary = trained.vocabulary
        ends = [vocabulary.encode(end)[0] for end in "\r\n" if not vocabulary.unknown(end)]
        is_end = np.isin(text.ids[:length], ends)
        first_end = int(is_end.argmax())
        start = first_end + int((~is_end[first_end:]).argmax())
        text = replace(text, ids=text.ids[start:])
    return beginning(trained, text, length)


def beginning(trained: TrainedModel, text: EncodedText, length: int) -> EncodedText:
    """The first `length` symbols of a text.

    For a model of records: an end, and then whole records if one fits, because a cut record surprises the model.
    """
    reads_records = trained.network.reads_records
    if len(text.ids) <= length + reads_records:
        return text
    ids = text.ids[: length + reads_records]
    if reads_records:
        ends = np.flatnonzero(ids == trained.network.reset_id)
        ids = ids[: ends[-1] + 1 if len(ends) > 1 else length + 1]
    return replace(text, ids=ids, name=f"beginning of {text.name}")


def unseen_text(models: Two, length: int) -> EncodedText | None:
    """A part of a validation or test text of either run that neither model was trained on, in the first model's ids.

    The first part with `length` symbols, or the longest; None without a part that says something, or if a training text
    cannot be read.
    """
    check_alike(models)
    parts: list[EncodedText] = []
    try:
        for text in _candidates(models):
            parts.append(_unseen_part(text, models, length))
            if len(parts[-1].ids) >= length:
                break
    except CharlmError:
        return None
    longest = max(parts, key=lambda part: len(part.ids), default=None)
    return longest if longest and len(longest.ids) >= min(_LEAST, length) else None


def check_alike(models: Two) -> None:
    """DataError for models that read different units: bytes and characters, or records and running text."""
    one, other = (f"{model.vocabulary.unit}s{' of records' if model.network.reads_records else ''}" for model in models)
    if one != other:
        raise DataError(f"--compare: found a model of {other}; allowed: one of {one}, as the first")


def _candidates(models: Two) -> Iterator[EncodedText]:
    """The validation and test texts that both models know."""
    for model in models:
        for split in sorted(model.corpus.splits.keys() - {"train"}, reverse=True):
            text = model.split(split).first(SEARCHED)
            if not any(each.vocabulary.unknown(text.text) for each in models):
                yield text.in_vocabulary(models[0].vocabulary)


def _unseen_part(text: EncodedText, models: Two, length: int) -> EncodedText:
    """The first part of `length` symbols or more that neither was trained on, or the longest; all such records."""
    seen = np.logical_or(*(_seen_by(model, text) for model in models))
    if not seen.any():
        return text
    if models[0].network.reads_records:
        ids = np.concatenate([text.ids[:1], text.ids[~seen]])
    else:
        edges = np.flatnonzero(np.diff(~seen, prepend=False, append=False)).reshape(-1, 2)
        sizes = np.diff(edges)[:, 0].clip(max=length)
        begin, end = edges[sizes.argmax()] if len(edges) else (0, 0)
        ids = text.ids[begin:end]
    return replace(text, ids=ids, name=f"part of {text.name}")


def _seen_by(model: TrainedModel, text: EncodedText) -> Bools:
    """Which symbols of a text a model was trained on, [N].

    DataError if the model's own text is gone, VocabularyError if the model does not know the text.
    """
    seen, _ = model.seen
    return seen_places(text.in_vocabulary(model.vocabulary), seen, model.config.data.records)


def names_of(models: Two) -> tuple[str, str]:
    """Two names that differ, unless both are of one file."""
    one, other = models
    if one.name != other.name or one.path == other.path:
        return one.name, other.name
    return printable(str(one.path)), printable(str(other.path))


def seen_note(text: EncodedText, models: Two) -> str:
    """What the models were trained on of a text, in a line."""
    notes = []
    for model, name in zip(models, names_of(models), strict=True):
        try:
            share = float(_seen_by(model, text).mean())
            _, unread = model.seen
        except CharlmError as error:
            share, unread = 0.0, [str(error)]
        if share >= NOTED:
            notes.append(f"{name} was trained on {format_share(share)} of this text, which makes it look better")
        if unread:
            notes.append(f"{name} may have been trained on this text: {'; '.join(unread)}")
    unit = "a record" if models[0].network.reads_records else f"a stretch of {COPIED} {text.vocabulary.unit}s"
    return ". ".join(notes) or f"Neither was trained on {unit} of this text"
