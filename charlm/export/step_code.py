"""One step of a cell as Python that needs torch alone, from the cell's program."""

import keyword
import math
import re
from collections.abc import Mapping
from typing import ClassVar

from charlm.cells.lines import ATOM, Lines
from charlm.cells.program import Node, Program


def step_code(programs: Mapping[str, Program]) -> str:
    """Functions `name(x, *states, *parameters)`, which return a tuple of the new states, after what they call."""
    steps = {name: _Python(program) for name, program in programs.items()}
    nodes = [lines.nodes[place] for lines in steps.values() for place in lines.places]
    ops = {node.op for node in nodes}
    several = any(node.op == "product" and node.count > 1 for node in nodes)
    helpers = [code for op, code in _HELPERS.items() if op in ops and (op != "product" or several)]
    return "\n\n\n".join([*helpers, *(_function(name, lines) for name, lines in steps.items())])


def _function(name: str, lines: "_Python") -> str:
    body = "".join(f"    {name} = {text}\n" for name, text in lines.lines())
    states = lines.program.states
    signature = ", ".join(["x", *map(lines.before, states), *map(lines.parameter, lines.parameters)])
    after = [lines.after(state) for state in states]
    returned = ", ".join(after) if len(after) > 1 else f"({after[0]},)"
    return f'''def {name}({signature}):
    """One step: x [B, I] and states [B, H] → the new states. Several vectors side by side are [gates, B, H]."""
{body}    return {returned}'''


_HELPERS = {
    "product": '''def products(weight, v, gates):
    """W v, [gates, B, units]."""
    return F.linear(v, weight).unflatten(-1, (gates, -1)).movedim(-2, 0)''',
    "normalize": '''def normalize(v, epsilon):
    """(v − mean v) / √(var v + ε) over the units of each vector."""
    return F.layer_norm(v, v.shape[-1:], eps=epsilon)''',
    "rms_normalize": '''def rms_normalize(v, epsilon):
    """v / √(mean v² + ε) over the units of each vector."""
    return v / (v.square().mean(-1, keepdim=True) + epsilon).sqrt()''',
}
"""Functions of the file that operations call."""


class _Python(Lines):
    templates: ClassVar = {
        **{
            "greater": "{0} > {1}",
            "add": "{0} + {1}",
            "sub": "{0} - {1}",
            "neg": "-{0}",
            "mul": "{0} * {1}",
            "scale": "{0} * {1}",
        },
        **{"div": "{0} / {1}", "log_sigmoid": "F.logsigmoid({0})", "stop": "{0}.detach()"},
        "softplus": "-F.logsigmoid(-{0})",  # torch's softplus is not exact above its threshold
        "normalize": "normalize({0}, {node.number})",
        "rms_normalize": "rms_normalize({0}, {node.number})",
    }
    binds: ClassVar = {**Lines.binds, "softplus": (2, ATOM), "stop": (ATOM, ATOM)}
    keeps_stops: ClassVar = True
    input = "x"

    def formula(self, place: int) -> tuple[str, int]:
        node = self.nodes[place]
        if node.op == "product":
            weight, v = self.row(node), self.text(node.args[0])
            text = f"F.linear({v}, {weight})" if node.count == 1 else f"products({weight}, {v}, {node.count})"
            return text, ATOM
        numbers = [arg for arg in node.args if self.nodes[arg].op == "constant"]
        if node.op in ("max", "min") and len(numbers) == 1:
            [value] = [arg for arg in node.args if arg not in numbers]
            bound = "min" if node.op == "max" else "max"
            return f"{self.text(value, ATOM)}.clamp({bound}={self.text(numbers[0])})", ATOM
        return super().formula(place)

    def function(self, op: str) -> str:
        return "torch." + {"max": "maximum", "min": "minimum"}.get(op, op)

    def before(self, state: str) -> str:
        return self.looked_at(state)

    def after(self, state: str) -> str:
        return f"new_{state}"

    def looked_at(self, name: str) -> str:
        name = re.sub(r"\W|^(?=\d)", "_", name)
        return f"{name}_" if keyword.iskeyword(name) or name in _MEANT else name

    def parameter(self, name: str) -> str:
        """The name of the argument, which is no state's."""
        name = self.looked_at(name)
        return f"{name}_" if name in map(self.before, self.program.states) else name

    def number(self, number: float) -> str:
        return repr(number) if math.isfinite(number) else f'float("{number}")'

    def part(self, whole: str, index: int) -> str:
        return f"{whole}[{index}]"

    def row(self, node: Node) -> str:
        """A matrix; or one vector [H], or several, [count, 1, H], that broadcast over streams."""
        name, declared = self.parameter(node.name), self.parameters[node.name]
        if node.op == "product":
            return f"{name}[{node.index}]" if declared.stack else name
        rows = max(declared.stack, 1) * declared.gates
        if node.count == 1:
            return f"{name}.view({rows}, -1)[{node.index}]" if rows > 1 or declared.stack else name
        within = "" if node.count == rows else f"[{node.index}:{node.index + node.count}]"
        return f"{name}.view({rows}, 1, -1){within}"

    def reserved(self) -> set[str]:
        return {self.input, *map(self.before, self.program.states), *map(self.parameter, self.parameters)}


_MEANT = {"x", "F", "torch", "nn", "step", "first_step", "products", "normalize", "rms_normalize", "float"}
