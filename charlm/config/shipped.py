"""The configs that come with charlm."""

from pathlib import Path

_PACKAGE = Path(__file__).parents[1]


def shipped_configs() -> dict[str, Path]:
    """Name → file of every shipped config, sorted: in the package of a wheel, or in configs/ of a checkout."""
    inside = _PACKAGE / "configs"
    folder = inside if inside.is_dir() else _PACKAGE.parent / "configs"
    return {file.stem: file for file in sorted(folder.glob("*.yaml"))}


def purpose(file: Path) -> str:
    """What a shipped config is for: the comment on its first line."""
    with file.open(encoding="utf-8") as lines:
        return lines.readline().removeprefix("#").strip()
