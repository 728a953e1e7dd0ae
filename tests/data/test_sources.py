"""Which files a source stands for, and in which order."""

import os
from pathlib import Path

import pytest

from charlm.data import sources
from charlm.data.sources import resolve
from charlm.errors import DataError

FILES = ["B.txt", "a-b.txt", "a/b/c.txt", "a/z.txt", "a10.txt", "a9.md", "b.txt"]


@pytest.fixture
def tree(write, tmp_path) -> Path:
    """Two levels of files, with hidden ones and names that sort oddly."""
    for name in (*FILES, ".hidden", ".git/x", "a/.y"):
        write(f"tree/{name}", name)
    return tmp_path / "tree"


def names(source: object, root: Path) -> list[str]:
    return [path.relative_to(root).as_posix() for path in resolve(str(source))]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("", FILES),
        (".git", [".git/x"]),
        ("a?.md", ["a9.md"]),
        ("[a]/**/*.txt", ["a/b/c.txt", "a/z.txt"]),
        (".h*", [".hidden"]),
    ],
)
def test_folders_and_globs_are_sorted_and_leave_out_hidden_files(tree, pattern, expected):
    assert names(tree / pattern, tree) == expected


def test_a_relative_glob_and_a_tilde_work(tree, monkeypatch):
    monkeypatch.chdir(tree)
    monkeypatch.setenv("HOME", str(tree))
    assert resolve("a/*.txt") == [Path("a/z.txt")]
    assert resolve("~/b.txt") == [tree / "b.txt"]
    assert resolve("~/a/*.txt") == [tree / "a/z.txt"]


@pytest.mark.parametrize("pattern", ["", "/**/*.txt"])
def test_links_to_folders_do_not_lead_around_for_ever(pattern, tree, write):
    expected = names(f"{tree}{pattern}", tree)
    target = Path(write("elsewhere/real.txt", "x"))
    for name, place in {"x": tree, "a/up": tree, "y": target.parent, "broken": "nowhere"}.items():
        (tree / name).symlink_to(place)
    (tree / "link.txt").symlink_to(target)
    os.mkfifo(tree / "pipe.txt")
    assert names(f"{tree}{pattern}", tree) == sorted([*expected, "link.txt"])
    assert names(f"{tree}/[y]*/*.txt", tree) == ["y/real.txt"]  # but a star follows a link


@pytest.mark.parametrize("source", ["", "b.txt/q", "nul\0l", "~nobody-here/x", "empty", "*.tex", "builtin:zzz", "pipe"])
def test_a_source_without_files_is_refused(source, tree, write, monkeypatch):
    monkeypatch.chdir(tree)
    write("tree/empty/.hidden", "x")
    os.mkfifo(tree / "pipe")
    with pytest.raises(DataError):
        resolve(source)


def test_the_standard_library_is_its_python_files_in_utf8_without_tests_and_packages(write, tmp_path, monkeypatch):
    monkeypatch.setattr(sources.sysconfig, "get_path", lambda name: str(tmp_path / "lib"))
    write("lib/asyncio/good.py", "é = 1")
    write("lib/latin.py", b"# coding: latin-1\n\xe9 = 1")
    for folder in ("test", "tests", "pkg/idle_test", "test_x", "site-packages", "__pycache__", "config-3-linux"):
        write(f"lib/{folder}/inside.py", "x = 1")
    assert resolve("builtin:python-stdlib") == [tmp_path / "lib/asyncio/good.py"]
