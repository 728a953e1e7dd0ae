"""Texts of lines: their splits and their labels."""

import itertools
from collections import Counter

import numpy as np
import pytest

from charlm.data import hashes, lines
from charlm.data.hashes import line_hashes
from charlm.data.lines import labels_from_json
from charlm.data.vocabulary import Vocabulary
from charlm.errors import CheckpointError, DataError, VocabularyError
from tests.corpora import load_corpus

SHARES = (0.7, 0.2, 0.1)
LABELED = [f"{'abcdefg'[n % 7] * (n % 5)}::{n * 7919 % 1009}:::{n}" for n in range(400)]


@pytest.fixture(params=[1 << 18, 7])
def chunk(request, monkeypatch) -> None:
    """Reads so many characters at once."""
    monkeypatch.setattr(lines, "_CHUNK", request.param)


@pytest.fixture
def split(write):
    """Loads a text of these lines, and returns those of each split without newlines; the starts must be theirs."""

    def split(text: list[str], shares=SHARES, **options) -> dict[str, list[str]]:
        corpus = load_corpus(write("x.txt", "\n".join(text) + "\n"), split=shares, unit="line", **options)
        found = {}
        for name, ids in corpus.splits.items():
            decoded = corpus.vocabulary.decode(ids)
            found[name] = [decoded[start : end - 1] for start, end in itertools.pairwise(corpus.starts[name])]
            assert "".join(f"\n{line}" for line in found[name]) + "\n" == decoded
        return found

    return split


def numbered(count: int) -> list[str]:
    return [f"line {number * 7919 % 10007}" for number in range(count)]


@pytest.mark.usefixtures("chunk")
def test_every_line_is_in_one_split_in_its_order(split, capsys):
    text = [*numbered(300), "", "x" * 1000, "", "last é"]
    found = split(text)
    assert Counter(itertools.chain(*found.values())) == Counter(text)
    for own in found.values():
        places = [text.index(line) for line in dict.fromkeys(own)]
        assert places == sorted(places)
    assert split(text) == found  # from the cache
    assert capsys.readouterr().err.count("splitting") == 1


def test_shares_are_kept_and_sorted_lines_do_not_skew_them(split):
    found = split(sorted(numbered(10_000)))
    assert [len(own) / 10_000 for own in found.values()] == pytest.approx(SHARES, abs=0.02)
    assert len({line[5] for line in found["valid"]}) == 9


def test_equal_lines_stay_together_and_other_lines_and_vocabularies_move_none(split):
    text = numbered(500) * 5
    found = split(text)
    assert Counter(itertools.chain(*found.values())) == Counter(text)
    assert not set(found["train"]) & (set(found["valid"]) | set(found["test"]))
    more = split(["zzz", *reversed(numbered(500)), "ÄÖÜ é"])
    assert {name: set(own) - {"zzz", "ÄÖÜ é"} for name, own in more.items()} == {
        name: set(own) for name, own in found.items()
    }


def test_frequent_lines_are_spread_and_rare_ones_stay_together(split, capsys):
    """Titles with blank lines between them, and a separator after every tenth; some titles come twice."""
    titles = [*numbered(2000), *numbered(300)]
    text = [line for n, title in enumerate(titles) for line in (title, "", *(["=" * 70] if n % 10 == 0 else []))]
    found = split(text)
    for frequent in ("", "=" * 70):
        shares = [own.count(frequent) for own in found.values()]
        assert shares == pytest.approx(np.array(SHARES) * text.count(frequent), abs=2)
    assert [len(own) / len(text) for own in found.values()] == pytest.approx(SHARES, abs=0.02)
    assert [set(a) & set(b) for a, b in itertools.combinations(found.values(), 2)] == [{"", "=" * 70}] * 3
    assert (
        capsys.readouterr()
        .err.splitlines()[-1]
        .endswith(
            f"x.txt: 48% of {len(text):,} lines are empty; they count as much in the scores; remove them from the "
            "text if they are no records"
        )
    )


@pytest.mark.parametrize(
    ("text", "found"),
    [(["one line"], "1 line"), (["a", "b"], "2 lines"), (["equal"] * 4, "4 lines")],
    ids=["one", "two", "equal"],
)
def test_a_split_without_lines_is_refused(split, text, found):
    with pytest.raises(DataError) as refused:
        split(text, (0.9, 0.1, 0))
    assert str(refused.value).endswith(
        f"x.txt: none of {found} is in the valid split, which takes lines by a hash, and equal lines together; "
        "allowed: a line or more in each split; add lines, change the shares (data.split), or give each split a text "
        "of its own (data.valid_source)"
    )
    assert split(text, (1, 0, 0)) == {"train": text}


@pytest.mark.parametrize("piece", [1 << 15, 4, 1])
def test_the_hash_of_a_line_does_not_depend_on_its_place(monkeypatch, piece):
    vocabulary = Vocabulary.of_code_points(np.array([10, *range(1000, 0x110000, 997)]))
    draw = np.random.default_rng(1)
    text = [np.r_[draw.integers(1, len(vocabulary), size=size), 0] for size in (0, 1, 1, 5, 300, 7)]
    alone = [int(line_hashes(line, np.array([len(line)]), vocabulary)[0]) for line in text]
    monkeypatch.setattr(hashes, "_PIECE", piece)
    ends = np.cumsum([len(line) for line in text])
    assert line_hashes(np.concatenate(text), ends, vocabulary).tolist() == alone
    assert len(set(alone)) == len(text)


# Labels


def load(source, separator="::", **options):
    return load_corpus(source, split=(0.6, 0.3, 0.1), unit="line", label_separator=separator, **options)


@pytest.mark.usefixtures("chunk")
@pytest.mark.parametrize("separator", ["::", ":", ":::"])
def test_labels_of_the_training_lines_are_counted(write, separator):
    file = write("a.txt", "\n".join(LABELED))
    corpus, plain = load(file, separator), load(file, None)
    training = corpus.vocabulary.decode(corpus.splits["train"]).split("\n")[1:-1]
    expected = Counter(line.split(separator)[0] for line in training)
    assert list(corpus.labels.items()) == sorted(expected.items(), key=lambda pair: (-pair[1], pair[0]))
    assert plain.labels == {}
    assert all(np.array_equal(ids, plain.splits[name]) for name, ids in corpus.splits.items())
    assert load(file, separator).labels == corpus.labels


def test_other_sources_are_checked_and_not_counted(write):
    train = write("train.txt", "\n".join(LABELED))
    assert "new" not in load(train, valid_source=write("valid.txt", "new::12\n")).labels
    with pytest.raises(DataError, match=r"valid.txt: line 2: found '12'; allowed: "):
        load(train, valid_source=write("valid.txt", "new::12\n12\n"))


def test_labels_of_bytes(write):
    file = write("a.bin", b"\xff\xc3\xa9\tx\n" * 20 + b"\xc3\xa9\ty\n")
    corpus = load_corpus(file, level="byte", split=(1, 0, 0), unit="line", label_separator="\t")
    assert corpus.labels == {"\udcffé": 20, "é": 1}


@pytest.mark.usefixtures("chunk")
@pytest.mark.parametrize(
    ("place", "line", "found"),
    [
        (0, "none", "line 1: found 'none'; allowed: a label, '::' and the record in every line; correct the line; "),
        (300, "", "line 301: found ''; allowed: "),
        (400, "a:b" * 30, f"line 401: found '{('a:b' * 30)[:60]}' …; allowed: "),
        (7, "a" * 101 + "::b", "with a label of more than 100 characters; allowed: 100 at most; "),
    ],
)
def test_a_line_without_a_label_is_named(write, place, line, found):
    file = write("a.txt", "\n".join([*LABELED[:place], line, *LABELED[place:]]))
    with pytest.raises(DataError) as refused:
        load(file)
    assert str(refused.value).startswith(f"{file}: line {place + 1:,}: found ")
    assert found in str(refused.value)
    assert str(refused.value).endswith("; is data.label_separator right?")


def test_too_many_labels(write):
    many = [f"{n}::x" for n in range(1001)]
    with pytest.raises(DataError, match=r"found more than 1,000 labels, among them '0', '1', '2'; allowed: 1,000 at"):
        load(write("a.txt", "\n".join(many)))
    assert len(load(write("b.txt", "\n".join(many[:1000] * 2))).labels) < 1000


def test_a_given_vocabulary_that_lacks_a_character(write):
    with pytest.raises(VocabularyError):
        load(write("a.txt", "a::b\n"), vocabulary=Vocabulary("char", "\nab"))


@pytest.mark.parametrize("value", [[], "a", {"a": 0}, {"a": True}, {"a": 1.0}, None])
def test_labels_that_no_checkpoint_holds(value):
    with pytest.raises(CheckpointError):
        labels_from_json(value)
