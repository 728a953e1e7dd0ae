"""`charlm data`."""

import hashlib
import re

from charlm.data.fetch import CATALOG


def test_list(cli, tmp_path):
    (tmp_path / "text8.txt").touch()
    result = cli("data", "list", "--data-dir", tmp_path)
    assert (result.code, result.err) == (0, "")
    rows = {line.split()[0]: line.split(maxsplit=1)[1] for line in result.out.splitlines()}
    assert list(rows) == ["builtin:python-stdlib", "builtin:unicode-names", *CATALOG]
    assert rows["builtin:python-stdlib"].startswith("built in ")
    assert rows["text8"].startswith("fetched ")
    assert rows["enwik8"].startswith("to fetch ")


def test_info_of_a_file(cli, tmp_path):
    content = "aabbbé\n".encode()
    (tmp_path / "t.txt").write_bytes(content)
    result = cli("data", "info", tmp_path / "t.txt")
    rows = dict(re.split(r"  +", line, maxsplit=1) for line in result.out.splitlines())
    assert (result.code, result.err) == (0, "")
    assert rows == {
        "sha256": hashlib.sha256(content).hexdigest(),
        "files": "1",
        "size": "8 bytes",
        "length": "7 chars",
        "vocabulary": "4",
    }
    out = cli("data", "info", tmp_path / "t.txt", "--level", "byte").out
    rows = dict(re.split(r"  +", line, maxsplit=1) for line in out.splitlines())
    assert (rows["length"], rows["vocabulary"]) == ("8 bytes", "256")


def test_a_run_says_that_lines_are_split_in_order(cli, write):
    log = write("a.txt", "".join(f"{number + 1_700_000_000} x\n" for number in range(500)))
    words = ["--config", "lstm", log, "--lines", "--set", "model.cell.hidden=8", "--set", "train.bptt=4"]
    in_order = "split in order, as they begin with increasing times"
    assert f"in 500 lines, {in_order}; vocabulary 13\n" in cli("plan", *words, "--set", "train.batch_size=2").err


def test_fetch_of_what_is_here_prints_its_path(cli, tinyshakespeare):
    result = cli("data", "fetch", "tinyshakespeare", "--data-dir", tinyshakespeare.parent)
    assert (result.code, result.out, result.err) == (0, f"{tinyshakespeare}\n", "")
