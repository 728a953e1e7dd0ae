"""Labels of lines: found, counted and refused in the pass that splits the text."""

from collections import Counter

import numpy as np
import pytest

from charlm.data import labels, line_split
from charlm.data.labels import label_ends, labels_from_json, separator_ids, without_labels
from charlm.data.vocabulary import Vocabulary
from charlm.errors import CheckpointError, DataError, VocabularyError
from tests.corpora import load_corpus

SHARES = (0.6, 0.3, 0.1)
LINES = [f"{'abcdefg'[n % 7] * (n % 5)}::{n * 7919 % 1009}:::{n}" for n in range(400)]


def load(source, separator="::", **options):
    return load_corpus(source, level="char", split=SHARES, unit="line", label_separator=separator, **options)


def train_lines(corpus):
    return corpus.vocabulary.decode(corpus.splits["train"]).split("\n")[1:-1]


def naive(lines, separator="::"):
    found = Counter(line.split(separator)[0] for line in lines)
    return sorted(found.items(), key=lambda pair: (-pair[1], pair[0]))


@pytest.mark.parametrize("chunk", [1 << 22, 100, 1])
@pytest.mark.parametrize("separator", ["::", ":", ":::"])
def test_labels_of_the_training_lines_are_counted(write, monkeypatch, chunk, separator):
    monkeypatch.setattr(line_split, "_CHUNK", chunk)
    corpus = load(write("a.txt", "\n".join(LINES)), separator)
    lines = train_lines(corpus)
    assert 100 < len(lines) < 350
    assert list(corpus.labels.items()) == naive(lines, separator)


def test_the_splits_are_those_without_labels(write):
    file = write("a.txt", "\n".join(LINES))
    with_labels, plain = load(file), load_corpus(file, level="char", split=SHARES, unit="line")
    assert plain.labels == {}
    assert all(np.array_equal(ids, plain.splits[name]) for name, ids in with_labels.splits.items())


def test_the_cache_keeps_them_for_each_separator(write, monkeypatch, capsys):
    file = write("a.txt", "\n".join(LINES))
    first, other = load(file), load(file, ":::")
    assert first.labels != other.labels
    monkeypatch.setattr(labels.LabelCounter, "see", None)
    assert (load(file).labels, load(file, ":::").labels) == (first.labels, other.labels)
    assert capsys.readouterr().err.count("splitting") == 2


def test_other_sources_are_checked_and_not_counted(write):
    train = write("train.txt", "\n".join(LINES))
    corpus = load(train, valid_source=write("valid.txt", "new::12\n"))
    assert "new" not in corpus.labels
    with pytest.raises(DataError, match=r"valid.txt: line 2: found '12'; allowed: "):
        load(train, valid_source=write("valid.txt", "new::12\n12\n"))


def test_bytes(write):
    file = write("a.bin", b"\xff\xc3\xa9\tx\n" * 20 + b"\xc3\xa9\ty\n")
    corpus = load_corpus(file, level="byte", split=(1, 0, 0), unit="line", label_separator="\t")
    assert corpus.labels == {"\udcffé": 20, "é": 1}


@pytest.mark.parametrize("chunk", [1 << 22, 20])
@pytest.mark.parametrize(
    ("place", "line", "found"),
    [
        (0, "none", "line 1: found 'none'; allowed: a label, '::' and the record in every line; correct the line; "),
        (300, "", "line 301: found ''; allowed: "),
        (400, "a:b" * 30, f"line 401: found '{('a:b' * 30)[:60]}' …; allowed: "),
        (7, "a" * 101 + "::b", "with a label of more than 100 characters; allowed: 100 at most; "),
    ],
)
def test_a_line_without_a_label_is_named(write, monkeypatch, chunk, place, line, found):
    monkeypatch.setattr(line_split, "_CHUNK", chunk)
    file = write("a.txt", "\n".join([*LINES[:place], line, *LINES[place:]]))
    with pytest.raises(DataError) as refused:
        load(file)
    assert str(refused.value).startswith(f"{file}: line {place + 1:,}: found ")
    assert found in str(refused.value)
    assert str(refused.value).endswith("; is data.label_separator right?")


def test_a_separator_that_does_not_occur(write):
    with pytest.raises(DataError, match=r"line 1: found 'abc'; allowed: a label, '\\t' and"):
        load(write("a.txt", "abc\nd"), "\t")


def test_too_many_labels(write):
    many = [f"{n}::x" for n in range(2000)]
    with pytest.raises(
        DataError, match=r"found more than 1,000 labels, among them '\d+', '\d+', '\d+'; allowed: 1,000"
    ):
        load(write("a.txt", "\n".join(many)))
    assert len(load(write("b.txt", "\n".join(many[:1000] * 2))).labels) < 1000


def test_a_given_vocabulary_that_lacks_a_character(write):
    with pytest.raises(VocabularyError):
        load(write("a.txt", "a::b\n"), vocabulary=Vocabulary("char", "\nab"))


@pytest.mark.parametrize("separator", [":", "::", "\t"])
def test_lines_without_their_labels(separator):
    lines = ["a:b", "", ":", "::", ":::", "ab::c:d", "no", "::x"]
    text = "".join(f"{line}\n" for line in lines)
    vocabulary = Vocabulary.of_code_points(np.unique([ord(c) for c in text]))
    ids = vocabulary.encode(text)
    ends = np.cumsum([len(line) + 1 for line in lines])
    found, found_ends = without_labels(ids, ends, separator_ids(separator, vocabulary))
    records = [line.split(separator, 1)[-1] for line in lines]
    assert vocabulary.decode(found) == "".join(f"{record}\n" for record in records)
    assert found_ends.tolist() == np.cumsum([len(record) + 1 for record in records]).tolist()
    places = label_ends(ids, ends, separator_ids(separator, vocabulary)) - np.r_[0, ends[:-1]]
    expected = [line.find(separator) for line in lines]
    assert [place if place >= 0 else -1 for place in places] == expected


@pytest.mark.parametrize("value", [[], "a", {"a": 0}, {"a": True}, {"a": 1.0}, None])
def test_what_no_checkpoint_holds(value):
    with pytest.raises(CheckpointError):
        labels_from_json(value)
