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
        "splits": "in order",
    }
    out = cli("data", "info", tmp_path / "t.txt", "--level", "byte").out
    rows = dict(re.split(r"  +", line, maxsplit=1) for line in out.splitlines())
    assert (rows["length"], rows["vocabulary"]) == ("8 bytes", "256")


def test_info_says_how_a_text_is_split(cli, write, tmp_path):
    def splits(text, *options):
        return re.search("^splits +(.*)$", cli("data", "info", text, *options).out, re.MULTILINE)[1]

    log = write("folder/a.txt", "".join(f"{number} x\n" for number in range(500)))
    names = write("folder/b.txt", "anna\njo\n" * 500)
    assert splits(tmp_path / "folder") == "valid and test from the end of each file"
    assert splits(names, "--lines") == "by a hash of each line"
    in_order = (
        "valid and test from the end of the text and not by a hash, as its lines begin with increasing times or numbers"
    )
    assert splits(log, "--lines") == in_order
    words = ["--config", "lstm", log, "--lines", "--set", "model.cell.hidden=8", "--set", "train.bptt=4"]
    assert f"in 500 lines, {in_order}; vocabulary 13\n" in cli("plan", *words, "--set", "train.batch_size=2").err


def test_fetch_of_what_is_here_prints_its_path(cli, tinyshakespeare):
    result = cli("data", "fetch", "tinyshakespeare", "--data-dir", tinyshakespeare.parent)
    assert (result.code, result.out, result.err) == (0, f"{tinyshakespeare}\n", "")
