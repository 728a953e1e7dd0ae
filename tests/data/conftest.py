import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from charlm.data import fetch as fetch_module
from charlm.data import reading
from charlm.data.fetch import Download
from tests.data.server import ARCHIVE, TEXT, Answer, Server, sha256

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


@pytest.fixture(params=[1, 2, 3, 5, 7, reading.CHUNK_BYTES])
def chunk_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Reads in chunks that cut multi-byte sequences everywhere."""
    monkeypatch.setattr(reading, "CHUNK_BYTES", request.param)
    return request.param


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(fetch_module, "PAUSES_S", (0.0,) * len(fetch_module.PAUSES_S))
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.005,))
        thread.start()
        yield server
        server.released.set()
        server.shutdown()
        thread.join()


@pytest.fixture
def text(server: Server) -> Download:
    return Download("corpus", server.url, sha256(TEXT), len(TEXT), "corpus.txt", "a test")


@pytest.fixture
def archive(server: Server, text: Download) -> Download:
    server.answers = [Answer(ARCHIVE)]
    return replace(
        text,
        url=server.url.replace(".txt", ".zip"),
        member="corpus",
        archive_sha256=sha256(ARCHIVE),
        archive_size=len(ARCHIVE),
    )
