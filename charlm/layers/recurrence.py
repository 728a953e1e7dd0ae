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

from charlm.cells.passes import Passes
from charlm.cells.split import Split
from charlm.cells.window import Gradients, LoopInputs, Window
from charlm.gpu.recurrence import GpuDriver
from charlm.layers.backend import LayerCall, LayerState, Lookup
from charlm.layers.buffers import BufferCache, Buffers, BuffersOf
from charlm.layers.operators import KernelFunction, first_derivative, linear, matmul
from charlm.layers.reference import TensorProgram
from charlm.native.operators import table_gradient
from charlm.native.recurrence import CpuDriver
from charlm.system.device import autocasts_to_bf16

Driver = CpuDriver | GpuDriver
"""Computes the loop of any layer, and its gradients. All sums are float32, in bfloat16 products too."""


def layer_by_driver(
    driver: Driver, cache: BufferCache, input_size: int, x: Tensor | Lookup, call: LayerCall
) -> tuple[Tensor, LayerState]:
    """Outputs [T, B, H] and last states [B, H] from inputs [T, B, I]. input_size: I of a lookup without a table.

    Under autocast to bfloat16 the products are bfloat16; sums, gates and states stay float32.
    """
    passes, state = call.passes, call.state
    if call.carry_TB is not None:
        state = tuple(tensor * call.carry_TB[0, :, None] for tensor in state)
    windows, vectors, ids_TB = values_before_loop(driver, passes.split, x, call.parameters, input_size)
    B, H = state[0].shape
    if isinstance(x, Lookup):
        T = len(x.ids_TB)
    else:
        T, input_size = len(x), x.shape[-1]
    inputs = LoopInputs(
        passes=passes,
        T=T,
        B=B,
        H=H,
        I=input_size if passes.reads_input_size else 0,
        bf16=autocasts_to_bf16(state[0].device),
        saved_steps=T if torch.is_grad_enabled() else 1,
        weights=matrices(passes, call.parameters),
        windows=windows,
        vectors=vectors,
        ids=ids_TB,
        mask=call.mask_BH,
        zoneout=call.zoneout_TBS,
        carry=call.carry_TB,
    )
    differentiable = (*windows, *vectors, *inputs.weights, *state)
    buffers_of = choose_buffers(driver, inputs, differentiable, cache)
    results: Any = _Loop.apply(driver, inputs, state, buffers_of, *differentiable)
    y_TBH, *last = results
    return y_TBH, tuple(last)


def values_before_loop(
    driver: Driver, split: Split, x: Tensor | Lookup, parameters: Mapping[str, Tensor], input_size: int
) -> tuple[list[Tensor], list[Tensor], Tensor | None]:
    """The windows and vectors that a loop reads; for a lookup windows [V, n], and the ids of their rows."""
    rows: Tensor | None  # the input of each step and stream, or the table; None: the rows of the table are one-hot
    ids_TB: Tensor | None  # the rows that each step reads; None: those of its own
    if isinstance(x, Lookup):
        rows, ids_TB = x.table_VI, x.ids_TB.contiguous()
        V = input_size if rows is None else len(rows)
        if rows is not None and ids_TB.numel() < V:  # fewer than the rows of the table
            rows, ids_TB = F.embedding(ids_TB, rows), None
    else:
        rows, ids_TB = x.to(next(iter(parameters.values())).dtype), None
    before = TensorProgram(
        split.program,
        (*split.windows, *split.vectors),
        parameters,
        additions=split.additions,
        one_hot_size=input_size if rows is None else 0,
        linear=linear,
    )
    values = before({"input": rows})
    windows, vectors = values[: len(split.windows)], values[len(split.windows) :]
    if ids_TB is not None and isinstance(driver, GpuDriver):
        return [F.embedding(ids_TB, window) for window in windows], vectors, None
    return windows, vectors, ids_TB


def matrices(passes: Passes, weights: Mapping[str, Tensor]) -> list[Tensor]:
    """The matrix of each product in the loop. Autograd stacks the gradients of a stack once."""
    stacks = {name: tensor.unbind() if tensor.dim() == 3 else [tensor] for name, tensor in weights.items()}
    found = []
    for product in passes.products:
        weight = stacks[product.name][product.index]
        found.append(weight.t().contiguous() if product.transposed else weight)
    return found


def choose_buffers(
    driver: Driver, inputs: LoopInputs, differentiable: Sequence[Tensor], cache: BufferCache
) -> BuffersOf:
    """The buffers of a call: where it may become a graph, those with the addresses of an earlier call."""
    stream = driver.graph_stream(differentiable[0].device) if isinstance(driver, GpuDriver) else None
    if stream is None:
        return lambda phase: Buffers()
    tensors = (inputs.ids, inputs.mask, inputs.zoneout, inputs.carry, *differentiable)
    shapes = tuple(None if tensor is None else (tensor.shape, tensor.dtype, tensor.device) for tensor in tensors)
    numbers = inputs.T, inputs.I, torch.is_grad_enabled(), inputs.bf16
    # Buffers of another stream may be in use.
    return cache.buffers_of((driver, inputs.passes, numbers, stream, shapes), layer_kind=(inputs.passes, inputs.I))


def new_window(driver: Driver, inputs: LoopInputs, state: LayerState, lasting: Buffers, passing: Buffers) -> Window:
    """The memory of a forward pass from `state`; what a backward pass needs is in `lasting` buffers."""
    passes, like, steps = inputs.passes, state[0], inputs.saved_steps
    T, B, H, S = inputs.T, inputs.B, inputs.H, len(state)

    def read(name: str, tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else lasting.read(name, tensor)

    def read_all(name: str, tensors: Sequence[Tensor], buffers: Buffers) -> list[Tensor]:
        return [buffers.read(f"{name}{k}", tensor) for k, tensor in enumerate(tensors)]

    reads = {
        "weights": read_all("weights", inputs.weights, lasting),
        "windows": read_all("windows", inputs.windows, lasting if passes.reads_windows else passing),
        "vectors": read_all("vectors", inputs.vectors, lasting),
        "mask": read("mask", inputs.mask),
        "zoneout": read("zoneout", inputs.zoneout),
        "carry": read("carry", inputs.carry),
    }
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
    if inputs.zoneout is not None or inputs.carry is not None:
        window.pre_zoneout = lasting.new("pre_zoneout", like, S, steps, B, H)
    if inputs.carry is not None:
        window.outputs = passing.new("outputs", like, T, B, H)
    return window


class _Loop(KernelFunction):
    """The loop as one operation of autograd; the tensors that have gradients follow once more."""

    @staticmethod
    def forward(
        ctx: Any,
        driver: Driver,
        inputs: LoopInputs,
        state: LayerState,
        buffers_of: BuffersOf,
        *differentiable: Tensor,
    ) -> tuple[Tensor, ...]:
        lasting, passing = buffers_of("window"), buffers_of("forward")
        window = new_window(driver, inputs, state, lasting, passing)
        driver.forward(window)
        outputs = window.states[0, 1:] if window.outputs is None else window.outputs
        # Clones: views would hold the states of the whole window in memory.
        results = passing.result(outputs), *window.states[:, -1].clone()
        ctx.driver, ctx.buffers, ctx.buffers_of = driver, lasting, buffers_of
        ctx.table_rows = [len(table) for table in inputs.windows]
        _save(ctx, replace(window, outputs=None, windows=window.windows if inputs.passes.reads_windows else []))
        return results

    @staticmethod
    @first_derivative
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, dy_TBH: Tensor, *d_last: Tensor
    ) -> tuple[Tensor | None, ...]:
        driver, window, buffers = ctx.driver, _saved(ctx), ctx.buffers_of("backward")
        gradients = new_gradients(window, buffers, dy_TBH, d_last)
        driver.backward(window, gradients)
        d_windows = [buffers.result(d_rows) for d_rows in gradients.d_windows]
        if window.ids is not None:
            pairs = zip(d_windows, ctx.table_rows, strict=True)
            d_windows = [table_gradient(d_rows, window.ids, V) for d_rows, V in pairs]
        d_vectors = [
            gradients.d_products[window.passes.like_vectors[k]].sum((0, 1)) if one is None else buffers.result(one)
            for k, one in enumerate(gradients.d_vectors)
        ]
        needed = ctx.needs_input_grad[4 + len(d_windows) + len(d_vectors) :]
        d_weights = weight_gradients(window, gradients, needed)
        d_state = buffers.result(gradients.d_first)
        return None, None, None, None, *d_windows, *d_vectors, *d_weights, *d_state


def new_gradients(window: Window, buffers: Buffers, dy_TBH: Tensor, d_last: tuple[Tensor, ...]) -> Gradients:
    """The memory of a backward pass."""
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
        d_outputs=buffers.read("d_outputs", dy_TBH),
        d_last=buffers.read("d_last", torch.stack(d_last)),
        d_products=d_products,
        d_windows=d_windows,
        d_vectors=d_vectors,
        d_first=buffers.new("d_first", like, len(like), B, window.H),
    )


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
        v_TBK = window.masked(v_TBK, operand.size)
        d_weights.append(matmul(d_TBG.flatten(0, 1).t(), v_TBK.flatten(0, 1), bf16=window.bf16))
    return d_weights


def _save(ctx: Any, window: Window) -> None:
    """Save a window for the backward pass: its tensors through autograd, which notices when one is changed."""
    fields = vars(window)
    ctx.lists = {name: len(value) for name, value in fields.items() if isinstance(value, list)}
    ctx.names = [name for name, value in fields.items() if isinstance(value, Tensor)]
    ctx.others = {name: value for name, value in fields.items() if name not in ctx.lists and name not in ctx.names}
    of_lists = (tensor for name in ctx.lists for tensor in fields[name])
    ctx.save_for_backward(*(fields[name] for name in ctx.names), *of_lists)


def _saved(ctx: Any) -> Window:
    """The inverse of `_save`."""
    tensors = iter(ctx.saved_tensors)
    fields: dict[str, Any] = ctx.others | {name: next(tensors) for name in ctx.names}
    fields |= {name: list(itertools.islice(tensors, length)) for name, length in ctx.lists.items()}
    return Window(**fields)
