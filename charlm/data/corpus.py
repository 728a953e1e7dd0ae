"""A corpus: text files → ids in a memory-mapped array, in streaming passes, cached by content.

    hash      SHA-256 of the bytes, only where the cache may know the text
    survey    SHA-256, and how often each character occurs → the vocabulary; the characters → a draft
    encode    the draft, or where there is none the text again → ids of the narrowest type, into the cache

Neither text nor ids are ever whole in memory. A cached corpus costs the hash pass alone. Hashing and
writing go on in the background; decoding, the slowest part, is done once.
"""

import hashlib
import io
import itertools
import json
import os
import secrets
import zlib
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from charlm.config.schema import DataConfig
from charlm.data.sources import (
    Draft,
    Symbols,
    changed,
    file_sizes,
    in_background,
    read_symbols,
    resolve,
    sha256_of,
)
from charlm.data.vocabulary import CODE_POINTS, UNKNOWN, Level, Vocabulary, describe_characters
from charlm.errors import DataError, VocabularyError
from charlm.native.utf8 import Decode, decoder
from charlm.system.cache import cache_dir, remove_leftovers
from charlm.system.console import say
from charlm.system.formatting import format_bytes

Ids = npt.NDArray[np.unsignedinteger[Any]]

FORMAT = 1  # part of every cache key: raise it when what a cached file holds changes its meaning
SPLITS = ("train", "valid", "test")


@dataclass(frozen=True)
class Survey:
    """What one pass over a source finds; `symbols` are code points, or bytes at level byte."""

    source: str
    paths: list[Path]
    level: Level
    size_bytes: int
    sha256: str
    """Of the bytes of all files, one after another."""
    cache_key: str
    symbols: npt.NDArray[np.int64]
    """Those that occur, sorted."""
    counts: npt.NDArray[np.int64]
    """Occurrences of each of the `symbols`."""
    draft: Draft | None = None
    """The text, if it had to be decoded and was kept."""

    @property
    def length(self) -> int:
        """Characters (or bytes) of the text."""
        return int(self.counts.sum())

    def unknown(self, vocabulary: Vocabulary) -> dict[str, int]:
        """Occurrences of each character that `vocabulary` lacks, the most frequent first."""
        if self.level == "byte":
            return {}
        lacking = vocabulary.id_of_code_point[self.symbols] == UNKNOWN
        found = zip(self.symbols[lacking].tolist(), self.counts[lacking].tolist(), strict=True)
        return {chr(code): count for code, count in sorted(found, key=lambda pair: (-pair[1], pair[0]))}


@dataclass(frozen=True)
class Corpus:
    """Everything that training reads."""

    vocabulary: Vocabulary
    splits: dict[str, Ids]
    """"train", "valid", "test" → ids [N], memory-mapped, read-only; a split of fraction 0 is absent."""
    sha256: str
    """Of the source's bytes; with a valid or test source, of the sources' digests joined."""
    size_bytes: int
    files: int


def load_corpus(
    source: str,
    *,
    level: Level,
    split: tuple[float, float, float],
    valid_source: str | None = None,
    test_source: str | None = None,
    vocabulary: Vocabulary | None = None,
) -> Corpus:
    """Encode the sources and cut them into splits.

    `split` holds the fractions of train, valid and test. With a `valid_source` or `test_source`
    that split is the whole of that source, its fraction is ignored, and the remaining fractions are
    rescaled to sum to 1. Without a `vocabulary` it is the characters of all sources, sorted.

    Raises DataError for text that cannot be used, VocabularyError for characters that a given
    vocabulary lacks.
    """
    named = {"train": source, "valid": valid_source, "test": test_source}
    with ExitStack() as drafts:
        surveys = {name: survey_source(text, level, drafts) for name, text in named.items() if text is not None}
        if vocabulary is None:
            vocabulary = vocabulary_of(list(surveys.values()))
        texts = {name: encode(survey, vocabulary) for name, survey in surveys.items()}

    shares = {name: share for name, share in zip(SPLITS, split, strict=True) if name == "train" or name not in texts}
    parts = cut(texts["train"], list(shares.values()))
    splits = texts | dict(zip(shares, parts, strict=True))
    digests = [survey.sha256 for survey in surveys.values()]
    return Corpus(
        vocabulary=vocabulary,
        splits={name: splits[name] for name in SPLITS if shares.get(name) != 0},
        sha256=digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest(),
        size_bytes=sum(survey.size_bytes for survey in surveys.values()),
        files=sum(len(survey.paths) for survey in surveys.values()),
    )


def load_configured_corpus(data: DataConfig, vocabulary: Vocabulary | None = None) -> Corpus:
    """The corpus that the `data` section of a config names."""
    return load_corpus(
        data.source,
        level=data.level,
        split=data.split,
        valid_source=data.valid_source,
        test_source=data.test_source,
        vocabulary=vocabulary,
    )


def load_unchanged_corpus(data: DataConfig, vocabulary: Vocabulary, sha256: object) -> Corpus:
    """The corpus that a run was trained on; DataError where its text is another one by now."""
    changed = DataError(
        f"{data.source}: its text has changed since the run was trained, and its splits with it; allowed: the same "
        "text; train on a new one with --init-from, score one with --file"
    )
    try:
        corpus = load_configured_corpus(data, vocabulary)
    except VocabularyError:
        raise changed from None
    if corpus.sha256 != sha256:
        raise changed
    return corpus


def encode_file(path: str | Path, vocabulary: Vocabulary, *, skip_unknown: bool = False) -> tuple[Ids, dict[str, int]]:
    """The ids of the text of `path` (any source), and how often each character was skipped.

    Without `skip_unknown` a character that the vocabulary lacks is a VocabularyError.
    """
    with ExitStack() as drafts:
        survey = survey_source(str(path), vocabulary.level, drafts)
        ids = encode(survey, vocabulary, skip_unknown=skip_unknown)
    return ids, survey.unknown(vocabulary)


def unknown_characters(sources: Iterable[str], vocabulary: Vocabulary) -> str:
    """The characters of all `sources` that `vocabulary` lacks, sorted: what `vocabulary.extended` takes."""
    surveys = [survey_source(source, vocabulary.level) for source in sources]
    return "".join(sorted({character for survey in surveys for character in survey.unknown(vocabulary)}))


def vocabulary_of(surveys: Sequence[Survey]) -> Vocabulary:
    """All 256 bytes, or the characters of all surveyed texts, sorted."""
    if surveys[0].level == "byte":
        return Vocabulary.of_bytes()
    return Vocabulary.of_code_points(np.unique(np.concatenate([survey.symbols for survey in surveys])))


def cut(ids: Ids, shares: Sequence[float]) -> list[Ids]:
    """Contiguous parts of `ids` in proportion to `shares`, as views.

    Part k ends at floor(N · (share_0 + … + share_k) / (sum of all shares)), in exact fractions of
    the decimals as written: 0.9 is 9/10, and the last part ends at N.
    """
    exact = [Fraction(str(float(share))) for share in shares]
    total = sum(exact)
    assert min(exact) >= 0 < total, f"shares of a split: {shares}"
    ends = [int(len(ids) * running / total) for running in itertools.accumulate(exact)]
    return [ids[start:end] for start, end in itertools.pairwise([0, *ends])]


def survey_source(source: str, level: Level, drafts: ExitStack | None = None) -> Survey:
    """Size, digest and character counts of a source; DataError if it has no text or is not UTF-8.

    With `drafts`, which closes it, a text that has to be decoded for this is kept for `encode`.
    """
    paths = resolve(source)
    sizes = file_sizes(paths)
    # The borders between files are part of the key: they decide where a byte order mark is dropped.
    layout = _short_digest(FORMAT, level, sizes)
    if any(Path(cache_dir(), "corpora").glob(f"{layout}-*.npy")):
        sha256 = sha256_of(paths)
        key = f"{layout}-{sha256}"
        table = _cached(key)
        if table is not None:
            return Survey(source, paths, level, sum(sizes), sha256, key, *np.array(table))

    say("data", f"{source}: reading {format_bytes(sum(sizes))} in {len(paths):,} file{'s' * (len(paths) > 1)}")
    draft = None
    with _in_cache() as folder:
        if drafts is not None and level == "char":
            draft = drafts.enter_context(closing(Draft(folder)))
        sha256, counts = _surveyed(paths, level, decoder(sum(sizes)), draft)
    symbols = np.flatnonzero(counts)
    if not len(symbols):
        raise DataError(f"{source}: no text in {format_bytes(sum(sizes))}; at least one character is needed; add text")
    table = np.stack([symbols, counts[symbols]])
    key = f"{layout}-{sha256}"
    _store(key, table.shape, table.dtype, [table])
    return Survey(source, paths, level, sum(sizes), sha256, key, *table, draft=draft)


def _surveyed(
    paths: Iterable[Path], level: Level, decode: Decode, draft: Draft | None
) -> tuple[str, npt.NDArray[np.int64]]:
    """SHA-256 of the bytes, and occurrences of every code point (or byte); the text goes into `draft`."""
    # Once a block of this size was freed, glibc keeps smaller ones for the next chunk instead of giving
    # them back to the system and faulting them in anew: that took a quarter of the time.
    np.empty(1 << 24, np.uint8)
    hasher = hashlib.sha256()
    counts = np.zeros(CODE_POINTS, np.int64)
    # Bytes are counted two at a time, which is nearly twice as fast: pairs[a, b] of a next to b.
    pairs = np.zeros((256, 256), np.int64)

    def count(symbols: Symbols) -> None:
        if symbols.dtype == np.uint8 and len(symbols) >= pairs.size and len(symbols) % 2 == 0:
            pairs[:] += np.bincount(symbols.view(np.uint16), minlength=pairs.size).reshape(pairs.shape)
        else:
            found = np.bincount(symbols)
            counts[: len(found)] += found

    with in_background() as hash_later, in_background() as keep_later, in_background() as count_later:
        for path in paths:
            for symbols in read_symbols(path, level, partial(hash_later, hasher.update), decode):
                if draft:
                    keep_later(draft.append, symbols)
                count_later(count, symbols)
    counts[:256] += pairs.sum(0) + pairs.sum(1)
    return hasher.hexdigest(), counts


def encode(survey: Survey, vocabulary: Vocabulary, *, skip_unknown: bool = False) -> Ids:
    """The ids of a surveyed text, [N] memory-mapped; characters without one are skipped or refused."""
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

    key = f"{survey.cache_key}-{_short_digest(vocabulary.to_json())}"
    ids = _cached(key)
    if ids is not None:
        return ids
    say("data", f"{survey.source}: encoding {length:,} characters over a vocabulary of {len(vocabulary):,}")
    with closing(_encoded(survey, vocabulary)) as blocks:
        return _store(key, (length,), vocabulary.dtype, blocks)


def _symbols_again(survey: Survey) -> Iterator[Symbols]:
    """The surveyed text in chunks, read anew; DataError if it is no longer what was surveyed."""
    hasher = hashlib.sha256()
    decode = decoder(survey.size_bytes)
    with in_background() as later:
        for path in survey.paths:
            yield from read_symbols(path, survey.level, partial(later, hasher.update), decode)
    if hasher.hexdigest() != survey.sha256:
        raise changed(survey.source)


def _encoded(survey: Survey, vocabulary: Vocabulary) -> Generator[Ids]:
    """The text's ids in chunks, unknown characters left out; DataError if it is no longer what was surveyed."""
    ids_of = np.arange(256) if survey.level == "byte" else vocabulary.id_of_code_point
    narrow = ids_of.astype(vocabulary.dtype)
    skipping = bool(survey.unknown(vocabulary))
    for symbols in survey.draft.read() if survey.draft else _symbols_again(survey):
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


def _cached(key: str) -> npt.NDArray[Any] | None:
    """The array of a cache entry, memory-mapped; None if it is missing or its checksum is not the noted one."""
    path = cache_dir() / "corpora" / f"{key}.npy"
    try:
        noted = json.loads(path.with_suffix(".json").read_bytes())
        checksum = 0
        with path.open("rb", buffering=0) as file:
            while chunk := file.read(1 << 20):
                checksum = zlib.crc32(chunk, checksum)
        return np.lib.format.open_memmap(path, mode="r") if noted == {"crc32": checksum} else None
    except (OSError, ValueError, RecursionError):
        return None


def _store(key: str, shape: tuple[int, ...], dtype: np.dtype, blocks: Iterable[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Write a cache entry, an .npy file and its checksum, and map it.

    Written as a stream, not through a memory map: a full disk is then an OSError, not a SIGBUS.
    """
    header = io.BytesIO()
    fields = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(header, fields)
    path = cache_dir() / "corpora" / f"{key}.npy"
    remove_leftovers(path.parent, ".*.tmp", _WRITING_S)
    checksum = 0

    def append(file: BinaryIO, data: bytes | memoryview) -> None:
        nonlocal checksum
        file.write(data)
        checksum = zlib.crc32(data, checksum)

    with _replacing(path) as file, in_background() as later:
        for data in itertools.chain([header.getvalue()], (block.data for block in blocks)):
            later(append, file, data)
    with _replacing(path.with_suffix(".json")) as file:
        file.write(json.dumps({"crc32": checksum}).encode())
    return np.lib.format.open_memmap(path, mode="r")


_WRITING_S = 3600
"""An encoding that goes on writes far more often."""


@contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    """A new file that takes the place of `path` in one step, once the block has ended without an error."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    with _in_cache():
        try:
            with temporary.open("xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


@contextmanager
def _in_cache() -> Iterator[Path]:
    """The folder of the encoded texts, made if need be; an OSError of the block becomes a DataError."""
    folder = cache_dir() / "corpora"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
    except OSError as error:
        raise DataError(
            f"{folder}: the cache cannot be written: {error.strerror}; any folder with room will do; "
            "name one in CHARLM_CACHE"
        ) from error


def _short_digest(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
