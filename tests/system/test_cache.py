"""Whose folders the cache may lie in."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from charlm.errors import DataError
from charlm.system.cache import cache_dir, make_cache_folder, open_private, who_else_writes

OTHER = 54321
"""A user that nobody is."""

as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can give files to other users, and act as them")


@pytest.fixture
def tree(tmp_path):
    """A home with .cache/charlm, a disk with a folder of its own, and a folder in which all may write."""
    for name in ("home/.cache/charlm/kernels", "disk/me/charlm/kernels", "shared/me/charlm/kernels"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "shared").chmod(0o777)
    return tmp_path


def linked(path, target):
    shutil.rmtree(path, ignore_errors=True)
    path.symlink_to(target)
    return path


def given(path):
    """The file or link, as another user's."""
    os.chown(path, OTHER, OTHER, follow_symlinks=False)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda tree: None, ""),
        (lambda tree: shutil.rmtree(tree / "home/.cache"), ""),
        (lambda tree: (tree / "home/.cache").chmod(0o777), "others may write to {}/home/.cache (chmod go-w "),
        (lambda tree: (tree / "home/.cache").chmod(0o1777), ""),
        (lambda tree: (tree / "home/.cache/charlm/kernels").chmod(0o1777), "others may write to it (chmod go-w "),
        (lambda tree: linked(tree / "home/.cache", tree / "disk/me"), ""),
        (lambda tree: linked(tree / "home/.cache", "../disk/./me"), ""),
        (lambda tree: linked(tree / "home", tree / "home"), "{}/home is a link"),
        (lambda tree: linked(tree / "home/.cache", tree / "shared/me"), "others may write to {}/shared (chmod go-w "),
        (lambda tree: linked(tree / "home/.cache/charlm/kernels", tree / "disk/me"), "it is a link"),
        (lambda tree: linked(tree / "home/.cache/charlm/kernels", "nowhere"), "it is a link"),
        pytest.param(lambda tree: given(tree / "home"), "{}/home belongs to another user", marks=as_root),
        pytest.param(
            lambda tree: given(linked(tree / "home/.cache", tree / "disk/me")),
            "{}/home/.cache belongs to another user",
            marks=as_root,
        ),
        pytest.param(
            lambda tree: (os.chown(tree / "home/.cache", -1, OTHER), (tree / "home/.cache").chmod(0o775)),
            "others may write to {}/home/.cache (chmod go-w ",
            marks=as_root,
        ),
    ],
)  # fmt: skip
def test_every_parent_counts_and_own_links_are_followed(tree, change, fault):
    change(tree)
    reason = who_else_writes(tree / "home/.cache/charlm/kernels")
    assert reason.startswith(fault.format(tree))
    assert bool(reason) == bool(fault)


def test_a_group_of_this_user_alone_may_write_to_parents(tree, monkeypatch):
    """As where the umask is 002 and every user has a group of the same name."""
    import grp
    import pwd

    from charlm.system import cache

    group = (tree / "home").stat().st_gid
    monkeypatch.setattr(pwd, "getpwuid", lambda _: pwd.struct_passwd(["ada", "", os.getuid(), group, "", "", ""]))
    (tree / "home/.cache").chmod(0o775)
    for name, members, safe in (("ada", [], True), ("ada", ["ada"], True), ("ada", ["eve"], False), ("us", [], False)):
        monkeypatch.setattr(grp, "getgrgid", lambda _, entry=(name, "", group, members): grp.struct_group(entry))
        cache._is_own_group.cache_clear()
        assert (who_else_writes(tree / "home/.cache/charlm/kernels") == "") == safe
    cache._is_own_group.cache_clear()


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


def test_a_folder_that_another_user_creates_at_the_same_time_is_not_used(cache, monkeypatch, capsys):
    def too_late(folder, **options):
        os.makedirs(folder)  # noqa: PTH103
        folder.chmod(0o777)

    cache.mkdir(parents=True)
    monkeypatch.setattr(Path, "mkdir", too_late)
    folder = make_cache_folder("attacked")
    assert folder != cache / "attacked"
    assert who_else_writes(folder) == ""
    assert f"cache    {cache / 'attacked'}: not used, because others may write to it" in capsys.readouterr().err


def test_parents_are_made_for_this_user_alone(cache, monkeypatch):
    monkeypatch.setenv("CHARLM_CACHE", str(cache / "new/charlm"))
    before = os.umask(0)
    try:
        folder = make_cache_folder("kernels")
    finally:
        os.umask(before)
    assert folder == cache / "new/charlm/kernels"
    assert [path.stat().st_mode & 0o777 for path in (folder, *folder.parents[:2])] == [0o700] * 3


def test_what_stands_in_the_place_of_a_file_is_not_opened(tmp_path):
    """A named pipe would wait for its writer."""
    file, link, pipe = (tmp_path / name for name in ("file", "link", "pipe"))
    file.write_text("here")
    link.symlink_to(file)
    os.mkfifo(pipe)
    with open_private(file) as opened:
        assert opened.read() == b"here"
    for path in (link, pipe, tmp_path):
        with pytest.raises(OSError, match=r"link|others|no regular file"):
            open_private(path)


@pytest.fixture
def shared(monkeypatch):
    """A folder in /tmp that other users reach, with the cache in it, and a function that acts as one of them there."""
    if not shutil.which("setpriv"):
        pytest.skip("needs setpriv to act as another user")
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        monkeypatch.setenv("CHARLM_CACHE", str(folder / "charlm"))

        def act(mode, script):
            folder.chmod(mode)
            other = ["setpriv", f"--reuid={OTHER}", f"--regid={OTHER}", "--clear-groups"]
            return subprocess.run([*other, "sh", "-c", script], cwd=folder, capture_output=True, check=False).returncode

        act.folder = folder
        yield act


@as_root
@pytest.mark.parametrize("script", ["mkdir charlm", "ln -s . charlm", "mkdir -p mine/kernels && ln -s mine charlm"])
def test_another_user_who_comes_first_in_tmp_plants_nothing(shared, script, capsys):
    assert shared(0o1777, script) == 0
    folder = make_cache_folder("kernels")
    assert shared.folder not in folder.parents
    assert capsys.readouterr().err == (
        f"cache    {shared.folder}/charlm/kernels: not used, because {shared.folder}/charlm belongs to another user; "
        f"name another in CHARLM_CACHE; this process uses {folder}\n"
    )


@as_root
def test_another_user_cannot_swap_folders(shared, capsys):
    """With the sticky bit the system forbids it. Without, the folder is not used from the start."""
    swap = "mv charlm away && mkdir -p charlm/kernels"
    assert make_cache_folder("kernels") == shared.folder / "charlm/kernels"
    assert shared(0o1777, swap) != 0
    assert make_cache_folder("kernels") == shared.folder / "charlm/kernels"
    assert capsys.readouterr().err == ""
    shared.folder.chmod(0o777)
    folder = make_cache_folder("kernels")
    assert shared.folder not in folder.parents
    assert f"because others may write to {shared.folder} (chmod go-w changes that); name" in capsys.readouterr().err
    assert shared(0o777, swap) == 0
    assert make_cache_folder("kernels") != shared.folder / "charlm/kernels"
