"""Files whose lines are records: how lines end, and files that lack a line end."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from charlm.data.reading import whole_lines
from charlm.data.vocabulary import Vocabulary
from charlm.errors import DataError, VocabularyError
from tests.corpora import load_corpus

WHOLE = (1.0, 0.0, 0.0)


def lines_of(source: str, level="char", **options) -> list[str]:
    """The lines of all splits, with their newlines."""
    corpus = load_corpus(source, level=level, split=WHOLE, unit="line", **options)
    assert corpus.starts is not None
    found = []
    for name, ids in corpus.splits.items():
        text = corpus.vocabulary.decode(ids)
        found += [text[start:end] for start, end in itertools.pairwise(corpus.starts[name])]
    return found


@pytest.mark.parametrize("level", ["char", "byte"])
@pytest.mark.parametrize(
    ("content", "lines"),
    [
        ("a\nb", ["a", "b"]),
        ("a\r\nb\r\n", ["a", "b"]),
        ("a\r\nb", ["a", "b"]),
        ("a\rb\n", ["a\rb"]),
        ("a\r\r\n", ["a\r"]),
        ("a\r", ["a"]),
        ("\n\n\n", ["", "", ""]),
        ("\r\n\r\n", ["", ""]),
        ("\r", [""]),
        ("\n\r", ["", ""]),
        ("one", ["one"]),
        ("x" * 50 + "\n" + "é", ["x" * 50, "é"]),
    ],
)
def test_line_ends(write, chunk_bytes, content, lines, level):
    assert lines_of(write("text", content), level) == [f"{line}\n" for line in lines]


@given(st.lists(st.text("\r\na", max_size=4), max_size=8))
def test_chunks_do_not_matter(chunks):
    def read(parts):
        return "".join(whole_lines(parts))

    text = "".join(chunks)
    expected = text.replace("\r\n", "\n")
    if text and not expected.endswith("\n"):
        expected = expected.removesuffix("\r") + "\n"
    assert read(chunks) == read([text]) == expected


def test_lines_of_two_files_do_not_merge(write, tmp_path):
    write("folder/1", "\ufeffanna\nbob")
    write("folder/2", "\ufeff")
    write("folder/3", "")
    write("folder/4", "\ufeffcarla\r\ndora")
    assert lines_of(f"{tmp_path}/folder") == ["anna\n", "bob\n", "carla\n", "dora\n"]


def test_the_same_text_as_running_text_keeps_its_line_ends(write):
    path = write("text", "a\r\nb")
    assert lines_of(path) == ["a\n", "b\n"]
    corpus = load_corpus(path, level="char", split=WHOLE)
    assert corpus.vocabulary.decode(corpus.splits["train"]) == "a\r\nb"
    assert lines_of(path) == ["a\n", "b\n"]


def test_a_file_without_text(write):
    with pytest.raises(DataError, match="no text in 0 B"):
        lines_of(write("text", ""))


def test_a_character_of_validation_lines_is_in_the_vocabulary(write):
    corpus = load_corpus(
        write("train", "ab\nba"), level="char", split=WHOLE, unit="line", valid_source=write("valid", "aé\r\n")
    )
    assert corpus.vocabulary.characters == "\nabé"
    assert corpus.vocabulary.decode(corpus.splits["valid"]) == "\naé\n"


def test_a_vocabulary_without_newline_knows_no_lines(write):
    path, vocabulary = write("text", "ab"), Vocabulary("char", "ab")
    with pytest.raises(VocabularyError, match=r"'\\n' \(U\+000A\) × 1: not in the model's vocabulary"):
        lines_of(path, vocabulary=vocabulary)


def test_a_line_longer_than_all_that_is_read_at_once(write):
    lines = ["short", "x" * 1_500_000, "last"]
    assert lines_of(write("text", "\n".join(lines))) == [f"{line}\n" for line in lines]


def test_the_whole_of_a_text_of_lines_stays_in_its_order(write):
    path = write("text", "b\r\na\nb")
    corpus = load_corpus(path, level="char", split=(0.5, 0.25, 0.25), unit="line", whole=True)
    assert corpus.vocabulary.decode(corpus.splits["train"]) == "b\na\nb\n"
    assert list(corpus.splits) == ["train"]
