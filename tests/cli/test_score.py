"""`charlm score`."""

import csv
import io
import json
import math
import re

import pytest

from charlm.inference import load
from charlm.inference.line_quantiles import Limit
from tests.text import SEEN

LINES = ["so tee", "", "mmmmmmmm", "a tee so.", "lll"]


@pytest.fixture
def candidates(tmp_path):
    path = tmp_path / "candidates.txt"
    path.write_text("".join(f"{line}\n" for line in LINES))
    return path


def columns(out):
    rows = [line.split("\t", 2) for line in out.splitlines()]
    return [(float(per_char), float(bits), line) for per_char, bits, line in rows]


def test_lines_of_a_file_and_of_stdin(cli, trained_run, candidates):
    result = cli("score", trained_run, candidates, "--lines")
    assert (result.code, result.err) == (0, "")
    rows = columns(result.out)
    assert [line for _, _, line in rows] == LINES
    for per_char, bits, line in rows:
        assert bits == pytest.approx(per_char * (len(line) + 1), abs=0.006)
    assert re.fullmatch(r"\d+\.\d{4}\t\d+\.\d\d\tso tee", result.out.splitlines()[0])
    assert cli("score", trained_run, "-", "--lines", stdin=candidates.read_bytes()).out == result.out
    assert cli("score", trained_run, "-", "--lines", stdin=b"\n".join(map(str.encode, LINES))).out == result.out
    assert cli("score", trained_run, "-", "--lines", stdin=b"").out == ""


def test_a_line_starts_where_next_starts(cli, trained_run):
    model = load(trained_run)
    probability = dict(model.next("", k=99))["\n"]
    [(per_char, _, _)] = columns(cli("score", trained_run, "-", "--lines", stdin=b"\n").out)
    assert 2**-per_char == pytest.approx(probability, rel=1e-3)


def test_sort_and_limits(cli, trained_run, candidates):
    words = ["score", trained_run, candidates, "--lines"]
    rows = columns(cli(*words).out)
    assert columns(cli(*words, "--sort").out) == sorted(rows, key=lambda row: row[0])
    middle = sorted(row[0] for row in rows)[2]
    above, below = columns(cli(*words, "--above", middle).out), columns(cli(*words, "--below", f"{middle}bits").out)
    assert all(row[0] >= middle for row in above)
    assert all(row[0] <= middle for row in below)
    assert len(above) + len(below) == 5
    between = cli(*words, "--above", middle - 0.0002, "--below", f"{(middle + 0.0002) * math.log(2)}nats").out
    assert [row[0] for row in columns(between)] == [middle]
    limit = Limit.parse("p60").nats(load(trained_run), "--above") / math.log(2)
    assert columns(cli(*words, "--above", "p60").out) == [row for row in rows if row[0] > limit]


def test_json(cli, trained_run, candidates):
    words = ["score", trained_run, candidates, "--lines", "--json"]
    result = cli(*words)
    found = [json.loads(line) for line in result.out.splitlines()]
    assert (result.code, result.err) == (0, "")
    assert [list(each) for each in found] == [["line", "text", "bits_per_char", "bits", "chars"]] * 5
    assert [(each["line"], each["text"], each["chars"]) for each in found] == [
        (number, line, len(line) + 1) for number, line in enumerate(LINES, 1)
    ]
    for each in map(json.loads, cli(*words, "--per-char").out.splitlines()):
        assert len(each["per_char"]) == each["chars"]
        assert sum(each["per_char"]) == pytest.approx(each["bits"], abs=1e-2)


def test_a_whole_text_is_scored_as_by_eval(cli, trained_run, candidates):
    value = json.loads(cli("eval", trained_run, "--file", candidates, "--json").out)
    result = cli("score", trained_run, candidates)
    assert (result.code, result.err) == (0, "")
    [(per_char, bits, name)] = columns(result.out)
    assert name == str(candidates)
    assert per_char == pytest.approx(value["bits_per_char"], abs=1e-4)
    assert bits == pytest.approx(value["bits_per_char"] * value["targets"], abs=1e-2)
    [(from_stdin, _, name)] = columns(cli("score", trained_run, "-", stdin=candidates.read_bytes()).out)
    assert (from_stdin, name) == (per_char, "stdin")
    whole = json.loads(cli("score", trained_run, candidates, "--json", "--per-char").out)
    assert list(whole) == ["checkpoint", "text", "bits_per_char", "bits", "chars", "per_char"]
    assert whole["chars"] == value["targets"] == len(whole["per_char"])
    assert sum(whole["per_char"]) == pytest.approx(whole["bits"], abs=1e-2)


def test_per_char_of_a_whole_text(cli, trained_run, candidates):
    header, *rows = csv.reader(io.StringIO(cli("score", trained_run, candidates, "--per-char").out, newline=""))
    assert header == ["position", "character", "nats", "bits"]
    assert [row[1] for row in rows] == list(candidates.read_text())[1:]


def test_dynamic(cli, trained_run, tmp_path):
    file = tmp_path / "log.txt"
    file.write_text("mmm lll rrr\n" * 1500)
    words = ["score", trained_run, file]
    static, dynamic = (cli(*words, "--lines", *more) for more in ([], ["--dynamic"]))
    assert dynamic.code == 0
    assert static.out.splitlines()[:16] == dynamic.out.splitlines()[:16]
    assert columns(dynamic.out)[-1][0] < columns(static.out)[-1][0]
    [(whole, _, _)], [(learned, _, _)] = (columns(cli(*words, *more).out) for more in ([], ["--dynamic"]))
    assert learned < whole
    diverged = cli(*words, "--lines", "--dynamic", "--dynamic-lr", 1e38)
    assert re.search(r"found a loss of (nan|inf) nats; allowed: finite numbers; lower --dynamic-lr\n$", diverged.err)
    assert diverged.code == 1


def test_characters_that_the_model_does_not_know(cli, trained_run, tmp_path):
    file = tmp_path / "log.txt"
    file.write_text("so\ntee\nZe\nso\n")
    result = cli("score", trained_run, file, "--lines")
    assert result.code == 1
    assert [line for _, _, line in columns(result.out)] == ["so", "tee"]
    assert result.err == (
        f"error: {file}, line 3: found 'Z' (U+005A), which the model has never seen; allowed: {SEEN}; "
        "--skip-unknown leaves others out, --unknown-as BITS counts them\n"
    )
    skipped, counted = (
        columns(cli("score", trained_run, file, "--lines", *more).out)
        for more in (["--skip-unknown"], ["--unknown-as", 20])
    )
    assert counted[2][1] == pytest.approx(skipped[2][1] + 20)
    assert counted[2][0] == pytest.approx(counted[2][1] / 3, abs=0.01)
    assert counted[3] == skipped[3]

    assert cli("score", trained_run, file).error.startswith(f"{file}: 'Z' (U+005A) × 1: not in the model's vocabulary")
    assert "stdin: found 'Z' (U+005A), which" in cli("score", trained_run, "-", stdin=file.read_bytes()).error
    skipped = cli("score", trained_run, file, "--skip-unknown")
    assert skipped.err.splitlines()[-1] == f"skipped  {file}: 1 character: 'Z' (U+005A)"
    for name, stdin in ((file, None), ("-", file.read_bytes())):
        counted = cli("score", trained_run, name, "--unknown-as", 20, stdin=stdin)
        assert columns(counted.out)[0][1] == pytest.approx(columns(skipped.out)[0][1] + 20)


def test_a_pipe_gets_the_exact_bytes_and_json_readable_text(cli, trained_run, monkeypatch):
    words = ["score", trained_run, "-", "--lines", "--unknown-as", 8]
    result = cli(*words, stdin="so\x1b[2J\r\nté\n".encode())
    assert [line.split("\t")[2] for line in result.out.split("\n")[:-1]] == ["so\x1b[2J\r", "té"]
    assert json.loads(cli(*words, "--json", stdin=b"t\xff\n").out)["text"] == "t\ufffd"
    monkeypatch.setattr("_pytest.capture.CaptureIO.isatty", lambda _: True)
    assert cli(*words, stdin=b"so\x1b[2J\r\nt\xff\n").out.split("\n")[0].endswith("\tso\\x1b[2J\\x0d")
