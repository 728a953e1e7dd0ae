"""A corpus: text files as ids in a memory-mapped array, cut into splits.

    hash      SHA-256 of the bytes, if the cache may hold the text
    survey    SHA-256, and how often each character occurs → the vocabulary; the decoded text → a draft
    encode    the draft, or else the text again → ids of the narrowest type, into the cache

Text and ids stream through memory in chunks. A cached corpus costs only the hash pass. Hashing and writing run in the
background; decoding, the slowest part, is done once.
"""

import hashlib
import itertools
import shlex
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from charlm.config.schema import DataConfig
from charlm.data.cache import find_entry, store_entry
from charlm.data.labels import LabelCounter, Labels, find_labels, store_labels
from charlm.data.line_split import Lines, Starts, backward_starts, find_splits, split_lines
from charlm.data.progress import Progress
from charlm.data.reading import NEWLINE, Unit
from charlm.data.survey import Survey, short_digest, survey_source, vocabulary_of
from charlm.data.vocabulary import UNKNOWN, Direction, Level, Vocabulary, describe_characters
from charlm.errors import DataError, VocabularyError
from charlm.system.console import say
from charlm.system.formatting import counted

Ids = npt.NDArray[np.unsignedinteger[Any]]

SPLITS = ("train", "valid", "test")


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
    spread: bool = True
    """Whether frequent lines are in all splits, see `split_lines`."""


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
    whole: bool = False,
    spread: bool = True,
) -> Corpus:
    """Encode the sources and cut them into splits.

    `split` holds the shares of train, valid and test. A `valid_source` or `test_source` is a split by itself; its
    share is ignored, and the other shares are rescaled to sum to 1. The default `vocabulary` is the characters of all
    sources, sorted. If lines are the unit, the shares are of the lines, and every line ends with a newline, see
    `whole_lines`; with a `label_separator`, every line must contain it. whole: all of the source is for training, in
    its own order. spread: see `split_lines`.

    Raises DataError for text that cannot be used, VocabularyError for characters that a given vocabulary lacks.
    """
    named = {"train": source, "valid": valid_source, "test": test_source}
    with ExitStack() as drafts:
        surveys = {name: survey_source(text, level, drafts, unit) for name, text in named.items() if text is not None}
        if unit == "line":
            for survey in surveys.values():
                _check_line_ends(survey)
        if vocabulary is None:
            vocabulary = vocabulary_of(list(surveys.values()))
        vocabulary = replace(vocabulary, direction=direction)
        shares = dict(zip(SPLITS, (1.0, 0.0, 0.0) if whole else split, strict=True))
        shares = {name: share for name, share in shares.items() if name == "train" or (share and name not in surveys)}
        splits: dict[str, npt.NDArray[Any]] = {}
        starts, labels = None, {}
        if unit == "line" and not whole:
            lines: dict[str, Lines] = {}
            for name, survey in surveys.items():
                own = shares if name == "train" else {name: 1.0}
                found, own_labels = _encoded_lines(survey, vocabulary, own, label_separator, spread)
                labels |= own_labels  # only the training text's are counted
                lines |= found
            splits, starts = ({name: pair[place] for name, pair in lines.items()} for place in (0, 1))
        else:
            texts = {name: encode(survey, vocabulary) for name, survey in surveys.items()}
            splits = texts | dict(zip(shares, cut(texts["train"], list(shares.values())), strict=True))
    digests = [survey.sha256 for survey in surveys.values()]
    return Corpus(
        vocabulary=vocabulary,
        splits={name: vocabulary.turned(splits[name]) for name in SPLITS if name in splits},
        sha256=digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest(),
        size_bytes=sum(survey.size_bytes for survey in surveys.values()),
        files=sum(len(survey.paths) for survey in surveys.values()),
        starts=starts,
        labels=labels,
        spread=spread,
    )


def _check_line_ends(survey: Survey) -> None:
    """DataError if no file has a line end but its last, and carriage returns instead."""
    returns, newlines = (int(survey.counts[survey.symbols == ord(c)].sum()) for c in "\r\n")
    if returns > newlines <= len(survey.paths):
        names = " ".join(shlex.quote(str(path)) for path in survey.paths[:1])
        raise DataError(
            f"{survey.source}: found no newline, and {counted(returns, 'carriage return')}, which ended lines on old "
            f"Macs; allowed: lines that end with a newline; convert it: tr '\\r' '\\n' < {names} > lines.txt"
        )


def begin_of(unit: Unit, vocabulary: Vocabulary) -> int | None:
    """The id that begins a sample of its own, see `CharLM.begins`: a newline if lines are the unit."""
    return int(vocabulary.encode(NEWLINE)[0]) if unit == "line" else None


def _encoded_lines(
    survey: Survey, vocabulary: Vocabulary, shares: dict[str, float], separator: str | None, spread: bool
) -> tuple[dict[str, Lines], Labels]:
    """The lines of a surveyed text in splits, and the labels of its train split, which are found in the same pass.

    The starts are those of the direction in which the model reads; the ids are in the order of the text.
    """
    key = f"{survey.cache_key}-{short_digest(vocabulary.to_json(), shares, *(['spread'] if spread else []))}"
    labels_key = f"{key}-labels-{short_digest(separator)}"
    labels = {} if separator is None else find_labels(labels_key)
    splits = None if labels is None else find_splits(key, shares)
    if labels is None or splits is None:
        counter = None if separator is None else LabelCounter(separator, vocabulary, survey.source)
        ids = encode(survey, vocabulary)
        sees = counter and counter.see
        splits = split_lines(ids, vocabulary, shares, key=key, source=survey.source, sees=sees, spread=spread)
        labels = counter.labels() if counter else {}
        if counter:
            store_labels(labels_key, labels)
    if vocabulary.backward:
        splits = {
            name: (ids, backward_starts(ids, starts, key=f"{key}-{name}-backward"))
            for name, (ids, starts) in splits.items()
        }
    return splits, labels


def load_configured_corpus(
    data: DataConfig, vocabulary: Vocabulary | None = None, *, whole: bool = False, spread: bool = True
) -> Corpus:
    """Load the corpus of a config's `data` section; for `whole` and `spread` see `load_corpus`."""
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
        whole=whole,
        spread=spread,
    )


def load_unchanged_corpus(data: DataConfig, vocabulary: Vocabulary, progress: Mapping[str, Any]) -> Corpus:
    """Load the corpus that a run with this progress was trained on; DataError if its text has changed."""
    changed = DataError(
        f"{data.source}: the text has changed since the run was trained, and so have its splits; allowed: the same "
        "text; train on a new text with --init-from, score one with --file"
    )
    try:
        # Runs of older versions have split their lines by hashes alone.
        corpus = load_configured_corpus(data, vocabulary, spread=progress.get("spread") is True)
    except VocabularyError:
        raise changed from None
    if corpus.sha256 != progress.get("corpus_sha256"):
        raise changed
    return corpus


def encode_file(
    path: str | Path, vocabulary: Vocabulary, *, skip_unknown: bool = False, unit: Unit = "text"
) -> tuple[Ids, dict[str, int]]:
    """Encode the text of `path` (any source); also return how often each unknown character was skipped.

    For the unit see `survey_source`. Without `skip_unknown`, an unknown character is a VocabularyError.
    """
    with ExitStack() as drafts:
        survey = survey_source(str(path), vocabulary.level, drafts, unit)
        try:
            ids = encode(survey, vocabulary, skip_unknown=skip_unknown)
        except VocabularyError as error:
            raise VocabularyError(f"{error}; --skip-unknown leaves them out") from None
    return vocabulary.turned(ids), survey.unknown(vocabulary)


def unknown_characters(sources: Iterable[str], vocabulary: Vocabulary, unit: Unit = "text") -> str:
    """The characters of all `sources` that `vocabulary` lacks, sorted, as `vocabulary.extended` takes them."""
    surveys = [survey_source(source, vocabulary.level, unit=unit, to_encode=True) for source in sources]
    return "".join(sorted({character for survey in surveys for character in survey.unknown(vocabulary)}))


def cut(ids: Ids, shares: Sequence[float]) -> list[Ids]:
    """Contiguous parts of `ids` in proportion to `shares`, as views.

    Shard k ends at floor(N · (share_0 + … + share_k) / (sum of all shares)). The fractions are exact: 0.9 is 9/10, and
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
    say("data", f"{survey.source}: encoding {counted(length, 'character')} over a vocabulary of {len(vocabulary):,}")
    with closing(_encoded(survey, vocabulary)) as blocks:
        blocks = Progress(length, f"{survey.source}: encoding").of(blocks)
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
        f"{survey.source}: {', '.join(shown)}{more}: not in the model's vocabulary of "
        f"{counted(len(vocabulary), 'character')}; use text without them or a model that knows them"
        f"{vocabulary.advice(unknown)}"
    )
