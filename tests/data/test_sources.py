"""Which files a source stands for, in which order, and what is said where there are none."""

import glob
import os
import re
import socket
import subprocess
import sys
import sysconfig
from functools import partial
from pathlib import Path

import pytest

from charlm.data import sources
from charlm.data.fetch import CATALOG
from charlm.data.sources import resolve
from charlm.errors import DataError
from tests.conftest import ROOT

KINDS = "a source is a file, a folder, a glob or builtin:NAME"
NONE = f"no such file or folder; {KINDS}; "
FILES = ["B.txt", "a-b.txt", "a/b/c.txt", "a/z.txt", "a10.txt", "a9.md", "b.txt"]


@pytest.fixture
def tree(write, tmp_path) -> Path:
    """Two levels of files, with hidden ones and names that sort oddly."""
    for name in (*FILES, ".hidden", ".git/x", "a/.y"):
        write(f"tree/{name}", name)
    return tmp_path / "tree"


def names(source: object, root: Path) -> list[str]:
    return [path.relative_to(root).as_posix() for path in resolve(str(source))]


def refused(source: str) -> str:
    with pytest.raises(DataError) as caught:
        resolve(source)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_file_is_itself_even_if_hidden_or_named_like_a_glob(write):
    for name in (".hidden", "a[b].txt", "what?.txt", "*"):
        path = write(name, "x")
        assert resolve(path) == [Path(path)]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("", FILES),
        (".git", [".git/x"]),
        ("*.txt", ["B.txt", "a-b.txt", "a10.txt", "b.txt"]),
        ("**/*.txt", ["B.txt", "a-b.txt", "a/b/c.txt", "a/z.txt", "a10.txt", "b.txt"]),
        ("a/**", ["a/b/c.txt", "a/z.txt"]),
        ("[ab].txt", ["b.txt"]),
        ("a?.md", ["a9.md"]),
        ("*/b/*", ["a/b/c.txt"]),
        ("[a]/**/*.txt", ["a/b/c.txt", "a/z.txt"]),
        ("**/b/**/c*", ["a/b/c.txt"]),
        (".h*", [".hidden"]),
    ],
)
def test_folders_and_globs_are_sorted_and_leave_out_hidden_files(tree, pattern, expected, monkeypatch):
    listed = sources._listed
    for reverse in (False, True):  # whatever the order of the file system
        order = partial(sorted, key=lambda entry: entry.name, reverse=reverse)
        monkeypatch.setattr(sources, "_listed", lambda folder, order=order: order(listed(folder)))
        assert names(tree / pattern, tree) == expected


def test_a_relative_glob_and_a_tilde_work(tree, monkeypatch):
    monkeypatch.chdir(tree)
    monkeypatch.setenv("HOME", str(tree))
    assert resolve("a/*.txt") == [Path("a/z.txt")]
    assert resolve("~/b.txt") == [tree / "b.txt"]
    assert resolve("~/a/*.txt") == [tree / "a/z.txt"]


@pytest.mark.parametrize("pattern", ["", "/**", "/**/*.txt"])
def test_links_to_folders_do_not_lead_around_for_ever(pattern, tree, write, capsys):
    expected = names(f"{tree}{pattern}", tree)
    target = Path(write("elsewhere/real.txt", "x"))
    for name, place in {"x": tree, "a/up": tree, "y": target.parent, "broken": "nowhere"}.items():
        (tree / name).symlink_to(place)
    (tree / "link.txt").symlink_to(target)
    os.mkfifo(tree / "pipe.txt")
    assert names(f"{tree}{pattern}", tree) == sorted([*expected, "link.txt"])
    assert f"leaves out {tree}/a/up, {tree}/x, {tree}/y: links to folders, or what c" in capsys.readouterr().err
    assert names(f"{tree}/[y]*/*.txt", tree) == ["y/real.txt"]  # but a star follows a link


def test_an_escaped_name_in_a_glob_is_that_name(write, tmp_path, monkeypatch):
    path = Path(write("[a]*/.b[c]/d.txt", "x"))
    assert resolve(f"{glob.escape(str(path.parent))}/*.txt") == [path]
    assert resolve(f"{glob.escape(str(tmp_path))}/*/.b[[]c]/d.*") == [path]
    assert resolve(f"{tmp_path}/?a]*/.b?c]/d.[t]xt") == [path]
    monkeypatch.chdir(path.parents[1])
    assert resolve(".b[[]c]/d*") == [Path(".b[c]/d.txt")]


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("q", f"{NONE}check the path"),
        ("b.txt/q", f"{NONE}check the path"),
        ("nul\0l", f"{NONE}check the path"),
        ("~nobody-here/x", f"{NONE}check the path"),
        ("a10.text", f"{NONE}did you mean 'a10.txt'?"),
        ("python-stdlib", f"{NONE}did you mean 'builtin:python-stdlib'?"),
        *((form.format(name), f"{NONE}`charlm data fetch {name}` downloads it to data/")
          for name in CATALOG for form in ("data/{}.txt", "{}", "{}.txt")),
        ("empty", "a folder without text; hidden files and what charlm writes do not count; add text files"),
        ("*.tex", "no file matches; a glob names files, `**` any depth of folders; check the pattern"),
        ("a/?", "no file matches; a glob names files, `**` any depth of folders; check the pattern"),
        *((name, "no regular file, so it cannot be read twice; allowed: files, and stdin or a pipe as the TEXT of "
           "`charlm train`; write its text to a file first") for name in ("pipe", "socket", "/dev/null", "-")),
        ("builtin:zzz", "unknown builtin; allowed: python-stdlib, unicode-names"),
        ("builtin:python", "unknown builtin; allowed: python-stdlib, unicode-names; did you mean "
         "'builtin:python-stdlib'?"),
    ],
)  # fmt: skip
def test_a_source_without_files_is_refused(source, fault, tree, write, monkeypatch):
    monkeypatch.chdir(tree)
    write("tree/empty/.hidden", "x")
    os.mkfifo(tree / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
        assert refused(source) == f"{source}: {fault}"
    assert refused("") == f"data source: empty; {KINDS}; name one"


@pytest.mark.parametrize("below", ["", "/**/*.txt", "/*/*/*.txt"])
def test_a_folder_that_cannot_be_read(below, tree, monkeypatch):
    scandir = os.scandir

    def denying(path):
        if Path(path).name == "b":
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", denying)
    assert refused(f"{tree}{below}") == (
        f"{tree}/a/b: cannot be read: Permission denied; a source needs all its files; mend it or name another"
    )


def test_the_standard_library_is_large_utf8_python_without_tests():
    relative = names("builtin:python-stdlib", Path(sysconfig.get_path("stdlib")))
    assert sum(len(path.read_text("utf-8")) for path in resolve("builtin:python-stdlib")) > 5_000_000
    assert {"argparse.py", "asyncio/tasks.py", "doctest.py", "unittest/mock.py"} <= set(relative)
    assert all(name.endswith(".py") for name in relative)
    folders = {part for name in relative for part in name.split("/")[:-1]}
    assert not [name for name in folders if re.match(r"tests?$|test_|idle_test|(site|dist)-packages|__pycache__", name)]


def test_the_standard_library_of_another_place(write, tmp_path, monkeypatch):
    monkeypatch.setattr(sources.sysconfig, "get_path", lambda name: str(tmp_path / "lib"))
    assert refused("builtin:python-stdlib") == (
        f"builtin:python-stdlib: no .py files under {tmp_path}/lib; this Python has no readable standard library; "
        "name a file or folder instead"
    )
    write("lib/good.py", "é = 1")
    write("lib/latin.py", b"# coding: latin-1\n\xe9 = 1")
    write("lib/readme.txt", "x")
    write("lib/_sysconfigdata_linux.py", "x = 1")
    for folder in ("test", "tests", "pkg/idle_test", "test_x", "site-packages", "__pycache__", "config-3-linux"):
        write(f"lib/{folder}/inside.py", "x = 1")
    assert resolve("builtin:python-stdlib") == [tmp_path / "lib/good.py"]


def test_unicode_names_are_one_a_line_and_made_once(monkeypatch, tmp_path):
    monkeypatch.setenv("CHARLM_CACHE", str(tmp_path))
    [file] = resolve("builtin:unicode-names")
    lines = file.read_text(encoding="ascii").split("\n")
    assert len(lines) > 130_000
    assert (lines[:2], lines[-1]) == (["SPACE", "EXCLAMATION MARK"], "")
    assert "GREEK SMALL LETTER ALPHA" in lines
    written = file.stat().st_ino
    assert resolve("builtin:unicode-names") == [file]
    assert file.stat().st_ino == written


def test_sources_and_corpus_load_neither_torch_nor_an_http_client():
    program = (
        "import sys, charlm.data.sources, charlm.data.corpus; "
        "print([name for name in ('torch', 'requests', 'http.client', 'tqdm') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
