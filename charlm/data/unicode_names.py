"""builtin:unicode-names: the names of Unicode's characters, which every Python knows, one a line."""

import sys
import unicodedata
from pathlib import Path

from charlm.data.cache import replacing, writable_folder


def unicode_names() -> Path:
    """A file with the name of each character that has one, by code point; made at first use and kept in the cache.

    DataError if the cache cannot be written.
    """
    with writable_folder() as folder:
        path = folder / f"unicode-names-{unicodedata.unidata_version}.txt"
    if not path.is_file():
        names = (unicodedata.name(chr(code), "") for code in range(sys.maxunicode + 1))
        with replacing(path) as file:
            file.write("".join(f"{name}\n" for name in names if name).encode("ascii"))
    return path
