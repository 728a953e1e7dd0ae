"""A server on this machine that cuts, stalls, refuses and lies."""

import hashlib
import io
import socket
import struct
import threading
import zipfile
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from charlm.data.catalog import Download
from charlm.data.fetch import fetch
from charlm.errors import DataError

TEXT = bytes(range(256)) * 1000  # 256,000 bytes: several chunks


CUT = 6 << 14


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def zipped(member: str, content: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("readme", "not this one")
        archive.writestr(member, content)
    return buffer.getvalue()


ARCHIVE = zipped("corpus", TEXT)


@dataclass(frozen=True)
class Answer:
    """How the server answers one request; after `cut` body bytes it does what `then` says.

    then: "close", "stall", "reset", or "silence" (closes without having sent so much as a status).
    """

    body: bytes = TEXT
    status: int = 200
    ranges: bool = True
    length: bool = True
    cut: int | None = None
    then: str = "close"
    location: str = ""
    """Where the answer sends the client."""


class Server(ThreadingHTTPServer):
    """Gives the answers in turn, the last one for ever; records every request's Range and path."""

    daemon_threads = False  # server_close joins them: no thread or socket outlives its test

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers = [Answer()]
        self.ranges: list[str | None] = []
        self.released = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/corpus.txt"


class Handler(BaseHTTPRequestHandler):
    server: Server  # pyright: ignore[reportIncompatibleVariableOverride]

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        server, asked = self.server, self.headers["Range"]
        answer = server.answers.pop(0) if len(server.answers) > 1 else server.answers[0]
        server.ranges.append(asked)
        if answer.then == "silence":
            return
        status, body = answer.status, answer.body
        if status == 200 and asked and answer.ranges:
            start = int(asked.removeprefix("bytes=").removesuffix("-"))
            status, body = (206, body[start:]) if start < len(body) else (416, b"")
        self.send_response(status)
        if answer.length:
            self.send_header("Content-Length", str(len(body)))
        if answer.location:
            self.send_header("Location", answer.location)
        self.end_headers()
        self.wfile.write(body[: answer.cut])
        if answer.cut is not None and answer.then == "stall":
            server.released.wait(5)
        if answer.cut is not None and answer.then == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def failure(download: Download, folder: Path) -> str:
    """The message of a fetch that must fail, and that leaves nothing under the final name."""
    with pytest.raises(DataError) as caught:
        fetch(download, folder, progress=False)
    assert not (folder / download.filename).exists()
    return str(caught.value)
