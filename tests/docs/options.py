"""docs/options.md, generated from the schema: `python -m tests.docs.options` writes it."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

from charlm.config.schema import Config
from charlm.system.faults import Schema, allowed_text, json_schema


def options_table() -> str:
    """A Markdown table: key, default, allowed, meaning. If only some kinds have an option, its meaning names them."""
    lines = ["| option | default | allowed | meaning |", "|---|---|---|---|"]
    for name, node in json_schema(Config)["properties"].items():
        for key, default, allowed, meaning in _rows(name, node, ""):
            cells = [f"`{key}`", f"`{default}`" if default else "", allowed, meaning]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _rows(key: str, node: Schema, note: str) -> Iterator[tuple[str, ...]]:
    meaning = note + " ".join(node.get("description", "").split())  # a row is one line
    section = next((branch for branch in node.get("anyOf", [node]) if "properties" in branch), None)
    if "discriminator" in node:
        yield from _union(key, node)
    elif section is None:
        default = json.dumps(node["default"], ensure_ascii=False) if "default" in node else ""
        yield key, default, _short(node), meaning
    else:
        if section is not node:  # a number is allowed in place of the section
            yield key, "", _short(node), meaning
        for name, child in section["properties"].items():
            yield from _rows(f"{key}.{name}", child, note)


def _short(node: Schema) -> str:
    """What an option allows, as in errors, but with ranges, and without the bound that the page states once."""
    text = allowed_text(node).replace(" and ≤ 1,000,000,000", "").replace(" | ", ", ")
    return re.sub(r"an? (number|integer)(?: ≥ (\S+) and ≤ (\S+))?", _range, text)


def _range(match: re.Match[str]) -> str:
    kind, least, most = match.groups()
    return f"{kind} {least} to {most}" if least else kind


def _union(key: str, node: Schema) -> Iterator[tuple[str, ...]]:
    """A row for the tag, then rows for the options of each branch; equal options share a row."""
    tag = node["discriminator"]["propertyName"]
    sections = {kind: section["properties"] for kind, section in node["discriminator"]["mapping"].items()}
    kinds = "; ".join(f"{kind}: {options[tag]['description'].rstrip('.')}" for kind, options in sections.items())
    if key == "model.cell":
        kinds = ", ".join(sections)
    yield f"{key}.{tag}", json.dumps(node["default"][tag]), kinds, node["description"]
    listed: list[tuple[str, Schema]] = []
    for options in sections.values():
        for name, child in options.items():
            if name == tag or (name, child) in listed:
                continue
            listed.append((name, child))
            owners = [kind for kind, others in sections.items() if others.get(name) == child]
            note = "" if len(owners) == len(sections) else f"({', '.join(owners)}) "
            yield from _rows(f"{key}.{name}", child, note)


if __name__ == "__main__":
    page = Path("docs/options.md")
    before = page.read_text(encoding="utf-8").partition("| option |")[0]
    page.write_text(before + options_table(), encoding="utf-8")
