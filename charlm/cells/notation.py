"""How equations are written: names with subscripts, numbers, and operations that only people need."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from charlm.cells.operations import ATOM, OPERATIONS
from charlm.cells.program import EPSILON, Node

_SYMBOL = re.compile(r"^_*[^\W\d_]+|\d+$|[^_]+")
_DIGITS = "₀₁₂₃₄₅₆₇₈₉"
_LOWERED = str.maketrans("0123456789", _DIGITS)
_READABLE = {
    "neg": ("−{0}", (2, 3)),
    "scale": ("{0} {1}", (3, 4, 4)),
    "square": ("{0}²", (4, ATOM)),
    "product": ("{matrix} {0}", (4, ATOM)),
    "log_sigmoid": ("log σ({0})", ()),
}
"""Operations that only equations have: text and precedence, see `Operation`."""


def readable_nodes(nodes: Iterable[Node], known: Mapping[int, str]) -> tuple[list[Node], list[int]]:
    """The nodes, rewritten with `_READABLE`, `rms_normalize`, rows and known values, and the new place of each."""
    readable: list[Node] = []
    same: list[int] = []
    for place, old in enumerate(nodes):
        node = replace(old, args=tuple(same[arg] for arg in old.args))
        if place in known:
            node = Node("known", name=known[place])
        args = [readable[arg] for arg in node.args]
        alike = place
        if node.op == "part" and args[0].op == "vector":
            node = replace(args[0], count=1, index=args[0].index + node.index)
        elif node.op == "normalize" and node.is_rms:
            node = replace(node, op="rms_normalize")
        elif node.op == "sub" and args[0].op == "constant" and args[0].number == 0:
            node = replace(node, op="neg", args=node.args[1:])
            subtracted = args[1]
            if subtracted.op == "softplus" and readable[subtracted.args[0]].op == "neg":
                node = replace(node, op="log_sigmoid", args=readable[subtracted.args[0]].args)
            elif subtracted.op == "neg":
                alike = subtracted.args[0]
        elif node.op == "mul" and "constant" in (args[0].op, args[1].op):
            constant_first = node.args if args[0].op == "constant" else node.args[::-1]
            node = replace(node, op="scale", args=constant_first)
        elif node.op == "mul" and node.args[0] == node.args[1]:
            node = replace(node, op="square", args=node.args[:1])
        same.append(alike)
        readable.append(node)
    return readable, same


def notation(op: str) -> tuple[str, tuple[int, ...]]:
    """The text and precedence of an operation; "" stands for a call of its name."""
    if op in _READABLE:
        return _READABLE[op]
    if op in OPERATIONS:
        return OPERATIONS[op].text, OPERATIONS[op].precedence
    return "", ()


def symbol(name: str, below: str = "") -> str:
    """A name with subscripts: its own digits and words after a `_`, then `below`."""
    text, *words = _SYMBOL.findall(name)
    for word in (*words, below) if below else words:
        lowered = word.translate(_LOWERED)
        comma = "," if text[-1] in _DIGITS else ""
        text += f"_{lowered}" if word in words and not word.isdigit() else comma + lowered
    return text


def number_text(number: float) -> str:
    """Six digits; or √ of a short number, where six digits are not exact."""
    square = float(f"{number * number:.4g}")
    if float(f"{number:.6g}") != number and math.isclose(square, number * number, rel_tol=1e-14):
        return f"{'−' if number < 0 else ''}√({square:g})"
    return f"{number:.6g}".replace("-", "−")


_EACH = f"for each vector in v alone; without ε, ε = {number_text(EPSILON)}"
EXPLAINED = {
    "normalize": f"normalize(v, ε) is (v − mean v) / √(mean (v − mean v)² + ε), {_EACH}.",
    "normalize′": "normalize′(v, d, ε) is the gradient of v, if d is the gradient of n = normalize(v, ε): "
    "(d − mean d − n ⊙ mean(n ⊙ d)) / √(mean (v − mean v)² + ε).",
    "rms_normalize": f"rms_normalize(v, ε) is v / √(mean v² + ε), {_EACH}.",
    "rms_normalize′": "rms_normalize′(v, d, ε) is the gradient of v, if d is the gradient of n = rms_normalize(v, ε): "
    "(d − n ⊙ mean(n ⊙ d)) / √(mean v² + ε).",
    "stop_gradient": "stop_gradient(v) is v, and its derivative is 0.",
}
