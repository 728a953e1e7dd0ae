"""Writing files."""

from pathlib import Path


def replace_file(file: Path, data: bytes) -> None:
    """Replace a file in one step: readers see the old content or the new, never a part."""
    temporary = file.with_name(f".{file.name}.tmp")
    temporary.write_bytes(data)
    temporary.replace(file)
