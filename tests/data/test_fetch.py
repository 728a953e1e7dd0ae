"""Downloads from a server on this machine that cuts, stalls, refuses and lies."""

import errno
import hashlib
import io
import re
import socket
import struct
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from charlm.data import fetch as fetch_module
from charlm.data.catalog import CATALOG, Download
from charlm.data.fetch import fetch
from charlm.errors import DataError

TEXT = bytes(range(256)) * 1000  # 256,000 bytes: several chunks
CUT = 6 << 14


def zipped(member: str, content: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("readme", "not this one")
        archive.writestr(member, content)
    return buffer.getvalue()


ARCHIVE = zipped("corpus", TEXT)


@dataclass(frozen=True)
class Answer:
    """How the server answers one request; after `cut` body bytes it does what `then` says: close, stall or reset."""

    body: bytes = TEXT
    status: int = 200
    ranges: bool = True
    length: bool = True
    cut: int | None = None
    then: str = "close"
    location: str = ""
    """Where the answer sends the client."""


class Server(ThreadingHTTPServer):
    """Gives the answers in turn, the last one for ever; records every request's Range."""

    daemon_threads = False  # server_close joins them: no thread or socket outlives its test

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers = [Answer()]
        self.ranges: list[str | None] = []
        self.released = threading.Event()
        self.url = f"http://127.0.0.1:{self.server_port}/corpus.txt"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        server, asked = self.server, self.headers["Range"]
        answer = server.answers.pop(0) if len(server.answers) > 1 else server.answers[0]
        server.ranges.append(asked)
        status, body = answer.status, answer.body
        if status == 200 and asked and answer.ranges:
            status, body = 206, body[int(asked.removeprefix("bytes=").removesuffix("-")) :]
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


@pytest.fixture
def server(monkeypatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(fetch_module, "PAUSES_S", (0.0,) * len(fetch_module.PAUSES_S))
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
    return replace(text, url=url, member="corpus", archive_sha256=sha256(ARCHIVE), archive_size=len(ARCHIVE))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def fetched(download: Download, folder: Path) -> bool:
    """Whether a fetch brings the text, and leaves nothing beside it."""
    return fetch(download, folder, progress=False).read_bytes() == TEXT and names(folder) == ["corpus.txt"]


def failure(download: Download, folder: Path) -> str:
    """The message of a fetch that must fail, and that leaves nothing under the final name."""
    with pytest.raises(DataError) as caught:
        fetch(download, folder, progress=False)
    assert not (folder / download.filename).exists()
    return str(caught.value)


def test_the_catalog_is_consistent():
    for name, download in CATALOG.items():
        assert download.name == name
        assert download.url.startswith("https://")
        for digest in (download.sha256, download.archive_sha256 or download.sha256):
            assert re.fullmatch("[0-9a-f]{64}", digest)
    assert CATALOG["tinyshakespeare"].served_filename == "tinyshakespeare.txt"
    assert CATALOG["text8"].served_filename == "text8.zip"


def test_a_text_is_downloaded_once_into_a_new_folder(server, text, tmp_path):
    assert fetched(text, tmp_path / "deep/data")
    assert fetched(text, tmp_path / "deep/data")
    assert server.ranges == [None]


def test_a_text_is_downloaded_where_open_files_cannot_be_removed(windows, archive, tmp_path):
    assert fetch(archive, tmp_path, progress=False).read_bytes() == TEXT


def test_another_file_is_never_overwritten(server, archive, tmp_path):
    (tmp_path / "corpus.zip").write_bytes(b"another")
    assert failure(archive, tmp_path) == (
        f"{tmp_path}/corpus.zip: SHA-256 is {sha256(b'another')}; it must be {archive.archive_sha256}; "
        "move or delete the file, then run the command again"
    )
    (tmp_path / "corpus.txt").write_bytes(b"my own")
    with pytest.raises(DataError, match=f"corpus.txt: SHA-256 is {sha256(b'my own')}; it must be {archive.sha256}; "):
        fetch(archive, tmp_path, progress=False)
    assert (tmp_path / "corpus.txt").read_bytes() == b"my own"
    assert (names(tmp_path), server.ranges) == (["corpus.txt", "corpus.zip"], [])


@pytest.mark.parametrize("kind", ["text", "archive"])
@pytest.mark.parametrize("then", ["close", "stall"])
def test_a_cut_download_resumes_where_it_stopped(then, kind, server, text, archive, tmp_path, monkeypatch):
    monkeypatch.setattr(fetch_module, "TIMEOUT_S", 0.1 if then == "stall" else 5.0)
    body = TEXT if kind == "text" else ARCHIVE
    server.answers = [Answer(body, cut=CUT, then=then), Answer(body)]
    assert fetched(text if kind == "text" else archive, tmp_path)
    assert server.ranges == [None, f"bytes={CUT}-"]


def test_giving_up_keeps_the_part_and_the_next_run_resumes(server, text, tmp_path, monkeypatch):
    slept: list[float] = []
    monkeypatch.setattr(fetch_module.time, "sleep", slept.append)
    server.answers = [Answer(cut=1 << 14)]
    received = (len(fetch_module.PAUSES_S) + 1) << 14
    assert re.fullmatch(
        rf"{server.url}: .+; {received} of {len(TEXT)} bytes are in {tmp_path}/corpus.txt.part; run the command again "
        rf"to resume, or get the file elsewhere and put it at {tmp_path}/corpus.txt",
        failure(text, tmp_path),
    )
    assert slept == list(fetch_module.PAUSES_S)
    server.answers, server.ranges = [Answer()], []
    assert fetched(text, tmp_path)
    assert server.ranges == [f"bytes={received}-"]


@pytest.mark.parametrize(
    ("part", "answers", "ranges"),
    [
        (TEXT[:CUT], [Answer(ranges=False)], [f"bytes={CUT}-"]),  # the server sends everything again
        (TEXT[:CUT], [Answer(cut=CUT, then="reset"), Answer()], None),  # a reset may discard bytes in flight
        (TEXT + b"!", [Answer(TEXT + bytes(10_000_000), length=False)], [None]),  # it sends more than it should
        (TEXT, [Answer()], []),
    ],
    ids=["no ranges", "reset", "too long", "complete"],
)
def test_what_an_earlier_run_has_left(part, answers, ranges, server, text, tmp_path):
    (tmp_path / "corpus.txt.part").write_bytes(part)
    server.answers = answers
    assert fetched(text, tmp_path)
    assert ranges is None or server.ranges == ranges


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")])
def test_an_interrupt_or_a_full_disk_keeps_the_part(error, server, text, tmp_path, monkeypatch):
    class Interrupted(fetch_module.tqdm):
        def update(self, n: float | None = 1) -> bool | None:
            raise error

    with monkeypatch.context() as patch:
        patch.setattr(fetch_module, "tqdm", Interrupted)
        if isinstance(error, OSError):
            assert failure(text, tmp_path) == (
                f"{tmp_path}: No space left on device; corpus needs a writable folder with 256 kB free; make room or "
                "choose another folder"
            )
        else:
            with pytest.raises(KeyboardInterrupt):
                fetch(text, tmp_path, progress=False)
    assert names(tmp_path) == ["corpus.txt.part"]
    received = (tmp_path / "corpus.txt.part").stat().st_size
    assert 0 < received < len(TEXT)
    assert fetched(text, tmp_path)
    assert server.ranges == [None, f"bytes={received}-"]


@pytest.mark.parametrize("length", [True, False])
def test_wrong_content_is_removed(length, server, text, archive, tmp_path):
    removed = "charlm removed the file; run the command again"
    server.answers = [Answer(b"<html>log in", length=length)]
    wrong = sha256(b"<html>log in")
    if length:
        assert failure(text, tmp_path) == f"{text.url}: SHA-256 is {wrong}; it must be {text.sha256}; {removed}"
    assert failure(archive, tmp_path) == f"{archive.url}: SHA-256 is {wrong}; it must be {sha256(ARCHIVE)}; {removed}"
    server.answers = [Answer(ARCHIVE)]
    other = replace(archive, sha256=sha256(b"something else"))
    assert failure(other, tmp_path) == f"{archive.url}: SHA-256 is {text.sha256}; it must be {other.sha256}; {removed}"
    assert fetched(archive, tmp_path)  # from the archive that is there


@pytest.mark.parametrize("scheme", ["file", "ftp", "http"])
def test_a_redirect_leads_to_the_web_alone(scheme, server, text, tmp_path):
    place = server.url.replace("http", scheme)
    server.answers = [Answer(b"", 302, location=place), Answer()]
    if scheme == "http":
        assert fetched(text, tmp_path)
    else:
        assert failure(text, tmp_path).startswith(f"{server.url}: No connection adapters were found for '{place}'; ")
        assert names(tmp_path) == []


def test_a_link_in_place_of_a_part_is_not_written_through(server, text, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "mine").write_bytes(b"")
    (tmp_path / "data/corpus.txt.part").symlink_to("../mine")
    assert fetched(text, tmp_path / "data")
    assert (tmp_path / "mine").read_bytes() == b""


def test_two_at_once_download_it_once(server, text, tmp_path, capsys):
    """Each opens the lock by itself, as two processes do, and the second waits for the first."""
    server.answers = [Answer(cut=CUT, then="stall"), Answer()]
    paths: list[Path] = []
    both = [threading.Thread(target=lambda: paths.append(fetch(text, tmp_path, progress=False))) for _ in range(2)]
    for thread in both:
        thread.start()
    while "another process downloads it; waiting for that" not in capsys.readouterr().err:
        time.sleep(0.01)
    server.released.set()
    for thread in both:
        thread.join()
    assert [path.read_bytes() == TEXT for path in paths] == [True, True]
    assert server.ranges == [None, f"bytes={CUT}-"]
    assert names(tmp_path) == ["corpus.txt"]


@pytest.mark.parametrize("fault", ["status", "closed port", "no name", "no TLS"])
def test_a_server_that_does_not_answer_or_refuses_is_asked_once(fault, server, archive, tmp_path, monkeypatch):
    def no_name(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    server.answers = [Answer(b"an error page", 404)]
    with socket.socket() as bound:  # bound but not listening: connections are refused
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1] if fault == "closed port" else server.server_port
        url = f"{'https' if fault == 'no TLS' else 'http'}://127.0.0.1:{port}/corpus.zip"
        if fault == "no name":
            monkeypatch.setattr(socket, "getaddrinfo", no_name)
        message = failure(replace(archive, url=url), tmp_path)
    reason = {
        "status": f"404 Client Error: Not Found for url: {url}",
        "closed port": "Connection refused",
        "no name": "Name or service not known",
        "no TLS": ".*",
    }[fault]
    assert re.fullmatch(
        rf"{url}: {reason}; 0 of {len(ARCHIVE)} bytes are in {tmp_path}/corpus.zip.part; run the command again to "
        rf"resume, or get the file elsewhere and put it at {tmp_path}/corpus.zip",
        message,
    )
    assert names(tmp_path) == []
    assert len(server.ranges) == (fault == "status")


def test_a_folder_that_cannot_be_made(server, text, tmp_path):
    (tmp_path / "file").write_text("")
    assert failure(text, tmp_path / "file/data").startswith(f"{tmp_path}/file/data: Not a directory; corpus needs a ")
    assert server.ranges == []


@pytest.mark.parametrize("progress", [True, False])
def test_a_bar_is_drawn_on_a_terminal_if_asked_for(progress, server, text, tmp_path, monkeypatch, capsys):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    with monkeypatch.context() as patch:
        terminal = Terminal()
        patch.setattr(sys, "stderr", terminal)
        (tmp_path / "corpus.txt.part").write_bytes(TEXT[:1000])
        server.answers = [Answer(ranges=False, cut=CUT), Answer()]
        fetch(text, tmp_path, progress=progress)
    assert bool(re.search(r"corpus: 100%.* 256k/256k .*B/s\]\n$", terminal.getvalue())) == progress
    fetch(text, tmp_path / "elsewhere", progress=True)
    assert capsys.readouterr() == ("", "")


def test_an_archive_put_there_by_hand_is_used_and_stays(server, archive, tmp_path):
    (tmp_path / "corpus.zip").write_bytes(ARCHIVE)
    assert fetch(archive, tmp_path, progress=False).read_bytes() == TEXT
    assert (server.ranges, names(tmp_path)) == ([], ["corpus.txt", "corpus.zip"])


def test_an_interrupted_extraction_needs_no_new_download(server, archive, tmp_path, monkeypatch):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(fetch_module.shutil, "copyfileobj", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fetch(archive, tmp_path, progress=False)
    assert not (tmp_path / "corpus.txt").exists()
    assert fetched(archive, tmp_path)
    assert server.ranges == [None]
