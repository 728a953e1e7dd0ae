"""The cache folder: encoded texts and compiled kernels; both can be rebuilt."""

import contextlib
import os
import shutil
import time
from pathlib import Path

from charlm.errors import DataError


def cache_dir() -> Path:
    """$CHARLM_CACHE, else charlm's folder in $XDG_CACHE_HOME or ~/.cache; DataError for a user without a home."""
    if folder := os.environ.get("CHARLM_CACHE"):
        return Path(folder)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "charlm"
    except RuntimeError as error:
        raise DataError("cache: this user has no home folder; any folder will do; name one in CHARLM_CACHE") from error


def remove_leftovers(folder: Path, pattern: str, age_s: float) -> None:
    """Remove temporary files and folders of killed processes: those older than `age_s`, longer than writing takes."""
    for path in folder.glob(pattern):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > age_s:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
