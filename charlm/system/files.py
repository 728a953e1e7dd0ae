"""Files and folders."""

from pathlib import Path

from charlm.errors import DataError

_PAGE = b"<!DOCTYPE html>"
"""How a page of HTML begins."""


def replace_file(file: Path, data: bytes) -> None:
    """Replace a file in one step: readers see the old content or the new, never a part."""
    temporary = file.with_name(f".{file.name}.tmp")
    temporary.write_bytes(data)
    temporary.replace(file)


def check_page_place(file: Path, option: str) -> None:
    """DataError if a page cannot be written there, or would replace something that is no page."""
    check_writable(file, option)
    if file.is_file():
        with file.open("rb") as existing:
            start = existing.read(len(_PAGE))
        if start not in (b"", _PAGE):
            raise DataError(f"{option} {file}: exists and is not a page; allowed: a new file, or an earlier page")


def check_writable(file: Path, option: str) -> None:
    """DataError now, instead of after a long computation, if the file cannot be written; existing content stays."""
    try:
        with file.open("a"):
            pass
    except OSError as error:
        raise DataError(f"{option} {file}: {error.strerror}; allowed: a file that can be written") from None


def nearest_existing(folder: Path) -> Path:
    """The folder, or its nearest parent that exists."""
    return next(path for path in (folder, *folder.absolute().parents) if path.exists())
