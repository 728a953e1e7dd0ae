"""Where the cache is, and who may write there."""

import os
from pathlib import Path

import pytest

from charlm.errors import DataError
from charlm.system.cache import cache_dir, cache_folder


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
