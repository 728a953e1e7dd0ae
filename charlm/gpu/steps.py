"""A window's steps by the passes of any cell, in PyTorch's operators; kernels.py does the same by Triton's kernels.

They also run on the CPU, where the tests compare them with the reference.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from charlm.cells.on_tensors import evaluate, normalized
from charlm.cells.passes import numbers
from charlm.cells.program import Node, Size, ordered
from charlm.cells.window import Gradients, Window
from charlm.gpu.product import torch_product


class Steps:
    """What a step computes, in PyTorch's operators. One object for one pass over a window.

    gradients: those that the backward pass computes; None for a forward pass.
    """

    def __init__(self, window: Window, gradients: Gradients | None = None) -> None:
        self.w, self.g = window, gradients
        # Rounded once for all steps.
        self.weights = [weight.bfloat16() for weight in window.weights] if window.bf16 else window.weights
        self._d_states = [] if gradients is None else list(gradients.d_last.unbind())

    def forward(self, t: int) -> None:
        """The states after step t."""
        w, p, row = self.w, self.w.passes, self.w.row(t)
        values = self._values(t)
        for saved, rows in zip(w.saved, p.forward.saved.values(), strict=True):
            for k, place in enumerate(rows):
                saved[row][:, k] = values[place]
        for index in p.stored_operands:
            w.operand(index, t).copy_(values[p.operands[index].node])
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
        assert self.g is not None
        g, p, back = self.g, self.w.passes, self.w.passes.backward
        carry_B1 = self._carry_to(t + 1)
        total = self._d_states if carry_B1 is None else [d_BH * carry_B1 for d_BH in self._d_states]
        total[0] = total[0] + g.d_outputs[t]
        names = p.states
        zoned = list(zip(names, total, self._zoneout_shares(t), strict=True))
        d_after = {name: d_BH if share is None else (1 - share) * d_BH for name, d_BH, share in zoned}
        values = self._values(t, d_after)
        self._d_states = [torch.zeros_like(d_BH) if share is None else share * d_BH for _, d_BH, share in zoned]
        for s, name in enumerate(names):
            ends = [self._through[index] for index in p.through[name]]
            for place in [*ends, back.states[name]] if name in back.states else ends:
                self._d_states[s] = self._d_states[s] + values[place]
        for k, rows in back.products.items():
            g.d_products[k][t] = self._joined([values[row] for row in rows], p.products[k].size)
        for k in back.windows.keys() - p.like_windows.keys():
            size = p.split.program.nodes[p.split.windows[k]].size
            g.d_windows[k][t] = self._joined([values[row] for row in back.windows[k]], size)
        for k in back.vectors.keys() - p.like_vectors.keys():
            size = p.split.program.nodes[p.split.vectors[k]].size
            d_vector = self._joined([values[row] for row in back.vectors[k]], size).sum(0)
            g.d_vectors[k] += d_vector  # type: ignore[operator]

    def finish(self) -> None:
        """The gradients of the states before the first step."""
        assert self.g is not None
        torch.stack(self._d_states, out=self.g.d_first)

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

    @functools.cached_property
    def _through(self) -> dict[int, int]:
        """The node of the backward pass that is the gradient of a product's operand, by the product's index."""
        nodes = self.w.passes.backward.nodes
        return {node.index: place for place, node in enumerate(nodes) if node.op == "product_back"}

    @functools.cached_property
    def _order(self) -> list[int]:
        """The nodes of the pass that are computed."""
        p = self.w.passes
        if self.g is None:
            return ordered(p.forward_ends, lambda place: p.forward.nodes[place].args)
        ends = (*p.backward_ends, *self._through.values())
        return ordered(ends, lambda place: p.backward.nodes[place].args)

    @functools.cached_property
    def _numbers(self) -> dict[int, int]:
        return numbers(self.w.passes.forward.nodes)

    def _values(self, t: int, d_after: Mapping[str, Tensor] | None = None) -> dict[int, Tensor]:
        """The values of the pass in step t, [B, count · units] each, by node; d_after: of `d_state`."""
        w, p, row = self.w, self.w.passes, self.w.row(t)
        nodes = p.forward.nodes if self.g is None else p.backward.nodes

        def leaf(place: int, args: list[Tensor]) -> Any:
            node = nodes[place]
            match node.op:
                case "constant":
                    return w.states.new_full((), node.number)
                case "window":
                    return w.windows[node.index][t]
                case "static":
                    return w.vectors[node.index]
                case "state" | "before":
                    return w.state(node.name, t)
                case "after":
                    return w.states_after(t)[p.states.index(node.name)]
                case "saved":
                    return w.saved[list(p.forward.saved).index(node.size)][row][:, node.index]
                case "operand":
                    return w.operand(node.index, t)
                case "d_state":
                    return d_after[node.name]  # type: ignore[index]
                case "product":
                    operand = w.masked(args[0], nodes[node.args[0]].size)
                    return torch_product(operand, self.weights[self._numbers[place]].t(), bf16=w.bf16)
                case "product_back":
                    d_BG = self._joined(args, p.products[node.index].size)
                    return w.masked(torch_product(d_BG, self.weights[node.index], bf16=w.bf16), node.size)
            moments = w.moments[row]  # type: ignore[index]
            match node.op:
                case "normalize":
                    value, mean_B1, scale_B1 = normalized(args[0], node)
                    moments[:, self._numbers[place], 0] = scale_B1[:, 0]
                    moments[:, self._numbers[place], 1] = 0.0 if mean_B1 is None else mean_B1[:, 0]
                    return value
                case "normalized":
                    scale_B1, mean_B1 = moments[:, node.index].split(1, dim=1)
                    return (args[0] - mean_B1) * scale_B1
                case "normalize_back":
                    d_BH, x_BH = args
                    return _normalize_back(d_BH, x_BH, moments[:, node.index, :1], p.normalizations[node.index])
            raise AssertionError(node.op)

        return evaluate(nodes, self._order, leaf, w.states.dtype)

    def _joined(self, vectors: Sequence[Tensor], size: Size) -> Tensor:
        """Vectors side by side, [B, count · units]."""
        shape = self.w.B, self.w.units(size)
        return torch.cat([vector.expand(shape) for vector in vectors], dim=1)


def _normalize_back(d_BH: Tensor, x_BH: Tensor, scale_B1: Tensor, norm: Node) -> Tensor:
    """(dx − mean dx − x ⊙ mean(dx ⊙ x)) / σ, the gradient of a; of RMS normalization without the mean of dx."""
    if not norm.index:
        d_BH = d_BH - d_BH.mean(1, keepdim=True)
    return (d_BH - x_BH * (d_BH * x_BH).mean(1, keepdim=True)) * scale_B1
