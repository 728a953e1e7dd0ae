"""Splits of a text of lines."""

import itertools
from collections import Counter

import numpy as np
import pytest

from charlm.data import hashes, line_split
from charlm.data.hashes import line_hashes
from charlm.data.line_split import find_splits, split_lines
from charlm.data.vocabulary import Vocabulary
from charlm.errors import DataError

SHARES = {"train": 0.7, "valid": 0.2, "test": 0.1}


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("CHARLM_CACHE", str(tmp_path / "cache"))


def numbered(count: int) -> list[str]:
    return [f"line {number * 7919 % 10007}" for number in range(count)]


def split(text: str, shares=SHARES, characters: str = "", key: str = "k") -> dict[str, list[str]]:
    """The lines of each split, without their newlines; the starts must be those of the lines."""
    vocabulary = Vocabulary.of_code_points(np.unique([ord(c) for c in text + characters + "\n"]))
    found = find_splits(key, shares)
    if found is None:
        found = split_lines(vocabulary.encode(f"{text}\n"), vocabulary, shares, key=key, source="x.txt")
    lines = {}
    for name, (ids, starts) in found.items():
        decoded = vocabulary.decode(ids)
        assert decoded.startswith("\n")
        lines[name] = [decoded[start:end] for start, end in itertools.pairwise(starts)]
        assert "".join(lines[name]) == decoded[1:]
        assert all(line.endswith("\n") and line.count("\n") == 1 for line in lines[name])
        lines[name] = [line[:-1] for line in lines[name]]
    return lines


@pytest.mark.parametrize("chunk", [1 << 18, 100, 1])
def test_every_line_is_in_one_split_in_its_order(monkeypatch, chunk):
    monkeypatch.setattr(line_split, "_CHUNK", chunk)
    lines = [*numbered(300), "", "x" * 1000, "", "last é"]
    found = split("\n".join(lines))
    assert Counter(itertools.chain(*found.values())) == Counter(lines)
    for split_of in found.values():
        places = [lines.index(line) for line in dict.fromkeys(split_of)]
        assert places == sorted(places)


def test_shares_are_kept_and_sorted_lines_do_not_skew_them():
    found = split("\n".join(sorted(numbered(10_000))))
    sizes = {name: len(lines) / 10_000 for name, lines in found.items()}
    assert sizes == pytest.approx(SHARES, abs=0.02)
    initials = Counter(line[5] for line in found["valid"])
    assert len(initials) == 9


def test_equal_lines_are_in_the_same_split():
    lines = numbered(200) * 5
    found = split("\n".join(lines))
    assert not set(found["train"]) & set(found["valid"])
    assert not set(found["train"]) & set(found["test"])
    assert Counter(itertools.chain(*found.values())) == Counter(lines)


def test_frequent_lines_are_spread_and_rare_ones_stay_together(capsys):
    """Titles with blank lines between them, and a separator after every tenth; some titles come twice."""
    titles = [*numbered(2000), *numbered(300)]
    lines = [line for n, title in enumerate(titles) for line in (title, "", *(["=" * 70] if n % 10 == 0 else []))]
    text = "\n".join(lines)
    found = split(text)
    for frequent in ("", "=" * 70):
        count = lines.count(frequent)
        assert [split.count(frequent) for split in found.values()] == [
            pytest.approx(count * s, abs=2) for s in (0.7, 0.2, 0.1)
        ]
    sizes = {name: len(split_of) / len(lines) for name, split_of in found.items()}
    assert sizes == pytest.approx(SHARES, abs=0.02)
    assert [set(a) & set(b) for a, b in itertools.combinations(found.values(), 2)] == [{"", "=" * 70}] * 3
    assert capsys.readouterr().err.splitlines()[1:] == [
        f"lines    x.txt: 48% of {len(lines):,} lines are empty; they count as much in the scores; remove them from "
        "the text if they are no records"
    ]


def test_older_runs_keep_their_split():
    """By a hash of each line alone: all empty lines are in one split."""
    text = "\n\n".join(numbered(200))
    vocabulary = Vocabulary.of_code_points(np.unique([ord(c) for c in text]))
    found = split_lines(vocabulary.encode(text + "\n"), vocabulary, SHARES, key="k", source="x", spread=False)
    assert [bool((np.diff(starts) == 1).any()) for _, starts in found.values()] == [False, False, True]


def test_other_lines_and_another_vocabulary_move_no_line():
    found = split("\n".join(numbered(500)), key="a")
    more = split("\n".join(["zzz", *reversed(numbered(500)), "ÄÖÜ"]), characters="éß😀", key="b")
    for name, lines in found.items():
        assert set(lines) == set(more[name]) - {"zzz", "ÄÖÜ"}


def test_the_second_time_the_cache_has_them(capsys):
    text = "\n".join(numbered(50))
    assert split(text) == split(text)
    assert capsys.readouterr().err.count("splitting") == 1


def test_bytes():
    vocabulary = Vocabulary.of_bytes()
    text = b"a\xff\nb\n\n"
    [(ids, starts)] = split_lines(
        np.frombuffer(text, np.uint8), vocabulary, {"train": 1.0}, key="k", source="x"
    ).values()
    assert (bytes(ids), starts.tolist()) == (b"\n" + text, [1, 4, 6, 7])


@pytest.mark.parametrize(
    ("lines", "found"),
    [(["one line"], "1 line"), (["a", "b"], "2 lines"), (["equal"] * 4, "4 lines")],
    ids=["one", "two", "equal"],
)
def test_a_split_without_lines_is_refused(lines, found):
    text = "\n".join(lines)
    with pytest.raises(DataError) as refused:
        split(text, {"train": 0.9, "valid": 0.1})
    assert str(refused.value) == (
        f"x.txt: none of {found} is in the valid split, which takes lines by a hash, and equal lines together; "
        "allowed: a line or more in each split; add lines, change the shares (data.split), or give each split a text "
        "of its own (data.valid_source)"
    )
    assert split(text, {"train": 1.0}) == {"train": lines}


@pytest.mark.parametrize("piece", [1 << 15, 4, 1])
def test_the_hash_of_a_line_does_not_depend_on_its_place(monkeypatch, piece):
    vocabulary = Vocabulary.of_code_points(np.array([10, *range(1000, 0x110000, 997)]))
    draw = np.random.default_rng(1)
    lines = [np.r_[draw.integers(1, len(vocabulary), size=size), 0] for size in (0, 1, 1, 5, 300, 7)]
    alone = [int(line_hashes(line, np.array([len(line)]), vocabulary)[0]) for line in lines]
    monkeypatch.setattr(hashes, "_PIECE", piece)
    ends = np.cumsum([len(line) for line in lines])
    assert line_hashes(np.concatenate(lines), ends, vocabulary).tolist() == alone
    assert len(set(alone)) == len(lines)
