"""`charlm score`."""

import json
import re

import pytest

LINES = ["so tee", "", "mmmmmmmm", "a tee so.", "lll"]


@pytest.fixture
def candidates(write):
    return write("candidates.txt", "".join(f"{line}\n" for line in LINES))


def columns(out):
    rows = [line.split("\t", 3) for line in out.splitlines()]
    return [(float(per_char), float(bits), line) for per_char, bits, _, line in rows]


def test_lines_of_a_file_and_of_stdin(cli, trained_run, candidates):
    words = ["score", trained_run]
    result = cli(*words, candidates)
    rows = columns(result.out)
    assert [line for _, _, line in rows] == LINES
    for per_char, bits, line in rows:
        assert bits == pytest.approx(per_char * (len(line) + 1), abs=0.006)
    assert re.fullmatch(r"\d+\.\d{4}\t\d+\.\d\d\t1\tso tee", result.out.splitlines()[0])
    for end in (b"\n", b"\r\n"):
        assert cli(*words, "-", stdin=end.join(line.encode() for line in LINES)).out == result.out
    records = cli(*words, "-", "--records", "~", stdin="~".join(LINES).encode())
    assert records.out == result.out
    values = [json.loads(line) for line in cli(*words, candidates, "--json", "--per-char").out.splitlines()]
    assert list(values[0]) == ["line", "text", "bits_per_char", "bits", "chars", "unknown", "per_char"]
    assert [(value["line"], value["text"]) for value in values] == [*enumerate(LINES, 1)]
    assert [len(value["per_char"]) for value in values] == [len(line) + 1 for line in LINES]
    assert sum(values[0]["per_char"]) == pytest.approx(values[0]["bits"], abs=1e-2)


def test_limits_and_percentiles(cli, trained_run, candidates):
    """A percentile of a file of normal lines is a limit for a pipe, too."""
    words = ["score", trained_run, candidates]
    rows = sorted(columns(cli(*words).out))
    middle = rows[2][0]
    assert sorted(columns(cli(*words, "--above", middle + 0.0002).out)) == rows[3:]
    lines = [row for row in rows if row[2]]  # an empty line is in no percentile
    for percent, count in ((0, 3), (60, 1), (100, 0)):
        assert sorted(columns(cli(*words, "--above", f"p{percent}").out)) == lines[4 - count :]
    stdin = ("\n".join(LINES) + "\nso Zee").encode()
    result = cli("score", trained_run, "-", "--above", "p60", "--of", candidates, stdin=stdin)
    assert [line for _, _, line in columns(result.out)] == [lines[3][2], "so Zee"]
    assert result.err.startswith(f"above    {lines[2][0]:.4f} bits per character, p60 of 4 lines\n")


def test_a_frequent_line_is_not_above_its_own_score(cli, trained_run):
    """A printed score is rounded, and a line's occurrences differ in the last bits."""
    [(printed, _, _)] = columns(cli("score", trained_run, "-", stdin=b"so tee\n").out)
    assert cli("score", trained_run, "-", "--above", printed, stdin=b"so tee\n").out == ""


def test_unknown_characters_of_a_file_count_as_many_bits_as_the_user_says(cli, trained_run, write):
    words = ["score", trained_run, write("log.txt", "so\ne\nZe\nso\n")]
    assert "log.txt, line 3: found 'Z' (U+005A)" in cli(*words, "--above", 1).error
    _, without, counted, _ = columns(cli(*words, "--unknown-as", 20).out)
    assert counted[1] == pytest.approx(without[1] + 20)
    assert counted[0] == pytest.approx(counted[1] / 3, abs=0.01)
    assert columns(cli(*words, "--unknown-as", 20, "--above", counted[0] - 1).out) == [counted]
    assert cli(*words, "--unknown-as", 1, "--above", 1000).out == ""
    assert cli("score", trained_run, "-", "--unknown-as", 1, "--above", 1000, stdin=b"Ze").out == ""


@pytest.mark.parametrize(("worst", "prefix"), [(1, ""), (3, r"\w+ "), (1000, r"\w+ ")])
def test_a_line_is_judged_by_its_worst_characters_after_a_prefix(cli, trained_run, candidates, worst, prefix):
    words = ["score", trained_run, candidates, "--worst", worst, "--after", prefix]
    rows = [json.loads(line) for line in cli("score", trained_run, candidates, "--json", "--per-char").out.splitlines()]
    found = [json.loads(line) for line in cli(*words, "--json").out.splitlines()]
    for row, one in zip(rows, found, strict=True):
        bits = row["per_char"][len(re.match(f"(?:{prefix})?", row["text"])[0]) :]
        ends = range(min(worst, len(bits)), len(bits) + 1)
        expected = max(sum(bits[max(end - worst, 0) : end]) / min(worst, len(bits)) for end in ends)
        assert (one["chars"], one["worst_bits_per_char"]) == (len(bits), pytest.approx(expected, abs=1e-3))
        assert one["bits"] == pytest.approx(sum(bits), abs=1e-2)
    scored = sorted(columns(cli(*words).out))
    assert sorted(columns(cli(*words, "--above", scored[2][0] + 0.0002).out)) == scored[3:]
    lines = [row for row in scored if row[2]]
    for options in ([], ["--of", candidates]):
        assert sorted(columns(cli(*words, "--above", "p60", *options).out)) == lines[3:]


def test_an_unknown_character_of_the_prefix_does_not_count(cli, trained_run, write):
    words = ["score", trained_run, write("log.txt", "Z9 so\n"), "--after", "[A-Z0-9]+ "]
    [row] = columns(cli(*words).out)
    assert columns(cli(*words, "--unknown-as", 90).out) == [row]
    assert "log.txt, line 1: found '9' (U+0039), 'Z' (U+005A)" in cli(*words[:3]).error
    assert cli(*words[:3], "--after", "(").usage_error.startswith("Invalid value: --after: found '('")


def test_the_lines_of_a_folder_have_the_names_of_their_files(cli, trained_run, write, tmp_path):
    first, second = write("logs/a.txt", "so tee.\nse te.\n"), write("logs/b.txt", "mmmmmm\nse\n")
    alone = [cli("score", trained_run, file).out.splitlines() for file in (first, second)]
    expected = []
    for file, rows in zip((first, second), alone, strict=True):
        expected += [row.replace(f"\t{number}\t", f"\t{file}:{number}\t") for number, row in enumerate(rows, 1)]
    for source in (tmp_path / "logs", f"{tmp_path}/logs/*.txt"):
        assert cli("score", trained_run, source).out.splitlines() == expected
    rows = [json.loads(row) for row in cli("score", trained_run, tmp_path / "logs", "--json").out.splitlines()]
    assert [(row["file"], row["line"]) for row in rows] == [(first, 1), (first, 2), (second, 1), (second, 2)]
    limit = max(float(row.split("\t")[0]) for row in expected) - 0.01
    found = cli("score", trained_run, tmp_path / "logs", "--above", limit, "--context", 1).out
    assert found.splitlines() == expected[2:]  # the line before it is of another file


def test_records_without_a_separator_are_told(cli, trained_run, candidates):
    for words in (["--records", "~~~"], ["--records", r"\r\n"]):
        result = cli("score", trained_run, candidates, *words)
        assert (result.code, result.out.count("\n")) == (0, 1)
        assert result.err == f"records  {candidates}: found one record; see --records\n"
        assert f"found no '{words[1]}'" in cli("data", "info", candidates, *words).error


def test_a_monitor_survives_every_line(cli, trained_run):
    """In a pipe unknown characters count as 20 bits, and a line that has one is above every limit."""
    long = "tee " * 3000 + "Z"
    lines = [b"so", b"Ze", b"t\xffe", b"t\0", b"\0\0", "té".encode(), long.encode(), b"", b"s\ro"]
    result = cli("score", trained_run, "-", "--above", 15, "--json", stdin=b"\n".join(lines))
    values = [json.loads(line) for line in result.out.splitlines()]
    assert [(value["line"], value["unknown"]) for value in values] == [
        (2, "Z"), (3, "\ufffd"), (4, "\0"), (5, "\0"), (6, "é"), (7, "Z"), (9, "\r")
    ]  # fmt: skip
    assert result.err == (
        "unknown  stdin, line 2: 'Z' (U+005A), which the model has never seen; each such character counts as 20 bits; "
        "see --unknown-as\n"
    )


def test_lines_around_those_that_surprise(cli, trained_run, tmp_path):
    lines = ["se te.", "te se.", "so te.", "se te.", "te te."]
    text = "\n".join(lines).encode()
    scores = [float(row.split("\t")[0]) for row in cli("score", trained_run, "-", stdin=text).out.splitlines()]
    limit = max(scores) - 0.01
    done = cli("score", trained_run, "-", "--above", limit, "--context", 1, stdin=text)
    first = scores.index(max(scores))
    assert first > 0
    assert [int(row.split("\t")[2]) for row in done.out.splitlines()] == [first, first + 1, first + 2]
    assert cli("score", trained_run, "-", "--context", 1, stdin=text).usage_error.endswith("--context needs --above")
