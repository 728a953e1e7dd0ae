"""The texts that `charlm data fetch` knows, and how it downloads them: only with the right SHA-256."""

import hashlib
import io
import zipfile
from dataclasses import dataclass
from pathlib import Path

from charlm.errors import DataError
from charlm.system.files import NotOwnError, read_file, replace_file

TIMEOUT_S = 30.0
_CHUNK_BYTES = 1 << 16


@dataclass(frozen=True)
class Download:
    """A corpus on the web: a text file, or a zip archive whose one file is the text."""

    name: str
    url: str
    sha256: str
    """Of the text."""
    size: int
    """Bytes of the text."""
    summary: str

    @property
    def filename(self) -> str:
        """The local name of the text."""
        return f"{self.name}.txt"


CATALOG = {
    download.name: download
    for download in (
        Download(
            name="tinyshakespeare",
            url="https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
            sha256="86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
            size=1_115_394,
            summary="40,000 lines of Shakespeare's plays; public domain",
        ),
        Download(
            name="text8",
            url="https://mattmahoney.net/dc/text8.zip",
            sha256="6e890197040d37d85beb962ae1f041ff1d9a9ca8d20c7d99c85027eebf51dca7",
            size=100_000_000,
            summary="English Wikipedia of 2006 reduced to a-z and space; CC BY-SA",
        ),
        Download(
            name="enwik8",
            url="https://mattmahoney.net/dc/enwik8.zip",
            sha256="2b49720ec4d78c3c9fabaee6e4179a5e997302b3a70029f30f2d582218c024a8",
            size=100_000_000,
            summary="the first 100 MB of English Wikipedia's XML of 2006, for byte-level models; CC BY-SA",
        ),
    )
}


def fetch(download: Download, folder: Path, *, with_bar: bool) -> Path:
    """Download the corpus unless it is there, verify its SHA-256, and return its path `folder/filename`.

    with_bar: on stderr, if it is a terminal. DataError for all faults of network, disk and content.
    """
    import requests

    path = folder / download.filename
    elsewhere = f"run the command again, or get the text elsewhere and put it at {path}"
    try:
        if path.exists():
            content = read_file(path, download.size)
            _check_sha256(content, download, path, "move or delete the file, then run the command again")
            return path
        folder.mkdir(parents=True, exist_ok=True)
        content = _received(download, with_bar)
        if zipfile.is_zipfile(io.BytesIO(content)):
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                content = archive.read(archive.namelist()[0])
        _check_sha256(content, download, download.url, elsewhere)
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


def _received(download: Download, with_bar: bool) -> bytes:
    import requests
    from tqdm import tqdm

    headers = {"User-Agent": "charlm", "Accept-Encoding": "identity"}
    content = bytearray()
    with requests.get(download.url, headers=headers, stream=True, timeout=TIMEOUT_S) as response:
        response.raise_for_status()
        total = int(response.headers.get("Content-Length", 0)) or None
        disable = None if with_bar else True  # None: quiet unless stderr is a terminal
        with tqdm(desc=download.name, total=total, unit="B", unit_scale=True, disable=disable) as bar:
            for chunk in response.iter_content(_CHUNK_BYTES):
                content += chunk
                bar.update(len(chunk))
    return bytes(content)


def _check_sha256(content: bytes, download: Download, where: Path | str, remedy: str) -> None:
    """DataError for another text."""
    actual = hashlib.sha256(content).hexdigest()
    if actual != download.sha256:
        raise DataError(f"{where}: SHA-256 is {actual}; it must be {download.sha256}; {remedy}")


def _reason(error: BaseException) -> str:
    """The text of the first cause of an error, without its number; never empty."""
    while cause := error.__cause__ or error.__context__:
        error = cause
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
