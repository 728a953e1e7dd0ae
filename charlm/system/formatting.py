"""Numbers with units, and text without control characters, for people to read."""

import json
import math
import re
import textwrap
import unicodedata
from pathlib import Path
from typing import Any


def nats_to_bits(nats: float) -> float:
    """nats / ln 2."""
    return nats / math.log(2.0)


def bits_to_nats(bits: float) -> float:
    """bits × ln 2."""
    return bits * math.log(2.0)


def format_bytes(count: float) -> str:
    """A size with a decimal unit: 1115394 → '1.12 MB'."""
    for unit in ("B", "kB", "MB", "GB", "TB", "PB"):
        if count < 999.5:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.0f} EB"


def format_count(count: float) -> str:
    """A large number with three digits: 1115394 → '1.12 M'."""
    return format_bytes(count).removesuffix("B").rstrip()


def format_share(share: float) -> str:
    """A share of a whole: 0.0471 → '4.71%'."""
    return f"{100 * share:.3g}%"


def counted(count: int, thing: str) -> str:
    """A number of things: '1 line', '2,000 lines'."""
    return f"{count:,} {thing}{'s' * (count != 1)}"


def format_duration(seconds: float) -> str:
    """A time span in its two largest units: 3725 → '1 h 2 min'."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest_s = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest_s} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min"
    return f"{hours // 24} d {hours % 24} h"


CONTROLS = re.compile(
    "["
    "\x00-\x08\x0b-\x1f"  # except tabs and line ends
    "\x7f-\x9f"
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # change the direction of the text
    "\u2028\u2029"  # line and paragraph separators
    "\ud800-\udfff"  # lone surrogates
    "]"
)


def printable(text: str) -> str:
    r"""`text` with control characters as escapes: \x1b, \u202e, and \xff for a byte that is not UTF-8."""
    return CONTROLS.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    if 0xDC80 <= code <= 0xDCFF:  # "surrogateescape" maps byte b to U+DC00 + b
        code &= 0xFF
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def readable(text: str) -> str:
    """Replace bytes that are not UTF-8, which "surrogateescape" keeps as lone surrogates, by U+FFFD."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def escaped(text: str) -> str:
    r"""JSON or double-quoted YAML with control characters as \u202e; its value stays the same."""
    return CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def to_json(value: Any, *, ascii: bool = True) -> str:
    """JSON on one line, with null for numbers that are not finite, which JSON lacks. All results are written so."""
    return json.dumps(_without_nan(value), ensure_ascii=ascii)


def _without_nan(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _without_nan(each) for name, each in value.items()}
    return [*map(_without_nan, value)] if isinstance(value, list | tuple) else value


def one_line(text: str) -> str:
    r"""`printable` text with line ends and tabs as \n and \t."""
    return printable(text).replace("\n", r"\n").replace("\t", r"\t")


def source_name(source: str) -> str:
    """What people call a text: its file or folder; a name with ":" or a pattern as it is."""
    return one_line(source if ":" in source or "*" in source else Path(source).name or source)


def model_in_words(kind: str, layers: int, hidden: int, members: int) -> str:
    """The cell and the sizes of a model: "lstm, 2 × 256 units, 3 members"."""
    several = f", {members} members" if members > 1 else ""
    return f"{kind}, {layers} × {hidden} units{several}"


DASHES = "‐‑‒–—―−﹘﹣－"
QUOTES = {**dict.fromkeys("“”„‟«»＂", '"'), **dict.fromkeys("‘’‚‛‹›＇", "'")}
_SPACES = dict.fromkeys("\u00a0\u2002\u2003\u2007\u2009\u202f\u3000", "a space")
_NOTHING = dict.fromkeys("\u200b\u2060\ufeff", "nothing")
_PLAIN = {**dict.fromkeys(DASHES, "-"), **QUOTES, **_SPACES, **_NOTHING, "：": ":", "，": ",", "＝": "="}
_LOOKALIKES = re.compile(
    rf"(?<!\w)[{DASHES}]+(?=[^\W\d])"  # of an option
    rf"|(?<!\w)[{DASHES}](?=[\d.])"  # a minus
    rf"|(?<!\w)[{''.join(QUOTES)}]|[{''.join(QUOTES)}](?!\w)"  # not an apostrophe
    rf"|[{''.join(_SPACES)}{''.join(_NOTHING)}：，＝]"
)
_COMMAS = re.compile(r"""(?<=["'])[a-z]?[-+−]?\d+(?:,\d+)+(?:\.\d+)?(?=[a-z]*["'])""")
"""A number with commas, in quotes."""


def what_to_type(message: str) -> str:
    """What to type for look-alikes that an error quotes: "; type -- for — (U+2014)". Empty without any."""
    replaced = {}
    for mark in _LOOKALIKES.findall(message):
        is_option = mark[0] in DASHES and re.search(rf"(?<!\w){mark}[^\W\d]", message)
        name = " ".join(f"U+{ord(character):04X}" for character in mark)
        shown = name if mark in _SPACES or mark in _NOTHING else f"{mark} ({name})"
        replaced[shown] = "--" if is_option else _PLAIN[mark[0]]
    for number in _COMMAS.findall(message):
        is_decimal = number.count(",") == 1 and "." not in number and "integer" not in message
        replaced[number] = number.replace(",", "." if is_decimal else "")
    listed = ", ".join(f"{plain} for {shown}" for shown, plain in replaced.items())
    return f"; type {listed}" if listed else ""


def columns_of(text: str) -> int:
    """Columns that a text takes in a terminal."""
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in text)
    return len(text) + wide - sum(map(bool, map(unicodedata.combining, text)))


def wrapped(text: str, columns: int | None, indent: int, command: str = "") -> str:
    """The text in lines of so many columns, indented from the second on; None: in one line. A command stays whole."""
    if columns is None:
        return f"{text} {command}".rstrip()
    lines = textwrap.wrap(
        f"{text} {command.replace(' ', _NO_BREAK)}",
        columns,
        subsequent_indent=" " * (indent if indent <= columns // 2 else 2),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(lines).replace(_NO_BREAK, " ")


_NO_BREAK = "\u00a0"
