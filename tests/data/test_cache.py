"""What stays between runs: found again, rebuilt when damaged, never half written."""

import os
import time
from pathlib import Path

import numpy as np
import pytest

from charlm.data.corpus import Corpus
from charlm.data.vocabulary import Vocabulary
from charlm.system.cache import BOUNDS
from tests.corpora import load_corpus

TEXT = "abcé中😀" * 500


def load(path: str, **options) -> Corpus:
    return load_corpus(path, split=(1.0, 0.0, 0.0), **options)


def ids_of(corpus: Corpus) -> list[int]:
    return corpus.splits["train"].tolist()


@pytest.fixture
def encodings(capsys):
    """How many texts were encoded since the last call."""
    return lambda: capsys.readouterr().err.count(": encoding ")


def entries(cache: Path) -> list[Path]:
    return sorted((cache / "corpora").iterdir())


def test_a_cached_text_is_not_encoded_again(write, encodings):
    path = write("text", TEXT)
    first = load(path)
    assert encodings() == 1
    assert isinstance(first.splits["train"], np.memmap)
    assert not first.splits["train"].flags.writeable
    for again in (load(path), load(write("renamed", TEXT))):
        assert again.vocabulary == first.vocabulary
        assert ids_of(again) == ids_of(first) == first.vocabulary.encode(TEXT).tolist()
        assert (again.sha256, again.size_bytes, again.files) == (first.sha256, first.size_bytes, first.files)
    assert encodings() == 0


def test_another_text_level_or_vocabulary_is_another_entry(write):
    path = write("text", TEXT)
    assert load(path).vocabulary.decode(ids_of(load(path))) == TEXT
    backwards = Vocabulary("char", "".join(sorted(set(TEXT), reverse=True)))
    assert backwards.decode(ids_of(load(path, vocabulary=backwards))) == TEXT
    assert bytes(load(path, level="byte").splits["train"]).decode() == TEXT
    write("text", TEXT[::-1])  # of the same size, in the same place
    assert load(path).vocabulary.decode(ids_of(load(path))) == TEXT[::-1]


def cut_off(entry: Path) -> None:
    entry.write_bytes(entry.read_bytes()[:-100])


def flip_a_byte(entry: Path) -> None:
    data = entry.read_bytes()
    entry.write_bytes(data[:50] + b"\xff" + data[51:])


@pytest.mark.parametrize("change", [Path.unlink, cut_off, flip_a_byte, lambda entry: entry.chmod(0o666)])
def test_an_entry_that_is_gone_damaged_or_not_safe_is_made_anew(change, write, cache, encodings):
    path = write("text", TEXT)
    expected = ids_of(load(path))
    [entry] = entries(cache)
    change(entry)
    encodings()
    assert ids_of(load(path)) == expected
    assert encodings() == 1
    assert entries(cache) == [entry]
    assert entry.stat().st_mode & 0o777 == 0o600


def test_above_its_bound_the_cache_loses_what_was_not_used_for_the_longest_time(cache, monkeypatch, write, encodings):
    monkeypatch.setitem(BOUNDS, "corpora", 8_000)  # room for two texts
    a, b, c = (write(f"text {letter}", letter * length) for letter, length in (("a", 2500), ("b", 3000), ("c", 3000)))
    for hours, path in ((9, a), (8, b), (7, a), (0, c)):
        load(path)
        for entry in entries(cache):
            if entry.stat().st_mtime > time.time() - 1800:  # used just now
                os.utime(entry, (time.time() - hours * 3600,) * 2)
    encodings()
    for path, expected in ((a, 0), (c, 0), (b, 1)):
        load(path)
        assert encodings() == expected
