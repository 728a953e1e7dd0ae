"""One recurrent layer over a window by a driver: what comes before the loop, the loop's memory, its gradients.

x ──► windows, vectors ──► Driver.forward ──► outputs, last states        Driver.backward computes the gradients
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from charlm.cells.on_tensors import values_before_loop
from charlm.cells.passes import Passes
from charlm.cells.window import Gradients, LoopInputs, Window
from charlm.gpu.recurrence import GpuDriver
from charlm.layers.backend import LayerCall, LayerState, Lookup
from charlm.layers.buffers import BufferCache, Buffers, BuffersOf
from charlm.layers.operators import KernelFunction, column_sums, first_derivative, linear, matmul
from charlm.native.operators import table_gradient
from charlm.native.recurrence import CpuDriver
from charlm.system.device import autocasts_to_bf16

Driver = CpuDriver | GpuDriver
"""Computes the loop of any layer, and its gradients. All sums are float32, in bfloat16 products too."""


def cpu_layer(driver: CpuDriver, x: Tensor | Lookup, call: LayerCall) -> tuple[Tensor, LayerState]:
    """Outputs [T, B, H] and last states [B, H] from inputs [T, B, I].

    Under autocast to bfloat16 the products are bfloat16; sums, gates and states stay float32.
    """
    return _run(driver, loop_inputs(x, call), call.state, lambda phase: Buffers())


def gpu_layer(driver: GpuDriver, cache: BufferCache, x: Tensor | Lookup, call: LayerCall) -> tuple[Tensor, LayerState]:
    """`cpu_layer` on a GPU. Where a call may become a graph, its buffers have the addresses of an earlier call."""
    inputs, state = loop_inputs(x, call), call.state
    if inputs.ids is not None:
        windows = [F.embedding(inputs.ids, window) for window in inputs.windows]
        inputs = replace(inputs, windows=windows, ids=None)
    stream = driver.graph_stream(state[0].device)
    if stream is None:
        return _run(driver, inputs, state, lambda phase: Buffers())
    tensors = (*inputs.given, *inputs.windows, *inputs.vectors, *inputs.weights, *state)
    shapes = tuple((tensor.shape, tensor.dtype, tensor.device) for tensor in tensors)
    kind = inputs.passes, inputs.I
    # Buffers of another stream may be in use.
    form = driver, stream, kind, inputs.T, inputs.bf16, torch.is_grad_enabled(), shapes
    return _run(driver, inputs, state, cache.buffers_of(form, kind))


def loop_inputs(x: Tensor | Lookup, call: LayerCall) -> LoopInputs:
    """What a loop reads; of a lookup windows [V, n], and the ids of their rows."""
    passes, ids_TB = call.passes, None
    rows: Tensor | None  # the input of each step and stream, or a table; None: the table is one-hot
    if isinstance(x, Lookup):
        T, rows, ids_TB = len(x.ids_TB), x.table_VI, x.ids_TB.contiguous()
        if rows is not None and ids_TB.numel() < len(rows):
            rows, ids_TB = F.embedding(ids_TB, rows), None
    else:
        T, rows = len(x), x.to(call.state[0].dtype)
    windows, vectors = values_before_loop(passes.split, rows, call.parameters, input_size=call.inputs, linear=linear)
    B, H = call.state[0].shape
    return LoopInputs(
        passes=passes,
        T=T,
        B=B,
        H=H,
        I=call.inputs if passes.reads_input_size else 0,
        bf16=autocasts_to_bf16(call.state[0].device),
        saved_steps=T if torch.is_grad_enabled() else 1,
        weights=matrices(passes, call.parameters),
        windows=windows,
        vectors=vectors,
        ids=ids_TB,
        given=[call.given[name] for name in passes.given],
    )


def matrices(passes: Passes, weights: Mapping[str, Tensor]) -> list[Tensor]:
    """The matrix of each product in the loop. Autograd stacks the gradients of a stack once."""
    stacks = {name: tensor.unbind() if tensor.dim() == 3 else [tensor] for name, tensor in weights.items()}
    found = []
    for product in passes.products:
        weight = stacks[product.name][product.index]
        found.append(weight.t().contiguous() if product.transposed else weight)
    return found


def new_window(
    driver: Driver, inputs: LoopInputs, state: Sequence[Tensor], lasting: Buffers, passing: Buffers
) -> Window:
    """The memory of a forward pass from `state`; what a backward pass needs is in `lasting` buffers."""
    passes, like, steps = inputs.passes, state[0], inputs.saved_steps
    T, B, H, S = inputs.T, inputs.B, inputs.H, len(state)
    names = ("weights", "vectors", "given")
    reads = {name: lasting.read(name, getattr(inputs, name)) for name in names}
    reads["windows"] = (lasting if passes.reads_windows else passing).read("windows", inputs.windows)
    window = Window(
        **vars(inputs) | reads,
        states=lasting.new("states", like, S, 1 + T, B, H),
        saved=[],
        operands=[],
    )
    for first, tensor in zip(window.states[:, 0], state, strict=True):
        first.copy_(tensor)
    for size, rows in passes.forward.saved.items():
        padded = -(-window.units(size) // driver.padding) * driver.padding
        window.saved.append(lasting.new(f"saved{size}", like, steps, B, len(rows), padded))
    for k in passes.stored_operands:
        # At least two steps: without a backward pass one is written while other threads still read the other.
        shape = max(steps, 2), B, window.units(passes.operands[k].size)
        window.operands.append(lasting.new(f"operands{k}", like, *shape))
    if norms := len(passes.normalizations):
        window.moments = lasting.new("moments", like, steps, B, norms, 2)
    return window


def _run(driver: Driver, inputs: LoopInputs, state: LayerState, buffers_of: BuffersOf) -> tuple[Tensor, LayerState]:
    """The outputs and last states of a loop."""
    differentiable = (*inputs.windows, *inputs.vectors, *inputs.weights, *state)
    results: Any = _Loop.apply(driver, inputs, buffers_of, *differentiable)
    y_TBH, *last = results
    return y_TBH, tuple(last)


_TENSORS = ("ids", "states", "moments")
_LISTS = ("weights", "windows", "vectors", "given", "saved", "operands")
"""What the backward pass reads of a window, by name."""


class _Loop(KernelFunction):
    """The loop as one operation of autograd, which sees the inputs that have gradients; the last are the states."""

    @staticmethod
    def forward(
        ctx: Any, driver: Driver, inputs: LoopInputs, buffers_of: BuffersOf, *differentiable: Tensor
    ) -> tuple[Tensor, ...]:
        lasting, passing = buffers_of("window"), buffers_of("forward")
        state = differentiable[-len(inputs.passes.states) :]
        window = new_window(driver, inputs, state, lasting, passing)
        driver.forward(window)
        results = passing.result(window.states[0, 1:]), *passing.result(window.states[:, -1])
        ctx.set_materialize_grads(False)
        ctx.driver, ctx.buffers, ctx.buffers_of = driver, lasting, buffers_of
        ctx.table_rows = [len(table) for table in inputs.windows]
        # Autograd keeps the tensors, and notices when one is changed.
        fields = vars(window) | ({} if inputs.passes.reads_windows else {"windows": []})
        ctx.lengths = {name: len(fields[name]) for name in _LISTS}
        ctx.save_for_backward(*(fields[name] for name in _TENSORS), *itertools.chain(*(fields[n] for n in _LISTS)))
        ctx.numbers = {name: value for name, value in fields.items() if isinstance(value, int) or name == "passes"}
        return results

    @staticmethod
    @first_derivative
    def backward(ctx: Any, dy_TBH: Tensor | None, *d_last: Tensor | None) -> tuple[Tensor | None, ...]:
        saved = iter(ctx.saved_tensors)
        tensors: dict[str, Any] = {name: next(saved) for name in _TENSORS}
        lists: dict[str, Any] = {name: list(itertools.islice(saved, length)) for name, length in ctx.lengths.items()}
        window, buffers = Window(**ctx.numbers, **tensors, **lists), ctx.buffers_of("backward")
        gradients = new_gradients(window, buffers, dy_TBH, d_last)
        ctx.driver.backward(window, gradients)
        d_windows = [buffers.result(d_rows) for d_rows in gradients.d_windows]
        if window.ids is not None:
            pairs = zip(d_windows, ctx.table_rows, strict=True)
            d_windows = [table_gradient(d_rows, window.ids, V) for d_rows, V in pairs]
        d_vectors = [
            column_sums(gradients.d_products[window.passes.like_vectors[k]].flatten(0, 1))
            if one is None
            else buffers.result(one)
            for k, one in enumerate(gradients.d_vectors)
        ]
        needed = ctx.needs_input_grad[3 + len(d_windows) + len(d_vectors) :]
        d_weights = weight_gradients(window, gradients, needed)
        d_state = buffers.result(gradients.d_first)
        return None, None, None, *d_windows, *d_vectors, *d_weights, *d_state


def new_gradients(
    window: Window, buffers: Buffers, dy_TBH: Tensor | None, d_last: tuple[Tensor | None, ...]
) -> Gradients:
    """The memory of a backward pass. None: zeros."""
    passes, like = window.passes, window.states
    split, T, B = passes.split, window.T, window.B
    d_products = [
        buffers.new(f"d_products{k}", like, T, B, product.gates * window.units(product.size))
        for k, product in enumerate(passes.products)
    ]
    d_windows = []
    for k, place in enumerate(split.windows):
        if k in passes.like_windows:
            d_windows.append(d_products[passes.like_windows[k]])
        else:
            node = split.program.nodes[place]
            d_windows.append(buffers.new(f"d_windows{k}", like, T, B, node.count * window.units(node.size)))
    d_vectors: list[Tensor | None] = []
    for k, vector in enumerate(window.vectors):
        is_sum = k in passes.like_vectors
        d_vectors.append(None if is_sum else buffers.new(f"d_vectors{k}", like, *vector.shape).zero_())
    return Gradients(
        d_outputs=buffers.read("d_outputs", like.new_zeros(T, B, window.H) if dy_TBH is None else dy_TBH),
        d_last=buffers.read("d_last", _stacked(d_last)),
        d_products=d_products,
        d_windows=d_windows,
        d_vectors=d_vectors,
        d_first=buffers.new("d_first", like, len(like), B, window.H),
    )


def _stacked(d_last: tuple[Tensor | None, ...]) -> Tensor | None:
    """[S, B, H], or None if there are none."""
    found = [d_BH for d_BH in d_last if d_BH is not None]
    if not found:
        return None
    return torch.stack([torch.zeros_like(found[0]) if d_BH is None else d_BH for d_BH in d_last])


def weight_gradients(window: Window, gradients: Gradients, needed: Sequence[bool]) -> list[Tensor | None]:
    """The gradient of each product's matrix: its output gradient times its operand, summed over steps.

    needed: for each matrix whether it has one; a fixed matrix has none.
    """
    passes = window.passes
    d_weights: list[Tensor | None] = []
    for product, d_TBG, is_needed in zip(passes.products, gradients.d_products, needed, strict=False):
        if not is_needed:
            d_weights.append(None)
            continue
        operand = passes.operands[product.operand]
        if operand.state:
            v_TBK = window.states[passes.states.index(operand.state), :-1]
        else:
            v_TBK = window.operands[passes.stored_operands.index(product.operand)][: window.T]
        d_weights.append(matmul(d_TBG.flatten(0, 1).t(), v_TBK.flatten(0, 1), bf16=window.bf16))
    return d_weights
