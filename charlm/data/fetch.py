"""Download corpora: an interrupted download resumes, and only a file with the right SHA-256 gets its final name.

Until then, its bytes are in `<file>.part` beside it.
"""

import hashlib
import zipfile
from http import HTTPStatus
from pathlib import Path

import requests
from tqdm import tqdm

from charlm.data.catalog import Download
from charlm.errors import DataError
from charlm.system.files import move, replace_file

TIMEOUT_S = 30.0
_CHUNK_BYTES = 1 << 14
"""A lost connection loses less than this."""


def fetch(download: Download, folder: Path, *, progress: bool) -> Path:
    """Download the corpus unless it is there, verify its SHA-256, and return its path `folder/filename`.

    Continues the part file of an earlier attempt. `progress` draws a bar on stderr if it is a terminal. Raises
    DataError for all faults of network, disk and content.
    """
    path = folder / download.filename
    part = path.with_name(f"{path.name}.part")
    try:
        if path.exists():
            _check(path, download, "move or delete the file, then run the command again")
            return path
        folder.mkdir(parents=True, exist_ok=True)
        _receive(download, part, None if progress else True)  # None: quiet unless stderr is a terminal
        if zipfile.is_zipfile(part):
            with zipfile.ZipFile(part) as archive:
                text = archive.read(archive.namelist()[0])
            replace_file(part, text)
        _check(part, download, f"run the command again, or get the file elsewhere and put it at {path}")
        move(part, path)
    except zipfile.BadZipFile as error:
        part.unlink()
        raise DataError(f"{download.url}: {error}; charlm removed the file; run the command again") from error
    except requests.RequestException as error:
        raise DataError(
            f"{download.url}: {_reason(error)}; run the command again to resume, or get the text elsewhere and put it "
            f"at {path}"
        ) from error
    except OSError as error:
        raise DataError(
            f"{error.filename or folder}: {_reason(error)}; allowed: a writable folder with room for {download.name}"
        ) from error
    return path


def _receive(download: Download, part: Path, disable: bool | None) -> None:
    """Request the file, or the rest of it if `part` holds its beginning."""
    start = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": "charlm", "Accept-Encoding": "identity"}
    headers |= {"Range": f"bytes={start}-"} if start else {}
    with requests.get(download.url, headers=headers, stream=True, timeout=TIMEOUT_S) as response:
        if response.status_code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:  # all of it is there
            return
        response.raise_for_status()
        # A server that ignores Range answers 200 and sends the whole file.
        is_rest = response.status_code == HTTPStatus.PARTIAL_CONTENT
        start = start if is_rest else 0
        total = start + int(response.headers.get("Content-Length", 0)) or None
        with (
            tqdm(desc=download.name, total=total, initial=start, unit="B", unit_scale=True, disable=disable) as bar,
            part.open("ab" if is_rest else "wb", buffering=0) as file,
        ):
            for chunk in response.iter_content(_CHUNK_BYTES):
                bar.update(file.write(chunk))


def _check(file: Path, download: Download, remedy: str) -> None:
    """DataError if a file has another SHA-256; a part that has is removed."""
    with file.open("rb") as opened:
        actual = hashlib.file_digest(opened, "sha256").hexdigest()
    if actual != download.sha256:
        if file.suffix == ".part":
            file.unlink()
        raise DataError(f"{file}: SHA-256 is {actual}; it must be {download.sha256}; {remedy}")


def _reason(error: BaseException) -> str:
    """The text of the first cause of an error, without its number; never empty."""
    while cause := error.__cause__ or error.__context__:
        error = cause
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
