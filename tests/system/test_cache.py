"""Where the cache is, and who may write there."""

import os
from pathlib import Path

import pytest

from charlm.errors import DataError
from charlm.system.cache import cache_dir, cache_folder, open_private

OTHER = 54321
"""A user that nobody is."""

as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can give files to other users")


def refused(name):
    with pytest.raises(DataError) as caught:
        cache_folder(name)
    return str(caught.value)


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
    with pytest.raises(DataError, match=r"^cache: this user has no home folder; any"):
        cache_dir()


def test_a_folder_is_made_for_this_user_alone(cache):
    before = os.umask(0)
    try:
        folder = cache_folder("kernels")
    finally:
        os.umask(before)
    assert folder == cache / "kernels"
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda folder: folder.chmod(0o777), "others may write to it (chmod go-w changes that)"),
        (lambda folder: folder.chmod(0o770), "others may write to it (chmod go-w changes that)"),
        (lambda folder: (folder.rename(f"{folder}-x"), folder.symlink_to(f"{folder}-x")), "it is a link"),
        pytest.param(lambda folder: os.chown(folder, OTHER, OTHER), "it belongs to another user", marks=as_root),
    ],
)
def test_a_folder_in_which_others_could_plant_code_is_refused(cache, change, fault):
    folder = cache_folder("kernels")
    change(folder)
    assert refused("kernels") == (
        f"{folder}: the cache is not safe: {fault}; any folder with room will do; name one in CHARLM_CACHE"
    )


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("CHARLM_CACHE", str(tmp_path / "file"))
    assert refused("kernels") == (
        f"{tmp_path}/file/kernels: the cache cannot be written: Not a directory; any folder with room will do; name "
        "one in CHARLM_CACHE"
    )


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
