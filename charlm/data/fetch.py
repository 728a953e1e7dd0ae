"""The texts that `charlm data fetch` knows, and how it downloads them: only with the right SHA-256."""

import hashlib
import io
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from charlm.errors import DataError
from charlm.system.console import say
from charlm.system.files import NotOwnError, read_file, reason_of, replace_file

TIMEOUT_S = 30.0


FOLDER = Path("data")
"""Where the texts are kept, in the current folder."""
CATALOG: dict[str, dict[str, Any]] = {
    "tinyshakespeare": {
        "url": "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
        "sha256": "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
        "size": 1_115_394,
        "summary": "40,000 lines of Shakespeare's plays; public domain",
    },
    "text8": {
        "url": "https://mattmahoney.net/dc/text8.zip",
        "sha256": "6e890197040d37d85beb962ae1f041ff1d9a9ca8d20c7d99c85027eebf51dca7",
        "size": 100_000_000,
        "summary": "English Wikipedia of 2006 reduced to a-z and space; CC BY-SA",
    },
    "enwik8": {
        "url": "https://mattmahoney.net/dc/enwik8.zip",
        "sha256": "2b49720ec4d78c3c9fabaee6e4179a5e997302b3a70029f30f2d582218c024a8",
        "size": 100_000_000,
        "summary": "the first 100 MB of English Wikipedia's XML of 2006, for byte-level models; CC BY-SA",
    },
}
"""The url of each text, a file or a zip archive whose one file is the text; the text's digest and its bytes."""


def place_of(name: str) -> Path:
    """The file of a text, which is there once it is downloaded."""
    return FOLDER / f"{name}.txt"


def fetch(name: str) -> Path:
    """The file of a text, downloaded unless it is there; DataError for all faults."""
    path, entry = place_of(name), CATALOG[name]
    remedy = "move or delete the file, then run the command again"
    try:
        if path.exists():
            _check_sha256(read_file(path, entry["size"]), entry, path, remedy)
            return path
        FOLDER.mkdir(parents=True, exist_ok=True)
        elsewhere = f"run the command again, or get the text elsewhere and put it at {path}"
        content = _received(entry["url"], elsewhere)
        _check_sha256(content, entry, entry["url"], elsewhere)
        replace_file(path, content)
    except NotOwnError as error:
        allowed = f"allowed: the text itself, of {entry['size']:,} bytes; {remedy}"
        raise DataError(f"{path}: {error.strerror}; {allowed}") from error
    except OSError as error:
        allowed = f"allowed: a writable folder with room for {name}"
        raise DataError(f"{error.filename or FOLDER}: {reason_of(error)}; {allowed}") from error
    return path


def _received(url: str, elsewhere: str) -> bytes:
    import requests

    say("data", f"downloading {url}")
    try:
        response = requests.get(url, headers={"User-Agent": "charlm"}, timeout=TIMEOUT_S)
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
        raise DataError(f"{url}: {reason_of(first)}; {elsewhere}") from error


def _check_sha256(content: bytes, entry: Mapping[str, Any], where: Path | str, remedy: str) -> None:
    actual = hashlib.sha256(content).hexdigest()
    if actual != entry["sha256"]:
        raise DataError(f"{where}: SHA-256 is {actual}; it must be {entry['sha256']}; {remedy}")
