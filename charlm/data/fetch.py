"""Download corpora: interrupted downloads resume, and only a file with the right SHA-256 gets its final name.

Until then, its bytes are in `<file>.part` beside it. One process at a time writes there.
"""

import hashlib
import shutil
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any

import requests
from filelock import FileLock, Timeout
from tqdm import tqdm

from charlm.data.catalog import Download
from charlm.errors import DataError
from charlm.system.console import say
from charlm.system.files import move
from charlm.system.formatting import format_bytes

PAUSES_S = (1.0, 2.0, 4.0, 8.0)
"""The pause before each new attempt after a lost connection."""
TIMEOUT_S = 30.0
_CHUNK_BYTES = 1 << 14
"""A lost connection loses less than this."""


def fetch(download: Download, folder: Path, *, progress: bool) -> Path:
    """Download the corpus unless it is there, verify its SHA-256, and return its path `folder/filename`.

    Continues the part file of an earlier attempt. An archive that the user has put into `folder` is used instead of
    the network, and stays. `progress` draws a bar on stderr if it is a terminal. Raises DataError for all faults of
    network, disk and content.
    """
    path, served = folder / download.filename, folder / download.served_filename
    try:
        if _is_whole(path, download.sha256):
            return path
        folder.mkdir(parents=True, exist_ok=True)
        with _one_process(download, folder):
            if _is_whole(path, download.sha256):  # another process has fetched it meanwhile
                return path
            if download.member and _is_whole(served, download.archive_sha256):
                _extract(served, download, path)
                return path
            part = served.with_name(f"{served.name}.part")
            if part.is_symlink():  # it would be written through
                part.unlink()
            _transfer(download, part, served, progress)
            _check_received(part, download.archive_sha256 or download.sha256, download.url)
            if download.member:
                _extract(part, download, path)
                part.unlink()
            else:
                move(part, path)
    except OSError as error:
        space = format_bytes(download.size + download.archive_size)
        raise DataError(
            f"{error.filename or folder}: {_reason(error)}; {download.name} needs a writable folder "
            f"with {space} free; make room or choose another folder"
        ) from error
    return path


def _is_whole(path: Path, sha256: str) -> bool:
    """Whether `path` exists; DataError if it has another SHA-256. The file itself is not changed."""
    if not path.exists():
        return False
    if (actual := _sha256(path)) != sha256:
        raise DataError(
            f"{path}: SHA-256 is {actual}; it must be {sha256}; move or delete the file, then run the command again"
        )
    return True


def _check_received(part: Path, sha256: str, url: str) -> None:
    """Remove the file and raise a DataError if it has another SHA-256."""
    if (actual := _sha256(part)) != sha256:
        part.unlink()
        raise DataError(
            f"{url}: SHA-256 is {actual}; it must be {sha256}; charlm removed the file; run the command again"
        )


def _extract(archive: Path, download: Download, path: Path) -> None:
    """Write the member of an archive to `path`; DataError if it has another SHA-256."""
    temporary = path.with_name(f"{path.name}.part")
    with zipfile.ZipFile(archive) as opened, opened.open(download.member) as source, temporary.open("wb") as text:
        shutil.copyfileobj(source, text)
    _check_received(temporary, download.sha256, download.url)
    move(temporary, path)


@contextmanager
def _one_process(download: Download, folder: Path) -> Iterator[None]:
    """Wait while another process downloads the same text to this folder."""
    lock = FileLock(folder / f".{download.filename}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        say("fetch", f"{download.name}: another process downloads it; waiting for that")
        lock.acquire()
    try:
        yield
    finally:
        with suppress(PermissionError):  # Windows removes no open file; filelock does it there
            Path(lock.lock_file).unlink(missing_ok=True)  # before others can have it: they make a new one
        lock.release()


def _transfer(download: Download, part: Path, served: Path, progress: bool) -> None:
    """Fill `part`. A connection that is lost after some bytes is tried again after each of the pauses."""
    disable = None if progress else True  # None: quiet unless stderr is a terminal
    with tqdm(desc=download.name, total=download.served_size, unit="B", unit_scale=True, disable=disable) as bar:
        for pause_s in (*PAUSES_S, None):
            try:
                _receive(download.url, part, download.served_size, bar)
                return
            except requests.RequestException as error:
                may_go_on = not isinstance(error, requests.HTTPError | requests.exceptions.InvalidSchema)
                if pause_s is None or not (may_go_on and _size(part)):
                    received = f"{_size(part)} of {download.served_size} bytes are in {part}"
                    raise DataError(
                        f"{download.url}: {_reason(error)}; {received}; run the command again to resume, or get the "
                        f"file elsewhere and put it at {served}"
                    ) from error
                time.sleep(pause_s)


def _receive(url: str, part: Path, size: int, bar: "tqdm[Any]") -> None:
    """Send one request for the whole file, or for the rest of it if `part` holds its beginning."""
    if (start := _size(part)) > size:
        part.unlink()
        start = 0
    if start == size:
        return
    headers = {"User-Agent": "charlm", "Accept-Encoding": "identity"}
    headers |= {"Range": f"bytes={start}-"} if start else {}
    with requests.get(url, headers=headers, stream=True, timeout=TIMEOUT_S) as response:
        response.raise_for_status()
        # A server that ignores Range answers 200 and sends the whole file.
        is_rest = response.status_code == HTTPStatus.PARTIAL_CONTENT
        bar.n = start if is_rest else 0
        with part.open("ab" if is_rest else "wb", buffering=0) as file:
            for chunk in response.iter_content(_CHUNK_BYTES):
                bar.update(file.write(chunk[: size - file.tell()]))
                if file.tell() == size:  # a server may send more
                    return


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _reason(error: BaseException) -> str:
    """The text of the first cause of an error, without its number; never empty."""
    while cause := error.__cause__ or error.__context__:
        error = cause
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
