"""The driver for GPUs: a window's steps in PyTorch's operators or in Triton, with the equations of a kind's gates.py.

In PyTorch's operators it also runs on the CPU, where the tests hold it to the reference. Buffers are those of
recurrence.h.
"""

import functools
import importlib.util
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from charlm.gpu.equations import Equations, Parts, Tensors
from charlm.gpu.graphs import Graphs, identity
from charlm.gpu.memory import KeptMemory
from charlm.gpu.products import matmul, product, project
from charlm.native.call import without_autocast
from charlm.native.lookup import Lookup
from charlm.native.recurrence import Driver, Lease
from charlm.native.structs import Value


class TensorRecurrence(Driver):
    """The driver with the variants of a kind's gates.py, on any device, in the dtype of the state."""

    def __init__(self, variants: tuple[Equations, ...]) -> None:
        self.variants = variants
        self.graphs = Graphs()

    def sizes(self, variant: int) -> tuple[int, int]:
        equations = self.variants[variant]
        return equations.saved, equations.apart

    def __call__(self, function: str, **values: Value) -> None:
        known = {name: value for name, value in values.items() if name in Window.__dataclass_fields__}
        device = values["states"].device  # type: ignore[union-attr]

        def launches() -> None:
            window = Window(self.variants[int(values["variant"])], **known)  # type: ignore[arg-type]
            with without_autocast(device):
                {"recurrence_forward": forward, "recurrence_backward": backward}[function](window, self.steps(window))

        if self.takes_graphs(device):
            tf32 = torch.backends.cuda.matmul.allow_tf32
            self.graphs.run((function, device, values["variant"], tf32, identity(known)), launches, device)
        else:
            launches()

    def takes_graphs(self, device: torch.device) -> bool:
        """Whether windows become graphs there; not while the caller records a graph of its own."""
        return device.type == "cuda" and not torch.cuda.is_current_stream_capturing()

    def steps(self, window: "Window") -> "Steps":
        """What computes the steps of a window: Triton's kernels on a GPU, if they can."""
        on_gpu = window.states.device.type == "cuda" and window.states.dtype == torch.float32
        kernels = triton_steps(normalized=window.equations.parts is not None) if on_gpu else None
        return kernels(window) if kernels else Steps(window)

    def library(self) -> str:
        """What computes the steps on a GPU, in words."""
        return "Triton's kernels" if triton_steps() else "PyTorch's operators; no Triton"

    def lease(self, numbers: tuple[Any, ...], tensors: Sequence[Tensor | None], memory: object) -> Lease:
        """Where windows become graphs, memory with the addresses of an earlier call."""
        device = next(tensor.device for tensor in tensors if tensor is not None)
        if not (isinstance(memory, KeptMemory) and self.graphs.enabled and self.takes_graphs(device)):
            return super().lease(numbers, tensors, memory)
        return memory.lease((self, numbers, *(tensor if tensor is None else _form(tensor) for tensor in tensors)))

    def project(self, x: Tensor | Lookup, w_GI: Tensor, bias_G: Tensor) -> tuple[Tensor, Tensor | None]:
        return project(x, w_GI, bias_G), None

    def gradient_of_inputs(self, d_rows_TBG: Tensor, ids_TB: Tensor | None, V: int) -> Tensor:
        return d_rows_TBG

    def matmul(self, a_MK: Tensor, b_KN: Tensor, *, bf16: bool, out: Tensor) -> None:
        matmul(a_MK, b_KN, bf16=bf16, out=out)


def _form(tensor: Tensor) -> Hashable:
    return tensor.shape, tensor.dtype, tensor.device


@functools.cache
def triton_steps(*, normalized: bool = False) -> "type[Steps] | None":
    """`Steps` by Triton's kernels, for cells with layer normalization or without it.

    None without Triton, which comes with PyTorch where it is built for CUDA.
    """
    if importlib.util.find_spec("triton") is None:
        return None
    from charlm.gpu.normalized import NormalizedTritonSteps
    from charlm.gpu.pointwise import TritonSteps

    return NormalizedTritonSteps if normalized else TritonSteps


@dataclass
class Window:
    """The fields of `Arguments` in recurrence.h that the steps use; see there for shapes and meaning.

    Two have other shapes: saved is [D, T, B, SAVED, H], and normal [T, B, G, H].
    """

    equations: Equations
    T: int
    D: int
    bf16: bool
    epsilon: float
    saved_steps: int
    weights: Tensor
    states: Tensor
    inner: Tensor
    saved: Tensor
    biases: Tensor | None = None
    gains: Tensor | None = None
    shifts: Tensor | None = None
    mask: Tensor | None = None
    kept: Tensor | None = None
    carried: Tensor | None = None
    outputs: Tensor | None = None
    made: Tensor | None = None
    normal: Tensor | None = None
    moments: Tensor | None = None
    inputs: Tensor | None = None
    d_outputs: Tensor | None = None
    d_last: Tensor | None = None
    d_maps: Tensor | None = None
    d_inputs: Tensor | None = None
    d_gains: Tensor | None = None
    d_shifts: Tensor | None = None
    d_first: Tensor | None = None

    def __post_init__(self) -> None:
        H = self.weights.shape[-1]
        self.weights_DGH = self.weights.view(self.D, -1, H)
        if self.bf16:
            self.weights_DGH = self.weights_DGH.bfloat16()  # once for all steps

    def row(self, t: int) -> int:
        """Where step t saves what the backward pass needs."""
        return t if self.saved_steps > 1 else 0

    def before(self, t: int, d: int) -> Tensors:
        """The states before micro-step (t, d), [B, H] each. A cell with several micro-steps has one state."""
        return self.states[:, t].unbind() if d == 0 else (self.inner[d - 1, self.row(t)],)

    def after(self, t: int, d: int) -> Tensors:
        """The states after micro-step (t, d) and zoneout."""
        return self.before(t, d + 1) if d + 1 < self.D else self.states[:, t + 1].unbind()

    def made_states(self, t: int, d: int) -> Tensors:
        """The states after micro-step (t, d), without zoneout."""
        keeps = self.made is not None and d == self.D - 1
        return self.made[:, self.row(t)].unbind() if keeps else self.after(t, d)  # type: ignore[index]

    def zones_out(self, d: int) -> bool:
        """Whether zoneout follows micro-step d: it follows the last."""
        return self.kept is not None and d == self.D - 1

    def kept_share(self, t: int) -> Tensors:
        """Zoneout's share of each state before the step, [B, H] or [1, H]."""
        assert self.kept is not None
        return self.kept[t % len(self.kept)].chunk(len(self.states), dim=1)

    def saved_at(self, t: int, d: int) -> Tensors:
        return self.saved[d, self.row(t)].unbind(1)

    def carried_to(self, t: int) -> Tensor | None:
        """[B, 1]: 0 where the states are set to zero before step t; None if none are."""
        return None if self.carried is None or not 0 < t < self.T else self.carried[t, :, None]

    def masked(self, h_BH: Tensor) -> Tensor:
        return h_BH if self.mask is None else h_BH * self.mask


def forward(w: Window, steps: "Steps") -> None:
    """All steps; fills `states`, and what the backward pass needs."""
    for t in range(w.T):
        for d in range(w.D):
            steps.forward(t, d, product(steps.operand(t, d), w.weights_DGH[d].t(), bf16=w.bf16))
        steps.reset(t)


def backward(w: Window, steps: "Steps") -> None:
    """All steps, from the last; fills `d_maps`, `d_inputs`, `d_first`, and adds to `d_gains`, `d_shifts`."""
    assert w.d_last is not None
    through_BH = torch.zeros_like(w.d_last[0])
    for t in reversed(range(w.T)):
        if (carried_B1 := w.carried_to(t + 1)) is not None:
            through_BH = through_BH * carried_B1
            steps.reset_back(carried_B1)
        for d in reversed(range(w.D)):
            steps.backward(t, d, through_BH)
            through_BH = product(steps.d_operand(t, d), w.weights_DGH[d], bf16=w.bf16)
    steps.finish(through_BH)


class Steps:
    """What a micro-step computes besides its product, in PyTorch's operators. One object for one pass over a window."""

    def __init__(self, w: Window) -> None:
        self.w = w
        # Gradients of the states after a micro-step other than through its product, and their part that bypasses it
        # because of zoneout.
        self._direct: list[Tensor | None] = [] if w.d_last is None else list(w.d_last.unbind())
        self._bypasses: Tensors = ()

    def operand(self, t: int, d: int) -> Tensor:
        """The left operand of micro-step (t, d)'s product, [B, H]."""
        return self.w.masked(self.w.before(t, d)[0])

    def d_operand(self, t: int, d: int) -> Tensor:
        """The left operand of its product in the backward pass, [B, G·H]."""
        return self.w.d_maps[d, t]  # type: ignore[index]

    def forward(self, t: int, d: int, sums_BG: Tensor) -> None:
        """The states after micro-step (t, d), from its product."""
        w = self.w
        before, maps = w.before(t, d), _maps(w, t, d, sums_BG)
        if w.equations.parts is None:
            after, saved = w.equations.forward(maps, before)
        else:
            after, saved = _normalized_forward(w, w.equations.parts, t, maps, before)
        for target, value in zip(w.saved_at(t, d), saved, strict=True):
            target.copy_(value)
        _put_states(w, t, d, after)

    def reset(self, t: int) -> None:
        """After step t of a window with resets: keep its output and its states, and set those for the next step."""
        w = self.w
        if w.outputs is None:
            return
        w.outputs[t] = w.states[0, t + 1]
        if w.kept is None:  # else zoneout has kept the states
            w.made[:, w.row(t)] = w.states[:, t + 1]  # type: ignore[index]
        if (carried_B1 := w.carried_to(t + 1)) is not None:
            w.states[:, t + 1] *= carried_B1

    def reset_back(self, carried_B1: Tensor) -> None:
        """Before the backward pass of a step after which states are set to zero."""
        self._direct = [one if one is None else one * carried_B1 for one in self._direct]

    def backward(self, t: int, d: int, through_BH: Tensor) -> None:
        """The gradients of its gates' arguments; through_BH: gradient of h after it through the next product."""
        w = self.w
        d_after = self._d_after(through_BH, w.d_outputs[t] if d == w.D - 1 else None)  # type: ignore[index]
        if w.zones_out(d):
            shares = w.kept_share(t)
            self._bypasses = tuple(kept * one for kept, one in zip(shares, d_after, strict=True))
            d_after = tuple((1 - kept) * one for kept, one in zip(shares, d_after, strict=True))
        d_gates, d_direct = _step_back(w, t, d, d_after)
        rest = iter(d_direct)
        self._direct = [next(rest) if is_direct else None for is_direct in w.equations.direct]
        if w.kept is not None and d == 0:
            self._direct = [_sum(one, bypass) for one, bypass in zip(self._direct, self._bypasses, strict=True)]
        _put_maps(w, t, d, d_gates)

    def finish(self, through_BH: Tensor) -> None:
        """The gradients of the states before the first step."""
        for target, one in zip(self.w.d_first, self._d_after(through_BH, None), strict=True):  # type: ignore[arg-type]
            target.copy_(one)

    def _d_after(self, through_BH: Tensor, d_output_BH: Tensor | None) -> Tensors:
        """The sums of all gradients of each state."""
        first, *others = self._direct
        return _sum(self.w.masked(through_BH), first, d_output_BH), *(_sum(one) for one in others)


def _maps(w: Window, t: int, d: int, sums_BG: Tensor) -> Tensors:
    """The arguments of the gates: W x + R h + biases."""
    G, apart = w.equations.gates, w.equations.apart
    H = w.weights.shape[-1]
    # The first micro-step adds the inputs, which contain its biases; the others add their biases only.
    added = w.inputs[t] if d == 0 else w.biases[d].expand_as(sums_BG)  # type: ignore[index]
    if not apart:
        return (added + sums_BG).split(H, dim=1)
    biases = w.biases.view(-1)[(G - apart) * H :]  # type: ignore[union-attr]
    together_BG = added[:, : (G - apart) * H] + sums_BG[:, : (G - apart) * H]
    apart_BG = sums_BG[:, (G - apart) * H :] + biases
    return torch.cat([together_BG, added[:, (G - apart) * H :], apart_BG], dim=1).split(H, dim=1)


def _put_states(w: Window, t: int, d: int, after: Tensors) -> None:
    if w.zones_out(d):
        for target, value in zip(w.made_states(t, d), after, strict=True):
            target.copy_(value)
        shares = zip(after, w.before(t, 0), w.kept_share(t), strict=True)
        after = tuple(kept * old + (1 - kept) * new for new, old, kept in shares)
    for target, value in zip(w.after(t, d), after, strict=True):
        target.copy_(value)


def _normalized_forward(w: Window, parts: Parts, t: int, maps: Tensors, before: Tensors) -> tuple[Tensors, Tensors]:
    """One step with layer normalization; keeps the normalized gates and the moments."""
    row, G = w.row(t), w.equations.gates
    assert w.gains is not None and w.shifts is not None and w.normal is not None and w.moments is not None  # noqa: PT018
    gates = []
    for k, a_BH in enumerate(maps):
        x_BH, scale_B, _ = _normalize(a_BH, w.epsilon)
        w.normal[row].view(len(x_BH), G, -1)[:, k] = x_BH
        w.moments[row, :, k] = scale_B
        gates.append(x_BH * w.gains[k] + w.shifts[k])
    rest, saved = parts.update(tuple(gates), before)
    x_BH, w.moments[row, :, G], w.moments[row, :, G + 1] = _normalize(rest[0], w.epsilon)
    return (parts.output(saved, x_BH * w.gains[G] + w.shifts[G]), *rest), saved


def _normalize(a_BH: Tensor, epsilon: float) -> tuple[Tensor, Tensor, Tensor]:
    """(a − mean) / σ, and 1 / σ and the mean of each row."""
    variance_B1, mean_B1 = torch.var_mean(a_BH, dim=1, correction=0, keepdim=True)
    scale_B1 = (variance_B1 + epsilon).rsqrt()
    return (a_BH - mean_B1) * scale_B1, scale_B1[:, 0], mean_B1[:, 0]


def _sum(*terms: Tensor | None) -> Tensor:
    """The sum of those that are there."""
    return functools.reduce(torch.add, [term for term in terms if term is not None])


def _put_maps(w: Window, t: int, d: int, d_gates: Tensors) -> None:
    """Store the gradients of the gates' arguments."""
    G, apart = w.equations.gates, w.equations.apart
    torch.cat([*d_gates[: G - apart], *d_gates[G:]], dim=1, out=w.d_maps[d, t])  # type: ignore[index]
    if apart:
        torch.cat(d_gates[:G], dim=1, out=w.d_inputs[t])  # type: ignore[index]


def _step_back(w: Window, t: int, d: int, d_after: Tensors) -> tuple[Tensors, Tensors]:
    """Gradients of the gates' arguments and of the direct states."""
    before, after, saved = w.before(t, d), w.made_states(t, d), w.saved_at(t, d)
    parts = w.equations.parts
    if parts is None:
        return w.equations.backward(before, after, saved, d_after)
    row, G = w.row(t), w.equations.gates
    assert w.gains is not None and w.shifts is not None and w.normal is not None and w.moments is not None  # noqa: PT018
    moments_BK = w.moments[row]
    # The second state.
    x_BH = (after[1] - moments_BK[:, G + 1 :]) * moments_BK[:, G : G + 1]
    d_last_gate, d_second = parts.output_back(saved, x_BH * w.gains[G] + w.shifts[G], d_after[0])
    d_second = _through_norm(w, G, d_second, x_BH, moments_BK[:, G : G + 1])
    d_gates, d_direct = parts.update_back(before, saved, d_after[1] + d_second)
    # The gates.
    normals = w.normal[row].view(len(x_BH), G, -1).unbind(1)
    scales = moments_BK[:, :G].split(1, dim=1)
    gates = zip((*d_gates, d_last_gate), normals, scales, strict=True)
    return tuple(_through_norm(w, k, *of_gate) for k, of_gate in enumerate(gates)), d_direct


def _through_norm(w: Window, k: int, d_BH: Tensor, x_BH: Tensor, scale_B1: Tensor) -> Tensor:
    """The gradient of a, from that of LN(a) = gain ⊙ x + shift; adds to the gradients of gain and shift."""
    assert w.gains is not None and w.d_gains is not None and w.d_shifts is not None  # noqa: PT018
    w.d_gains[k] += (d_BH * x_BH).sum(0)
    w.d_shifts[k] += d_BH.sum(0)
    d_BH = d_BH * w.gains[k]
    # da = (dx − mean(dx) − x ⊙ mean(dx ⊙ x)) / σ
    return (d_BH - d_BH.mean(1, keepdim=True) - x_BH * (d_BH * x_BH).mean(1, keepdim=True)) * scale_B1
