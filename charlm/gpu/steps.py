"""A window's steps by the passes of any cell, in PyTorch's operators; kernels.py does the same by Triton's kernels.

They also run on the CPU, where the tests compare them with the reference.
"""

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from charlm.cells.passes import Normalization, numbered
from charlm.cells.program import Node, Size, needed, units
from charlm.native.linear import torch_product
from charlm.native.recurrence import Window


def _extreme(function: Callable[[Tensor, Tensor], Tensor], bound: str) -> Callable[..., Tensor]:
    def extreme(a: Any, b: Any) -> Tensor:
        if isinstance(a, float):
            a, b = b, a
        return a.clamp(**{bound: b}) if isinstance(b, float) else function(a, b)

    return extreme


OPERATORS: dict[str, Callable[..., Any]] = {
    **{op: getattr(torch, op) for op in ("exp", "log", "tanh", "sigmoid", "relu", "sqrt")},
    "softplus": lambda v: -logsigmoid(-v),  # torch's softplus is not exact above its threshold
    **{"add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv, "greater": operator.gt},
    **{"max": _extreme(torch.maximum, "min"), "min": _extreme(torch.minimum, "max"), "where": torch.where},
    "stop": torch.detach,
}
"""The operations of a program on tensors. A constant may be a float."""


class Steps:
    """What a step computes, in PyTorch's operators. One object for one pass over a window."""

    def __init__(self, window: Window) -> None:
        self.w = window
        # Rounded once for all steps.
        self.weights = [weight.bfloat16() for weight in window.weights] if window.bf16 else window.weights
        self._d_states = [] if window.d_last is None else list(window.d_last.unbind())

    def forward(self, t: int) -> None:
        """The states after step t."""
        w, p, row = self.w, self.w.passes, self.row(t)
        values = self._values(p.forward.nodes, p.forward_ends, t)
        for saved, rows in zip(w.saved, p.forward.saved.values(), strict=True):
            for k, place in enumerate(rows):
                saved[row][:, k] = values[place]
        for index in p.stored_operands:
            self.stored_operand(index, t).copy_(values[p.operands[index].node])
        after = torch.stack([values[place].expand(w.B, w.H) for place in p.forward.states.values()])
        if w.pre_zoneout is not None:
            w.pre_zoneout[:, row] = after
        for new, old, share in zip(after, w.states[:, t], self._zoneout_shares(t), strict=True):
            if share is not None:
                new.lerp_(old, share)
        if w.outputs is not None:
            w.outputs[t] = after[0]
        carry_B1 = self._carry_to(t + 1)
        w.states[:, t + 1] = after if carry_B1 is None else after * carry_B1

    def backward(self, t: int) -> None:
        """The gradients of products, windows and vectors in step t."""
        w, p, back = self.w, self.w.passes, self.w.passes.backward
        carry_B1 = self._carry_to(t + 1)
        total = self._d_states if carry_B1 is None else [d_BH * carry_B1 for d_BH in self._d_states]
        total[0] = total[0] + w.d_outputs[t]  # type: ignore[index]
        names = p.split.loop.states
        zoned = list(zip(names, total, self._zoneout_shares(t), strict=True))
        d_after = {name: d_BH if share is None else (1 - share) * d_BH for name, d_BH, share in zoned}
        through = {node.index: place for place, node in enumerate(back.nodes) if node.op == "product_back"}
        values = self._values(back.nodes, (*p.backward_ends, *through.values()), t, d_after)
        self._d_states = [torch.zeros_like(d_BH) if share is None else share * d_BH for _, d_BH, share in zoned]
        for s, name in enumerate(names):
            ends = [through[index] for index in p.through[name]]
            for place in [*ends, back.states[name]] if name in back.states else ends:
                self._d_states[s] = self._d_states[s] + values[place]
        for k, rows in back.products.items():
            w.d_products[k][t] = self._joined(rows, values, p.products[k].size)
        for k in back.windows.keys() - p.like_windows.keys():
            size = p.split.program.nodes[p.split.windows[k]].size
            w.d_windows[k][t] = self._joined(back.windows[k], values, size)
        for k in back.vectors.keys() - p.like_vectors.keys():
            size = p.split.program.nodes[p.split.vectors[k]].size
            w.d_vectors[k] += self._joined(back.vectors[k], values, size).sum(0)  # type: ignore[operator]

    def finish(self) -> None:
        """The gradients of the states before the first step."""
        torch.stack(self._d_states, out=self.w.d_first)

    def row(self, t: int) -> int:
        """The row of the saved tensors that step t writes."""
        return t if self.w.saved_steps > 1 else 0

    def units(self, size: Size) -> int:
        return units(size, self.w.H, self.w.I)

    def stored_operand(self, index: int, t: int) -> Tensor:
        """An operand that is not a state."""
        return self.w.operands[self.w.passes.stored_operands.index(index)][self.row(t)]

    def states_after(self, t: int) -> Tensor:
        """The states after step t, before zoneout and resets, [S, B, H]."""
        return self.w.states[:, t + 1] if self.w.pre_zoneout is None else self.w.pre_zoneout[:, self.row(t)]

    def masked(self, operand: Tensor, size: Size) -> Tensor:
        """An operand of a product, or its gradient, with the mask of state dropout."""
        return operand if self.w.mask is None or size != "H" else operand * self.w.mask

    def _zoneout_shares(self, t: int) -> list[Tensor | None]:
        """Zoneout's share of each state before the step, [B, H] or [1, H]."""
        loop, zoneout = self.w.passes.split.loop, self.w.zoneout
        if zoneout is None:
            return [None] * len(loop.states)
        shares = zoneout[t % len(zoneout)].split(self.w.H, dim=1)
        return [None if name in loop.internal else one for name, one in zip(loop.states, shares, strict=True)]

    def _carry_to(self, t: int) -> Tensor | None:
        """[B, 1]: 0 where the states are reset before step t, else 1; None without resets."""
        return None if self.w.carry is None or not 0 < t < self.w.T else self.w.carry[t, :, None]

    def _values(
        self, nodes: Sequence[Node], ends: Iterable[int], t: int, d_after: Mapping[str, Tensor] | None = None
    ) -> dict[int, Tensor]:
        """The values of nodes in step t, [B, count · units]; d_after: of `d_state`."""
        w, p, row = self.w, self.w.passes, self.row(t)
        names, products, norms = p.split.loop.states, numbered(nodes, "product"), numbered(nodes, "normalize")
        values: dict[int, Tensor] = {}
        for place in needed(nodes, ends):
            node = nodes[place]
            args = [values[arg] for arg in node.args]
            match node.op:
                case "constant":
                    value = w.states.new_full((), node.number)
                case "window":
                    value = w.windows[node.index][t]
                case "static":
                    value = w.vectors[node.index]
                case "state" | "before":
                    value = w.states[names.index(node.name), t]
                case "after":
                    value = self.states_after(t)[names.index(node.name)]
                case "saved":
                    value = w.saved[list(p.forward.saved).index(node.size)][row][:, node.index]
                case "operand":
                    value = self.stored_operand(node.index, t)
                case "d_state":
                    value = d_after[node.name]  # type: ignore[index]
                case "part":
                    value = args[0].chunk(nodes[node.args[0]].count, dim=-1)[node.index]
                case "product":
                    operand = self.masked(args[0], nodes[node.args[0]].size)
                    value = torch_product(operand, self.weights[products[place]].t(), bf16=w.bf16)
                case "product_back":
                    d_BG = self._joined(node.args, values, p.products[node.index].size)
                    value = self.masked(torch_product(d_BG, self.weights[node.index], bf16=w.bf16), node.size)
                case "normalize":
                    value, w.moments[row, :, norms[place]] = _normalize(args[0], node)  # type: ignore[index]
                case "normalized":
                    scale_B1, mean_B1 = w.moments[row, :, node.index].split(1, dim=1)  # type: ignore[index]
                    value = (args[0] - mean_B1) * scale_B1
                case "normalize_back":
                    d_BH, x_BH = args
                    value = _normalize_back(d_BH, x_BH, w.moments[row, :, node.index, :1], p.normalizations[node.index])  # type: ignore[index]
                case _:
                    value = OPERATORS[node.op](*args)
            values[place] = value
        return values

    def _joined(self, rows: Sequence[int], values: Mapping[int, Tensor], size: Size) -> Tensor:
        """Vectors side by side, [B, count · units]."""
        shape = self.w.B, self.units(size)
        return torch.cat([values[row].expand(shape) for row in rows], dim=1)


def _normalize(a_BH: Tensor, node: Node) -> tuple[Tensor, Tensor]:
    """(a − mean) / σ, or a / √(mean a² + ε); and 1 / σ and the mean of each row, [B, 2]."""
    mean_B1 = torch.zeros_like(a_BH[:, :1]) if node.index else a_BH.mean(1, keepdim=True)
    deviation_BH = a_BH - mean_B1
    scale_B1 = (deviation_BH.square().mean(1, keepdim=True) + node.number).rsqrt()
    return deviation_BH * scale_B1, torch.cat([scale_B1, mean_B1], dim=1)


def _normalize_back(d_BH: Tensor, x_BH: Tensor, scale_B1: Tensor, norm: Normalization) -> Tensor:
    """(dx − mean dx − x ⊙ mean(dx ⊙ x)) / σ, the gradient of a; not centered: without the mean of dx."""
    if norm.centered:
        d_BH = d_BH - d_BH.mean(1, keepdim=True)
    return (d_BH - x_BH * (d_BH * x_BH).mean(1, keepdim=True)) * scale_B1
