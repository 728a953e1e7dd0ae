"""Downloads from a server that cuts, stalls, refuses and lies."""

import errno
import io
import re
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from charlm.data import fetch as fetch_module
from charlm.data.catalog import CATALOG, Download
from charlm.data.fetch import fetch, is_present
from charlm.errors import DataError
from tests.data.server import ARCHIVE, CUT, TEXT, Answer, Server, failure, names, sha256, zipped

REQUESTS_AT_MOST = len(fetch_module.PAUSES_S) + 1


def fetched(download: Download, folder: Path) -> bool:
    """Whether a fetch brings the text, and leaves nothing beside it."""
    return fetch(download, folder, progress=False).read_bytes() == TEXT and names(folder) == ["corpus.txt"]


def mismatch(url: str, name: str, expected: str, actual: str) -> str:
    return (
        f"{url}: SHA256 hash of downloaded file ({name}) does not match the known hash: expected {expected} but got "
        f"{actual}; charlm removed the file; run the command again"
    )


def test_the_catalog_is_consistent():
    for name, download in CATALOG.items():
        assert download.name == name
        assert download.url.startswith("https://")
        for digest in (download.sha256, download.archive_sha256 or download.sha256):
            assert re.fullmatch("[0-9a-f]{64}", digest)
    assert CATALOG["tinyshakespeare"].served_filename == "tinyshakespeare.txt"
    assert CATALOG["text8"].served_filename == "text8.zip"


def test_a_text_is_downloaded_once_into_a_new_folder(server: Server, text: Download, tmp_path: Path):
    folder = tmp_path / "deep" / "data"
    assert not is_present(text, folder)
    assert fetched(text, folder)
    assert is_present(text, folder)
    assert fetched(text, folder)
    assert server.ranges == [None]


@pytest.mark.parametrize("call", [is_present, lambda d, f: fetch(d, f, progress=False)])
def test_another_file_is_never_overwritten(
    call: Callable[[Download, Path], object], server: Server, text: Download, tmp_path: Path
):
    path = tmp_path / "corpus.txt"
    path.write_bytes(b"my own")
    with pytest.raises(DataError) as caught:
        call(text, tmp_path)
    assert str(caught.value) == (
        f"{path}: SHA-256 is {sha256(b'my own')}; corpus has {text.sha256}; "
        "move or delete the file, then run the command again"
    )
    assert path.read_bytes() == b"my own"
    assert server.ranges == []


@pytest.mark.parametrize("then", ["close", "stall"])
@pytest.mark.parametrize("kind", ["text", "archive"])
def test_a_cut_download_resumes_where_it_stopped(
    then: str, kind: str, server: Server, text: Download, archive: Download, tmp_path: Path, monkeypatch
):
    monkeypatch.setattr(fetch_module, "TIMEOUT_S", 0.1 if then == "stall" else 5.0)
    body = TEXT if kind == "text" else ARCHIVE
    server.answers = [Answer(body, cut=CUT, then=then), Answer(body)]
    assert fetched(text if kind == "text" else archive, tmp_path)
    assert server.ranges == [None, f"bytes={CUT}-"]


@pytest.mark.parametrize("answer", [Answer(cut=0, then="reset"), Answer(cut=CUT, then="reset"), Answer(then="silence")])
def test_a_reset_connection_is_tried_again(answer: Answer, server: Server, text: Download, tmp_path: Path):
    server.answers = [answer, Answer()]
    assert fetched(text, tmp_path)
    assert len(server.ranges) == 2  # a reset may discard bytes in flight: the Range is not certain


def test_giving_up_keeps_the_part_and_the_next_run_resumes(server: Server, text: Download, tmp_path: Path, monkeypatch):
    slept: list[float] = []
    monkeypatch.setattr(fetch_module.time, "sleep", slept.append)
    part = tmp_path / "corpus.txt.part"
    server.answers = [Answer(cut=1 << 14)]
    received = REQUESTS_AT_MOST << 14
    assert failure(text, tmp_path) == (
        f"{server.url}: connection lost {REQUESTS_AT_MOST} times (the server closed it); "
        f"{received} of {len(TEXT)} bytes are in {part}; run the command again to resume"
    )
    assert slept == list(fetch_module.PAUSES_S)
    assert part.read_bytes() == TEXT[:received]

    server.answers, server.ranges = [Answer()], []
    assert fetched(text, tmp_path)
    assert server.ranges == [f"bytes={received}-"]


@pytest.mark.parametrize(
    ("part", "answers", "ranges"),
    [
        (TEXT[:CUT], [Answer(ranges=False)], [f"bytes={CUT}-"]),  # the server sends everything again
        (b"stale", [Answer(b"", 416), Answer()], ["bytes=5-", None]),
        (TEXT + b"!", [Answer()], [None]),
        (TEXT, [Answer()], []),
    ],
    ids=["no ranges", "refused range", "too long", "complete"],
)
def test_what_an_earlier_run_has_left(part, answers, ranges, server: Server, text: Download, tmp_path: Path):
    (tmp_path / "corpus.txt.part").write_bytes(part)
    server.answers = answers
    assert fetched(text, tmp_path)
    assert server.ranges == ranges


def test_an_interrupt_keeps_the_part(server: Server, text: Download, tmp_path: Path, monkeypatch):
    class Interrupted(fetch_module.tqdm):  # type: ignore[type-arg]
        def update(self, n: float | None = 1) -> bool | None:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(fetch_module, "tqdm", Interrupted)
        with pytest.raises(KeyboardInterrupt):
            fetch(text, tmp_path, progress=False)
    assert names(tmp_path) == ["corpus.txt.part"]
    received = (tmp_path / "corpus.txt.part").stat().st_size
    assert 0 < received < len(TEXT)
    assert fetched(text, tmp_path)
    assert server.ranges == [None, f"bytes={received}-"]


@pytest.mark.parametrize("length", [True, False])
def test_wrong_content_is_removed(length: bool, server: Server, text: Download, tmp_path: Path):
    server.answers = [Answer(b"<html>log in", length=length)]
    assert failure(text, tmp_path) == mismatch(server.url, "corpus.txt", text.sha256, sha256(b"<html>log in"))
    assert names(tmp_path) == []
    server.answers = [Answer()]
    (tmp_path / "corpus.txt.part").write_bytes(b"another beginning")
    assert "does not match the known hash" in failure(text, tmp_path)
    assert fetched(text, tmp_path)


@pytest.mark.parametrize("length", [True, False])
def test_a_server_that_sends_more_is_not_listened_to(length: bool, server: Server, text: Download, tmp_path: Path):
    server.answers = [Answer(TEXT + bytes(10_000_000), length=length)]
    assert fetched(text, tmp_path)
    wrong = replace(text, name="wrong", sha256=sha256(TEXT[1:]))
    assert failure(wrong, tmp_path) == mismatch(server.url, "wrong.txt", wrong.sha256, text.sha256)


@pytest.mark.parametrize("scheme", ["file", "ftp", "data", "http"])
def test_a_redirect_leads_to_the_web_alone(scheme: str, server: Server, text: Download, tmp_path: Path):
    place = server.url.replace("http", scheme)
    server.answers = [Answer(b"", 302, location=place), Answer()]
    if scheme == "http":
        assert fetched(text, tmp_path)
    else:
        assert failure(text, tmp_path).startswith(
            f"{server.url}: No connection adapters were found for '{place}'; try again later, or get the file elsewhere"
        )
        assert names(tmp_path) == []


def test_a_link_in_place_of_a_part_is_not_written_through(server: Server, text: Download, tmp_path: Path):
    (tmp_path / "data").mkdir()
    (tmp_path / "mine").write_bytes(b"")
    (tmp_path / "data/corpus.txt.part").symlink_to("../mine")
    assert fetched(text, tmp_path / "data")
    assert (tmp_path / "mine").read_bytes() == b""


def test_two_at_once_download_it_once(server: Server, text: Download, tmp_path: Path, capsys):
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


@pytest.mark.parametrize(
    ("status", "phrase"), [(404, "Not Found"), (500, "Internal Server Error"), (416, "Requested Range Not Satisfiable")]
)
def test_error_status(status: int, phrase: str, server: Server, text: Download, tmp_path: Path):
    (tmp_path / "corpus.txt.part").write_bytes(TEXT[:CUT])
    server.answers = [Answer(b"an error page", status)]
    assert failure(text, tmp_path) == (
        f"{server.url}: the server answered {status} {phrase}; the answer must be the file; "
        f"try again later, or get the file elsewhere and put it at {tmp_path / 'corpus.txt'}"
    )
    # A refused range is asked for once, then the whole file.
    assert server.ranges == [f"bytes={CUT}-", *([None] if status == 416 else [])]


@pytest.mark.parametrize("fault", ["closed port", "no name", "no TLS"])
def test_an_unreachable_server(fault: str, server: Server, archive: Download, tmp_path: Path, monkeypatch):
    def no_name(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    with socket.socket() as bound:  # bound but not listening: connections are refused
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1] if fault == "closed port" else server.server_port
        url = f"{'https' if fault == 'no TLS' else 'http'}://127.0.0.1:{port}/corpus.zip"
        if fault == "no name":
            monkeypatch.setattr(socket, "getaddrinfo", no_name)
        message = failure(replace(archive, url=url), tmp_path)
    begin, reason = {
        "closed port": ("no network", "Connection refused"),
        "no name": ("no network", "Name or service not known"),
        "no TLS": ("no secure connection", ".*"),
    }[fault]
    assert re.fullmatch(
        rf"{begin}: could not reach 127.0.0.1:{port}: {reason}; download {url} yourself and put it at "
        rf"{tmp_path}/corpus.zip",
        message,
    )
    assert names(tmp_path) == []


def test_a_network_lost_halfway_says_how_to_resume(server: Server, text: Download, tmp_path: Path, monkeypatch):
    server.answers = [Answer(cut=CUT)]
    real = socket.getaddrinfo
    calls: list[object] = []

    def once(*arguments: Any, **settings: Any) -> Any:
        calls.append(arguments)
        if len(calls) > 1:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return real(*arguments, **settings)

    monkeypatch.setattr(socket, "getaddrinfo", once)
    assert failure(text, tmp_path) == (
        f"{server.url}: connection lost {REQUESTS_AT_MOST} times (no network: could not reach "
        f"127.0.0.1:{server.server_port}: Temporary failure in name resolution); {CUT} of {len(TEXT)} "
        f"bytes are in {tmp_path / 'corpus.txt.part'}; run the command again to resume"
    )


def test_a_folder_that_cannot_be_made_and_a_full_disk(server: Server, text: Download, tmp_path: Path, monkeypatch):
    class Full(fetch_module.tqdm):  # type: ignore[type-arg]
        def update(self, n: float | None = 1) -> bool | None:
            raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "file").write_text("")
    needs = "corpus needs a writable folder with 256 kB free; make room or choose another folder"
    assert failure(text, tmp_path / "file/data") == f"{tmp_path}/file/data: Not a directory; {needs}"
    assert server.ranges == []
    monkeypatch.setattr(fetch_module, "tqdm", Full)
    assert failure(text, tmp_path) == f"{tmp_path}: No space left on device; {needs}"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("progress", [True, False])
def test_a_bar_is_drawn_on_a_terminal_if_asked_for(
    progress: bool, server: Server, text: Download, tmp_path: Path, monkeypatch, capsys
):
    with monkeypatch.context() as patch:
        terminal = Terminal()
        patch.setattr(sys, "stderr", terminal)
        (tmp_path / "corpus.txt.part").write_bytes(TEXT[:1000])
        server.answers = [Answer(ranges=False, cut=CUT), Answer()]
        fetch(text, tmp_path, progress=progress)
    assert bool(re.search(r"corpus: 100%.* 256k/256k .*B/s\]\n$", terminal.getvalue())) == progress
    fetch(text, tmp_path / "elsewhere", progress=True)
    assert capsys.readouterr() == ("", "")


def test_an_archive_put_there_by_hand_is_used_and_stays(server: Server, archive: Download, tmp_path: Path):
    (tmp_path / "corpus.zip").write_bytes(b"another")
    assert failure(archive, tmp_path) == (
        f"{tmp_path / 'corpus.zip'}: SHA-256 is {sha256(b'another')}; corpus.zip has "
        f"{archive.archive_sha256}; move or delete the file, then run the command again"
    )
    assert names(tmp_path) == ["corpus.zip"]
    (tmp_path / "corpus.zip").write_bytes(ARCHIVE)
    assert fetch(archive, tmp_path, progress=False).read_bytes() == TEXT
    assert server.ranges == []
    assert names(tmp_path) == ["corpus.txt", "corpus.zip"]


def test_a_wrong_archive_or_member_is_removed(server: Server, archive: Download, tmp_path: Path):
    wrong = zipped("corpus", TEXT[::-1])
    server.answers = [Answer(wrong), Answer(ARCHIVE)]
    assert failure(archive, tmp_path) == mismatch(archive.url, "corpus.zip", archive.archive_sha256, sha256(wrong))
    other = replace(archive, sha256=sha256(b"something else"))
    assert failure(other, tmp_path) == mismatch(archive.url, "corpus.txt", other.sha256, sha256(TEXT))
    assert names(tmp_path) == []


def test_an_interrupted_extraction_needs_no_new_download(
    server: Server, archive: Download, tmp_path: Path, monkeypatch
):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(fetch_module.shutil, "copyfileobj", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fetch(archive, tmp_path, progress=False)
    assert names(tmp_path) == ["corpus.zip.part"]
    assert fetched(archive, tmp_path)
    assert server.ranges == [None]
