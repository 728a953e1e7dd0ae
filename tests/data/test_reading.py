"""Text as it is read: line ends, byte order marks, bytes that are not UTF-8, and lines that arrive by a pipe."""

import itertools
import os
import sys
from io import TextIOWrapper

import pytest
from hypothesis import given
from hypothesis import strategies as st

from charlm.config.schema import DataConfig
from charlm.data.corpus import CountedSources
from charlm.data.reading import arriving_lines, as_in_training
from charlm.data.vocabulary import Vocabulary
from charlm.errors import DataError, VocabularyError
from tests.corpora import load_corpus

BOM = "\ufeff"
VOCABULARIES = {"byte": Vocabulary("byte"), "char": Vocabulary("char", "\n\rabc")}


def lines_of(source: str, level="char", **options) -> list[str]:
    """The lines of a text, with their newlines."""
    corpus = load_corpus(source, level=level, split=(1, 0, 0), unit="line", **options)
    text = corpus.vocabulary.decode(corpus.splits["train"])
    return [text[start:end] for start, end in itertools.pairwise(corpus.starts["train"])]


@pytest.mark.parametrize("level", ["char", "byte"])
@pytest.mark.parametrize(
    ("content", "lines"),
    [
        ("a\r\r\n", ["a\r"]),
        ("a\r", ["a"]),
        ("\n\r", ["", ""]),
        ("short\n" + "x" * 700_000 + "\né", ["short", "x" * 700_000, "é"]),
    ],
)
def test_line_ends(write, content, lines, level):
    path = write("text", content)
    assert lines_of(path, level) == [f"{line}\n" for line in lines]
    assert [line for some in arriving_lines(path, VOCABULARIES[level], "line") for line in some] == lines
    text = load_corpus(path, level=level, split=(1, 0, 0))  # line ends of running text stay as they are
    assert text.vocabulary.decode(text.splits["train"]) == content


@given(st.lists(st.text("\r\na", min_size=1, max_size=4), max_size=8))
def test_it_does_not_matter_where_chunks_end(chunks):
    text = "".join(chunks)
    expected = text.replace("\r\n", "\n")
    if text and not expected.endswith("\n"):
        expected = expected.removesuffix("\r") + "\n"
    parts = [chunk.encode() for chunk in chunks]
    assert b"".join(as_in_training(parts, "byte", "line", "x")).decode() == expected
    assert list(as_in_training(parts, "byte", "text", "x")) == parts


def test_lines_of_two_files_do_not_merge(write, tmp_path):
    for name, content in {"1": f"{BOM}anna\nbob", "2": BOM, "3": "", "4": f"{BOM}carla\r\ndora"}.items():
        write(f"folder/{name}", content)
    assert lines_of(f"{tmp_path}/folder") == ["anna\n", "bob\n", "carla\n", "dora\n"]


def test_a_text_without_line_ends_or_a_vocabulary_without_newline_has_no_lines(write):
    """Line ends of an old Mac are none."""
    with pytest.raises(DataError):
        lines_of(write("text", "anna\rjo\rzoe\r"))
    with pytest.raises(VocabularyError):
        lines_of(write("text", "ab"), vocabulary=Vocabulary("char", "ab"))


def test_the_whole_of_a_text_of_lines_stays_in_its_order(write):
    data = DataConfig(source=write("text", "b\r\na\nb"), split=(0.5, 0.25, 0.25), unit="line")
    corpus = CountedSources(data).corpus(whole=True)
    assert {name: corpus.vocabulary.decode(ids) for name, ids in corpus.splits.items()} == {"train": "b\na\nb\n"}


def test_lines_of_a_pipe_come_before_the_next_one_is_there(monkeypatch):
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    with os.fdopen(reading, "rb") as stdin:
        monkeypatch.setattr(sys, "stdin", TextIOWrapper(stdin))
        lines = arriving_lines("-", VOCABULARIES["char"], "text")
        os.write(writing, b"one\ntwo\nthr")
        assert next(lines) == ["one", "two"]
        os.write(writing, b"ee\nfour")
        assert next(lines) == ["three"]
        os.close(writing)
        assert list(lines) == [["four"]]


def test_arriving_bytes_that_are_not_text(write):
    file = write("a.txt", f"{BOM}a\n{BOM}b\n".encode() + b"c\xff")
    assert list(arriving_lines(file, VOCABULARIES["byte"], "text")) == [[f"{BOM}a", f"{BOM}b"], ["c\udcff"]]
    assert list(arriving_lines(file, VOCABULARIES["char"], "text")) == [["a", f"{BOM}b"], ["c\udcff"]]
