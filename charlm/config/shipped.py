"""The configs that come with charlm, found by their names."""

import difflib
from pathlib import Path

_PACKAGE = Path(__file__).parents[1]


def shipped_configs() -> dict[str, Path]:
    """Name → file of every shipped config, sorted: in the package of a wheel, or in configs/ of a checkout."""
    inside = _PACKAGE / "configs"
    folder = inside if inside.is_dir() else _PACKAGE.parent / "configs"
    return {file.stem: file for file in sorted(folder.glob("*.yaml"))}


def find_config(file: Path) -> Path:
    """The file that a user means: the file at this path, or else the shipped config of this name."""
    shipped = shipped_configs().get(str(file))
    return file if shipped is None or file.is_file() else shipped


def purpose(file: Path) -> str:
    """What a shipped config is for: the comment on its first line."""
    with file.open(encoding="utf-8") as lines:
        return lines.readline().removeprefix("#").strip()


def nearest_configs(missing: Path) -> list[str]:
    """The names nearest to a missing config: the shipped config of its name, or up to three like it."""
    shipped = list(shipped_configs())
    return [missing.stem] if missing.stem in shipped else difflib.get_close_matches(str(missing)[:100], shipped)
