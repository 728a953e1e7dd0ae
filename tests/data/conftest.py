from collections.abc import Callable
from pathlib import Path

import pytest

from charlm.data import sources

Write = Callable[[str, bytes | str], str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a file below tmp_path, with its folders, and returns its path."""

    def write(name: str, content: bytes | str) -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return str(path)

    return write


@pytest.fixture(params=[1, 2, 3, 5, 7, sources.CHUNK_BYTES])
def chunk_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Reads in chunks that cut multi-byte sequences everywhere."""
    monkeypatch.setattr(sources, "CHUNK_BYTES", request.param)
    return request.param
