"""Download corpora: interrupted downloads resume, and only a file with the right SHA-256 gets its final name.

Until then, its bytes are in `<file>.part` beside it. One process at a time writes there.
"""

import os
import shutil
import time
import urllib.parse
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pooch
import requests
from filelock import FileLock, Timeout
from tqdm import tqdm
from urllib3.exceptions import IncompleteRead, MaxRetryError

from charlm.data.catalog import Download
from charlm.errors import DataError
from charlm.system.console import say
from charlm.system.formatting import format_bytes

PAUSES_S = (1.0, 2.0, 4.0, 8.0)
"""The pause before each new attempt after a lost connection."""
TIMEOUT_S = 30.0
CHUNK_BYTES = 1 << 14
"""A lost connection loses less than this."""


def is_present(download: Download, folder: Path) -> bool:
    """Whether `folder` holds the text; DataError if the file has another SHA-256."""
    with _disk_faults(download, folder):
        return _holds(folder / download.filename, download.sha256, download.name)


def fetch(download: Download, folder: Path, *, progress: bool) -> Path:
    """Download the corpus unless it is there, verify its SHA-256, and return its path `folder/filename`.

    Continues the part file of an earlier attempt. An archive that the user has put into `folder` is used instead of
    the network, and stays. `progress` draws a bar on stderr if it is a terminal. Raises DataError for all faults of
    network, disk and content.
    """
    pooch.get_logger().setLevel("WARNING")
    path = folder / download.filename
    if is_present(download, folder):
        return path
    downloader: Any = lambda url, output, _: _obtain(download, folder, Path(output), progress)  # noqa: E731
    with _disk_faults(download, folder):
        folder.mkdir(parents=True, exist_ok=True)
        with _one_process(download, folder):
            if not is_present(download, folder):  # another process may have fetched it meanwhile
                try:
                    pooch.retrieve(download.url, download.sha256, download.filename, folder, downloader=downloader)
                except ValueError as error:  # pooch has removed the file
                    fault = str(error).partition(". ")[0]
                    raise DataError(
                        f"{download.url}: {fault}; charlm removed the file; run the command again"
                    ) from error
    return path


def _obtain(download: Download, folder: Path, output: Path, progress: bool) -> None:
    """Write the text to `output`, unverified; ValueError for an archive with another SHA-256."""
    served = folder / download.served_filename
    if by_hand := bool(download.member) and _holds(served, download.archive_sha256, served.name):
        received = served
    else:
        received = served.with_name(f"{served.name}.part")
        if received.is_symlink():  # it would be written through
            received.unlink()
        _transfer(download, received, served, progress)
    if not download.member:
        received.replace(output)
        return
    if not by_hand:
        try:
            pooch.hashes.hash_matches(str(received), download.archive_sha256, strict=True, source=served.name)
        except ValueError:
            received.unlink()
            raise
    with (
        zipfile.ZipFile(received) as archive,
        archive.open(download.member) as source,
        output.open("wb") as text,
    ):
        shutil.copyfileobj(source, text, CHUNK_BYTES)
    if not by_hand:
        received.unlink()


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
        Path(lock.lock_file).unlink(missing_ok=True)  # before others can have it: they make a new one
        lock.release()


def _transfer(download: Download, part: Path, served: Path, progress: bool) -> None:
    """Fill `part`; resume after a lost connection, once for each of the pauses."""
    url, size = download.url, download.served_size
    elsewhere = f"try again later, or get the file elsewhere and put it at {served}"
    with tqdm(
        desc=download.name,
        total=size,
        unit="B",
        unit_scale=True,
        disable=None if progress else True,  # None: quiet unless stderr is a terminal
    ) as bar:
        for attempt, pause_s in enumerate((*PAUSES_S, None)):
            try:
                if refusal := _receive(url, part, size, bar):
                    raise DataError(f"{url}: the server answered {refusal}; the answer must be the file; {elsewhere}")
                return
            except (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError) as error:
                lost = _reason(error)
                if isinstance(error.args[0], MaxRetryError):
                    fault = "no secure connection" if isinstance(error, requests.exceptions.SSLError) else "no network"
                    lost = f"{fault}: could not reach {urllib.parse.urlsplit(url).netloc}: {lost}"
                    if attempt == 0:
                        raise DataError(f"{lost}; download {url} yourself and put it at {served}") from error
                if pause_s is None:
                    raise DataError(
                        f"{url}: connection lost {attempt + 1} times ({lost}); {_size(part)} of {size} bytes are in "
                        f"{part}; run the command again to resume"
                    ) from error
                time.sleep(pause_s)
            except requests.RequestException as error:  # a redirect that leaves the web, for example
                raise DataError(f"{url}: {_reason(error)}; {elsewhere}") from error


def _receive(url: str, part: Path, size: int, bar: "tqdm[Any]") -> str:
    """Send one request for the whole file, or for the rest of it if `part` holds its beginning.

    Returns the server's answer if it refuses, else "".
    """
    start = _size(part)
    if start == size:
        return ""
    if start > size:
        os.truncate(part, 0)
        start = 0
    headers = {"User-Agent": "charlm", "Accept-Encoding": "identity"}
    headers |= {"Range": f"bytes={start}-"} if start else {}
    with requests.get(url, headers=headers, stream=True, timeout=TIMEOUT_S) as response:
        if response.status_code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and start:
            os.truncate(part, 0)
            return _receive(url, part, size, bar)
        if not response.ok:
            return f"{response.status_code} {response.reason}"
        # A server that ignores Range answers 200 and sends the whole file.
        resumed = response.status_code == HTTPStatus.PARTIAL_CONTENT
        bar.n = start if resumed else 0
        with part.open("ab" if resumed else "wb", buffering=0) as file:
            for chunk in response.iter_content(CHUNK_BYTES):
                chunk = chunk[: size - file.tell()]
                file.write(chunk)
                bar.update(len(chunk))
                if file.tell() == size:  # a server may send more
                    break
    return ""


def _holds(path: Path, sha256: str, name: str) -> bool:
    """Whether `path` exists; DataError if it has another SHA-256. The file itself is not changed."""
    if not path.exists():
        return False
    if (actual := pooch.file_hash(str(path))) != sha256:
        raise DataError(
            f"{path}: SHA-256 is {actual}; {name} has {sha256}; move or delete the file, then run the command again"
        )
    return True


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _reason(error: BaseException) -> str:
    """The text of the first cause of an error, without its number; never empty."""
    while cause := error.__cause__ or error.__context__:
        error = cause
    if isinstance(error, IncompleteRead):
        return "the server closed it"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


@contextmanager
def _disk_faults(download: Download, folder: Path) -> Iterator[None]:
    """Turn an OSError of the file system into a DataError; network errors are handled earlier."""
    try:
        yield
    except OSError as error:
        space = format_bytes(download.size + download.archive_size)
        raise DataError(
            f"{error.filename or folder}: {_reason(error)}; {download.name} needs a writable folder "
            f"with {space} free; make room or choose another folder"
        ) from error
