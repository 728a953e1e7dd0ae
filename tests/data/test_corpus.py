"""Text to ids and splits: exact characters, exact errors."""

import hashlib
import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from charlm.data import reading
from charlm.data.corpus import encode, encode_file, load_corpus, unknown_characters
from charlm.data.survey import survey_source
from charlm.data.vocabulary import Vocabulary
from charlm.errors import DataError, VocabularyError

SHAKESPEARE = Path(__file__).parents[3] / "shared/data/tinyshakespeare.txt"
WHOLE = (1.0, 0.0, 0.0)
BOM = "\ufeff"
EVERY_WIDTH = "aé中😀\x00\r\n\u2028\U0010ffff"  # one to four bytes, line ends of all kinds, first and last


def text_of(source: str, level="char") -> str:
    corpus = load_corpus(source, level=level, split=WHOLE)
    return corpus.vocabulary.decode(corpus.splits["train"])


def refused(error: type[Exception], call, *args, **kwargs) -> str:
    with pytest.raises(error) as caught:
        call(*args, **kwargs)
    assert "\n" not in str(caught.value)
    return str(caught.value)


characters = st.text(
    st.one_of(
        st.characters(exclude_categories=["Cs"]),
        *(st.integers(plane << 16, (plane << 16) + 0xFFFF).map(chr) for plane in range(1, 17)),
    ),
    min_size=1,
    max_size=40,
).filter(lambda text: text.strip(BOM))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=characters, chunk_bytes=st.integers(1, 9))
@example(text=EVERY_WIDTH * 3, chunk_bytes=3)
def test_decoding_the_ids_gives_the_text(text, chunk_bytes, write, monkeypatch):
    monkeypatch.setattr(reading, "CHUNK_BYTES", chunk_bytes)
    corpus = load_corpus(write("text", BOM + text), level="char", split=WHOLE)
    ids = corpus.splits["train"]
    assert corpus.vocabulary.decode(ids) == text
    assert corpus.vocabulary.characters == "".join(sorted(set(text)))
    assert ids.dtype == np.uint8
    np.testing.assert_array_equal(ids, corpus.vocabulary.encode(text))


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=characters, chunk_bytes=st.integers(1, 9))
@example(text=EVERY_WIDTH * 3, chunk_bytes=3)
def test_a_text_surveyed_before_is_encoded_alike(text, chunk_bytes, write, monkeypatch):
    monkeypatch.setattr(reading, "CHUNK_BYTES", chunk_bytes)
    survey = survey_source(write("text", BOM + text), "char")
    vocabulary = Vocabulary("char", "".join(sorted(set(text))))
    assert survey.draft is None
    np.testing.assert_array_equal(encode(survey, vocabulary), vocabulary.encode(text))


def long_texts(rng: np.random.Generator) -> dict[str, str]:
    """Of several chunks each, with odd and even ends, in the mixtures that are read in ways of their own."""
    ascii_text = bytes(rng.integers(0, 128, 3 * reading.CHUNK_BYTES - 1, np.uint8)).decode()
    few, many = (chr(code) for code in (0x416, 0x1F600)), map(chr, rng.permutation(np.arange(0x3400, 0x4DC0)))
    return {
        "ascii": ascii_text,
        "a few others": "".join(ascii_text[start : start + 70_001] + other for start, other in enumerate(few)),
        "dense": "".join(rng.permutation(list(ascii_text[:200_000]) + list(many) * 30)),
        "above U+FFFF": "😀🎉a" * 150_000,
        "ascii, then dense": ascii_text[:600_001] + "中文" * 100_000 + ascii_text[:70_000],
    }


@pytest.mark.parametrize("level", ["char", "byte"])
@pytest.mark.parametrize("kind", ["ascii", "a few others", "dense", "above U+FFFF", "ascii, then dense"])
def test_long_texts(kind, level, write):
    text = long_texts(np.random.default_rng(1))[kind]
    path = write("text", text)
    symbols = [ord(character) for character in text] if level == "char" else list(text.encode())
    expected = np.array(symbols)
    corpus = load_corpus(path, level=level, split=WHOLE)
    if level == "char":
        expected = np.searchsorted(np.unique(symbols), symbols)
    np.testing.assert_array_equal(corpus.splits["train"], expected)
    survey = survey_source(path, level)
    assert dict(zip(survey.symbols.tolist(), survey.counts.tolist(), strict=True)) == Counter(symbols)
    assert survey.sha256 == hashlib.sha256(text.encode()).hexdigest()


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(min_size=1), chunk_bytes=st.integers(1, 9))
@example(content=bytes(range(256)), chunk_bytes=7)
def test_at_level_byte_the_ids_are_the_bytes(content, chunk_bytes, write, monkeypatch):
    monkeypatch.setattr(reading, "CHUNK_BYTES", chunk_bytes)
    corpus = load_corpus(write("bytes", content), level="byte", split=WHOLE)
    assert bytes(corpus.splits["train"]) == content
    assert len(corpus.vocabulary) == 256


def test_sequences_cut_by_the_end_of_a_chunk(write, chunk_bytes):
    text = EVERY_WIDTH * 20 + "a" * 11 + "é" * 11 + "中" * 11 + "😀" * 11
    assert text_of(write("text", text)) == text


@pytest.mark.parametrize(
    ("before", "bad", "reason"),
    [
        (b"", b"\xff", "invalid start byte"),
        (b"abc", b"\x80z", "invalid start byte"),
        ("é中😀".encode(), b"\xfe tail", "invalid start byte"),
        (b"x" * 1000, b"\xc0\xaf", "invalid start byte"),
        (b"a", b"\xe2\x28\xa1", "invalid continuation byte"),
        (b"a" * 8, b"\xed\xa0\x80 a surrogate", "invalid continuation byte"),
        (b"", b"\xf4\x90\x80\x80 above U+10FFFF", "invalid continuation byte"),
        (b"", b"\xc3", "unexpected end of data"),
        ("é".encode(), b"\xe4\xbd", "unexpected end of data"),
        (b"ab", b"\xf0\x9f\x98", "unexpected end of data"),
        (b"\xef\xbb\xbf", b"\xff", "invalid start byte"),
        (b"", b"\xef\xbb", "unexpected end of data"),
        (b"\n", b"\xfc\n", "invalid start byte"),
    ],
)
def test_an_invalid_byte_is_named_with_its_offset(before, bad, reason, write, chunk_bytes):
    path = write("text", before + bad)
    assert refused(DataError, survey_source, path, "char") == (
        f"{path}: byte 0x{bad[0]:02X} at offset {len(before)} is not UTF-8 ({reason}); "
        "data.level: char needs UTF-8 text; convert the file or set data.level: byte"
    )
    assert text_of(path, "byte") == (before + bad).decode("utf-8", "replace")


def test_the_offset_counts_across_real_chunks(write):
    path = write("text", b"a" * 3 * reading.CHUNK_BYTES + b"\x9f")
    assert f"{path}: byte 0x9F at offset {3 * reading.CHUNK_BYTES} is not" in refused(
        DataError, survey_source, path, "char"
    )


def test_a_sequence_does_not_go_on_in_the_next_file(write, tmp_path):
    first = write("folder/1", b"ab\xc3")
    write("folder/2", b"\xa9")
    assert refused(DataError, survey_source, f"{tmp_path}/folder", "char").startswith(
        f"{first}: byte 0xC3 at offset 2 is not UTF-8 (unexpected end of data); "
    )


def test_a_byte_order_mark_is_dropped_at_the_start_of_each_file_only(write, tmp_path, chunk_bytes):
    write("folder/1", BOM + "a" + BOM + "b")
    write("folder/2", BOM)
    write("folder/3", "")
    write("folder/4", BOM + BOM + "c")
    assert text_of(f"{tmp_path}/folder") == f"a{BOM}b{BOM}c"
    assert text_of(f"{tmp_path}/folder/1", "byte") == f"{BOM}a{BOM}b"


def test_the_same_bytes_in_other_files_are_another_text(write, tmp_path):
    write("one/1", "a" + BOM + "b")
    write("two/1", "a")
    write("two/2", BOM + "b")
    corpora = [load_corpus(f"{tmp_path}/{name}", level="char", split=WHOLE) for name in ("one", "two")]
    assert corpora[0].sha256 == corpora[1].sha256
    assert [corpus.vocabulary.decode(corpus.splits["train"]) for corpus in corpora] == [f"a{BOM}b", "ab"]


def test_line_ends_stay_as_they_are(write):
    text = "a\r\nb\rc\n\u2028\x85\r\r\n\n"
    assert text_of(write("text", text)) == text


def test_files_are_joined_in_order_with_nothing_between(write, tmp_path):
    for name, content in {"b": "2", "a/z": "1", "c": "", "d": "3"}.items():
        write(f"folder/{name}", content)
    corpus = load_corpus(f"{tmp_path}/folder", level="char", split=WHOLE)
    assert corpus.vocabulary.decode(corpus.splits["train"]) == "123"
    assert (corpus.files, corpus.size_bytes) == (4, 3)
    assert corpus.sha256 == hashlib.sha256(b"123").hexdigest()


@pytest.mark.parametrize(("size", "dtype"), [(256, "u1"), (257, "u2"), (65536, "u2"), (65537, "u4")])
def test_ids_have_the_narrowest_type(size, dtype, write):
    text = "".join(chr(code) for code in range(0x10000, 0x10000 + size))
    corpus = load_corpus(write("text", text), level="char", split=WHOLE)
    assert corpus.splits["train"].dtype == np.dtype(dtype)
    assert corpus.vocabulary.decode(corpus.splits["train"]) == text


def test_the_ids_are_mapped_and_read_only(write):
    ids = load_corpus(write("text", "abc" * 100), level="char", split=(0.5, 0.5, 0)).splits["valid"]
    assert isinstance(ids, np.memmap)
    assert not ids.flags.writeable


@pytest.mark.parametrize("content", ["", BOM])
def test_an_empty_corpus_is_refused(content, write):
    path = write("text", content)
    assert refused(DataError, load_corpus, path, level="char", split=WHOLE) == (
        f"{path}: no text in {len(content.encode())} B; at least one character is needed; add text"
    )


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="needs a file that fails on read: Linux's /proc")
def test_a_file_that_fails_on_read():
    assert refused(DataError, survey_source, "/proc/self/mem", "char") == (
        "/proc/self/mem: cannot be read: Input/output error; "
        "a source needs all its files; make it readable or name another"
    )


def test_a_given_vocabulary_keeps_its_ids(write):
    corpus = load_corpus(write("text", "abca"), level="char", split=WHOLE, vocabulary=Vocabulary("char", "zcba"))
    assert corpus.vocabulary.characters == "zcba"
    assert corpus.splits["train"].tolist() == [3, 2, 1, 3]


def test_characters_that_the_vocabulary_lacks_are_refused_and_counted(write):
    path = write("text", "ab" + "é" * 1200 + "😀" + "c" * 3)
    vocabulary = Vocabulary("char", "ab")
    assert refused(VocabularyError, load_corpus, path, level="char", split=WHOLE, vocabulary=vocabulary) == (
        f"{path}: 'é' (U+00E9) × 1,200, 'c' (U+0063) × 3, '😀' (U+1F600) × 1: not in the model's vocabulary of "
        "2 characters; use text without them or a model that knows them"
    )
    many = write("many", "abcdefghijkl")
    assert "'j' (U+006A) × 1 and 2 more: not in" in refused(VocabularyError, encode_file, many, vocabulary)


def test_an_extended_vocabulary_takes_the_text(write):
    paths = [write("1", "abc"), write("2", "zéa")]
    vocabulary = Vocabulary("char", "ba")
    unknown = unknown_characters(paths, vocabulary)
    assert unknown == "czé"
    extended = vocabulary.extended(unknown)
    corpus = load_corpus(paths[0], level="char", split=WHOLE, valid_source=paths[1], vocabulary=extended)
    assert corpus.splits["train"].tolist() == [1, 0, 2]
    assert corpus.splits["valid"].tolist() == [3, 4, 1]
    assert unknown_characters(paths, extended) == ""
    assert unknown_characters(paths, Vocabulary.of_bytes()) == ""


def test_a_vocabulary_of_the_other_level_is_refused(write):
    path = write("text", "abc")
    for level, vocabulary in (("char", Vocabulary.of_bytes()), ("byte", Vocabulary("char", "abc"))):
        message = refused(VocabularyError, load_corpus, path, level=level, split=WHOLE, vocabulary=vocabulary)
        assert message == (
            f"{path}: read at data.level: {level}; the model's vocabulary is of level {vocabulary.level}; "
            f"set data.level: {vocabulary.level}"
        )


def test_a_file_for_evaluation(write):
    ids, skipped = encode_file(Path(write("text", BOM + "abéa")), Vocabulary("char", "éba"))
    assert ids.tolist() == [2, 1, 0, 2]
    assert skipped == {}


def test_a_file_for_evaluation_with_characters_skipped(write, chunk_bytes):
    path = write("text", "x中ab😀xéxa中")
    vocabulary = Vocabulary("char", "éba")
    ids, skipped = encode_file(path, vocabulary, skip_unknown=True)
    assert vocabulary.decode(ids) == "abéa"
    assert skipped == {"x": 3, "中": 2, "😀": 1}
    assert list(skipped) == ["x", "中", "😀"]
    assert refused(VocabularyError, encode_file, path, vocabulary)  # not answered from the cache
    assert refused(DataError, encode_file, path, Vocabulary("char", "QZ"), skip_unknown=True) == (
        f"{path}: none of its characters is in the model's vocabulary; use other text"
    )


@pytest.mark.skipif(not SHAKESPEARE.exists(), reason=f"no {SHAKESPEARE}: charlm data fetch tinyshakespeare")
def test_tinyshakespeare():
    corpus = load_corpus(str(SHAKESPEARE), level="char", split=(0.9, 0.05, 0.05))
    assert {name: len(ids) for name, ids in corpus.splits.items()} == {
        "train": 1_003_854,
        "valid": 55_770,
        "test": 55_770,
    }
    assert len(corpus.vocabulary) == 65
    text = "".join(corpus.vocabulary.decode(ids) for ids in corpus.splits.values())
    assert text == SHAKESPEARE.read_bytes().decode()
    survey = survey_source(str(SHAKESPEARE), "char")
    assert dict(zip(map(chr, survey.symbols), survey.counts.tolist(), strict=True))["e"] == text.count("e")


def test_what_a_killed_encoding_has_left_goes_with_the_next(write, cache):
    """But not what another process may be writing at this moment."""
    folder = cache / "corpora"
    folder.mkdir(parents=True)
    old, new = folder / ".a.charlm.tmp", folder / ".b.charlm.tmp"
    for path in (old, new):
        path.write_text("half")
    os.utime(old, (0, 0))
    load_corpus(str(write("text", "some text")), level="char", split=WHOLE)
    assert not old.exists()
    assert new.exists()
