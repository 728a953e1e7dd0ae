"""Downloads from a server on this machine: only a text with the right digest gets the final name."""

import hashlib
import io
import threading
import zipfile
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from charlm.data.fetch import CATALOG, fetch
from charlm.errors import DataError

TEXT = bytes(range(256)) * 1000


def zipped(content: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("corpus", content)
    return buffer.getvalue()


@pytest.fixture
def text(tmp_path, monkeypatch):
    """A text that a server offers under the name served.txt."""
    monkeypatch.setenv("no_proxy", "*")
    handler = partial(SimpleHTTPRequestHandler, directory=tmp_path)
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


@pytest.mark.parametrize(
    "body", [TEXT[:-1], zipped(TEXT)[:-1], zipped(b"another"), zipped(TEXT).replace(TEXT[:100], bytes(100), 1), None]
)
def test_a_download_that_fails_leaves_nothing(text, write, tmp_path, body):
    if body is not None:
        write("served.txt", body)
    with pytest.raises(DataError):
        fetch(text)
    assert [*(tmp_path / "data").iterdir()] == []
