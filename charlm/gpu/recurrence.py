"""The driver for GPUs: a window's steps by the passes of any cell, in PyTorch's operators or in Triton's kernels.

In PyTorch's operators it also runs on the CPU, where the tests hold it to the reference. Buffers are those of
`Driver.run`.
"""

import functools
import importlib.util
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from charlm.cells.passes import Normalization, Passes, numbered
from charlm.cells.program import Node, Size, needed, units
from charlm.gpu.graphs import Graphs, identity
from charlm.gpu.memory import KeptMemory
from charlm.gpu.products import device_linear, matmul, product
from charlm.native.call import without_autocast
from charlm.native.recurrence import Driver, Lease, Values


class TensorRecurrence(Driver):
    """The driver of all cells, on any device, in the dtype of the state."""

    def __init__(self) -> None:
        self.graphs = Graphs()

    def run(self, function: str, passes: Passes, values: Values) -> None:
        known = {name: value for name, value in values.items() if name in Window.__dataclass_fields__}
        device = values["states"].device  # type: ignore[union-attr]

        def launches() -> None:
            window = Window(passes, **known)  # type: ignore[arg-type]
            with torch.cuda.device_of(window.states), without_autocast(device):
                {"recurrence_forward": forward, "recurrence_backward": backward}[function](self.steps(window))

        if self.takes_graphs(device):
            tf32 = torch.backends.cuda.matmul.allow_tf32
            self.graphs.run((function, device, passes, tf32, identity(known)), launches, device)
        else:
            launches()

    def takes_graphs(self, device: torch.device) -> bool:
        """Whether windows become graphs there; not while the caller records a graph of its own."""
        return device.type == "cuda" and not torch.cuda.is_current_stream_capturing()

    def steps(self, window: "Window") -> "Steps":
        """What computes the steps of a window: Triton's kernels on a GPU, if they can."""
        on_gpu = window.states.device.type == "cuda" and window.states.dtype == torch.float32
        kernels = triton_steps() if on_gpu else None
        return kernels(window) if kernels else Steps(window)

    def library(self) -> str:
        """What computes the steps on a GPU, in words."""
        return "Triton's kernels" if triton_steps() else "PyTorch's operators; no Triton"

    def lease(self, numbers: tuple[Any, ...], tensors: Sequence[Tensor | None], memory: object) -> Lease:
        """Where windows become graphs, memory with the addresses of an earlier call."""
        device = next(tensor.device for tensor in tensors if tensor is not None)
        if not (isinstance(memory, KeptMemory) and self.graphs.enabled and self.takes_graphs(device)):
            return super().lease(numbers, tensors, memory)
        forms = (tensor if tensor is None else _form(tensor) for tensor in tensors)
        return memory.lease((self, numbers, *forms), numbers[:2])  # passes and input size

    def linear(self, x: Tensor, w_NK: Tensor, bias_N: Tensor | None = None) -> Tensor:
        return device_linear(x, w_NK, bias_N)

    def gradient_of_rows(self, d_rows_TBN: Tensor, ids_TB: Tensor | None, V: int) -> Tensor:
        return d_rows_TBN

    def matmul(self, a_MK: Tensor, b_KN: Tensor, *, bf16: bool, out: Tensor) -> None:
        matmul(a_MK, b_KN, bf16=bf16, out=out)


def _form(tensor: Tensor) -> Hashable:
    return tensor.shape, tensor.dtype, tensor.device


@functools.cache
def triton_steps() -> "type[Steps] | None":
    """`Steps` by Triton's kernels; None without Triton, which comes with PyTorch where it is built for CUDA."""
    if importlib.util.find_spec("triton") is None:
        return None
    from charlm.gpu.kernels import TritonSteps

    return TritonSteps


@dataclass
class Window:
    """The values of `Driver.run` that the steps use."""

    passes: Passes
    T: int
    B: int
    H: int
    I: int  # noqa: E741
    bf16: bool
    saved_steps: int
    states: Tensor
    weights: list[Tensor]
    windows: list[Tensor]
    vectors: list[Tensor]
    saved: list[Tensor]
    operands: list[Tensor]
    mask: Tensor | None = None
    kept: Tensor | None = None
    carried: Tensor | None = None
    outputs: Tensor | None = None
    made: Tensor | None = None
    moments: Tensor | None = None
    d_outputs: Tensor | None = None
    d_last: Tensor | None = None
    d_products: Sequence[Tensor] = ()
    d_windows: Sequence[Tensor] = ()
    d_vectors: Sequence[Tensor | None] = ()
    d_first: Tensor | None = None

    def __post_init__(self) -> None:
        if self.bf16:
            self.weights = [weight.bfloat16() for weight in self.weights]  # once for all steps

    def units(self, size: Size) -> int:
        return units(size, self.H, self.I)

    def row(self, t: int) -> int:
        """Where step t saves what the backward pass needs."""
        return t if self.saved_steps > 1 else 0

    def kept_operand(self, index: int, t: int) -> Tensor:
        """An operand that is no state."""
        return self.operands[self.passes.kept.index(index)][self.row(t)]

    def made_states(self, t: int) -> Tensor:
        """The states after step t, without zoneout and resets, [S, B, H]."""
        return self.states[:, t + 1] if self.made is None else self.made[:, self.row(t)]

    def kept_shares(self, t: int) -> list[Tensor | None]:
        """Zoneout's share of each state before the step, [B, H] or [1, H]."""
        loop = self.passes.split.loop
        shares = [None] * len(loop.states) if self.kept is None else self.kept[t % len(self.kept)].split(self.H, dim=1)
        return [None if name in loop.internal else one for name, one in zip(loop.states, shares, strict=True)]

    def carried_to(self, t: int) -> Tensor | None:
        """[B, 1]: 0 where the states are set to zero before step t; None if none are."""
        return None if self.carried is None or not 0 < t < self.T else self.carried[t, :, None]

    def masked(self, operand: Tensor, size: Size) -> Tensor:
        """An operand of a product, or its gradient, with the mask of state dropout."""
        return operand if self.mask is None or size != "H" else operand * self.mask


def forward(steps: "Steps") -> None:
    """All steps; fills `states`, and what the backward pass needs."""
    for t in range(steps.w.T):
        steps.forward(t)


def backward(steps: "Steps") -> None:
    """All steps, from the last; fills `d_products`, `d_windows`, `d_first`, and adds to `d_vectors`."""
    for t in reversed(range(steps.w.T)):
        steps.backward(t)
    steps.finish()


OPERATIONS: dict[str, Callable[..., Tensor]] = {
    **{op: getattr(torch, op) for op in ("exp", "log", "tanh", "sigmoid", "relu", "sqrt", "add", "sub", "mul", "div")},
    **{"max": torch.maximum, "min": torch.minimum, "greater": torch.gt, "where": torch.where},
    "softplus": lambda v: -logsigmoid(-v),  # torch's softplus is not exact above its threshold
    "stop": lambda v: v,
}


class Steps:
    """What a step computes, in PyTorch's operators. One object for one pass over a window."""

    def __init__(self, window: Window) -> None:
        self.w = window
        self._d_states = [] if window.d_last is None else list(window.d_last.unbind())

    def forward(self, t: int) -> None:
        """The states after step t."""
        w, p, row = self.w, self.w.passes, self.w.row(t)
        values = self._values(p.forward.nodes, p.forward_ends, t)
        for saved, rows in zip(w.saved, p.forward.saved.values(), strict=True):
            for k, place in enumerate(rows):
                saved[row][:, k] = values[place]
        for index in p.kept:
            w.kept_operand(index, t).copy_(values[p.operands[index].node])
        after = torch.stack([values[place].expand(w.B, w.H) for place in p.forward.states.values()])
        if w.made is not None:
            w.made[:, row] = after
        for new, old, share in zip(after, w.states[:, t], w.kept_shares(t), strict=True):
            if share is not None:
                new.lerp_(old, share)
        if w.outputs is not None:
            w.outputs[t] = after[0]
        carried_B1 = w.carried_to(t + 1)
        w.states[:, t + 1] = after if carried_B1 is None else after * carried_B1

    def backward(self, t: int) -> None:
        """The gradients of products, windows and vectors in step t."""
        w, p, back = self.w, self.w.passes, self.w.passes.backward
        carried_B1 = w.carried_to(t + 1)
        total = self._d_states if carried_B1 is None else [d_BH * carried_B1 for d_BH in self._d_states]
        total[0] = total[0] + w.d_outputs[t]  # type: ignore[index]
        names = p.split.loop.states
        zoned = list(zip(names, total, w.kept_shares(t), strict=True))
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

    def _values(
        self, nodes: Sequence[Node], ends: Iterable[int], t: int, d_after: Mapping[str, Tensor] | None = None
    ) -> dict[int, Tensor]:
        """The values of nodes in step t, [B, count · units]; d_after: of `d_state`."""
        w, p, row = self.w, self.w.passes, self.w.row(t)
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
                    value = w.made_states(t)[names.index(node.name)]
                case "saved":
                    value = w.saved[list(p.forward.saved).index(node.size)][row][:, node.index]
                case "operand":
                    value = w.kept_operand(node.index, t)
                case "d_state":
                    value = d_after[node.name]  # type: ignore[index]
                case "part":
                    value = args[0].chunk(nodes[node.args[0]].count, dim=-1)[node.index]
                case "product":
                    operand = w.masked(args[0], nodes[node.args[0]].size)
                    value = product(operand, w.weights[products[place]].t(), bf16=w.bf16)
                case "product_back":
                    d_BG = self._joined(node.args, values, p.products[node.index].size)
                    value = w.masked(product(d_BG, w.weights[node.index], bf16=w.bf16), node.size)
                case "normalize":
                    value, w.moments[row, :, norms[place]] = _normalize(args[0], node)  # type: ignore[index]
                case "normalized":
                    scale_B1, mean_B1 = w.moments[row, :, node.index].split(1, dim=1)  # type: ignore[index]
                    value = (args[0] - mean_B1) * scale_B1
                case "normalize_back":
                    d_BH, x_BH = args
                    value = _normalize_back(d_BH, x_BH, w.moments[row, :, node.index, :1], p.normalizations[node.index])  # type: ignore[index]
                case _:
                    value = OPERATIONS[node.op](*args)
            values[place] = value
        return values

    def _joined(self, rows: Sequence[int], values: Mapping[int, Tensor], size: Size) -> Tensor:
        """Vectors side by side, [B, count · units]."""
        shape = self.w.B, self.w.units(size)
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
