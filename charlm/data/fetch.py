"""The texts that `charlm data fetch` knows, and how it downloads them: only with the right SHA-256."""

import hashlib
import http.client
import lzma
import ssl
import tempfile
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from charlm.errors import DataError
from charlm.system.console import say
from charlm.system.files import NotOwnError, read_file, reason_of, replacing

TIMEOUT_S = 30.0
"""Seconds that a server may be silent."""
_LEAST_BYTES_PER_S = 10_000
"""In the mean; a download may take TIMEOUT_S longer."""
_MORE_BYTES = 100_000
"""By which an archive may be longer than its text."""
_BLOCK_BYTES = 2**16

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
    """The file of a text, downloaded unless it is there; DataError for all faults.

    The functions below say only what is wrong; where it is and what to do is added here.
    """
    path, entry = place_of(name), CATALOG[name]
    where, remedy = str(path), "move or delete the file, then run the command again"
    try:
        if path.exists():
            _check_sha256(hashlib.sha256(read_file(path, entry["size"])).hexdigest(), entry)
            return path
        where = entry["url"]
        remedy = f"run the command again, or get the text elsewhere and put it at {path}"
        FOLDER.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=FOLDER) as body, replacing(path) as file:
            say("data", f"downloading {where}")
            for block in _at_most(entry["size"] + _MORE_BYTES, _received(where)):
                body.write(block)
            sha256 = hashlib.sha256()
            for block in _at_most(entry["size"], _text_in(body)):
                file.write(block)
                sha256.update(block)
            _check_sha256(sha256.hexdigest(), entry)
    except DataError as fault:
        raise DataError(f"{where}: {fault}; {remedy}") from fault
    except NotOwnError as error:
        allowed = f"allowed: the text itself, of {entry['size']:,} bytes"
        raise DataError(f"{where}: {error.strerror}; {allowed}; {remedy}") from error
    except OSError as error:
        allowed = f"allowed: a writable folder with room for {name}"
        raise DataError(f"{error.filename or FOLDER}: {reason_of(error)}; {allowed}") from error
    return path


def _at_most(most: int, blocks: Iterable[bytes]) -> Iterator[bytes]:
    count = 0
    for block in blocks:
        count += len(block)
        if count > most:
            raise DataError(f"found more than {most:,} bytes; allowed: as many as the text has")
        yield block


def _received(url: str) -> Iterator[bytes]:
    """The blocks that a server sends, as they come."""
    import certifi

    context = ssl.create_default_context()
    context.load_verify_locations(certifi.where())
    request = urllib.request.Request(url, headers={"User-Agent": "charlm"})
    start_s = time.monotonic()
    count = 0
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S, context=context) as response:
            while block := response.read1(_BLOCK_BYTES):
                count += len(block)
                elapsed_s = time.monotonic() - start_s
                if elapsed_s > TIMEOUT_S + count / _LEAST_BYTES_PER_S:
                    allowed = f"allowed: at least {_LEAST_BYTES_PER_S:,} bytes per second"
                    raise DataError(f"found {count:,} bytes in {elapsed_s:.0f} s; {allowed}")
                yield block
            if response.length:
                raise DataError(f"found {count:,} bytes and then the end; allowed: {count + response.length:,}")
    except OSError as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()
        first: BaseException = error
        while cause := first.__cause__ or first.__context__:
            first = cause
        raise DataError(" ".join(reason_of(first).split())) from error
    except http.client.HTTPException as error:
        raise DataError(f"found {count:,} bytes and then no valid HTTP ({type(error).__name__})") from error


def _text_in(body: IO[bytes]) -> Iterator[bytes]:
    """The blocks of the text in what a server sent: all of it, or the one file of a zip archive."""
    try:
        if not zipfile.is_zipfile(body):
            body.seek(0)
            yield from iter(lambda: body.read(_BLOCK_BYTES), b"")
            return
        with zipfile.ZipFile(body) as archive:
            names = archive.namelist()
            if len(names) != 1:
                raise DataError(f"found an archive of {len(names)} files; allowed: one")
            with archive.open(names[0]) as text:
                yield from iter(lambda: text.read(_BLOCK_BYTES), b"")
    except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError, RuntimeError, ValueError) as error:
        raise DataError(f"found an archive that cannot be read ({reason_of(error)})") from error


def _check_sha256(actual: str, entry: Mapping[str, Any]) -> None:
    if actual != entry["sha256"]:
        raise DataError(f"SHA-256 is {actual}; it must be {entry['sha256']}")
