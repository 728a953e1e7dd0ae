"""Downloads from a server that cuts, stalls, refuses and lies."""

import errno
import io
import re
import runpy
import socket
import ssl
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import charlm
from charlm.data import fetch as fetch_module
from charlm.data.fetch import CATALOG, Download, fetch, is_present
from charlm.errors import DataError
from tests.data.server import CUT, TEXT, Answer, Server, failure, names, sha256

REQUESTS_AT_MOST = len(fetch_module.PAUSES_S) + 1


def test_catalog_is_consistent() -> None:
    assert set(CATALOG) == {"tinyshakespeare", "text8", "enwik8"}
    for name, download in CATALOG.items():
        assert download.name == name
        assert download.url.startswith("https://")
        assert download.filename == f"{name}.txt"
        assert re.fullmatch("[0-9a-f]{64}", download.sha256)
        assert re.fullmatch("[0-9a-f]{64}", download.served_sha256)
        assert "\n" not in download.summary
    assert CATALOG["tinyshakespeare"].served_filename == "tinyshakespeare.txt"
    assert CATALOG["text8"].served_filename == "text8.zip"


def test_module_needs_no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)  # type: ignore[arg-type]
    path = Path(charlm.__file__).parent / "data" / "fetch.py"
    assert "CATALOG" in runpy.run_path(str(path))


def test_text_is_downloaded_into_a_new_folder(server: Server, text: Download, tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "data"
    assert not is_present(text, folder)
    path = fetch(text, folder, progress=False)
    assert path == folder / "corpus.txt"
    assert path.read_bytes() == TEXT
    assert names(folder) == ["corpus.txt"]
    assert is_present(text, folder)


def test_verified_text_is_not_downloaded_again(server: Server, text: Download, tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_bytes(TEXT)
    assert fetch(text, tmp_path, progress=False) == tmp_path / "corpus.txt"
    assert server.ranges == []


@pytest.mark.parametrize("call", [is_present, lambda d, f: fetch(d, f, progress=False)])
def test_another_file_is_never_overwritten(
    call: Callable[[Download, Path], object], server: Server, text: Download, tmp_path: Path
) -> None:
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
def test_cut_download_resumes_where_it_stopped(
    then: str, server: Server, text: Download, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_module, "TIMEOUT_S", 0.1 if then == "stall" else 5.0)
    server.answers = [Answer(cut=CUT, then=then), Answer()]
    assert fetch(text, tmp_path, progress=False).read_bytes() == TEXT
    assert server.ranges == [None, f"bytes={CUT}-"]
    assert names(tmp_path) == ["corpus.txt"]


@pytest.mark.parametrize("answer", [Answer(cut=0, then="reset"), Answer(cut=CUT, then="reset")])
def test_reset_connection_is_tried_again(answer: Answer, server: Server, text: Download, tmp_path: Path) -> None:
    server.answers = [answer, Answer()]
    assert fetch(text, tmp_path, progress=False).read_bytes() == TEXT
    assert len(server.ranges) == 2  # a reset may discard bytes in flight: the Range is not certain


def test_server_that_hangs_up_is_tried_again(server: Server, text: Download, tmp_path: Path) -> None:
    server.answers = [Answer(then="silence"), Answer()]
    assert fetch(text, tmp_path, progress=False).read_bytes() == TEXT
    assert server.ranges == [None, None]


def test_stalled_server_is_not_waited_for(
    server: Server, text: Download, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_module, "TIMEOUT_S", 0.05)
    monkeypatch.setattr(fetch_module, "PAUSES_S", (0.0,))
    server.answers = [Answer(cut=10, then="stall")]
    assert "connection lost 2 times (timed out); 20 of 256000 bytes" in failure(text, tmp_path)


def test_pauses_grow_between_attempts(
    server: Server, text: Download, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(fetch_module, "PAUSES_S", (1.0, 2.0))
    monkeypatch.setattr(fetch_module.time, "sleep", slept.append)
    server.answers = [Answer(cut=10)]
    failure(text, tmp_path)
    assert slept == [1.0, 2.0]


def test_giving_up_keeps_the_part_and_the_next_run_resumes(server: Server, text: Download, tmp_path: Path) -> None:
    part = tmp_path / "corpus.txt.part"
    server.answers = [Answer(cut=1000)]
    kept = 1000 * REQUESTS_AT_MOST
    assert failure(text, tmp_path) == (
        f"{server.url}: connection lost {REQUESTS_AT_MOST} times (the server closed it); "
        f"{kept} of {len(TEXT)} bytes are in {part}; run the command again to resume"
    )
    assert part.read_bytes() == TEXT[:kept]

    server.answers, server.ranges = [Answer()], []
    assert fetch(text, tmp_path, progress=False).read_bytes() == TEXT
    assert server.ranges == [f"bytes={kept}-"]


def test_server_without_ranges_sends_everything_again(server: Server, text: Download, tmp_path: Path) -> None:
    (tmp_path / "corpus.txt.part").write_bytes(TEXT[:CUT])
    server.answers = [Answer(ranges=False)]
    assert fetch(text, tmp_path, progress=False).read_bytes() == TEXT
    assert server.ranges == [f"bytes={CUT}-"]


def test_refused_range_starts_again(server: Server, text: Download, tmp_path: Path) -> None:
    (tmp_path / "corpus.txt.part").write_bytes(b"stale")
    server.answers = [Answer(b"", 416), Answer()]
    assert fetch(text, tmp_path, progress=False).read_bytes() == TEXT
    assert server.ranges == ["bytes=5-", None]


def test_range_is_refused_only_once(server: Server, text: Download, tmp_path: Path) -> None:
    (tmp_path / "corpus.txt.part").write_bytes(b"stale")
    server.answers = [Answer(b"", 416)]
    assert "the server answered 416" in failure(text, tmp_path)
    assert server.ranges == ["bytes=5-", None]


def test_part_longer_than_the_file_starts_again(server: Server, text: Download, tmp_path: Path) -> None:
    (tmp_path / "corpus.txt.part").write_bytes(TEXT + b"!")
    assert fetch(text, tmp_path, progress=False).read_bytes() == TEXT
    assert server.ranges == [None]


def test_complete_part_needs_no_network(server: Server, text: Download, tmp_path: Path) -> None:
    (tmp_path / "corpus.txt.part").write_bytes(TEXT)
    assert fetch(text, tmp_path, progress=False).read_bytes() == TEXT
    assert server.ranges == []
    assert names(tmp_path) == ["corpus.txt"]


def test_interrupt_keeps_the_part(
    server: Server, text: Download, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted(fetch_module.tqdm):  # type: ignore[type-arg]
        def update(self, n: float | None = 1) -> bool | None:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(fetch_module, "tqdm", Interrupted)
        with pytest.raises(KeyboardInterrupt):
            fetch(text, tmp_path, progress=False)
    assert names(tmp_path) == ["corpus.txt.part"]
    kept = (tmp_path / "corpus.txt.part").read_bytes()
    assert 0 < len(kept) < len(TEXT)
    assert fetch(text, tmp_path, progress=False).read_bytes() == TEXT
    assert server.ranges == [None, f"bytes={len(kept)}-"]


@pytest.mark.parametrize("length", [True, False])
def test_wrong_content_is_removed(length: bool, server: Server, text: Download, tmp_path: Path) -> None:
    server.answers = [Answer(b"<html>log in", length=length)]
    assert failure(text, tmp_path) == (
        f"{server.url}: SHA-256 is {sha256(b'<html>log in')}; {text.sha256} is expected; "
        "charlm removed the file; run the command again"
    )
    assert names(tmp_path) == []


def test_wrong_beginning_is_removed_and_the_next_run_is_clean(server: Server, text: Download, tmp_path: Path) -> None:
    (tmp_path / "corpus.txt.part").write_bytes(b"another beginning")
    assert "SHA-256 is" in failure(text, tmp_path)
    assert fetch(text, tmp_path, progress=False).read_bytes() == TEXT
    assert server.ranges == ["bytes=17-", None]


@pytest.mark.parametrize("length", [True, False])
def test_a_server_that_sends_more_is_not_listened_to(
    length: bool, server: Server, text: Download, tmp_path: Path
) -> None:
    server.answers = [Answer(TEXT + bytes(10_000_000), length=length)]
    assert fetch(text, tmp_path, progress=False).read_bytes() == TEXT
    wrong = replace(text, filename="wrong.txt", sha256=sha256(TEXT[1:]))
    assert f"SHA-256 is {text.sha256}; {wrong.sha256} is expected" in failure(wrong, tmp_path)


@pytest.mark.parametrize("scheme", ["file", "ftp", "data", "http"])
def test_a_redirect_leads_to_the_web_alone(scheme: str, server: Server, text: Download, tmp_path: Path) -> None:
    place = server.url.replace("http", scheme)
    server.answers = [Answer(b"", 302, location=place), Answer()]
    if scheme == "http":
        assert fetch(text, tmp_path, progress=False).read_bytes() == TEXT
    else:
        assert failure(text, tmp_path).startswith(
            f"{server.url}: the server answered 302 Found - Redirection to url '{place}' is not allowed; the answer "
        )
        assert names(tmp_path) == []


@pytest.mark.parametrize("name", ["corpus.txt.part", "corpus.zip.part"])
def test_a_link_in_place_of_a_part_is_not_written_through(
    name: str, server: Server, archive: Download, tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "mine").write_bytes(b"")
    (tmp_path / "data" / name).symlink_to("../mine")
    assert fetch(archive, tmp_path / "data", progress=False).read_bytes() == TEXT
    assert (tmp_path / "mine").read_bytes() == b""
    assert names(tmp_path / "data") == ["corpus.txt"]


def test_two_at_once_download_it_once(
    server: Server, text: Download, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each opens the part by itself, as two processes do, and the second waits for the first."""
    server.answers = [Answer(cut=CUT, then="stall"), Answer()]
    found: list[Path] = []
    both = [threading.Thread(target=lambda: found.append(fetch(text, tmp_path, progress=False))) for _ in range(2)]
    for thread in both:
        thread.start()
    while "waiting for that" not in capsys.readouterr().err:
        time.sleep(0.01)
    server.released.set()
    for thread in both:
        thread.join()
    assert [path.read_bytes() == TEXT for path in found] == [True, True]
    assert server.ranges == [None, f"bytes={CUT}-"]
    assert names(tmp_path) == ["corpus.txt"]


@pytest.mark.parametrize(("status", "phrase"), [(404, "Not Found"), (500, "Internal Server Error")])
def test_error_status(status: int, phrase: str, server: Server, text: Download, tmp_path: Path) -> None:
    (tmp_path / "corpus.txt.part").write_bytes(TEXT[:CUT])
    server.answers = [Answer(b"an error page", status)]
    assert failure(text, tmp_path) == (
        f"{server.url}: the server answered {status} {phrase}; the answer must be the file; "
        f"try again later, or get the file elsewhere and put it at {tmp_path / 'corpus.txt'}"
    )
    assert len(server.ranges) == 1
    assert (tmp_path / "corpus.txt.part").read_bytes() == TEXT[:CUT]


def test_closed_port(server: Server, text: Download, tmp_path: Path) -> None:
    with socket.socket() as bound:  # bound but not listening: connections are refused
        bound.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{bound.getsockname()[1]}/corpus.txt"
        message = failure(replace(text, url=url), tmp_path)
    assert message == (
        f"no network: could not reach {urllib.parse.urlsplit(url).netloc}: Connection refused; "
        f"download {url} yourself and put it at {tmp_path / 'corpus.txt'}"
    )
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("error", "start"),
    [
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), "no network"),
        (OSError(errno.ENETUNREACH, "Network is unreachable"), "no network"),
        (TimeoutError("timed out"), "no network"),
        (ssl.SSLCertVerificationError(1, "certificate verify failed"), "no secure connection"),
    ],
)
def test_unreachable_host(
    error: OSError,
    start: str,
    archive: Download,
    server: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unreachable(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(socket, "getaddrinfo", unreachable)
    url = "http://corpora.invalid/corpus.zip"
    assert failure(replace(archive, url=url), tmp_path) == (
        f"{start}: could not reach corpora.invalid: {error.strerror or error}; "
        f"download {url} yourself and put it at {tmp_path / 'corpus.zip'}"
    )


def test_network_lost_halfway_says_how_to_resume(
    server: Server, text: Download, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_folder_that_cannot_be_made(server: Server, text: Download, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert failure(text, tmp_path / "file" / "data") == (
        f"{tmp_path / 'file' / 'data'}: Not a directory; corpus needs a writable folder "
        "with 256 kB free; make room or choose another folder"
    )
    assert server.ranges == []


def test_full_disk(server: Server, text: Download, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(fetch_module.tqdm):  # type: ignore[type-arg]
        def update(self, n: float | None = 1) -> bool | None:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(fetch_module, "tqdm", Full)
    assert failure(text, tmp_path) == (
        f"{tmp_path}: No space left on device; corpus needs a writable folder "
        "with 256 kB free; make room or choose another folder"
    )
    assert server.ranges == [None]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("ranges", [True, False])
@pytest.mark.parametrize("progress", [True, False])
def test_bar_is_drawn_on_a_terminal_if_asked_for(
    progress: bool,
    ranges: bool,
    server: Server,
    text: Download,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    (tmp_path / "corpus.txt.part").write_bytes(TEXT[:1000])
    server.answers = [Answer(ranges=ranges, cut=CUT), Answer(ranges=ranges)]
    fetch(text, tmp_path, progress=progress)
    shown = terminal.getvalue()
    assert bool(shown) == progress
    if progress:
        assert "corpus" in shown
        assert re.search(r"100%.* 256k/256k .*B/s\]\n$", shown)


def test_no_bar_where_stderr_is_no_terminal(
    server: Server, text: Download, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fetch(text, tmp_path, progress=True)
    assert capsys.readouterr() == ("", "")
