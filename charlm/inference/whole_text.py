"""The score of a whole text from a file or stdin, read in one piece."""

from dataclasses import dataclass

from charlm.data.arriving import as_in_training, open_arriving
from charlm.data.corpus import encode_file
from charlm.data.reading import Unit
from charlm.data.vocabulary import Level, describe_characters
from charlm.errors import DataError
from charlm.inference.dynamic import Adaptation
from charlm.inference.evaluation import Ids
from charlm.inference.line_scores import TextScore, Unknown
from charlm.inference.trained import TrainedModel
from charlm.system.formatting import counted


@dataclass(frozen=True)
class Text:
    """A text as `TrainedModel.evaluate` takes it."""

    name: str
    ids: Ids
    unknown: int
    """Number of characters that the model does not know, which the ids lack."""
    skipped: str
    """A list of them for people, if they do not count."""


def read_text(trained: TrainedModel, file: str, unknown: Unknown) -> Text:
    """Read a file, or all of stdin for "-"; VocabularyError, DataError."""
    tolerant, unit = unknown.skip or unknown.nats is not None, trained.config.data.unit
    if file == "-":
        name, text = "stdin", _stdin(trained.vocabulary.level, unit)
        counts = {character: text.count(character) for character in trained.vocabulary.unknown(text)}
        text, _ = trained.known(text, name, skip_unknown=tolerant)
        ids = trained.vocabulary.encode(text)
    else:
        name = file
        ids, counts = encode_file(file, trained.vocabulary, skip_unknown=tolerant, unit=unit)
    count = sum(counts.values())
    skipped = f"{counted(count, 'character')}: {describe_characters(counts)}" if count and unknown.skip else ""
    return Text(name, trained.scored_ids(ids), count, skipped)


def score_text(
    trained: TrainedModel, text: Text, unknown: Unknown, adaptation: Adaptation | None, *, per_char: bool = False
) -> TextScore:
    """Score a text as `charlm eval` does, with an adaptation dynamically; unknown characters that count add theirs."""
    if adaptation:
        found = trained.evaluate_dynamically(text.ids, adaptation, per_char=per_char)
    else:
        found = trained.evaluate(text.ids, per_char=per_char)
    counted = 0 if unknown.nats is None else text.unknown
    nats = found.nats_sum + counted * (unknown.nats or 0)
    return TextScore(found.targets + counted, nats, found.per_char_nats)


def _stdin(level: Level, unit: Unit) -> str:
    data = b"".join(as_in_training(open_arriving("-").blocks(), level, unit, "stdin"))
    try:
        return data.decode("utf-8", "surrogateescape" if level == "byte" else "strict")
    except UnicodeDecodeError as error:
        raise DataError(f"stdin: found no UTF-8 at byte offset {error.start}; allowed: UTF-8") from None
