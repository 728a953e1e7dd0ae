"""`charlm score`."""

import csv
import io
import json
import math
import re

import pytest

from charlm.inference import load
from charlm.inference.lines import limit_nats
from charlm.inference.options import Limit
from tests.text import SEEN

LINES = ["so tee", "", "mmmmmmmm", "a tee so.", "lll"]


@pytest.fixture
def candidates(write):
    return write("candidates.txt", "".join(f"{line}\n" for line in LINES))


def columns(out):
    rows = [line.split("\t", 2) for line in out.splitlines()]
    return [(float(per_char), float(bits), line) for per_char, bits, line in rows]


def test_lines_of_a_file_and_of_stdin(cli, trained_run, candidates):
    words = ["score", trained_run, "--lines"]
    result = cli(*words, candidates)
    assert (result.code, result.err) == (0, "")
    rows = columns(result.out)
    assert [line for _, _, line in rows] == LINES
    for per_char, bits, line in rows:
        assert bits == pytest.approx(per_char * (len(line) + 1), abs=0.006)
    assert re.fullmatch(r"\d+\.\d{4}\t\d+\.\d\d\tso tee", result.out.splitlines()[0])
    for end in (b"\n", b""):
        assert cli(*words, "-", stdin="\n".join(LINES).encode() + end).out == result.out
    assert cli(*words, "-", stdin=b"").out == ""
    [(per_char, _, _)] = columns(cli(*words, "-", stdin=b"\n").out)
    assert 2**-per_char == pytest.approx(dict(load(trained_run).next("", k=99))["\n"], rel=1e-3)
    values = [json.loads(line) for line in cli(*words, candidates, "--json").out.splitlines()]
    assert [list(value) for value in values] == [["line", "text", "bits_per_char", "bits", "chars"]] * 5
    assert [(value["line"], value["text"], value["chars"]) for value in values] == [
        (number, line, len(line) + 1) for number, line in enumerate(LINES, 1)
    ]
    for value in map(json.loads, cli(*words, candidates, "--json", "--per-char").out.splitlines()):
        assert len(value["per_char"]) == value["chars"]
        assert sum(value["per_char"]) == pytest.approx(value["bits"], abs=1e-2)


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
    limit = limit_nats(Limit.parse("p60"), load(trained_run), "--above") / math.log(2)
    assert columns(cli(*words, "--above", "p60").out) == [row for row in rows if row[0] > limit]


def test_a_whole_text_is_scored_as_by_eval(cli, trained_run, candidates):
    value = json.loads(cli("eval", trained_run, "--file", candidates, "--json").out)
    words = ["score", trained_run, candidates]
    result = cli(*words)
    assert (result.code, result.err) == (0, "")
    [(per_char, bits, name)] = columns(result.out)
    assert name == candidates
    assert per_char == pytest.approx(value["bits_per_char"], abs=1e-4)
    assert bits == pytest.approx(value["bits_per_char"] * value["targets"], abs=1e-2)
    text = "".join(f"{line}\n" for line in LINES)
    [(from_stdin, _, name)] = columns(cli("score", trained_run, "-", stdin=text.encode()).out)
    assert (from_stdin, name) == (per_char, "stdin")
    whole = json.loads(cli(*words, "--json", "--per-char").out)
    assert list(whole) == ["checkpoint", "text", "bits_per_char", "bits", "chars", "per_char"]
    assert whole["chars"] == value["targets"] == len(whole["per_char"])
    assert sum(whole["per_char"]) == pytest.approx(whole["bits"], abs=1e-2)
    header, *rows = csv.reader(io.StringIO(cli(*words, "--per-char").out, newline=""))
    assert header == ["position", "character", "nats", "bits"]
    assert [row[1] for row in rows] == list(text)[1:]


def test_dynamic(cli, trained_run, write):
    words = ["score", trained_run, write("log.txt", "mmm lll rrr\n" * 1500)]
    static, dynamic = (cli(*words, "--lines", *more) for more in ([], ["--dynamic"]))
    assert dynamic.code == 0
    assert static.out.splitlines()[:16] == dynamic.out.splitlines()[:16]
    assert columns(dynamic.out)[-1][0] < columns(static.out)[-1][0]
    [(whole, _, _)], [(learned, _, _)] = (columns(cli(*words, *more).out) for more in ([], ["--dynamic"]))
    assert learned < whole
    diverged = cli(*words, "--lines", "--dynamic", "--dynamic-lr", 1e38)
    assert re.search(r"found a loss of (nan|inf) nats; allowed: finite numbers; lower --dynamic-lr\n$", diverged.err)
    assert diverged.code == 1


def test_characters_that_the_model_does_not_know(cli, trained_run, write):
    text = "so\ntee\nZe\nso\n"
    file = write("log.txt", text)
    words = ["score", trained_run, file]
    result = cli(*words, "--lines")
    assert result.code == 1
    assert [line for _, _, line in columns(result.out)] == ["so", "tee"]
    assert result.err == (
        f"error: {file}, line 3: found 'Z' (U+005A), which the model has never seen; allowed: {SEEN}; "
        "--skip-unknown leaves others out, --unknown-as BITS counts them\n"
    )
    skipped = columns(cli(*words, "--lines", "--skip-unknown").out)
    counted = columns(cli(*words, "--lines", "--unknown-as", 20).out)
    assert counted[2][1] == pytest.approx(skipped[2][1] + 20)
    assert counted[2][0] == pytest.approx(counted[2][1] / 3, abs=0.01)
    assert counted[3] == skipped[3]
    assert cli(*words).error.startswith(f"{file}: found 'Z' (U+005A), which the model has never seen")
    skipped = cli(*words, "--skip-unknown")
    assert skipped.err.splitlines()[-1] == f"skipped  {file}: 1 character: 'Z' (U+005A)"
    for name in (file, "-"):
        counted = cli("score", trained_run, name, "--unknown-as", 20, stdin=text.encode())
        assert columns(counted.out)[0][1] == pytest.approx(columns(skipped.out)[0][1] + 20)


def test_a_pipe_gets_the_exact_bytes_and_json_readable_text(cli, trained_run, monkeypatch):
    words = ["score", trained_run, "-", "--lines", "--unknown-as", 8]
    result = cli(*words, stdin="so\x1b[2J\r\nté\n".encode())
    assert [line.split("\t")[2] for line in result.out.split("\n")[:-1]] == ["so\x1b[2J\r", "té"]
    assert json.loads(cli(*words, "--json", stdin=b"t\xff\n").out)["text"] == "t\ufffd"
    monkeypatch.setattr("_pytest.capture.CaptureIO.isatty", lambda _: True)
    assert cli(*words, stdin=b"so\x1b[2J\r\nt\xff\n").out.split("\n")[0].endswith("\tso\\x1b[2J\\x0d")
