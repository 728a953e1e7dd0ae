"""Which files a source stands for, in which order, and what is said where there are none."""

import glob
import os
import re
import socket
import stat
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from charlm.data import sources
from charlm.data.sources import BUILTINS, resolve
from charlm.errors import DataError

KINDS = "a source is a file, a folder, a glob or builtin:NAME"


@pytest.fixture
def tree(write, tmp_path) -> Path:
    """Two levels of files, with hidden ones and names that sort oddly."""
    for name in ("b.txt", "B.txt", "a/z.txt", "a/b/c.txt", "a-b.txt", "a10.txt", "a9.md", ".hidden", ".git/x", "a/.y"):
        write(f"tree/{name}", name)
    return tmp_path / "tree"


def names(files: list[Path], root: Path) -> list[str]:
    return [path.relative_to(root).as_posix() for path in files]


def refused(source: str) -> str:
    with pytest.raises(DataError) as caught:
        resolve(source)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_file_is_itself_even_if_hidden_or_named_like_a_glob(write):
    for name in (".hidden", "a[b].txt", "what?.txt", "*"):
        path = write(name, "x")
        assert resolve(path) == [Path(path)]


def test_a_folder_is_all_its_files_sorted_by_relative_path_without_hidden_ones(tree):
    expected = ["B.txt", "a-b.txt", "a/b/c.txt", "a/z.txt", "a10.txt", "a9.md", "b.txt"]
    assert names(resolve(str(tree)), tree) == expected
    assert names(resolve(f"{tree}/"), tree) == expected


def test_a_hidden_folder_can_be_named(tree):
    assert names(resolve(str(tree / ".git")), tree) == [".git/x"]


def test_the_order_does_not_depend_on_the_order_of_the_file_system(tree, monkeypatch):
    listed = sources._listed
    expected = resolve(str(tree))
    for reverse in (False, True):
        monkeypatch.setattr(sources, "_listed", lambda folder, reverse=reverse: sorted(listed(folder), reverse=reverse))
        assert resolve(str(tree)) == expected


def test_a_folder_follows_links_to_files_but_not_to_folders_and_leaves_out_what_is_no_file(tree, write):
    target = write("elsewhere/real.txt", "x")
    (tree / "link.txt").symlink_to(target)
    (tree / "linked").symlink_to(Path(target).parent)
    (tree / "loop").symlink_to(tree)
    (tree / "broken").symlink_to("nowhere")
    os.mkfifo(tree / "pipe")
    assert set(names(resolve(str(tree)), tree)) - {"link.txt"} == {
        *("B.txt", "a-b.txt", "a/b/c.txt", "a/z.txt", "a10.txt", "a9.md", "b.txt")
    }
    assert tree / "link.txt" in resolve(str(tree))


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
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
def test_a_glob_is_sorted_and_goes_down_with_two_stars(tree, pattern, expected):
    assert names(resolve(f"{tree}/{pattern}"), tree) == expected


def test_a_relative_glob_and_a_tilde_work(tree, monkeypatch):
    monkeypatch.chdir(tree)
    monkeypatch.setenv("HOME", str(tree))
    assert resolve("a/*.txt") == [Path("a/z.txt")]
    assert resolve("~/b.txt") == [tree / "b.txt"]
    assert resolve("~/a/*.txt") == [tree / "a/z.txt"]


@pytest.mark.parametrize("source", ["", "/**", "/**/*.txt"])
def test_links_neither_repeat_a_file_nor_lead_around_for_ever(source, tree, capsys):
    expected = [name for name in names(resolve(f"{tree}{source}"), tree) if name != "link.txt"]
    for name in ("x", "y", "a/up"):
        (tree / name).symlink_to(tree)
    (tree / "b-again.txt").symlink_to("b.txt")
    os.link(tree / "a/z.txt", tree / "a/zz.txt")
    found = names(resolve(f"{tree}{source}"), tree)
    assert [name.replace("b-again", "b") for name in found] == sorted(expected)
    assert f"leaves out {tree}/a/up (a link to a folder), {tree}/x (a link to a folder)" in capsys.readouterr().err


def test_a_star_follows_a_link_to_a_folder(tree, write):
    (tree / "linked").symlink_to(Path(write("elsewhere/real.txt", "x")).parent)
    assert names(resolve(f"{tree}/lin*/*.txt"), tree) == ["linked/real.txt"]


def test_an_escaped_name_in_a_glob_is_that_name(write, tmp_path, monkeypatch):
    path = Path(write("[a]*/.b[c]/d.txt", "x"))
    assert resolve(f"{glob.escape(str(path.parent))}/*.txt") == [path]
    assert resolve(f"{glob.escape(str(tmp_path))}/*/.b[[]c]/d.*") == [path]
    assert resolve(f"{tmp_path}/?a]*/.b?c]/d.[t]xt") == [path]
    monkeypatch.chdir(path.parents[1])
    assert resolve(".b[[]c]/d*") == [Path(".b[c]/d.txt")]


def test_a_missing_file(tree):
    assert refused(f"{tree}/q") == f"{tree}/q: no such file or folder; {KINDS}; check the path"
    assert refused(f"{tree}/b.txt/q") == f"{tree}/b.txt/q: no such file or folder; {KINDS}; check the path"
    assert refused("nul\0l") == f"nul\0l: no such file or folder; {KINDS}; check the path"
    assert refused("~nobody-here/x") == f"~nobody-here/x: no such file or folder; {KINDS}; check the path"


def test_a_missing_file_with_a_near_name(tree):
    assert refused(f"{tree}/a10.text") == (
        f"{tree}/a10.text: no such file or folder; {KINDS}; did you mean '{tree}/a10.txt'?"
    )


@pytest.mark.parametrize("name", ["tinyshakespeare", "text8", "enwik8"])
@pytest.mark.parametrize("form", ["data/{}.txt", "{}", "{}.txt"])
def test_a_missing_corpus_that_can_be_downloaded(name, form, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = form.format(name)
    assert refused(source) == (
        f"{source}: no such file or folder; {KINDS}; `charlm data fetch {name}` downloads it to data/"
    )


def test_a_builtin_without_its_prefix(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert refused("python-stdlib").endswith("; did you mean 'builtin:python-stdlib'?")


def test_an_empty_name():
    assert refused("") == f"data source: empty; {KINDS}; name one"


def test_a_folder_without_files(write, tmp_path):
    write("empty/.hidden", "x")
    assert refused(f"{tmp_path}/empty") == (
        f"{tmp_path}/empty: a folder without text; hidden files and what charlm writes do not count; add text files"
    )


def test_a_glob_without_match(tree):
    allowed = "a glob names files, `**` any depth of folders; check the pattern"
    assert refused(f"{tree}/*.tex") == f"{tree}/*.tex: no file matches; {allowed}"
    assert refused(f"{tree}/a/?") == f"{tree}/a/?: only folders match (1); {allowed}"


@pytest.mark.parametrize("below", ["", "/**/*.txt", "/*/*/*.txt"])
def test_a_folder_that_cannot_be_read(below, tree, monkeypatch):
    scandir = os.scandir

    def denying(path):
        if Path(path).name == "b":
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", denying)
    assert refused(f"{tree}{below}") == (
        f"{tree}/a/b: cannot be read: Permission denied; a source needs all its files; make it readable or name another"
    )


def test_a_path_that_cannot_be_looked_at(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    assert refused(f"{tmp_path}/loop") == (
        f"{tmp_path}/loop: cannot be read: Too many levels of symbolic links; "
        "a source needs all its files; make it readable or name another"
    )


def test_what_is_no_file(tmp_path, monkeypatch):
    remedy = f"which cannot be read twice; {KINDS}; write its text to a file first"
    os.mkfifo(tmp_path / "pipe")
    assert refused(f"{tmp_path}/pipe") == f"{tmp_path}/pipe: a pipe, {remedy}"
    assert refused("/dev/null") == f"/dev/null: a device, {remedy}"
    monkeypatch.chdir(tmp_path)  # the path of a socket has at most 107 bytes
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
        assert refused("socket") == f"socket: a socket, {remedy}"


def test_an_unknown_builtin():
    assert refused("builtin:python-stdlibs") == (
        "builtin:python-stdlibs: unknown builtin; allowed: python-stdlib, unicode-names; "
        "did you mean 'builtin:python-stdlib'?"
    )
    assert refused("builtin:python").endswith("; did you mean 'builtin:python-stdlib'?")
    assert refused("builtin:") == "builtin:: unknown builtin; allowed: python-stdlib, unicode-names"
    assert refused("builtin:zzz") == "builtin:zzz: unknown builtin; allowed: python-stdlib, unicode-names"


def test_the_standard_library_is_large_utf8_python_without_tests():
    root = Path(sysconfig.get_path("stdlib"))
    files = resolve("builtin:python-stdlib")
    relative = names(files, root)
    assert relative == sorted(set(relative))
    assert resolve("builtin:python-stdlib") == files
    assert sum(len(path.read_text("utf-8")) for path in files) > 5_000_000
    assert {"argparse.py", "asyncio/tasks.py", "doctest.py", "unittest/mock.py"} <= set(relative)
    folders = {part for name in relative for part in name.split("/")[:-1]}
    assert not [name for name in folders if re.match(r"tests?$|test_|idle_test|(site|dist)-packages|__pycache__", name)]
    assert all(
        name.endswith(".py") and stat.S_ISREG(path.stat().st_mode) for name, path in zip(relative, files, strict=True)
    )
    assert all(summary and "\n" not in summary for summary in BUILTINS.values())


def test_unicode_names_are_one_a_line_and_made_once(monkeypatch, tmp_path):
    monkeypatch.setenv("CHARLM_CACHE", str(tmp_path))
    [file] = resolve("builtin:unicode-names")
    lines = file.read_text(encoding="ascii").split("\n")
    assert len(lines) > 130_000
    assert lines[:2] == ["SPACE", "EXCLAMATION MARK"]
    assert "GREEK SMALL LETTER ALPHA" in lines
    assert lines[-1] == ""
    written = file.stat().st_mtime_ns
    assert resolve("builtin:unicode-names") == [file]
    assert file.stat().st_mtime_ns == written


def test_the_standard_library_leaves_out_what_is_not_utf8(write, tmp_path, monkeypatch):
    write("lib/good.py", "é = 1")
    write("lib/latin.py", b"# coding: latin-1\n\xe9 = 1")
    write("lib/readme.txt", "x")
    write("lib/_sysconfigdata_linux.py", "x = 1")
    for folder in ("test", "tests", "pkg/idle_test", "test_x", "site-packages", "__pycache__", "config-3-linux"):
        write(f"lib/{folder}/inside.py", "x = 1")
    monkeypatch.setattr(sources.sysconfig, "get_path", lambda name: str(tmp_path / "lib"))
    assert resolve("builtin:python-stdlib") == [tmp_path / "lib/good.py"]


def test_no_standard_library_to_read(tmp_path, monkeypatch):
    monkeypatch.setattr(sources.sysconfig, "get_path", lambda name: str(tmp_path))
    assert refused("builtin:python-stdlib") == (
        f"builtin:python-stdlib: no .py files under {tmp_path}; this Python has no readable standard library; "
        "name a file or folder instead"
    )


def test_sources_and_corpus_load_neither_torch_nor_an_http_client():
    program = (
        "import sys, charlm.data.sources, charlm.data.corpus; "
        "print([name for name in ('torch', 'http.client', 'tqdm') if name in sys.modules])"
    )
    root = Path(sources.__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
