"""Downloads from a server on this machine that cuts, stalls, refuses and lies."""

import errno
import hashlib
import io
import re
import socket
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from charlm.data import fetch as fetch_module
from charlm.data.fetch import CATALOG, Download, fetch
from charlm.errors import DataError

TEXT = bytes(range(256)) * 1000  # 256,000 bytes: several chunks
CUT = 6 << 14


def zipped(member: str, content: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(member, content)
    return buffer.getvalue()


ARCHIVE = zipped("corpus", TEXT)


@dataclass(frozen=True)
class Answer:
    """How the server answers one request; after `cut` body bytes it does what `then` says: close or stall."""

    body: bytes = TEXT
    status: int = 200
    cut: int | None = None
    then: str = "close"


class Server(ThreadingHTTPServer):
    """Gives the answers in turn, the last one for ever; counts the requests."""

    daemon_threads = False  # server_close joins them: no thread or socket outlives its test

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers = [Answer()]
        self.requests = 0
        self.released = threading.Event()
        self.url = f"http://127.0.0.1:{self.server_port}/corpus.txt"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        server = self.server
        answer = server.answers.pop(0) if len(server.answers) > 1 else server.answers[0]
        server.requests += 1
        body = answer.body
        self.send_response(answer.status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: answer.cut])
        if answer.cut is not None and answer.then == "stall":
            server.released.wait(5)


@pytest.fixture
def server(monkeypatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "*")
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.005,))
        thread.start()
        yield server
        server.released.set()
        server.shutdown()
        thread.join()


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def text(server) -> Download:
    return Download("corpus", server.url, sha256(TEXT), len(TEXT), "a test")


@pytest.fixture
def archive(server, text) -> Download:
    server.answers = [Answer(ARCHIVE)]
    url = server.url.replace(".txt", ".zip")
    return replace(text, url=url)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def fetched(download: Download, folder: Path) -> bool:
    """Whether a fetch brings the text, and leaves nothing beside it."""
    return fetch(download, folder).read_bytes() == TEXT and names(folder) == ["corpus.txt"]


def failure(download: Download, folder: Path) -> str:
    """The message of a fetch that must fail, and that leaves nothing under the final name."""
    with pytest.raises(DataError) as caught:
        fetch(download, folder)
    assert not (folder / download.filename).exists()
    return str(caught.value)


def test_the_catalog_is_consistent():
    for name, download in CATALOG.items():
        assert download.name == name
        assert download.url.startswith("https://")
        assert re.fullmatch("[0-9a-f]{64}", download.sha256)


def test_a_text_is_downloaded_once_into_a_new_folder(server, text, tmp_path):
    assert fetched(text, tmp_path / "deep/data")
    assert fetched(text, tmp_path / "deep/data")
    assert server.requests == 1


def test_another_file_is_never_overwritten(server, text, tmp_path):
    (tmp_path / "corpus.txt").write_bytes(b"my own")
    with pytest.raises(DataError) as caught:
        fetch(text, tmp_path)
    assert str(caught.value) == (
        f"{tmp_path}/corpus.txt: SHA-256 is {sha256(b'my own')}; it must be {text.sha256}; move or delete the file, "
        "then run the command again"
    )
    assert (tmp_path / "corpus.txt").read_bytes() == b"my own"
    assert (names(tmp_path), server.requests) == (["corpus.txt"], 0)


@pytest.mark.parametrize("kind", ["text", "archive"])
@pytest.mark.parametrize("then", ["close", "stall"])
def test_a_cut_download_leaves_nothing(then, kind, server, text, archive, tmp_path, monkeypatch):
    monkeypatch.setattr(fetch_module, "TIMEOUT_S", 0.1 if then == "stall" else 5.0)
    download, body = (text, TEXT) if kind == "text" else (archive, ARCHIVE)
    server.answers = [Answer(body, cut=CUT, then=then), Answer(body)]
    assert failure(download, tmp_path).endswith(
        f"; run the command again, or get the text elsewhere and put it at {tmp_path}/corpus.txt"
    )
    assert names(tmp_path) == []
    assert fetched(download, tmp_path)


def test_a_full_disk_is_one_line(text, tmp_path, monkeypatch):
    def full(*_) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(fetch_module, "replace_file", full)
        assert failure(text, tmp_path) == (
            f"{tmp_path}: No space left on device; allowed: a writable folder with room for corpus"
        )
    assert names(tmp_path) == []
    assert fetched(text, tmp_path)


@pytest.mark.parametrize("body", [b"<html>log in", zipped("corpus", b"another")])
def test_wrong_content_is_refused(body, server, text, tmp_path):
    server.answers = [Answer(body)]
    assert f"; it must be {text.sha256}; run the command again, or get the text elsewhere" in failure(text, tmp_path)
    assert names(tmp_path) == []


def test_a_damaged_archive_is_refused(server, text, tmp_path):
    server.answers = [Answer(ARCHIVE.replace(TEXT[:100], bytes(100), 1))]
    assert "; run the command again, or get the text elsewhere" in failure(text, tmp_path)
    assert names(tmp_path) == []


@pytest.mark.parametrize("fault", ["status", "closed port"])
def test_a_server_that_does_not_answer_or_refuses(fault, server, text, tmp_path):
    server.answers = [Answer(b"an error page", 404)]
    with socket.socket() as bound:  # bound but not listening: connections are refused
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1] if fault == "closed port" else server.server_port
        url = f"http://127.0.0.1:{port}/corpus.txt"
        message = failure(replace(text, url=url), tmp_path)
    reason = {
        "status": "404 Client Error: Not Found",
        "closed port": "Connection refused",
    }
    assert message.startswith(f"{url}: {reason[fault]}")
    assert names(tmp_path) == []


def test_a_folder_that_cannot_be_made(server, text, tmp_path):
    (tmp_path / "file").write_text("")
    assert failure(text, tmp_path / "file/data").startswith(f"{tmp_path}/file/data: Not a directory; allowed: a ")
    assert server.requests == 0
