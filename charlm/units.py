"""Nats to bits, and numbers as people read them (standard library only)."""

import math


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
