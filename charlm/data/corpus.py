"""A corpus: text files as ids in a memory-mapped array, cut into splits.

    hash      SHA-256 of the bytes, if the cache may hold the text
    survey    SHA-256, and how often each character occurs → the vocabulary; the decoded text → a draft
    encode    the draft, or else the text again → ids of the narrowest type, into the cache

Text and ids stream through memory in chunks. A cached corpus costs only the hash pass. Hashing and writing run in the
background; decoding, the slowest part, is done once.
"""

import hashlib
import itertools
from collections.abc import Generator, Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from charlm.config.schema import DataConfig
from charlm.data.cache import find_entry, store_entry
from charlm.data.labels import LabelCounter, Labels, find_labels, store_labels
from charlm.data.line_split import NEWLINE, Starts, backward_starts, split_lines
from charlm.data.survey import Survey, short_digest, survey_source, vocabulary_of
from charlm.data.vocabulary import UNKNOWN, Direction, Level, Vocabulary, describe_characters
from charlm.errors import DataError, VocabularyError
from charlm.system.console import say

Ids = npt.NDArray[np.unsignedinteger[Any]]

SPLITS = ("train", "valid", "test")
Unit = Literal["text", "line"]


@dataclass(frozen=True)
class Corpus:
    """Everything that training reads."""

    vocabulary: Vocabulary
    splits: dict[str, Ids]
    """"train", "valid", "test" → ids [N], memory-mapped, read-only; splits of share 0 are absent.

    If lines are the unit, a split is a newline and then its lines, see `split_lines`. For a model that reads backward,
    each split begins with its last character, as a view.
    """
    sha256: str
    """Of the source's bytes; with a valid or test source, of the joined digests of all sources."""
    size_bytes: int
    files: int
    starts: dict[str, Starts] | None = None
    """Where each line of a split starts, if lines are the unit; else None."""
    labels: Labels = field(default_factory=dict)
    """How many lines of the train split have each label; empty if lines have none."""


def load_corpus(
    source: str,
    *,
    level: Level,
    split: tuple[float, float, float],
    unit: Unit = "text",
    direction: Direction = "forward",
    valid_source: str | None = None,
    test_source: str | None = None,
    vocabulary: Vocabulary | None = None,
    label_separator: str | None = None,
) -> Corpus:
    """Encode the sources and cut them into splits.

    `split` holds the shares of train, valid and test. A `valid_source` or `test_source` is a split by itself; its
    share is ignored, and the other shares are rescaled to sum to 1. The default `vocabulary` is the characters of all
    sources, sorted. If lines are the unit, the shares are of the lines, and the vocabulary has a newline in any case;
    with a `label_separator`, every line must contain it.

    Raises DataError for text that cannot be used, VocabularyError for characters that a given vocabulary lacks.
    """
    named = {"train": source, "valid": valid_source, "test": test_source}
    with ExitStack() as drafts:
        surveys = {name: survey_source(text, level, drafts) for name, text in named.items() if text is not None}
        if vocabulary is None:
            vocabulary = vocabulary_of(list(surveys.values()), extra=NEWLINE if unit == "line" else "")
        vocabulary = replace(vocabulary, direction=direction)
        texts = {name: encode(survey, vocabulary) for name, survey in surveys.items()}

    shares = {name: share for name, share in zip(SPLITS, split, strict=True) if name == "train" or name not in texts}
    starts, labels = None, {}
    if unit == "line":
        splits, starts = {}, {}
        for name, survey in surveys.items():
            own = {other: share for other, share in shares.items() if share} if name == "train" else {name: 1.0}
            key = f"{survey.cache_key}-{short_digest(vocabulary.to_json(), own)}"
            found, own_labels = _lines_and_labels(texts[name], vocabulary, own, key, survey.source, label_separator)
            labels |= own_labels  # only the training text's are counted
            for part, lines in found.items():
                splits[part], starts[part] = lines
                if vocabulary.backward:
                    starts[part] = backward_starts(*lines, key=f"{key}-{part}-backward")
    else:
        splits = texts | dict(zip(shares, cut(texts["train"], list(shares.values())), strict=True))
    digests = [survey.sha256 for survey in surveys.values()]
    return Corpus(
        vocabulary=vocabulary,
        splits={name: vocabulary.turned(splits[name]) for name in SPLITS if shares.get(name) != 0},
        sha256=digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest(),
        size_bytes=sum(survey.size_bytes for survey in surveys.values()),
        files=sum(len(survey.paths) for survey in surveys.values()),
        starts=starts,
        labels=labels,
    )


def _lines_and_labels(
    ids: Ids, vocabulary: Vocabulary, shares: dict[str, float], key: str, source: str, separator: str | None
) -> tuple[dict[str, tuple[npt.NDArray[Any], Starts]], Labels]:
    """The splits of a text, and the labels of its train split, which are found in the same pass."""
    labels_key = f"{key}-labels-{short_digest(separator)}"
    known = {} if separator is None else find_labels(labels_key)
    counter = LabelCounter(separator, vocabulary, source) if separator is not None and known is None else None
    splits = split_lines(ids, vocabulary, shares, key=key, source=source, sees=counter and counter.see)
    if counter:
        known = counter.labels()
        store_labels(labels_key, known)
    return splits, known or {}


def begin_of(unit: Unit, vocabulary: Vocabulary) -> int | None:
    """The id that begins a sample of its own, see `CharLM.begins`: a newline if lines are the unit."""
    return int(vocabulary.encode(NEWLINE)[0]) if unit == "line" else None


def load_configured_corpus(data: DataConfig, vocabulary: Vocabulary | None = None) -> Corpus:
    """Load the corpus of a config's `data` section."""
    return load_corpus(
        data.source,
        level=data.level,
        split=data.split,
        unit=data.unit,
        direction=data.direction,
        valid_source=data.valid_source,
        test_source=data.test_source,
        vocabulary=vocabulary,
        label_separator=data.label_separator,
    )


def load_unchanged_corpus(data: DataConfig, vocabulary: Vocabulary, sha256: object) -> Corpus:
    """Load the corpus that a run was trained on; DataError if its text has changed."""
    changed = DataError(
        f"{data.source}: the text has changed since the run was trained, and so have its splits; allowed: the same "
        "text; train on a new text with --init-from, score one with --file"
    )
    try:
        corpus = load_configured_corpus(data, vocabulary)
    except VocabularyError:
        raise changed from None
    if corpus.sha256 != sha256:
        raise changed
    return corpus


def encode_file(path: str | Path, vocabulary: Vocabulary, *, skip_unknown: bool = False) -> tuple[Ids, dict[str, int]]:
    """Encode the text of `path` (any source); also return how often each unknown character was skipped.

    Without `skip_unknown`, an unknown character is a VocabularyError.
    """
    with ExitStack() as drafts:
        survey = survey_source(str(path), vocabulary.level, drafts)
        ids = encode(survey, vocabulary, skip_unknown=skip_unknown)
    return vocabulary.turned(ids), survey.unknown(vocabulary)


def unknown_characters(sources: Iterable[str], vocabulary: Vocabulary) -> str:
    """The characters of all `sources` that `vocabulary` lacks, sorted, as `vocabulary.extended` takes them."""
    surveys = [survey_source(source, vocabulary.level) for source in sources]
    return "".join(sorted({character for survey in surveys for character in survey.unknown(vocabulary)}))


def cut(ids: Ids, shares: Sequence[float]) -> list[Ids]:
    """Contiguous parts of `ids` in proportion to `shares`, as views.

    Part k ends at floor(N · (share_0 + … + share_k) / (sum of all shares)). The fractions are exact: 0.9 is 9/10, and
    the last part ends at N.
    """
    exact = [Fraction(str(float(share))) for share in shares]
    total = sum(exact)
    assert min(exact) >= 0 < total, f"shares of a split: {shares}"
    ends = [int(len(ids) * running / total) for running in itertools.accumulate(exact)]
    return [ids[start:end] for start, end in itertools.pairwise([0, *ends])]


def encode(survey: Survey, vocabulary: Vocabulary, *, skip_unknown: bool = False) -> Ids:
    """The ids of a surveyed text in its own order, [N] memory-mapped; unknown characters are skipped or refused."""
    if survey.level != vocabulary.level:
        raise VocabularyError(
            f"{survey.source}: read at data.level: {survey.level}; the model's vocabulary is of level "
            f"{vocabulary.level}; set data.level: {vocabulary.level}"
        )
    unknown = survey.unknown(vocabulary)
    if unknown and not skip_unknown:
        raise _lacking(survey, unknown, vocabulary)
    length = survey.length - sum(unknown.values())
    if not length:
        raise DataError(f"{survey.source}: none of its characters is in the model's vocabulary; use other text")

    key = f"{survey.cache_key}-{short_digest(vocabulary.to_json())}"
    ids = find_entry(key)
    if ids is not None:
        return ids
    say("data", f"{survey.source}: encoding {length:,} characters over a vocabulary of {len(vocabulary):,}")
    with closing(_encoded(survey, vocabulary)) as blocks:
        return store_entry(key, (length,), vocabulary.dtype, blocks)


def _encoded(survey: Survey, vocabulary: Vocabulary) -> Generator[Ids]:
    """Yield the ids of the text in chunks, without unknown characters."""
    ids_of = np.arange(256) if survey.level == "byte" else vocabulary.id_of_code_point
    narrow = ids_of.astype(vocabulary.dtype)
    skipping = bool(survey.unknown(vocabulary))
    for symbols in survey.read():
        if skipping:
            symbols = symbols[ids_of[symbols] != UNKNOWN]
        yield narrow.take(symbols)


def _lacking(survey: Survey, unknown: dict[str, int], vocabulary: Vocabulary) -> VocabularyError:
    shown = [f"{describe_characters([character])} × {count:,}" for character, count in list(unknown.items())[:8]]
    more = f" and {len(unknown) - len(shown)} more" if len(unknown) > len(shown) else ""
    return VocabularyError(
        f"{survey.source}: {', '.join(shown)}{more}: not in the model's vocabulary of {len(vocabulary)} characters; "
        "use text without them or a model that knows them"
    )
