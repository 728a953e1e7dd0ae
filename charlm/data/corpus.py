"""A corpus: text files as ids in a memory-mapped array, cut into splits.

count     SHA-256, and how often each character occurs (`counting`) → the vocabulary
encode    the text again, in chunks → ids of the narrowest type, into the cache
cut       views of the ids, or their records in files of their own
"""

import contextlib
import functools
import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from charlm.config.schema import DataConfig
from charlm.data.cache import cached
from charlm.data.counting import CountedSource, say_other_form, short_digest
from charlm.data.encoded import EncodedText
from charlm.data.reading import arriving, is_pipe, text_name
from charlm.data.records import end_id, end_of_record, read_symbols, record_starts, text_in_training
from charlm.data.sources import is_gone
from charlm.data.splits import Shares, record_splits, stretch_count, text_splits
from charlm.data.time_order import are_in_order
from charlm.data.vocabulary import OTHER, Ids, Vocabulary
from charlm.errors import DataError, VocabularyError
from charlm.runs import TEXT
from charlm.system.console import say
from charlm.system.formatting import counted, format_share, source_name

SPLITS = ("train", "valid", "test")
_FREQUENCY_CHARS, _ORDER_CHARS, _PIECES = 2_000_000, 500_000, 8
"""How much of the text tells the frequencies of its characters, and the order of its records; from how many places."""
_USES = {"train": "training", "valid": "validation", "test": "test"}


@dataclass(frozen=True)
class Corpus:
    """Everything that training reads."""

    vocabulary: Vocabulary
    splits: dict[str, Ids]
    """"train", "valid", "test" → ids [N], memory-mapped, read-only; splits of share 0 are absent.

    Of records, a split is the end of a record and then its records, see `record_splits`.
    """
    sha256: str
    """The digest of the source; with a valid or test source, of the joined digests of all sources."""
    size_bytes: int
    files: int
    starts: dict[str, Ids] | None = None
    """Where each record of a split starts; None for running text."""
    cut: str = ""
    """How the splits were cut, in words, if not a text in order or records by a hash."""
    names: Mapping[str, str] = field(default_factory=dict)
    """What people call each split: "last 4.7% of plays.txt"."""
    symbols_per_char: float = 1.0
    """Bytes of a character in the training text, at level byte; else 1."""

    @functools.cached_property
    def texts(self) -> dict[str, EncodedText]:
        """The splits as they are scored."""
        named = {split: self.names.get(split, split) for split in self.splits}
        return {split: EncodedText(self.splits[split], self.vocabulary, name) for split, name in named.items()}

    def frequencies(self) -> npt.NDArray[np.float64]:
        """How likely each character is in new text, [V]: by its share in a sample, and a tenth the same for all."""
        ids = sample(self.splits["train"], _FREQUENCY_CHARS).ravel()
        shares = np.bincount(ids, minlength=len(self.vocabulary)) / max(ids.size, 1)
        return 0.9 * shares + 0.1 / len(self.vocabulary)


def sample(ids: Ids, chars: int) -> Ids:
    """Pieces of equal length from all over the text, [piece, character]; of a small one, all but a few characters."""
    length = min(len(ids), chars) // _PIECES
    starts = np.linspace(0, len(ids) - length, _PIECES).astype(int)
    return np.stack([ids[start : start + length] for start in starts])


def _sample_records(ids: Ids, vocabulary: Vocabulary, end: str) -> list[str]:
    """Whole records from all over the text; of a small one all."""
    if len(ids) <= _ORDER_CHARS:
        return vocabulary.decode(ids).split(end)
    pieces = [vocabulary.decode(piece) for piece in sample(ids, _ORDER_CHARS)]
    return [record for piece in pieces for record in piece.split(end)[1:-1]]


class CountedSources:
    """The sources of a config's `data` section, found and counted once; DataError if they cannot be used."""

    def __init__(self, data: DataConfig) -> None:
        named = {"train": data.source, "valid": data.valid_source, "test": data.test_source}
        self._data = data
        self._in_forms: dict[Vocabulary, dict[str, CountedSource]] = {}
        self.sources: dict[str, CountedSource] = {}
        """"train", and "valid" and "test" if these splits have texts of their own."""
        for name, source in named.items():
            if source is not None:
                self.sources[name] = CountedSource(source, data.level, data.records)
        self.sources["train"].check_separated()

    def unknown(self, vocabulary: Vocabulary) -> str:
        """The characters that `vocabulary` lacks, sorted, as `vocabulary.extended` takes them."""
        sources = self._in_forms_of(vocabulary).values()
        return "".join(sorted({c for source in sources for c in source.unknown(vocabulary)}))

    def _in_forms_of(self, vocabulary: Vocabulary) -> dict[str, CountedSource]:
        if vocabulary not in self._in_forms:
            of_split = {name: source.in_forms_of(vocabulary) for name, source in self.sources.items()}
            self._in_forms[vocabulary] = of_split
        return self._in_forms[vocabulary]

    def corpus(
        self,
        vocabulary: Vocabulary | None = None,
        *,
        split: tuple[float, float, float] | None = None,
        whole: bool = False,
    ) -> Corpus:
        """Encode the sources and cut them into splits; VocabularyError for characters that the vocabulary lacks.

        vocabulary: None: all characters of the sources, sorted. split: the shares of train, valid and test; None: the
        config's. A source of its own is a whole split, and the other shares are rescaled to sum to 1. whole: use all of
        the text for training, in order.
        """
        data = self._data
        if vocabulary is None:
            vocabulary = vocabulary_of(*self.sources.values(), min_count=data.min_count)
        sources = self._in_forms_of(vocabulary)
        shares = {"train": 1.0}
        if not whole:
            named = zip(SPLITS, split or data.split, strict=True)
            shares = {name: share for name, share in named if name == "train" or (share and name not in sources)}
        splits: dict[str, Ids] = {}
        names: dict[str, str] = {}
        starts = {} if data.records and not whole else None
        cut = ""
        for name, source in sources.items():
            own_shares = shares if name == "train" else {name: 1.0}
            ids = encode(source, vocabulary)
            key = f"{source.cache_key}-{short_digest(vocabulary.to_json(), own_shares)}"
            how = cutting(source, vocabulary, own_shares, ids)
            cut = cut or how
            names |= split_names(source, own_shares, is_in_order=not how and starts is None)
            if starts is None:
                splits |= text_splits(ids, source, own_shares, key=key)
                continue
            end = end_id(vocabulary, data.records)
            of_records = record_splits(ids, source, vocabulary, own_shares, is_log=bool(how), key=key)
            for part, own in of_records.items():
                splits[part], starts[part] = own, record_starts(own, end, f"{key}-{part}")
        digests = [source.digest for source in sources.values()]
        if len(digests) > 1:
            digests = [hashlib.sha256("".join(digests).encode()).hexdigest()]
        return Corpus(
            vocabulary=vocabulary,
            splits={name: splits[name] for name in SPLITS if name in splits},
            sha256=digests[0],
            size_bytes=sum(sum(source.sizes) for source in sources.values()),
            files=sum(len(source.paths) for source in sources.values()),
            starts=starts,
            cut=cut,
            names=names,
            symbols_per_char=sources["train"].length / sources["train"].chars,
        )


def vocabulary_of(*sources: CountedSource, min_count: int = 1) -> Vocabulary:
    """The characters of the sources, sorted. OTHER stands for those that occur fewer than min_count times, if any."""
    if sources[0].level == "byte":
        return Vocabulary("byte")
    counts: Counter[str] = Counter()
    for source in sources:
        counts += source.counts
    end = end_of_record(sources[0].separator)
    kept = {character for character, count in counts.items() if count >= min_count or character == end}
    if len(kept) < 2 <= len(counts):
        raise DataError(f"data.min_count: found {min_count}, with which no two characters are left; allowed: fewer")
    other = "" if len(kept) == len(counts) else OTHER
    return Vocabulary("char", "".join(sorted({*kept, *other})), other)


def cutting(source: CountedSource, vocabulary: Vocabulary, shares: Shares, ids: Ids | None = None) -> str:
    """How a source is cut, in words; "" for a text in order, and for records by a hash. ids: its own, if at hand."""
    scored = " and ".join([*shares][1:])
    if not scored:
        return ""
    if not source.separator:
        stretches = stretch_count(source, shares)
        return f"{scored} from {stretches} evenly spaced places" if stretches > 1 else ""
    if ids is None:
        ids = encode(source, vocabulary)
    if not are_in_order(_sample_records(ids, vocabulary, end_of_record(source.separator))):
        return ""
    where = "each file" if sum(map(bool, source.lengths)) > 1 else "the text"
    return f"{scored} from the end of {where} and not by a hash, as its records begin with increasing times or numbers"


def split_names(source: CountedSource, shares: Shares, *, is_in_order: bool) -> dict[str, str]:
    """What people call each split of a source. is_in_order: whether each split is one piece, in the order of shares."""
    called = source_name(source.source)
    if len(shares) == 1:
        return dict.fromkeys(shares, called)
    names = {}
    first, *_, last = shares
    left = total = sum(shares.values())
    for split, share in shares.items():
        left -= share
        part = format_share(share / total)
        if not is_in_order:
            where = "of the records of" if source.separator else "of"
            names[split] = f"{part} {where} {called}, for {_USES[split]}"
        elif split == first:
            names[split] = f"first {part} of {called}"
        elif split == last:
            names[split] = f"last {part} of {called}"
        else:
            names[split] = f"{part} of {called} before the last {format_share(left / total)}"
    return names


def load_unchanged_corpus(
    data: DataConfig, vocabulary: Vocabulary, progress: Mapping[str, Any], run_dir: Path | None = None
) -> Corpus:
    """The corpus that a run with this progress was trained on; DataError if its text has changed or is gone.

    run_dir: the folder of the run, which may have been moved with the text of a pipe.
    """
    if run_dir and is_gone(data.source) and Path(data.source).name == TEXT and (run_dir / TEXT).exists():
        data = data.model_copy(update={"source": str(run_dir / TEXT)})
    for key in ("source", "valid_source", "test_source"):
        if (source := getattr(data, key)) and is_gone(source):
            allowed = "allowed: the run's text; put it back, or give its new path once"
            command = f"charlm train --resume --run-dir RUN --set data.{key}=PATH"
            raise DataError(f"{source}: no such file or folder; {allowed}: {command}")
    with contextlib.suppress(VocabularyError):  # a changed text may have other characters
        corpus = CountedSources(data).corpus(vocabulary)
        if corpus.sha256 == progress.get("corpus_sha256"):
            return corpus
    fault = "the text has changed since training, and so have its splits"
    advice = "train on the new text with --init-from, or score it with --file"
    raise DataError(f"{data.source}: {fault}; allowed: the same text; {advice}")


def encode_file(
    path: str | Path, vocabulary: Vocabulary, *, skip_unknown: bool, separator: str
) -> tuple[Ids, dict[str, int]]:
    """The ids of any source, or of a pipe, and how often each unknown character was skipped.

    Unknown letters are read in a Unicode form that the model knows, see `Vocabulary.canonical`. VocabularyError for
    unknown characters unless they are skipped.
    """
    path = str(path)
    name = text_name(path)
    paths = [path]
    if not is_pipe(path):
        source = CountedSource(path, vocabulary.level, separator)
        if not vocabulary.without_own_id(source.counts):
            return encode(source, vocabulary), {}
        paths = [*map(str, source.paths)]
    given = "".join(text_in_training(arriving(each), vocabulary.level, separator, text_name(each)) for each in paths)
    text = vocabulary.canonical(given)
    if text != given:
        say_other_form(name)
    lacking = set(vocabulary.unknown(text))
    unknown = dict(Counter(character for character in text if character in lacking))
    if unknown and not skip_unknown:
        raise vocabulary.unknown_error(unknown, name, "; --skip-unknown leaves them out")
    known = text.translate(dict.fromkeys(map(ord, unknown)))
    if not known:
        raise DataError(f"{name}: none of its characters is in the model's vocabulary; use other text")
    return vocabulary.encode(known), unknown


def encode(source: CountedSource, vocabulary: Vocabulary) -> Ids:
    """The ids of a source in its own order, [N] memory-mapped; VocabularyError for unknown characters."""
    if source.level != vocabulary.level:
        fault = f"read at data.level: {source.level}; the model's vocabulary is of level {vocabulary.level}"
        raise VocabularyError(f"{source.source}: {fault}; set data.level: {vocabulary.level}")
    if unknown := source.unknown(vocabulary):
        ways_out = "; use text without others or a model that knows them"
        raise vocabulary.unknown_error(unknown, source.source, ways_out)
    key = f"{source.cache_key}-{short_digest(vocabulary.to_json())}"
    return cached(key, vocabulary.dtype, _encoded(source, vocabulary))


def _encoded(source: CountedSource, vocabulary: Vocabulary) -> Iterator[Ids]:
    """Yield the ids of the text in chunks; DataError if the files have changed."""
    count = counted(source.length, vocabulary.unit)
    say("data", f"{source.source}: encoding {count} over a vocabulary of {len(vocabulary):,}")
    ids_of = np.arange(256) if source.level == "byte" else vocabulary.id_of_code_point
    narrow = ids_of.astype(vocabulary.dtype)
    hasher = hashlib.sha256()
    for path in source.paths:
        for symbols in read_symbols(path, source.level, source.separator, hasher.update, source.vocabulary):
            yield narrow.take(symbols)
    if hasher.hexdigest() != source.sha256:
        raise DataError(
            f"{source.source}: changed while being read; a source must not change; run again when it is complete"
        )
