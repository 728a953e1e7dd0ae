"""A corpus: text files as ids in a memory-mapped array, cut into splits.

    count     SHA-256, and how often each character occurs → the vocabulary
    encode    the text again → ids of the narrowest type, into the cache

Text and ids stream through memory in chunks. For a text that the cache holds only the SHA-256 is computed.
"""

import hashlib
import itertools
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from charlm.config.schema import DataConfig
from charlm.data.cache import find_entry, store_entry
from charlm.data.counted import CountedSource, count_source, short_digest, vocabulary_of
from charlm.data.labels import LabelCounter, Labels, find_labels, store_labels
from charlm.data.line_split import Lines, Starts, backward_starts, find_splits, split_lines
from charlm.data.progress import Progress
from charlm.data.reading import NEWLINE, Unit
from charlm.data.vocabulary import UNKNOWN, Vocabulary, describe_characters
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


class Text:
    """The sources of a config's `data` section, found and counted once; `corpus` encodes them.

    DataError for sources that cannot be used.
    """

    def __init__(self, data: DataConfig) -> None:
        named = {"train": data.source, "valid": data.valid_source, "test": data.test_source}
        self._data = data
        self.sources = {
            name: count_source(source, data.level, data.unit) for name, source in named.items() if source is not None
        }
        """"train", and "valid" and "test" if these splits have texts of their own."""
        if data.unit == "line":
            for source in self.sources.values():
                _check_line_ends(source)

    def unknown(self, vocabulary: Vocabulary) -> str:
        """The characters that `vocabulary` lacks, sorted, as `vocabulary.extended` takes them."""
        return "".join(sorted({c for source in self.sources.values() for c in source.unknown(vocabulary)}))

    def corpus(
        self,
        vocabulary: Vocabulary | None = None,
        *,
        split: tuple[float, float, float] | None = None,
        whole: bool = False,
        spread: bool = True,
    ) -> Corpus:
        """Encode the sources and cut them into splits.

        vocabulary: default: the characters of all sources, sorted. split: the shares of train, valid and test; default:
        those of the config. A source of its own is a split by itself: its share is ignored, and the other shares are
        rescaled to sum to 1. If lines are the unit, the shares are of the lines, and every line ends with a newline,
        see `whole_lines`; with labels, every line must have one. whole: all of the source is for training, in its own
        order. spread: see `split_lines`.

        VocabularyError for characters that the vocabulary lacks.
        """
        data, sources = self._data, list(self.sources.values())
        vocabulary = replace(vocabulary or vocabulary_of(sources), direction=data.direction)
        shares = {"train": 1.0} if whole else dict(zip(SPLITS, split or data.split, strict=True))
        shares = {
            name: share for name, share in shares.items() if name == "train" or (share and name not in self.sources)
        }
        splits: dict[str, npt.NDArray[Any]] = {}
        starts, labels = None, {}
        if data.unit == "line" and not whole:
            starts = {}
            for name, source in self.sources.items():
                own_shares = shares if name == "train" else {name: 1.0}
                lines, own_labels = _split_lines(source, vocabulary, own_shares, data.label_separator, spread)
                labels |= own_labels  # only the training text's are counted
                for each, (ids, line_starts) in lines.items():
                    splits[each], starts[each] = ids, line_starts
        else:
            splits = {name: encode(source, vocabulary) for name, source in self.sources.items()}
            splits |= zip(shares, cut(splits["train"], list(shares.values())), strict=True)
        digests = [source.sha256 for source in sources]
        return Corpus(
            vocabulary=vocabulary,
            splits={name: vocabulary.reversed_if_backward(splits[name]) for name in SPLITS if name in splits},
            sha256=digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest(),
            size_bytes=sum(source.size_bytes for source in sources),
            files=sum(len(source.paths) for source in sources),
            starts=starts,
            labels=labels,
            spread=spread,
        )


def load_corpus(
    data: DataConfig, vocabulary: Vocabulary | None = None, *, whole: bool = False, spread: bool = True
) -> Corpus:
    """Load the corpus of a config's `data` section, see `Text`."""
    return Text(data).corpus(vocabulary, whole=whole, spread=spread)


def load_unchanged_corpus(data: DataConfig, vocabulary: Vocabulary, progress: Mapping[str, Any]) -> Corpus:
    """Load the corpus that a run with this progress was trained on; DataError if its text has changed."""
    changed = DataError(
        f"{data.source}: the text has changed since the run was trained, and so have its splits; allowed: the same "
        "text; train on a new text with --init-from, score one with --file"
    )
    try:
        # Runs of older versions have split their lines by hashes alone.
        corpus = load_corpus(data, vocabulary, spread=progress.get("spread") is True)
    except VocabularyError:
        raise changed from None
    if corpus.sha256 != progress.get("corpus_sha256"):
        raise changed
    return corpus


def begin_of(unit: Unit, vocabulary: Vocabulary) -> int | None:
    """The id that begins a sample of its own, see `CharLM.begins`: a newline if lines are the unit."""
    return int(vocabulary.encode(NEWLINE)[0]) if unit == "line" else None


def encode_file(
    path: str | Path, vocabulary: Vocabulary, *, skip_unknown: bool = False, unit: Unit = "text"
) -> tuple[Ids, dict[str, int]]:
    """Encode the text of `path` (any source); also return how often each unknown character was skipped.

    For the unit see `whole_lines`. Without `skip_unknown`, an unknown character is a VocabularyError.
    """
    source = count_source(str(path), vocabulary.level, unit)
    try:
        ids = encode(source, vocabulary, skip_unknown=skip_unknown)
    except VocabularyError as error:
        raise VocabularyError(f"{error}; --skip-unknown leaves them out") from None
    return vocabulary.reversed_if_backward(ids), source.unknown(vocabulary)


def _check_line_ends(source: CountedSource) -> None:
    """DataError if no file has a line end but its last, and carriage returns instead."""
    returns, newlines = source.count("\r"), source.count("\n")
    if returns > newlines <= len(source.paths):
        name = shlex.quote(str(source.paths[0]))
        raise DataError(
            f"{source.source}: found no newline, and {counted(returns, 'carriage return')}, which ended lines on old "
            f"Macs; allowed: lines that end with a newline; convert it: tr '\\r' '\\n' < {name} > lines.txt"
        )


def _split_lines(
    source: CountedSource, vocabulary: Vocabulary, shares: dict[str, float], separator: str | None, spread: bool
) -> tuple[dict[str, Lines], Labels]:
    """The lines of a source in splits, and the labels of its train split, which are counted in the same pass.

    The starts are those of the direction in which the model reads; the ids are in the order of the text.
    """
    key = f"{source.cache_key}-{short_digest(vocabulary.to_json(), shares, spread)}"
    labels_key = f"{key}-labels-{short_digest(separator)}"
    labels = {} if separator is None else find_labels(labels_key)
    splits = None if labels is None else find_splits(key, shares)
    if labels is None or splits is None:
        counter = None if separator is None else LabelCounter(separator, vocabulary, source.source)
        ids = encode(source, vocabulary)
        sees = counter and counter.see
        splits = split_lines(ids, vocabulary, shares, key=key, source=source.source, sees=sees, spread=spread)
        labels = counter.labels() if counter else {}
        if counter:
            store_labels(labels_key, labels)
    if vocabulary.backward:
        splits = {
            name: (ids, backward_starts(ids, starts, key=f"{key}-{name}-backward"))
            for name, (ids, starts) in splits.items()
        }
    return splits, labels


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


def encode(source: CountedSource, vocabulary: Vocabulary, *, skip_unknown: bool = False) -> Ids:
    """The ids of a source in its own order, [N] memory-mapped; unknown characters are skipped or refused."""
    if source.level != vocabulary.level:
        raise VocabularyError(
            f"{source.source}: read at data.level: {source.level}; the model's vocabulary is of level "
            f"{vocabulary.level}; set data.level: {vocabulary.level}"
        )
    unknown = source.unknown(vocabulary)
    if unknown and not skip_unknown:
        raise _lacking(source, unknown, vocabulary)
    length = source.length - sum(unknown.values())
    if not length:
        raise DataError(f"{source.source}: none of its characters is in the model's vocabulary; use other text")

    key = f"{source.cache_key}-{short_digest(vocabulary.to_json())}"
    ids = find_entry(key)
    if ids is None:
        name = source.source
        say("data", f"{name}: encoding {counted(length, 'character')} over a vocabulary of {len(vocabulary):,}")
        blocks = Progress(length, f"{name}: encoding").of(_encoded(source, vocabulary, skipping=bool(unknown)))
        ids = store_entry(key, vocabulary.dtype, blocks)
    return ids


def _encoded(source: CountedSource, vocabulary: Vocabulary, *, skipping: bool) -> Iterator[Ids]:
    """Yield the ids of the text in chunks, without unknown characters."""
    ids_of = np.arange(256) if source.level == "byte" else vocabulary.id_of_code_point
    narrow = ids_of.astype(vocabulary.dtype)
    for symbols in source.read():
        if skipping:
            symbols = symbols[ids_of[symbols] != UNKNOWN]
        yield narrow.take(symbols)


def _lacking(source: CountedSource, unknown: dict[str, int], vocabulary: Vocabulary) -> VocabularyError:
    shown = [f"{describe_characters([character])} × {count:,}" for character, count in list(unknown.items())[:8]]
    more = f" and {len(unknown) - len(shown)} more" if len(unknown) > len(shown) else ""
    return VocabularyError(
        f"{source.source}: {', '.join(shown)}{more}: not in the model's vocabulary of "
        f"{counted(len(vocabulary), 'character')}; use text without them or a model that knows them"
        f"{vocabulary.advice(unknown)}"
    )
