"""Text to ids and splits: exact characters, nothing lost."""

import bz2
import gzip
import hashlib
import io
import lzma
import os
import re
import tarfile
import unicodedata
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from charlm.config.schema import DataConfig
from charlm.data import reading
from charlm.data.corpus import Corpus, CountedSources, encode
from charlm.data.counting import CountedSource
from charlm.data.splits import cuts
from charlm.data.vocabulary import Vocabulary
from charlm.errors import DataError, VocabularyError
from tests.corpora import load_corpus
from tests.text import words_text

WHOLE = (1.0, 0.0, 0.0)
BOM = "\ufeff"


def texts_of(corpus: Corpus) -> dict[str, str]:
    return {name: corpus.vocabulary.decode(ids) for name, ids in corpus.splits.items()}


def text_of(source: str, level="char") -> str:
    return texts_of(load_corpus(source, level=level, split=WHOLE))["train"]


letters = st.characters(exclude_categories=["Cs"])
characters = st.text(letters, min_size=1, max_size=40).filter(lambda text: text.strip(BOM))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=characters, chunk_bytes=st.integers(3, 9))
@example(text="aé中😀\x00\r\n\u2028\U0010ffff" * 20, chunk_bytes=3)  # every width, all line ends, first and last
def test_decoding_the_ids_gives_the_text(text, chunk_bytes, write, monkeypatch):
    monkeypatch.setattr(reading, "CHUNK_BYTES", chunk_bytes)
    path = write("text", BOM + text)
    corpus = load_corpus(path, split=WHOLE)
    assert texts_of(corpus) == {"train": text}
    source = CountedSource(path, "char")
    assert source.counts == Counter(text)
    assert corpus.sha256 == source.sha256 == hashlib.sha256((BOM + text).encode()).hexdigest()
    assert corpus.vocabulary.characters == "".join(sorted(set(text)))
    np.testing.assert_array_equal(corpus.splits["train"], corpus.vocabulary.encode(text))
    of_bytes = load_corpus(path, level="byte", split=WHOLE)
    assert bytes(of_bytes.splits["train"]) == (BOM + text).encode()
    assert len(of_bytes.vocabulary) == 256


def test_an_invalid_byte_is_named_with_its_line_and_read_at_level_byte(write):
    content = "é\n".encode() * 300_000 + b"\xed\xa0\x80"  # several chunks, then a surrogate
    path = write("text", content)
    with pytest.raises(DataError, match=f"{path}: line 300,001: byte 0xED "):
        CountedSource(path, "char")
    assert text_of(path, "byte") == content.decode("utf-8", "replace")


def test_files_are_joined_in_order_and_lose_their_byte_order_marks(write, tmp_path):
    """At a file's start only."""
    files = {"1": BOM + "a" + BOM + "b", "2/z": BOM, "3": "", "4": BOM + BOM + "c"}
    for name, content in files.items():
        write(f"marks/{name}", content)
    corpus = load_corpus(f"{tmp_path}/marks", split=WHOLE)
    assert texts_of(corpus) == {"train": f"a{BOM}b{BOM}c"}
    assert (corpus.files, corpus.size_bytes) == (4, len("".join(files.values()).encode()))
    assert text_of(f"{tmp_path}/marks/1", "byte") == f"{BOM}a{BOM}b"


def test_a_text_that_changes_is_refused(write):
    path = Path(write("text", "abc\n" * 100_000))
    before = path.stat()
    source = CountedSource(str(path), "char")
    path.write_text("cba\n" * 100_000)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # not even its time tells
    with pytest.raises(DataError):
        encode(source, Vocabulary("char", "\nabc"))


def test_a_given_vocabulary_keeps_its_ids_and_can_be_extended(write):
    text = CountedSources(DataConfig(source=write("1", "abca"), valid_source=write("2", "zéa"), split=WHOLE))
    vocabulary = Vocabulary("char", "ba")
    assert text.unknown(vocabulary) == "czé"
    corpus = text.corpus(vocabulary.extended("czé"))
    assert {name: ids.tolist() for name, ids in corpus.splits.items()} == {"train": [1, 0, 2, 1], "valid": [3, 4, 1]}
    assert text.unknown(corpus.vocabulary) == ""
    for other in (vocabulary, Vocabulary("byte")):
        with pytest.raises(VocabularyError):
            text.corpus(other)


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_a_text_is_read_in_the_unicode_form_of_the_vocabulary(write, monkeypatch, form):
    """Each of its letters is, wherever chunks end, except one that is unknown in both forms."""
    monkeypatch.setattr(reading, "CHUNK_BYTES", 3)
    text = "éu\u0308 각\u1100\u1161\u11a8e\u0301n\u0303\u0301"
    vocabulary = Vocabulary("char", "".join(sorted({*unicodedata.normalize(form, "éüeu 각")})))
    source = CountedSources(DataConfig(source=write("a", text), split=WHOLE))
    unknown = "n\u0303" if form == "NFD" else "n\u0301\u0303"
    assert source.unknown(vocabulary) == unknown
    expected = unicodedata.normalize(form, text[:-3]) + text[-3:]
    assert vocabulary.canonical(text) == expected
    with_other = Vocabulary("char", f"{vocabulary.characters}\ufffd", "\ufffd")
    assert texts_of(source.corpus(with_other)) == {"train": re.sub(f"[{unknown}]", "\ufffd", expected)}


@pytest.mark.parametrize(
    ("split", "others", "expected"),
    [
        ((0.8, 0.1, 0.1), {}, {"train": (0, 800), "valid": (800, 900), "test": (900, 1000)}),
        ((0.8, 0.1, 0.1), {"valid": "v" * 7}, {"train": (0, 888), "test": (888, 1000)}),
        (WHOLE, {"valid": "v" * 7, "test": "é" * 5}, {"train": (0, 1000)}),
    ],
)
def test_splits_are_in_order_and_a_source_of_its_own_is_a_whole_split(split, others, expected, write):
    """The share of a split with a source of its own is ignored, and the other shares are rescaled."""
    text = "".join(map(chr, range(0x100, 0x100 + 1000)))
    sources = {f"{name}_source": write(name, content) for name, content in others.items()}
    corpus = load_corpus(write("train", text), split=split, **sources)
    assert texts_of(corpus) == {name: text[begin:end] for name, (begin, end) in expected.items()} | others
    assert corpus.vocabulary.characters == "".join(sorted({*text, *"".join(others.values())}))
    assert corpus.files == 1 + len(others)


def test_several_files_are_cut_at_evenly_spaced_places(write, tmp_path):
    """Each file of much of the text is in each split, though files of two kinds alternate; one file is cut in order."""
    texts = {f"{number:02}": chr(0x4E00 + number) * 10_000 for number in range(64)} | {"a": "", "b": "b" * 5}
    for name, text in texts.items():
        write(f"several/{name}", text)
    several = load_corpus(f"{tmp_path}/several")
    splits = texts_of(several)
    joined = "".join(texts.values())
    places = [joined.index(character) for character in dict.fromkeys(splits["valid"])]
    assert len(places) >= 31
    assert np.diff(places).max() <= 30_000
    assert {place // 10_000 % 2 for place in places} == {0, 1}
    assert [len(text) / len(joined) for text in splits.values()] == pytest.approx([0.9, 0.05, 0.05], abs=1e-4)
    assert Counter("".join(splits.values())) == Counter(joined)
    assert several.cut == "valid and test from 31 evenly spaced places"

    alone = load_corpus(write("joined", joined))
    assert "".join(texts_of(alone).values()) == joined
    assert alone.sha256 == CountedSource(f"{tmp_path}/several", "char").sha256 != several.sha256


def test_of_a_few_files_pieces_are_long_enough_to_be_scored(write, tmp_path):
    """So a small folder is cut in order, as a file is."""
    for chars, places in ((70_000, 7), (9_000, 1)):
        for name in "ab":
            write(f"{chars}/{name}", name * (chars // 2))
        corpus = load_corpus(f"{tmp_path}/{chars}", split=(0.7, 0.2, 0.1))
        assert corpus.cut == ("" if places == 1 else f"valid and test from {places} evenly spaced places")
        assert corpus.names["test"].startswith("last 10%" if places == 1 else "10%")
        assert [len(ids) for ids in corpus.splits.values()] == [chars * 7 // 10, chars // 5, chars // 10]


@settings(deadline=None)
@given(
    lengths=st.lists(st.one_of(st.integers(0, 50), st.integers(0, 40_000)), min_size=1, max_size=300).filter(any),
    shares=st.sampled_from([(0.9, 0.05, 0.05), (0.99, 0.01), (0.2, 0.5, 0.3), (1.0,)]),
)
def test_the_shares_hold_for_any_files(lengths, shares):
    """Of each file, and of all of them, however short they are."""
    parts = np.diff(cuts(lengths, shares), axis=1)
    assert (parts >= 0).all()
    assert parts.sum(axis=1).tolist() == lengths
    assert np.abs(parts - np.outer(lengths, shares)).max() <= 2
    assert np.abs(parts.sum(axis=0) - np.array(shares) * sum(lengths)).max() <= 2


# Compressed texts are read as they are; archives are refused with what is in them

TEXT = words_text(5000)


@pytest.mark.parametrize(
    ("ending", "compress"), [(".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)]
)
def test_a_compressed_text_is_read(write, ending, compress):
    plain = CountedSource(write("a.txt", TEXT), "char")
    packed = compress(TEXT.encode())
    found = CountedSource(write(f"a.txt{ending}", packed), "char")
    assert (found.length, found.sha256) == (plain.length, plain.sha256)
    with pytest.raises(DataError):
        CountedSource(write(f"cut{ending}", packed[: len(packed) // 2]), "char")


def test_archives_are_named(write, tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("poems.txt", TEXT)
    with pytest.raises(DataError, match=r"a zip archive .* with poems\.txt; allowed"):
        CountedSource(str(tmp_path / "a.zip"), "char")
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        archive.add(write("poems.txt", TEXT), "poems.txt")
    with pytest.raises(DataError, match="a tar archive"):
        CountedSource(write("poems.tar.gz", packed.getvalue()), "char")


@pytest.mark.parametrize("records", ["", "\n"])
def test_bytes_are_cut_where_their_characters_are(records, write, tmp_path):
    """So a byte model and a character model are scored on the same text, and it is named in the same way."""
    lines = words_text(6_000).replace("e", "é").replace("o", "😀").splitlines()
    names = [write(f"texts/{n}", "\n".join(lines[n::3]) + "\n") for n in range(3)]
    for source in (names[0], str(tmp_path / "texts")):
        data = {"split": (0.7, 0.2, 0.1), "records": records}
        chars, of_bytes = (load_corpus(source, level=level, **data) for level in ("char", "byte"))
        for name, text in chars.texts.items():
            assert text.scored == of_bytes.texts[name].scored
            assert text.scored.chars == len(text.text) - 1
        assert of_bytes.symbols_per_char == pytest.approx(sum(map(len, of_bytes.splits.values())) /
                                                          sum(map(len, chars.splits.values())), rel=1e-2)  # fmt: skip
    latin = load_corpus(write("latin", "\n".join(lines).replace("😀", "o").encode("latin-1")), level="byte")
    assert latin.symbols_per_char == 1.0
    assert latin.texts["valid"].scored.chars == len(latin.splits["valid"]) - 1


def test_a_byte_that_is_not_utf8_is_a_character(write):
    data = "€aé😀".encode() * 40 + b"\xff\xe9\x80\xf0\x9f\x98" * 50 + b"\xed\xa0\x80" * 30
    characters = data.decode("utf-8", "surrogateescape")
    corpus = load_corpus(write("mixed", data), level="byte", split=(0.5, 0.3, 0.2))
    at = 0
    for text in corpus.texts.values():
        assert text.text == characters[at : at + len(text.text)]
        assert text.scored.chars == len(text.text) - 1
        assert text.scored.size_bytes == len(text.text[1:].encode("utf-8", "surrogateescape"))
        at += len(text.text)
    assert at == len(characters)
    assert corpus.symbols_per_char == pytest.approx(len(data) / len(characters))
