"""Files that are written whole or not at all."""

from pathlib import Path


def replace_file(file: Path, data: bytes) -> None:
    """Write a file anew, whole or not at all."""
    temporary = file.with_name(f".{file.name}.tmp")
    temporary.write_bytes(data)
    temporary.replace(file)
