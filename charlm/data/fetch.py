"""The texts that `charlm data fetch` knows, and how it downloads them: only with the right SHA-256."""

import hashlib
import io
import zipfile
from dataclasses import dataclass
from pathlib import Path

from charlm.errors import DataError
from charlm.system.console import say
from charlm.system.files import read_file, reason_of, replace_file

TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Download:
    """A corpus on the web: a text file, or a zip archive whose one file is the text."""

    name: str
    url: str
    sha256: str
    size: int
    """Bytes of the text, whose digest is `sha256`."""
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


def fetch(download: Download, folder: Path) -> Path:
    """The path of the corpus in the folder, downloaded unless it is there; DataError for all faults."""
    path = folder / download.filename
    try:
        if path.exists():
            remedy = "move or delete the file, then run the command again"
            _check_sha256(read_file(path, download.size), download, path, remedy)
            return path
        folder.mkdir(parents=True, exist_ok=True)
        elsewhere = f"run the command again, or get the text elsewhere and put it at {path}"
        content = _received(download, elsewhere)
        _check_sha256(content, download, download.url, elsewhere)
        replace_file(path, content)
    except OSError as error:
        allowed = f"allowed: a writable folder with room for {download.name}"
        raise DataError(f"{error.filename or folder}: {reason_of(error)}; {allowed}") from error
    return path


def _received(download: Download, elsewhere: str) -> bytes:
    import requests

    say("data", f"downloading {download.url}")
    try:
        response = requests.get(download.url, headers={"User-Agent": "charlm"}, timeout=TIMEOUT_S)
        response.raise_for_status()
        file = io.BytesIO(response.content)
        if not zipfile.is_zipfile(file):
            return response.content
        with zipfile.ZipFile(file) as archive:
            return archive.read(archive.namelist()[0])
    except (requests.RequestException, zipfile.BadZipFile) as error:
        first: BaseException = error
        while cause := first.__cause__ or first.__context__:
            first = cause
        raise DataError(f"{download.url}: {reason_of(first)}; {elsewhere}") from error


def _check_sha256(content: bytes, download: Download, where: Path | str, remedy: str) -> None:
    actual = hashlib.sha256(content).hexdigest()
    if actual != download.sha256:
        raise DataError(f"{where}: SHA-256 is {actual}; it must be {download.sha256}; {remedy}")
