"""Download corpora: interrupted downloads resume, and only a file with the right SHA-256 gets its final name.

Until then, its bytes are in `<file>.part` beside it. One process at a time writes there.
"""

import hashlib
import http.client
import os
import shutil
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, BinaryIO

from tqdm import tqdm

from charlm.errors import DataError
from charlm.system.console import say
from charlm.system.formatting import format_bytes

try:
    import fcntl
except ImportError:  # Windows: two processes may disturb one another
    fcntl = None

PAUSES_S = (1.0, 2.0, 4.0, 8.0)
"""The pause before each new attempt after a lost connection."""
TIMEOUT_S = 30.0
CHUNK_BYTES = 1 << 16


@dataclass(frozen=True)
class Download:
    """A corpus on the web: a text file, or one member of a zip archive.

    `sha256` and `size` (bytes) describe the text, the `archive_…` fields the archive.
    """

    name: str
    url: str
    sha256: str
    size: int
    filename: str
    summary: str
    member: str | None = None
    archive_sha256: str | None = None
    archive_size: int | None = None

    def __post_init__(self) -> None:
        assert (self.member is None) == (self.archive_sha256 is None), self.name

    @property
    def served_filename(self) -> str:
        """The local name of the file at the URL: the archive or the text."""
        return self.filename if self.member is None else self.url.rpartition("/")[2]

    @property
    def served_sha256(self) -> str:
        """SHA-256 of the file at the URL."""
        return self.archive_sha256 or self.sha256

    @property
    def served_size(self) -> int | None:
        """Size in bytes of the file at the URL; None if unknown."""
        return self.size if self.member is None else self.archive_size


_ENTRIES = (
    Download(
        name="tinyshakespeare",
        url="https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
        sha256="86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
        size=1_115_394,
        filename="tinyshakespeare.txt",
        summary="40,000 lines of Shakespeare's plays; public domain",
    ),
    Download(
        name="text8",
        url="https://mattmahoney.net/dc/text8.zip",
        sha256="6e890197040d37d85beb962ae1f041ff1d9a9ca8d20c7d99c85027eebf51dca7",
        size=100_000_000,
        filename="text8.txt",
        summary="English Wikipedia of 2006 reduced to a-z and space; CC BY-SA",
        member="text8",
        archive_sha256="a6640522afe85d1963ad56c05b0ede0a0c000dddc9671758a6cc09b7a38e5232",
        archive_size=31_344_016,
    ),
    Download(
        name="enwik8",
        url="https://mattmahoney.net/dc/enwik8.zip",
        sha256="2b49720ec4d78c3c9fabaee6e4179a5e997302b3a70029f30f2d582218c024a8",
        size=100_000_000,
        filename="enwik8.txt",
        summary="the first 100 MB of English Wikipedia's XML of 2006, for byte-level models; CC BY-SA",
        member="enwik8",
        archive_sha256="547994d9980ebed1288380d652999f38a14fe291a6247c157c3d33d4932534bc",
        archive_size=36_445_475,
    ),
)
CATALOG = {download.name: download for download in _ENTRIES}


class _LostConnection(Exception):
    """A transfer ended early; the part file holds what arrived."""


class _Unreachable(_LostConnection):
    """The server could not be reached at all."""


def is_present(download: Download, folder: Path) -> bool:
    """Whether `folder` holds the text; DataError if the file has another SHA-256."""
    with _disk_faults(download, folder):
        return _holds(folder / download.filename, download.sha256, download.name)


def fetch(download: Download, folder: Path, *, progress: bool) -> Path:
    """Download the corpus unless it is there, verify its SHA-256, and return its path `folder/filename`.

    Continues the part file of an earlier attempt. An archive that the user has put into `folder` is used instead of
    the network, and kept. `progress` draws a bar on stderr if it is a terminal. Raises DataError for all faults of
    network, disk and content.
    """
    path = folder / download.filename
    if is_present(download, folder):
        return path
    served = folder / download.served_filename
    part, held = (file.with_name(file.name + ".part") for file in (served, path))
    with _disk_faults(download, folder):
        folder.mkdir(parents=True, exist_ok=True)
        for link in filter(Path.is_symlink, (part, held)):  # it would be written through
            link.unlink(missing_ok=True)
    with _disk_faults(download, folder), _held(held, download):
        if _holds(path, download.sha256, download.name):  # another process has fetched it meanwhile
            return path
        if download.member is not None and _holds(served, download.served_sha256, served.name):
            _extract(download, download.member, served, path)
            return path
        _transfer(download, part, served, progress)
        _verify(part, download.served_sha256, download.url)
        if download.member is None:
            _publish(part, path)
        else:
            _extract(download, download.member, part, path)
            part.unlink()
    return path


@contextmanager
def _held(part: Path, download: Download) -> Iterator[None]:
    """Hold the part file of the text; wait while another process does. If it is empty in the end, remove it."""
    if fcntl is None:
        yield
        return
    while True:
        with part.open("ab") as file:
            _lock(fcntl, file, download)
            if not _is_open(part, file):
                continue  # the process before has renamed or removed it
            try:
                yield
            finally:
                if _is_open(part, file) and not _size(part):
                    part.unlink()
            return


def _is_open(path: Path, file: BinaryIO) -> bool:
    return path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat())


def _lock(fcntl: Any, file: BinaryIO, download: Download) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say("fetch", f"{download.name}: another process downloads it; waiting for that")
        fcntl.flock(file, fcntl.LOCK_EX)
    except OSError:  # some network file systems have no locks
        pass


def _transfer(download: Download, part: Path, served: Path, progress: bool) -> None:
    """Fill `part`; resume after a lost connection, once for each of the pauses."""
    with tqdm(
        desc=download.name,
        total=download.served_size,
        unit="B",
        unit_scale=True,
        disable=None if progress else True,  # None: quiet unless stderr is a terminal
    ) as bar:
        for attempt, pause_s in enumerate((*PAUSES_S, None)):
            try:
                _receive(download, part, served, bar)
                return
            except _LostConnection as error:
                if attempt == 0 and isinstance(error, _Unreachable):
                    raise DataError(f"{error}; download {download.url} yourself and put it at {served}") from error
                if pause_s is None:
                    total = "" if download.served_size is None else f" of {download.served_size}"
                    raise DataError(
                        f"{download.url}: connection lost {attempt + 1} times ({error}); "
                        f"{_size(part)}{total} bytes are in {part}; run the command again to resume"
                    ) from error
                time.sleep(pause_s)


def _receive(download: Download, part: Path, served: Path, bar: "tqdm[Any]") -> None:
    """Send one request for the whole file, or for the rest of it if `part` holds its beginning."""
    start, size = _size(part), download.served_size
    if start == size:
        return
    if size is not None and start > size:
        os.truncate(part, 0)
        start = 0
    try:
        response = _open(download.url, start)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and start:
            os.truncate(part, 0)
            _receive(download, part, served, bar)
            return
        raise DataError(
            f"{download.url}: the server answered {error.code} {error.reason}; the answer must be the file; "
            f"try again later, or get the file elsewhere and put it at {served}"
        ) from error
    with response:
        # A server that ignores Range answers 200 and sends the whole file.
        resumed = response.status == HTTPStatus.PARTIAL_CONTENT
        bar.n = start if resumed else 0
        most = None if size is None else size - bar.n
        with part.open("ab" if resumed else "wb") as file:
            for chunk in _chunks(response, most):
                file.write(chunk)
                bar.update(len(chunk))


def _open(url: str, start: int) -> http.client.HTTPResponse:
    """Send the request; HTTPError if the server refuses it, _LostConnection if it does not answer."""
    headers = {"User-Agent": "charlm", **({"Range": f"bytes={start}-"} if start else {})}
    try:
        opener = urllib.request.build_opener(_WebOnly)
        return opener.open(urllib.request.Request(url, headers=headers), timeout=TIMEOUT_S)
    except urllib.error.HTTPError:
        raise
    except urllib.error.URLError as error:
        fault = "no secure connection" if isinstance(error.reason, ssl.SSLError) else "no network"
        host = urllib.parse.urlsplit(url).netloc
        raise _Unreachable(f"{fault}: could not reach {host}: {_reason(error.reason)}") from error
    except (OSError, http.client.HTTPException) as error:
        raise _LostConnection(_reason(error)) from error


class _WebOnly(urllib.request.HTTPRedirectHandler):
    """Follows redirects to http and https alone; urllib follows one to ftp too."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        if urllib.parse.urlsplit(newurl).scheme not in ("http", "https"):
            raise urllib.error.HTTPError(
                newurl, code, f"{msg} - Redirection to url '{newurl}' is not allowed", headers, fp
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _chunks(response: http.client.HTTPResponse, most: int | None) -> Iterator[bytes]:
    """Yield the body in chunks, `most` bytes of it; _LostConnection if it ends before Content-Length."""
    missing = response.length  # None without Content-Length
    if most is not None and missing is not None:
        missing = min(missing, most)
    while most != 0:
        try:
            # read() would lose what arrived before an error
            chunk = response.read1(CHUNK_BYTES if most is None else min(CHUNK_BYTES, most))
        except (OSError, http.client.HTTPException) as error:
            raise _LostConnection(_reason(error)) from error
        if not chunk:
            break
        missing = None if missing is None else missing - len(chunk)
        most = None if most is None else most - len(chunk)
        yield chunk
    if missing:
        raise _LostConnection("the server closed it")


def _extract(download: Download, member: str, archive: Path, path: Path) -> None:
    """Unpack the member to a part file beside `path`, verify it, and rename it to `path`."""
    temporary = path.with_name(path.name + ".part")
    try:
        with (
            zipfile.ZipFile(archive) as unpacked,
            unpacked.open(member) as source,
            temporary.open("wb") as target,
        ):
            shutil.copyfileobj(source, target, CHUNK_BYTES)
        _verify(temporary, download.sha256, f"{download.url}: {member}")
        _publish(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _publish(part: Path, path: Path) -> None:
    """Rename `part` to its final name after its bytes have reached the disk."""
    with part.open("r+b") as file:
        os.fsync(file.fileno())
    part.replace(path)


def _holds(path: Path, sha256: str, name: str) -> bool:
    """Whether `path` exists; DataError if it has another SHA-256. The file itself is not changed."""
    if not path.exists():
        return False
    if (found := _sha256(path)) != sha256:
        raise DataError(
            f"{path}: SHA-256 is {found}; {name} has {sha256}; move or delete the file, then run the command again"
        )
    return True


def _verify(part: Path, sha256: str, origin: str) -> None:
    """Check a downloaded file; if it has another SHA-256, remove it and raise DataError."""
    if (found := _sha256(part)) != sha256:
        part.unlink()
        raise DataError(
            f"{origin}: SHA-256 is {found}; {sha256} is expected; charlm removed the file; run the command again"
        )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _reason(error: BaseException | str) -> str:
    """The text of an error without its number; never empty."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


@contextmanager
def _disk_faults(download: Download, folder: Path) -> Iterator[None]:
    """Turn an OSError of the file system into a DataError; network errors are handled earlier."""
    try:
        yield
    except OSError as error:
        space = format_bytes(download.size + (download.archive_size or 0))
        raise DataError(
            f"{error.filename or folder}: {_reason(error)}; {download.name} needs a writable folder "
            f"with {space} free; make room or choose another folder"
        ) from error
