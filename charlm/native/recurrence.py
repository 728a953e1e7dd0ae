"""One recurrent layer over a window: the autograd function, and the buffers of both passes of any cell."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from charlm.cells.passes import Passes
from charlm.cells.program import units
from charlm.native.autograd import KernelFunction, applied, autocasts_to_bf16, first_derivative


class LoopInputs(NamedTuple):
    """What the loop over a window reads besides states, see `Split`."""

    windows: Sequence[Tensor]
    """[T, B, count · size] each; with ids rows [V, count · size], of which each step reads one."""
    ids_TB: Tensor | None
    vectors: Sequence[Tensor]
    """[count · size] each."""
    weights: Mapping[str, Tensor]
    """The matrices of the products in the loop, [rows, columns] or a stack of them, by name."""
    input_size: int
    """0 if no vector in the loop has this size: then a call does not depend on it."""
    steps: int


class Buffers:
    """Allocates the tensors of a call: here new ones at each call; see also gpu/buffers.py."""

    def new(self, name: str, like: Tensor, *shape: int) -> Tensor:
        """An uninitialized tensor for the driver to write."""
        return like.new_empty(shape)

    def read(self, name: str, tensor: Tensor) -> Tensor:
        """The tensor as the driver reads it."""
        return tensor.contiguous()

    def result(self, tensor: Tensor) -> Tensor:
        """A tensor that the driver wrote, for the caller."""
        return tensor


BuffersOf = Callable[[str], Buffers]
"""Phase → its buffers. Those of "window" live until the backward pass is over, those of "forward" and "backward" only
during that pass."""


@dataclass(eq=False)
class Window:
    """What a pass over the T steps of a window reads and writes: fields of `Arguments` in recurrence.h."""

    passes: Passes
    T: int
    B: int
    H: int
    I: int  # noqa: E741
    bf16: bool
    saved_steps: int
    states: Tensor
    weights: list[Tensor]
    """The matrix of each product."""
    windows: list[Tensor]
    vectors: list[Tensor]
    saved: list[Tensor]
    operands: list[Tensor]
    ids: Tensor | None = None
    mask: Tensor | None = None
    zoneout: Tensor | None = None
    carry: Tensor | None = None
    outputs: Tensor | None = None
    pre_zoneout: Tensor | None = None
    moments: Tensor | None = None
    d_outputs: Tensor | None = None
    """None in a forward pass, as all that follow."""
    d_last: Tensor | None = None
    d_products: Sequence[Tensor] = ()
    d_windows: Sequence[Tensor] = ()
    d_vectors: Sequence[Tensor | None] = ()
    d_first: Tensor | None = None


class Driver:
    """Computes a window's steps and their gradients. All drivers share the autograd function around them."""

    takes_ids = False
    """Whether `windows` may be tables, of which each step reads a row by its id."""
    padding = 1
    """The length of a row of `saved` is a multiple of it. The driver chooses the layout of a row."""

    linear: Callable[..., Tensor]
    """linear(x, w_NK, bias_N=None): x wᵀ + bias over the last dimension of x, in float32 under autocast too."""
    matmul: Callable[..., Tensor]
    """matmul(a_MK, b_KN, bf16=…): a b, in float32."""

    def run(self, window: Window) -> None:
        """Run the forward pass, or the backward pass of a window with gradients."""
        raise NotImplementedError

    def gradient_of_rows(self, d_rows_TBN: Tensor, ids_TB: Tensor | None, V: int) -> Tensor:
        """The gradient of a table [V, N], from the gradients of the rows that the steps read; without ids unchanged."""
        return d_rows_TBN

    def buffers_of(self, numbers: tuple[Any, ...], tensors: Sequence[Tensor | None], cache: object) -> BuffersOf:
        """The buffers of a call with these numbers and tensors. cache: see `layer`."""
        return lambda phase: Buffers()

    def layer(
        self,
        passes: Passes,
        inputs: LoopInputs,
        state: tuple[Tensor, ...],
        mask_BH: Tensor | None = None,
        zoneout_TBS: Tensor | None = None,
        carry_TB: Tensor | None = None,
        cache: object = None,
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Outputs [T, B, H] and last state, [B, H] for each state tensor.

        Under autocast to bfloat16 the products are bfloat16; sums, gates and states stay float32. For mask, zoneout and
        carry see `LayerCall`. cache: the stack's `BufferCache`, for drivers that use it.
        """
        if carry_TB is not None:
            state = tuple(tensor * carry_TB[0, :, None] for tensor in state)
        weights = matrices(passes, inputs.weights)
        numbers = passes, inputs.input_size, inputs.steps, torch.is_grad_enabled(), autocasts_to_bf16(state[0].device)
        tensors = (inputs.ids_TB, mask_BH, zoneout_TBS, carry_TB, *inputs.windows, *inputs.vectors, *weights, *state)
        call = _Call(self, *numbers, self.buffers_of(numbers, tensors, cache))
        y_TBH, *last = applied(_Sequence, call, *tensors)
        return y_TBH, tuple(last)


class _Call(NamedTuple):
    """The arguments of a call that are not tensors."""

    driver: Driver
    passes: Passes
    input_size: int
    steps: int
    with_backward: bool
    bf16: bool
    buffers_of: BuffersOf


def matrix(weights: Tensor, index: int) -> Tensor:
    """Matrix `index` of a stack, or the only one."""
    return weights[index] if weights.dim() == 3 else weights


def matrices(passes: Passes, weights: Mapping[str, Tensor]) -> list[Tensor]:
    """The matrix of each product in the loop. Autograd stacks the gradients of a stack once."""
    stacks = {name: tensor.unbind() if tensor.dim() == 3 else [tensor] for name, tensor in weights.items()}
    return [stacks[product.name][product.index] for product in passes.products]


def saved_for_backward(
    driver: Driver, passes: Passes, input_size: int, buffers: Buffers, like: Tensor, steps: int, *, pre_zoneout: bool
) -> dict[str, Any]:
    """The fields of a `Window` that the backward pass needs, for this many steps. like: a state.

    They are written without a backward pass too, so that outputs have the same bits with and without gradients.
    """
    B, H = like.shape
    norms = len(passes.normalizations)
    # At least two steps: without a backward pass one is written while other threads still read the other.
    operands = [
        buffers.new(f"operands{k}", like, max(steps, 2), B, units(passes.operands[k].size, H, input_size))
        for k in passes.stored_operands
    ]
    saved = []
    for size, rows in passes.forward.saved.items():
        padded = -(-units(size, H, input_size) // driver.padding) * driver.padding
        saved.append(buffers.new(f"saved{size}", like, steps, B, len(rows), padded))
    after = buffers.new("pre_zoneout", like, len(passes.split.loop.states), steps, B, H) if pre_zoneout else None
    moments = buffers.new("moments", like, steps, B, norms, 2) if norms else None
    return {"operands": operands, "saved": saved, "pre_zoneout": after, "moments": moments}


class _Sequence(KernelFunction):
    @staticmethod
    def forward(
        ctx: Any,
        call: _Call,
        ids_TB: Tensor | None,
        mask_BH: Tensor | None,
        zoneout_TBS: Tensor | None,
        carry_TB: Tensor | None,
        *tensors: Tensor,
    ) -> tuple[Tensor, ...]:
        passes, lasting, passing = call.passes, call.buffers_of("window"), call.buffers_of("forward")
        remaining = iter(tensors)
        counts = len(passes.split.windows), len(passes.split.vectors), len(passes.products)
        windows, vectors, weights = (list(itertools.islice(remaining, count)) for count in counts)
        state = list(remaining)
        T, (B, H) = call.steps, state[0].shape
        masks = {"mask": mask_BH, "zoneout": zoneout_TBS, "carry": carry_TB}
        masks = {name: None if mask is None else lasting.read(name, mask) for name, mask in masks.items()}
        states = lasting.new("states", state[0], len(state), 1 + T, B, H)
        for first, tensor in zip(states[:, 0], state, strict=True):
            first.copy_(tensor)
        steps, pre_zoneout = T if call.with_backward else 1, zoneout_TBS is not None or carry_TB is not None
        saved = saved_for_backward(
            call.driver, passes, call.input_size, lasting, state[0], steps, pre_zoneout=pre_zoneout
        )
        window = Window(
            passes, T, B, H, call.input_size, call.bf16, steps, states,
            _read(lasting, "weights", weights),
            _read(lasting if passes.reads_windows else passing, "windows", windows),
            _read(lasting, "vectors", vectors),
            ids=ids_TB,
            outputs=None if carry_TB is None else passing.new("outputs", states, 1 + T, B, H).narrow(0, 0, T),
            **masks, **saved,
        )  # fmt: skip
        call.driver.run(window)
        # Clones: views would hold the states of the whole window in memory.
        results = passing.result(states[0, 1:] if window.outputs is None else window.outputs), *states[:, -1].clone()
        ctx.call, ctx.buffers, ctx.V = call, lasting, len(windows[0]) if windows else 0
        _save(ctx, replace(window, outputs=None, windows=window.windows if passes.reads_windows else []))
        return results

    @staticmethod
    @first_derivative
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, dy_TBH: Tensor, *d_last: Tensor
    ) -> tuple[Tensor | None, ...]:
        call: _Call = ctx.call
        window, passes, buffers = _saved(ctx), call.passes, call.buffers_of("backward")
        T, B, H = dy_TBH.shape
        like, like_windows, like_vectors = window.states, passes.like_windows, passes.like_vectors
        window.d_outputs = buffers.read("d_outputs", dy_TBH)
        window.d_last = buffers.read("d_last", torch.stack(d_last))
        window.d_first = d_first = buffers.new("d_first", like, len(like), B, H)
        widths = [product.gates * units(product.size, H, call.input_size) for product in passes.products]
        window.d_products = [buffers.new(f"d_products{k}", like, T, B, width) for k, width in enumerate(widths)]
        nodes = [passes.split.program.nodes[place] for place in passes.split.windows]
        widths = [node.count * units(node.size, H, call.input_size) for node in nodes]
        window.d_windows = [
            window.d_products[like_windows[k]] if k in like_windows else buffers.new(f"d_windows{k}", like, T, B, width)
            for k, width in enumerate(widths)
        ]
        window.d_vectors = [
            None if k in like_vectors else buffers.new(f"d_vectors{k}", like, *vector.shape).zero_()
            for k, vector in enumerate(window.vectors)
        ]
        call.driver.run(window)
        d_rows = [call.driver.gradient_of_rows(buffers.result(one), window.ids, ctx.V) for one in window.d_windows]
        d_vectors = [
            window.d_products[like_vectors[k]].sum((0, 1)) if one is None else buffers.result(one)
            for k, one in enumerate(window.d_vectors)
        ]
        d_weights = _matrix_gradients(call.driver, window)
        return None, None, None, None, None, *d_rows, *d_vectors, *d_weights, *buffers.result(d_first)


def _matrix_gradients(driver: Driver, window: Window) -> list[Tensor]:
    """The gradient of each product's matrix: its output gradient times its operand, summed over steps."""
    passes, gradients = window.passes, []
    for product, d_TBG in zip(passes.products, window.d_products, strict=True):
        operand = passes.operands[product.operand]
        if operand.state:
            v_TBK = window.states[passes.split.loop.states.index(operand.state), :-1]
        else:
            v_TBK = window.operands[passes.stored_operands.index(product.operand)][: window.T]
        if window.mask is not None and operand.size == "H":
            v_TBK = v_TBK * window.mask
        gradients.append(driver.matmul(d_TBG.flatten(0, 1).t(), v_TBK.flatten(0, 1), bf16=window.bf16))
    return gradients


def _read(buffers: Buffers, name: str, tensors: Sequence[Tensor]) -> list[Tensor]:
    """The tensors as the driver reads them."""
    return [buffers.read(f"{name}{k}", tensor) for k, tensor in enumerate(tensors)]


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
