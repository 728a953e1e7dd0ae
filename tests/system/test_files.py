"""Files that are read whole, and replaced in one step; the cache."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from charlm.errors import DataError
from charlm.system.cache import cache_dir, cache_folder
from charlm.system.files import NotOwnError, read_file, replace_file


def test_only_a_regular_file_of_a_bounded_size_is_read(tmp_path):
    """A pipe would wait for its writer."""
    file, pipe = tmp_path / "file", tmp_path / "pipe"
    file.write_bytes(b"abc")
    os.mkfifo(pipe)
    assert read_file(file, most_bytes=3) == b"abc"
    for path, most_bytes in ((file, 2), (pipe, 3), (Path("/dev/null"), 3), (tmp_path, 3)):
        with pytest.raises(NotOwnError):
            read_file(path, most_bytes)


def test_writers_at_once_do_not_disturb_one_another_nor_readers(tmp_path):
    file, contents = tmp_path / "best.yaml", [bytes([letter]) * 100_000 for letter in b"abcd"]
    replace_file(file, contents[0])

    def write(content):
        for _ in range(20):
            replace_file(file, content)

    with ThreadPoolExecutor(len(contents)) as pool:
        writing = [pool.submit(write, content) for content in contents]
        while not all(each.done() for each in writing):
            assert file.read_bytes() in contents
        for each in writing:
            each.result()
    assert [*tmp_path.iterdir()] == [file]


def test_a_link_is_replaced_and_leftovers_of_killed_processes_go(tmp_path):
    file, target = tmp_path / "config.yaml", tmp_path / "target"
    target.write_text("mine")
    file.symlink_to(target)
    old, new, others = tmp_path / ".1.charlm.tmp", tmp_path / ".2.charlm.tmp", tmp_path / ".config.yaml.tmp"
    for path in (old, new, others):
        path.touch()
    for path in (old, others):
        os.utime(path, (0, 0))
    replace_file(file, b"new")
    assert (file.read_text(), target.read_text()) == ("new", "mine")
    assert {*tmp_path.iterdir()} == {file, target, new, others}


# Where the cache is, and who may write there


def test_where_the_cache_is(monkeypatch):
    monkeypatch.setenv("HOME", "/home/ada")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    monkeypatch.setenv("CHARLM_CACHE", "/here")
    assert cache_dir() == Path("/here")
    monkeypatch.setenv("CHARLM_CACHE", "")
    assert cache_dir() == Path("/xdg/charlm")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert cache_dir() == Path("/home/ada/.cache/charlm")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as for a user without a home
    with pytest.raises(DataError):
        cache_dir()


def test_a_folder_in_which_others_could_plant_code_is_refused(cache):
    folder = cache_folder("kernels")
    assert (folder, folder.stat().st_mode & 0o777) == (cache / "kernels", 0o700)
    for mode in (0o702, 0o770):
        folder.chmod(mode)
        with pytest.raises(DataError, match="not safe"):
            cache_folder("kernels")
    folder.chmod(0o700)
    folder.rename(cache / "elsewhere")
    folder.symlink_to(cache / "elsewhere")
    with pytest.raises(DataError, match="not safe"):
        cache_folder("kernels")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files to other users")
def test_a_folder_of_another_user_is_refused(cache):
    os.chown(cache_folder("kernels"), 54321, 54321)
    with pytest.raises(DataError, match="not safe"):
        cache_folder("kernels")
