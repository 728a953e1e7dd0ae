import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from charlm.data import fetch as fetch_module
from charlm.data.catalog import Download
from tests.data.server import ARCHIVE, TEXT, Answer, Server, sha256


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
    return Download("corpus", server.url, sha256(TEXT), len(TEXT), "a test")


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
