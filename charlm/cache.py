"""The folder of what charlm makes once and can make again: encoded corpora, downloads, compiled kernels."""

import os
from pathlib import Path


def cache_dir() -> Path:
    """$CHARLM_CACHE, else charlm's folder in $XDG_CACHE_HOME or ~/.cache; RuntimeError where there is no home."""
    if folder := os.environ.get("CHARLM_CACHE"):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "charlm"
