"""What Windows does with files, on Linux."""

import errno
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """No file that this process has open or mapped is renamed, replaced or removed."""
    for name in ("rename", "replace", "unlink", "remove"):
        monkeypatch.setattr(os, name, _refusing(getattr(os, name)))


def _refusing(change: Any) -> Any:
    def changed(*paths: Any, **options: Any) -> None:
        in_use = {*_opened(), *_mapped()}
        for path in paths:
            with suppress(FileNotFoundError):
                status = os.stat(path, dir_fd=options.get("dir_fd"), follow_symlinks=False)
                if status.st_ino in in_use:
                    raise PermissionError(errno.EACCES, "used by a process", str(path))
        change(*paths, **options)

    return changed


def _opened() -> Iterator[int]:
    """The numbers of the files that this process has open."""
    for file in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # that of the folder, which is closed by now
            yield file.stat().st_ino


def _mapped() -> Iterator[int]:
    for line in Path("/proc/self/maps").read_text().splitlines():
        yield int(line.split()[4])
