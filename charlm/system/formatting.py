"""Numbers and text as people read them: units, and text in which nothing is left that a terminal would obey."""

import math
import re


def nats_to_bits(nats: float) -> float:
    """Information in bits: nats / ln 2."""
    return nats / math.log(2.0)


def format_bytes(count: float) -> str:
    """A size with a decimal unit: 1115394 → '1.12 MB'."""
    for unit in ("B", "kB", "MB", "GB", "TB", "PB"):
        if count < 999.5:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.0f} EB"


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
    "\x00-\x08\x0b-\x1f"  # but tabs and line ends
    "\x7f-\x9f"
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # turn the direction of what follows
    "\u2028\u2029"  # end a line, or a paragraph
    "\ud800-\udfff"  # lone surrogates: no text at all
    "]"
)


def printable(text: str) -> str:
    r"""`text` with its control characters written out: \x1b, \u202e, and \xff for a byte that was no UTF-8."""
    return CONTROLS.sub(lambda found: _written_out(found[0]), text)


def escaped(text: str) -> str:
    r"""JSON, or YAML in double quotes, with \u202e for its control characters: the value stays the same."""
    return CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def one_line(text: str) -> str:
    r"""The same with line ends and tabs written out too: \n, \t."""
    return printable(text).replace("\n", r"\n").replace("\t", r"\t")


def _written_out(character: str) -> str:
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # how "surrogateescape" keeps a byte
        code &= 0xFF
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
