"""Download corpora: only a text with the right SHA-256 is written."""

import hashlib
import io
import zipfile
from pathlib import Path

import requests
from tqdm import tqdm

from charlm.data.catalog import Download
from charlm.errors import DataError
from charlm.system.files import NotOwnError, read_file, replace_file

TIMEOUT_S = 30.0
_CHUNK_BYTES = 1 << 16


def fetch(download: Download, folder: Path, *, progress: bool) -> Path:
    """Download the corpus unless it is there, verify its SHA-256, and return its path `folder/filename`.

    `progress` draws a bar on stderr if it is a terminal. DataError for all faults of network, disk and content.
    """
    path = folder / download.filename
    elsewhere = f"run the command again, or get the text elsewhere and put it at {path}"
    try:
        if path.exists():
            content = read_file(path, download.size)
            _check(content, download, path, "move or delete the file, then run the command again")
            return path
        folder.mkdir(parents=True, exist_ok=True)
        content = _received(download, progress)
        if zipfile.is_zipfile(io.BytesIO(content)):
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                content = archive.read(archive.namelist()[0])
        _check(content, download, download.url, elsewhere)
        replace_file(path, content)
    except (requests.RequestException, zipfile.BadZipFile) as error:
        raise DataError(f"{download.url}: {_reason(error)}; {elsewhere}") from error
    except NotOwnError as error:
        raise DataError(f"{path}: {error.strerror}; allowed: {download.name}; move or delete the file") from error
    except OSError as error:
        raise DataError(
            f"{error.filename or folder}: {_reason(error)}; allowed: a writable folder with room for {download.name}"
        ) from error
    return path


def _received(download: Download, progress: bool) -> bytes:
    headers = {"User-Agent": "charlm", "Accept-Encoding": "identity"}
    content = bytearray()
    with requests.get(download.url, headers=headers, stream=True, timeout=TIMEOUT_S) as response:
        response.raise_for_status()
        total = int(response.headers.get("Content-Length", 0)) or None
        disable = None if progress else True  # None: quiet unless stderr is a terminal
        with tqdm(desc=download.name, total=total, unit="B", unit_scale=True, disable=disable) as bar:
            for chunk in response.iter_content(_CHUNK_BYTES):
                content += chunk
                bar.update(len(chunk))
    return bytes(content)


def _check(content: bytes, download: Download, where: Path | str, remedy: str) -> None:
    """DataError for another text."""
    actual = hashlib.sha256(content).hexdigest()
    if actual != download.sha256:
        raise DataError(f"{where}: SHA-256 is {actual}; it must be {download.sha256}; {remedy}")


def _reason(error: BaseException) -> str:
    """The text of the first cause of an error, without its number; never empty."""
    while cause := error.__cause__ or error.__context__:
        error = cause
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
