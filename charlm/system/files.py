"""Files and folders."""

from pathlib import Path

from charlm.errors import DataError


def replace_file(file: Path, data: bytes) -> None:
    """Replace a file in one step: readers see the old content or the new, never a part."""
    temporary = file.with_name(f".{file.name}.tmp")
    temporary.write_bytes(data)
    temporary.replace(file)


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
