"""The README and the pages of docs/, taken apart for the tests."""

import re
from pathlib import Path

from tests.conftest import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / "data/README.md", ROOT / "learn/README.md"]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]

FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of one language."""
    return [text for found, text in FENCED.findall(page.read_text(encoding="utf-8")) if found == language]


def commands(page: Path) -> list[str]:
    """The lines of the shell blocks."""
    return [line for block in blocks(page, "sh") for line in block.splitlines() if line]


def inline_code(page: Path) -> list[str]:
    """What stands in backticks outside of fenced blocks."""
    return re.findall(r"`([^`\n]+)`", FENCED.sub("", page.read_text(encoding="utf-8")))


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to the page's headings."""
    headings = re.findall(r"^#+ (.+)$", FENCED.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
