"""`charlm data`."""

import hashlib
import json
import re
import shutil

from charlm.data.catalog import CATALOG
from charlm.system.formatting import format_bytes
from tests.corpora import load_corpus


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
    assert (result.code, result.err) == (0, f"data     {tmp_path}/t.txt: reading 8 B in 1 file\n")
    assert rows == {
        "sha256": hashlib.sha256(content).hexdigest(),
        "files": "1",
        "size": "8 bytes",
        "length": "7 chars",
        "vocabulary": "4",
        "most often": r"'b' 42.9%  'a' 28.6%  'é' 14.3%  '\n' 14.3%",
    }
    out = cli("data", "info", tmp_path / "t.txt", "--level", "byte").out
    rows = dict(re.split(r"  +", line, maxsplit=1) for line in out.splitlines())
    assert (rows["length"], rows["vocabulary"]) == ("8 bytes", "256")
    assert rows["most often"] == r"b'b' 37.5%  b'a' 25.0%  b'\xc3' 12.5%  b'\xa9' 12.5%  b'\n' 12.5%"


def test_info_of_a_corpus_that_is_not_here(cli, tmp_path):
    result = cli("data", "info", "enwik8", "--data-dir", tmp_path)
    assert result.code == 0
    assert "charlm data fetch enwik8" in result.out
    assert CATALOG["enwik8"].url in result.out


def test_info_of_tinyshakespeare(cli, tinyshakespeare):
    out = cli("data", "info", "tinyshakespeare", "--data-dir", tinyshakespeare.parent).out
    rows = dict(re.split(r"  +", line, maxsplit=1) for line in out.splitlines())
    assert (rows["length"], rows["vocabulary"]) == ("1,115,394 chars", "65")
    assert rows["sha256"] == CATALOG["tinyshakespeare"].sha256


def test_fetch_of_what_is_here_prints_its_path(cli, tinyshakespeare):
    result = cli("data", "fetch", "tinyshakespeare", "--data-dir", tinyshakespeare.parent)
    assert (result.code, result.out, result.err) == (0, f"{tinyshakespeare}\n", "")


def test_cache(cli, tmp_path, cache):
    """Shows and clears what charlm wrote, except a text in use, and nothing else."""
    for name in ("one", "two"):
        (tmp_path / name).write_text(f"text {name}\n" * 100)
    corpus = load_corpus(str(tmp_path / "one"), split=(1.0, 0.0, 0.0))
    cli("data", "info", tmp_path / "two")
    ids = corpus.splits["train"].tolist()
    (cache / "corpora/notes.txt").write_text("my own")
    shutil.rmtree(cache / "kernels", ignore_errors=True)  # reading a text may have compiled one
    (cache / "kernels").mkdir(mode=0o700)
    for suffix in ("so", "sha256"):
        (cache / f"kernels/lstm-{'0' * 16}.{suffix}").write_bytes(b"0" * 1000)
    size = sum(path.stat().st_size for path in (cache / "corpora").iterdir()) - len("my own")

    result = cli("data", "cache")
    assert (result.code, result.err) == (0, "")
    assert result.out.splitlines() == [
        f"folder   {cache}",
        f"corpora  2 entries of {format_bytes(size)}, at most 10 GB",
        "kernels  1 entry of 2 kB, at most 100 MB",
    ]
    value = json.loads(cli("data", "cache", "--json").out)
    assert value["corpora"] == {"bytes": size, "entries": 2, "bound_bytes": 10_000_000_000}

    value = json.loads(cli("data", "cache", "--clear", "--json").out)
    assert value["folder"] == str(cache)
    assert value["corpora"]["cleared_bytes"] == size - value["corpora"]["bytes"]
    assert (value["corpora"]["entries"], value["corpora"]["cleared_entries"]) == (1, 1)
    assert (value["kernels"]["entries"], value["kernels"]["cleared_entries"]) == (0, 1)
    assert corpus.splits["train"].tolist() == ids
    del corpus
    assert cli("data", "cache", "--clear").out.splitlines() == [
        f"folder   {cache}",
        f"corpora  cleared 1 entry of {format_bytes(value['corpora']['bytes'])}; 0 entries in use",
        "kernels  cleared 0 entries of 0 B; 0 entries in use",
    ]
    assert [path.name for path in cache.glob("*/*")] == ["notes.txt"]


def test_a_cache_that_others_may_write_to_is_not_cleared(cli, tmp_path, cache):
    (tmp_path / "text").write_text("text\n")
    cli("data", "info", tmp_path / "text")
    (cache / "corpora").chmod(0o777)
    fault = "others may write to it (chmod go-w changes that)"
    assert f"corpora  not used, because {fault}" in cli("data", "cache", "--clear").out.splitlines()
    assert json.loads(cli("data", "cache", "--json").out)["corpora"] == {"unused": fault}
    assert len([*(cache / "corpora").iterdir()]) == 2
