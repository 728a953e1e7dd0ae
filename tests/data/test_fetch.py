"""Downloads from a server on this machine: only a whole text with the right digest gets the final name."""

import hashlib
import io
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from charlm.data.fetch import Download, fetch
from charlm.errors import DataError

TEXT = bytes(range(256)) * 1000


def zipped(content: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("corpus", content)
    return buffer.getvalue()


class Server(ThreadingHTTPServer):
    """Sends its body, which lacks some of the bytes that it promises."""

    daemon_threads = False  # server_close joins them: no thread or socket outlives its test
    body, status, missing, requests = TEXT, 200, 0, 0


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self.server.requests += 1
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(self.server.body) + self.server.missing))
        self.end_headers()
        self.wfile.write(self.server.body)


@pytest.fixture
def server(monkeypatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "*")
    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.005,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def text(server) -> Download:
    url = f"http://127.0.0.1:{server.server_port}/corpus.txt"
    return Download("corpus", url, hashlib.sha256(TEXT).hexdigest(), len(TEXT), "a test")


@pytest.mark.parametrize("body", [TEXT, zipped(TEXT)], ids=["text", "archive"])
def test_a_text_is_downloaded_once_into_a_new_folder(server, text, tmp_path, body):
    server.body = body
    for _ in range(2):
        assert fetch(text, tmp_path / "deep/data").read_bytes() == TEXT
    assert [path.name for path in (tmp_path / "deep/data").iterdir()] == ["corpus.txt"]
    assert server.requests == 1


def test_another_file_is_never_overwritten(server, text, tmp_path):
    (tmp_path / "corpus.txt").write_bytes(b"my own")
    with pytest.raises(DataError):
        fetch(text, tmp_path)
    assert (tmp_path / "corpus.txt").read_bytes() == b"my own"
    assert server.requests == 0


@pytest.mark.parametrize(
    "answer",
    [
        {"missing": 1},
        {"body": zipped(TEXT), "missing": 1},
        {"body": b"<html>log in"},
        {"body": zipped(b"another")},
        {"body": zipped(TEXT).replace(TEXT[:100], bytes(100), 1)},
        {"status": 404},
    ],
)
def test_a_download_that_fails_leaves_nothing(server, text, tmp_path, answer):
    for name, value in answer.items():
        setattr(server, name, value)
    with pytest.raises(DataError):
        fetch(text, tmp_path)
    assert [*tmp_path.iterdir()] == []
