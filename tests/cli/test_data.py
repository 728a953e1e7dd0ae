"""`charlm data`."""

import hashlib
import json
import re
import shutil

from charlm.data.catalog import CATALOG
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
    assert (result.code, result.err) == (0, "")
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
    """Shows and clears what charlm wrote, and nothing else."""
    (tmp_path / "text").write_text("text\n" * 100)
    corpus = load_corpus(str(tmp_path / "text"), split=(1.0, 0.0, 0.0))
    ids = corpus.splits["train"].tolist()
    (cache / "corpora/notes.txt").write_text("my own")
    shutil.rmtree(cache / "kernels", ignore_errors=True)  # reading a text may have compiled one
    (cache / "kernels").mkdir(mode=0o700)
    for suffix in ("so", "sha256"):
        (cache / f"kernels/lstm-{'0' * 16}.{suffix}").write_bytes(b"0" * 1000)
    result = cli("data", "cache")
    assert (result.code, result.err) == (0, "")
    assert result.out.splitlines() == [
        f"folder   {cache}",
        "corpora  1 file of 500 B, at most 10 GB",
        "kernels  2 files of 2 kB, at most 100 MB",
    ]
    value = json.loads(cli("data", "cache", "--clear", "--json").out)
    assert value["folder"] == str(cache)
    assert value["corpora"] == {"files": 1, "bytes": 500, "bound_bytes": 10_000_000_000, "cleared": True}
    assert [path.name for path in cache.glob("*/*")] == ["notes.txt"]
    assert corpus.splits["train"].tolist() == ids
    assert "corpora  0 files of 0 B, now removed" in cli("data", "cache", "--clear").out.splitlines()


def test_a_cache_that_others_may_write_to_is_not_cleared(cli, cache):
    (cache / "corpora").mkdir(parents=True)
    (cache / "corpora").chmod(0o777)
    assert "the cache is not safe: others may write to it" in cli("data", "cache", "--clear").error
