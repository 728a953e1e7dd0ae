"""Files and folders."""

from pathlib import Path


def replace_file(file: Path, data: bytes) -> None:
    """Replace a file in one step: readers see the old content or the new, never a part."""
    temporary = file.with_name(f".{file.name}.tmp")
    temporary.write_bytes(data)
    temporary.replace(file)


def nearest_existing(folder: Path) -> Path:
    """The folder, or its nearest parent that exists."""
    return next(path for path in (folder, *folder.absolute().parents) if path.exists())
