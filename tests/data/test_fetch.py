"""Downloads from a server on this machine: only a text with the right digest gets the final name."""

import contextlib
import hashlib
import io
import re
import threading
import time
import zipfile
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from charlm.data.fetch import CATALOG, fetch
from charlm.errors import DataError

TEXT = bytes(range(256)) * 1000


def zipped(*contents: bytes, **fields: int) -> bytes:
    """An archive of files, whose directory has these values in place of the true ones."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for number, content in enumerate(contents):
            archive.writestr(f"corpus{number}", content)
        for info in archive.infolist():
            for name, value in fields.items():
                setattr(info, name, value)
    return buffer.getvalue()


BROKEN_OFF = {
    "/short.txt": (("Content-Length", "1000"), b"abc"),
    "/chunks.txt": (("Transfer-Encoding", "chunked"), b"3\r\nabc\r\nno number\r\n"),
}
"""Path → a header and a body that does not keep what the header promises."""


class Handler(SimpleHTTPRequestHandler):
    """Files of a folder, and some that fail: `slow.txt` comes one byte after the other, without end."""

    def do_GET(self) -> None:
        with contextlib.suppress(OSError):  # the client has gone
            if self.path in BROKEN_OFF:
                header, body = BROKEN_OFF[self.path]
                self.send_response(200)
                self.send_header(*header)
                self.end_headers()
                self.wfile.write(body)
                return
            if self.path != "/slow.txt":
                super().do_GET()
                return
            self.send_response(200)
            self.end_headers()
            while True:
                self.wfile.write(b"x")
                time.sleep(0.002)

    def log_message(self, *words: object) -> None:
        pass


@pytest.fixture
def text(tmp_path, monkeypatch):
    """A text that a server offers under the name served.txt."""
    monkeypatch.setenv("no_proxy", "*")
    handler = partial(Handler, directory=tmp_path)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = False  # server_close joins them: no thread or socket outlives its test
        thread = threading.Thread(target=server.serve_forever, args=(0.005,))
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}/served.txt"
        entry = {"url": url, "sha256": hashlib.sha256(TEXT).hexdigest(), "size": len(TEXT)}
        monkeypatch.setitem(CATALOG, "corpus", entry)
        monkeypatch.chdir(tmp_path)
        yield "corpus"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("body", [TEXT, zipped(TEXT)], ids=["text", "archive"])
def test_a_text_is_downloaded_once_into_a_new_folder(text, write, tmp_path, body):
    served, folder = write("served.txt", body), tmp_path / "data"
    assert fetch(text).read_bytes() == TEXT
    Path(served).unlink()
    assert fetch(text).read_bytes() == TEXT
    assert [path.name for path in folder.iterdir()] == ["corpus.txt"]


@pytest.mark.parametrize("own", [b"my own", TEXT + b"x"], ids=["smaller", "larger"])
def test_another_file_is_never_overwritten(text, write, tmp_path, own):
    write("served.txt", TEXT)
    write("data/corpus.txt", own)
    with pytest.raises(DataError, match="; move or delete the file, then run the command again"):
        fetch(text)
    assert (tmp_path / "data/corpus.txt").read_bytes() == own


FAULTS = {
    "cut": (TEXT[:-1], "SHA-256 is "),
    "too long": (bytes(len(TEXT) + 10**6), "found more than 356,000 bytes; allowed: as many as the text has; "),
    "missing": (None, "HTTP Error 404: File not found; "),
    "another in an archive": (zipped(b"another"), "SHA-256 is "),
    "too long in an archive": (zipped(bytes(10**6)), "found more than 256,000 bytes; "),
    "a cut archive": (zipped(TEXT)[:-1], "SHA-256 is "),
    "a damaged archive": (zipped(TEXT)[:60] + bytes(9) + zipped(TEXT)[69:], "found an archive that cannot be read ("),
    "an empty archive": (zipped(), "found an archive of 0 files; allowed: one; "),
    "two files": (zipped(TEXT, TEXT), "found an archive of 2 files; "),
    "encrypted": (zipped(TEXT, flag_bits=1), "found an archive that cannot be read (File 'corpus0' is encrypted, "),
    "another compression": (zipped(TEXT, compress_type=99), "found an archive that cannot be read (That compression "),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_download_that_fails_leaves_nothing(text, write, tmp_path, name):
    body, fault = FAULTS[name]
    if body is not None:
        write("served.txt", body)
    with pytest.raises(DataError, match=re.escape(f"/served.txt: {fault}")) as error:
        fetch(text)
    assert str(error.value).endswith("; run the command again, or get the text elsewhere and put it at data/corpus.txt")
    assert [*(tmp_path / "data").iterdir()] == []


def test_a_server_that_sends_hardly_anything_is_left(text, tmp_path, monkeypatch):
    monkeypatch.setattr("charlm.data.fetch.TIMEOUT_S", 0.2)
    monkeypatch.setitem(CATALOG[text], "url", CATALOG[text]["url"].replace("served", "slow"))
    with pytest.raises(DataError, match=r" bytes in 0 s; allowed: at least 10,000 bytes per second; run the "):
        fetch(text)
    assert [*(tmp_path / "data").iterdir()] == []


@pytest.mark.parametrize(
    ("file", "fault"),
    [("short", "the end; allowed: 1,000"), ("chunks", "no valid HTTP (IncompleteRead)")],
)
def test_an_answer_that_breaks_off_is_said(text, tmp_path, monkeypatch, file, fault):
    entry = CATALOG[text] | {"url": CATALOG[text]["url"].replace("served", file)}
    monkeypatch.setitem(CATALOG, text, entry)
    with pytest.raises(DataError, match=re.escape(f"found 3 bytes and then {fault}; run the command again")):
        fetch(text)
    assert [*(tmp_path / "data").iterdir()] == []
