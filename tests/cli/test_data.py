"""`charlm data`, and what it says of files that are not text."""

import gzip
import hashlib
import re

import pytest

from charlm.data.fetch import CATALOG


def rows(result) -> dict[str, str]:
    assert result.code == 0
    return dict(re.split(r"  +", line, maxsplit=1) for line in result.out.splitlines())


def test_list(cli, write, tmp_path, monkeypatch):
    write("data/text8.txt", "")
    monkeypatch.chdir(tmp_path)
    listed = rows(cli("data", "list"))
    assert list(listed) == ["builtin:python-stdlib", "builtin:unicode-names", *CATALOG]
    assert (listed["text8"][:7], listed["enwik8"][:8]) == ("fetched", "to fetch")


def test_info(cli, write, tmp_path):
    content = "aabbbé\n".encode()
    file = write("t.txt", content)
    rare = "4 of 4 characters occur fewer than 10 times, together 7 of 7"
    rare += "; data.min_count=10 makes one symbol of them"
    sha256 = hashlib.sha256(content).hexdigest()
    names = ["sha256", "files", "size", "length", "vocabulary", "rare", "splits"]
    values = [sha256, "1", "8 bytes", "7 chars", "4", rare, "in order"]
    assert rows(cli("data", "info", file)) == dict(zip(names, values, strict=True))
    assert rows(cli("data", "info", file, "--level", "byte"))["vocabulary"] == "256"
    log = write("folder/a.txt", "".join(f"{number} x\n" for number in range(5000)))
    names = write("folder/b.txt", "anna\njo\n" * 5000)
    assert rows(cli("data", "info", tmp_path / "folder"))["splits"] == "valid and test from 3 evenly spaced places"
    assert rows(cli("data", "info", names, "--lines"))["splits"] == "by a hash of each record"
    in_order = (
        "valid and test from the end of the text and not by a hash, as its records begin with increasing times or "
    )
    assert rows(cli("data", "info", log, "--lines"))["splits"].startswith(in_order)


ENGLISH = "the cat sat on the mat – ‘meow’.\n" * 300
CHINESE = "今天的天气很好，我们去公园散步。一二三四五六\n" * 300
KINDS = {
    "a gzip file": gzip.compress(ENGLISH.encode()),
    "a zip archive or an office document": b"PK\3\4\x14\0",
    "a PDF document": b"%PDF-1.7\n" + ENGLISH.encode(),
    "text in UTF-16": ENGLISH.encode("utf-16"),
    "text in UTF-16LE": ENGLISH.encode("utf-16-le"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_is_said_for_what_it_is(cli, write, kind):
    path = write("a.txt", KINDS[kind])
    assert cli("data", "info", path).error.startswith(f"{path}: found {kind}; allowed: text in UTF-8")
    assert cli("data", "info", path, "--level", "byte").code == 0


def test_a_pointer_of_git_lfs_is_not_its_file(cli, write):
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12345\n"
    words = ["data", "info"], ["sample"], ["config", "show"]
    for name, command in zip(("a.txt", "best.safetensors", "a.yaml"), words, strict=True):
        path = write(name, pointer)
        allowed = "allowed: the file itself; run `git lfs pull`"
        assert cli(*command, path).error == f"{path}: found git-lfs's pointer to the file; {allowed}"
    assert "git lfs pull" in cli("data", "info", write("a.txt.gz", pointer), "--level", "byte").error


@pytest.mark.parametrize("text", ["MZ, BZh and RIFF begin files", "0\0\n" * 900, ENGLISH + CHINESE])
def test_text_is_text(cli, write, text):
    assert cli("data", "info", write("a.txt", text)).code == 0
