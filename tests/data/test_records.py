"""Texts of records: separators, byte order marks, bytes that are not UTF-8, records from a pipe, and splits."""

import itertools
import os
import random
import sys
from collections import Counter
from datetime import datetime, timedelta
from io import TextIOWrapper

import numpy as np
import pytest

from charlm.config.schema import DataConfig
from charlm.data.corpus import CountedSources
from charlm.data.records import RECORD_END, arriving_records, as_in_training
from charlm.data.time_order import are_in_order
from charlm.data.vocabulary import Vocabulary
from charlm.errors import DataError, VocabularyError
from tests.corpora import load_corpus

BOM = "\ufeff"
VOCABULARIES = {"byte": Vocabulary("byte"), "char": Vocabulary("char", "\n\rabc")}


def records_of(source: str, level="char", **options) -> list[str]:
    """The records of a text, with their ends."""
    corpus = load_corpus(source, level=level, split=(1, 0, 0), records="\n", **options)
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
    assert records_of(path, level) == [f"{line}\n" for line in lines]
    assert [line for some in arriving_records(path, VOCABULARIES[level], "\n") for line in some] == lines
    text = load_corpus(path, level=level, split=(1, 0, 0))  # line ends of running text stay as they are
    assert text.vocabulary.decode(text.splits["train"]) == content


END = RECORD_END.encode()


def read(content: bytes, separator: str, size: int) -> bytes:
    chunks = [content[start : start + size] for start in range(0, len(content), size)]
    return b"".join(as_in_training(chunks, "byte", separator, "a test"))


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
@pytest.mark.parametrize(
    ("content", "separator", "expected"),
    [
        (b"one\ntwo", "\n", b"one\ntwo\n"),
        (b"o\rne\r\ntwo\r\n", "\n", b"o\rne\ntwo\n"),
        (b"one\ntwo\n~~~\nthree\n", "\n~~~\n", b"one\ntwo" + END + b"three" + END),
        (b"one\r\n~~~\r\ntwo\r\n~~~\r\n", "\n~~~\n", b"one" + END + b"two" + END),
        (b"one\n~~~\ntwo\n~~~", "\n~~~\n", b"one" + END + b"two" + END),
        (b"one\n~~\ntwo\n~", "\n~~~\n", b"one\n~~\ntwo" + END),
        (b"one\n~~~\n\n", "\n~~~\n", b"one" + END),
        (b"a|b||c", "||", b"a|b" + END + b"c" + END),
        ("a§b§".encode(), "§", b"a" + END + b"b" + END),
        (b"", "\n~~~\n", b""),
        (b"one\r\ntwo\nmore\r\nthree\r", "\r\n", b"one" + END + b"two\nmore" + END + b"three" + END),
        (b"one\r\n\r\ntwo\r\nmore", "\r\n\r\n", b"one" + END + b"two\r\nmore" + END),
        (b"one\rtwo\r\nmore\r", "\r", b"one\rtwo\r\nmore\r"),
        (b"one\r\n~~~\n\x1e", "", b"one\r\n~~~\n\x1e"),  # running text stays
    ],
)
def test_every_record_gets_one_end(content, separator, expected, size):
    assert read(content, separator, size) == expected


def test_records_of_two_files_do_not_merge(write, tmp_path):
    for name, content in {"1": f"{BOM}anna\nbob", "2": BOM, "3": "", "4": f"{BOM}carla\r\ndora"}.items():
        write(f"folder/{name}", content)
    assert records_of(f"{tmp_path}/folder") == ["anna\n", "bob\n", "carla\n", "dora\n"]


def test_a_text_or_a_vocabulary_without_line_ends_has_no_records(write):
    """Line ends of an old Mac are none."""
    with pytest.raises(DataError):
        records_of(write("text", "anna\rjo\rzoe\r"))
    with pytest.raises(VocabularyError):
        records_of(write("text", "ab"), vocabulary=Vocabulary("char", "ab"))


def test_the_whole_of_a_text_of_records_stays_in_its_order(write):
    data = DataConfig(source=write("text", "b\r\na\nb"), split=(0.5, 0.25, 0.25), records="\n")
    corpus = CountedSources(data).corpus(whole=True)
    assert {name: corpus.vocabulary.decode(ids) for name, ids in corpus.splits.items()} == {"train": "b\na\nb\n"}


def test_records_of_a_pipe_come_before_the_next_one_is_there(monkeypatch):
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    with os.fdopen(reading, "rb") as stdin:
        monkeypatch.setattr(sys, "stdin", TextIOWrapper(stdin))
        lines = arriving_records("-", VOCABULARIES["char"], "")
        os.write(writing, b"one\ntwo\nthr")
        assert next(lines) == ["one", "two"]
        os.write(writing, b"ee\nfour")
        assert next(lines) == ["three"]
        os.close(writing)
        assert list(lines) == [["four"]]


def test_arriving_bytes_that_are_not_text(write):
    file = write("a.txt", f"{BOM}a\n{BOM}b\n".encode() + b"c\xff")
    assert list(arriving_records(file, VOCABULARIES["byte"], "")) == [[f"{BOM}a", f"{BOM}b"], ["c\udcff"]]
    assert list(arriving_records(file, VOCABULARIES["char"], "")) == [["a", f"{BOM}b"], ["c\udcff"]]


# The splits of records

SHARES = (0.7, 0.2, 0.1)


@pytest.fixture
def split(write):
    """Loads a text of these records, and returns those of each split without ends; the starts must be theirs."""

    def split(text: list[str], shares=SHARES, **options) -> dict[str, list[str]]:
        corpus = load_corpus(write("x.txt", "\n".join(text) + "\n"), split=shares, records="\n", **options)
        found = {}
        for name, ids in corpus.splits.items():
            decoded = corpus.vocabulary.decode(ids)
            found[name] = [decoded[start : end - 1] for start, end in itertools.pairwise(corpus.starts[name])]
            assert "".join(f"\n{line}" for line in found[name]) + "\n" == decoded
        return found

    return split


def numbered(count: int) -> list[str]:
    return [f"line {number * 7919 % 10007}" for number in range(count)]


def test_every_record_is_in_one_split_in_its_order(split, capsys):
    """Of a text of several chunks, in the middle of which a line ends and another goes on."""
    text = [*numbered(300), "", "x" * 300_000, "", *(f"{line} é" * 100 for line in numbered(300)), "last"]
    found = split(text)
    assert Counter(itertools.chain(*found.values())) == Counter(text)
    for own in found.values():
        places = [text.index(line) for line in dict.fromkeys(own)]
        assert places == sorted(places)
    assert split(text) == found  # from the cache
    assert capsys.readouterr().err.count("splitting") == 1


def test_equal_records_stay_together_and_other_records_and_vocabularies_move_none(split):
    text = numbered(500) * 5
    found = split(text)
    assert Counter(itertools.chain(*found.values())) == Counter(text)
    assert not set(found["train"]) & (set(found["valid"]) | set(found["test"]))
    more = split(["!!!", *reversed(numbered(500)), "ÄÖÜ é"])  # one is before the others in the vocabulary
    for name, own in more.items():
        assert set(own) - {"!!!", "ÄÖÜ é"} == set(found[name])


def test_frequent_records_are_spread_and_rare_ones_stay_together(split):
    """Titles with blank lines between them, and a separator after every tenth; some titles come twice."""
    text, separator = [], "=" * 70
    for n, title in enumerate([*numbered(2000), *numbered(300)]):
        text += [title, "", separator] if n % 10 == 0 else [title, ""]
    found = split(text)
    for frequent in ("", separator):
        shares = [own.count(frequent) for own in found.values()]
        assert shares == pytest.approx(np.array(SHARES) * text.count(frequent), abs=2)
    assert [len(own) / len(text) for own in found.values()] == pytest.approx(SHARES, abs=0.02)
    assert [set(a) & set(b) for a, b in itertools.combinations(found.values(), 2)] == [{"", separator}] * 3


@pytest.mark.parametrize("text", [["one line"], ["a", "b"], ["equal"] * 4], ids=["one", "two", "equal"])
def test_a_split_without_records_is_refused(split, text):
    with pytest.raises(DataError):
        split(text, (0.9, 0.1, 0))
    assert split(text, (1, 0, 0)) == {"train": text}


TIMES = [datetime(2026, 10, 28, 22) + timedelta(seconds=701 * number) for number in range(400)]
LOGS = {
    "syslog": "{0:%b %d %H:%M:%S} host app[17]: {0.second} tries",
    "apache": "10.2.{0:%S.%M} - - [{0:%d/%b/%Y:%H:%M:%S} +0000] {0.second} tries",
    "epoch": '{{"level": "info", "ts": {0:%s}.5, {0.second} tries',
    "traces": "{0:%Y-%m-%dT%H:%M:%S.123} {0.second} tries\n  at com.x.Y(Y.java:12)\n",
    "csv": "{1},{0.second}",
}
"""How a time and a number are written."""


@pytest.mark.parametrize(("name", "step"), [*((name, 1) for name in LOGS), ("traces", -1)])
def test_the_records_of_a_log_are_split_in_order(split, name, step):
    """A step of -1: the newest record comes first."""
    entries = [LOGS[name].format(time, 990 + 3 * number) for number, time in enumerate(TIMES)]
    text = "\n".join(entries[::step]).split("\n")
    found = split(text)
    assert list(itertools.chain(*found.values())) == text
    assert [len(own) / len(text) for own in found.values()] == pytest.approx(SHARES, abs=0.01)
    assert not are_in_order(random.Random(1).sample(text, len(text)))


@pytest.mark.parametrize("of_file", [200, 5])
def test_each_file_of_a_log_gives_its_end(write, tmp_path, of_file):
    """If files are too short for all splits, some give to one and some to another."""
    entries = [LOGS["syslog"].format(time) for time in TIMES]
    for begin in range(0, 400, of_file):
        write(f"logs/{begin:03}", "\n".join(entries[begin : begin + of_file]))
    corpus = load_corpus(f"{tmp_path}/logs", split=SHARES, records="\n")
    assert "valid and test from the end of each file" in corpus.cut
    numbers = np.full(400, -1)  # of the split of each record
    for number, ids in enumerate(corpus.splits.values()):
        for entry in corpus.vocabulary.decode(ids).splitlines()[1:]:
            numbers[entries.index(entry)] = number
    assert np.bincount(numbers) == pytest.approx(400 * np.array(SHARES), abs=1)
    assert (np.diff(numbers.reshape(-1, of_file), axis=1) >= 0).all()


def test_sorted_lists_and_columns_are_no_logs():
    draw = random.Random(1)
    words = ["".join(draw.choices("abcdefgh", k=draw.randint(2, 8))) for _ in range(2000)]
    texts = [
        sorted([*words, *(f"{draw.randint(1, 99)}{word}" for word in words[:300])]),
        sorted(f"line {number}" for number in range(3000)),
        [f"{draw.choices([0, 1], [95, 5])[0]},{draw.random()}" for _ in range(1000)],  # rare labels
        [f"in {draw.randint(1500, 2000)} he" for _ in range(300)],  # years
    ]
    assert not any(map(are_in_order, texts))
