"""Where the cache is, and who may write there."""

import os
from pathlib import Path

import pytest

from charlm.errors import DataError
from charlm.system.cache import cache_dir, cache_folder, open_private

OTHER = 54321
"""A user that nobody is."""


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


def test_a_folder_is_made_for_this_user_alone(cache):
    before = os.umask(0)
    try:
        folder = cache_folder("kernels")
    finally:
        os.umask(before)
    assert folder == cache / "kernels"
    assert folder.stat().st_mode & 0o777 == 0o700


def replace_by_link(folder: Path) -> None:
    folder.rename(f"{folder}-x")
    folder.symlink_to(f"{folder}-x")


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: folder.chmod(0o702),
        lambda folder: folder.chmod(0o770),
        replace_by_link,
        pytest.param(
            lambda folder: os.chown(folder, OTHER, OTHER),
            marks=pytest.mark.skipif(os.getuid() != 0, reason="only root can give files to other users"),
        ),
    ],
    ids=["all may write", "the group may write", "link", "another user's"],
)
def test_a_folder_in_which_others_could_plant_code_is_refused(cache, change):
    change(cache_folder("kernels"))
    with pytest.raises(DataError, match="not safe"):
        cache_folder("kernels")


def test_what_stands_in_the_place_of_a_file_is_not_opened(tmp_path):
    """A named pipe would wait for its writer."""
    file, link, pipe = (tmp_path / name for name in ("file", "link", "pipe"))
    file.write_text("here")
    link.symlink_to(file)
    os.mkfifo(pipe)
    with open_private(file) as opened:
        assert opened.read() == b"here"
    file.chmod(0o666)
    for path in (link, pipe, tmp_path, file):
        with pytest.raises(OSError, match=r"link|others|no regular file"):
            open_private(path)
