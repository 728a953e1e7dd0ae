"""One recurrent layer over a window: the autograd function, and the buffers of both passes of any cell."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from charlm.cells.passes import Passes
from charlm.cells.program import units
from charlm.native.call import autocasts_to_bf16, first_derivative


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
    """matmul(a_MK, b_KN, bf16=…, out=c_MN): c = a b."""

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
        names = tuple(dict.fromkeys(product.name for product in passes.products))
        weights = [inputs.weights[name] for name in names]
        numbers = passes, inputs.input_size, inputs.steps, torch.is_grad_enabled(), autocasts_to_bf16(state[0].device)
        tensors = (inputs.ids_TB, mask_BH, zoneout_TBS, carry_TB, *inputs.windows, *inputs.vectors, *weights, *state)
        call = _Call(self, *numbers, names, self.buffers_of(numbers, tensors, cache))
        y_TBH, *last = _Sequence.apply(call, *tensors)  # type: ignore[misc]
        return y_TBH, tuple(last)


class _Call(NamedTuple):
    """The arguments of a call that are not tensors."""

    driver: Driver
    passes: Passes
    input_size: int
    steps: int
    with_backward: bool
    bf16: bool
    names: tuple[str, ...]
    """Names of the matrices."""
    buffers_of: BuffersOf

    def split_tensors(self, tensors: Sequence[Tensor]) -> tuple[list[Tensor], ...]:
        """Windows, vectors, matrices and states."""
        remaining = iter(tensors)
        counts = len(self.passes.split.windows), len(self.passes.split.vectors), len(self.names)
        return (*(list(itertools.islice(remaining, count)) for count in counts), list(remaining))

    def matrices(self, weights: Sequence[Tensor]) -> list[Tensor]:
        """The matrix of each product, from the tensors of `names`."""
        return matrices(self.passes, dict(zip(self.names, weights, strict=True)))


def matrix(weights: Tensor, index: int) -> Tensor:
    """Matrix `index` of a stack, or the only one."""
    return weights[index] if weights.dim() == 3 else weights


def matrices(passes: Passes, weights: Mapping[str, Tensor]) -> list[Tensor]:
    """The matrix of each product in the loop."""
    return [matrix(weights[product.name], product.index) for product in passes.products]


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


class _Sequence(torch.autograd.Function):
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
        passes, window, passing = call.passes, call.buffers_of("window"), call.buffers_of("forward")
        windows, vectors, weights, state = call.split_tensors(tensors)
        T, (B, H) = call.steps, state[0].shape
        masks = {"mask": mask_BH, "zoneout": zoneout_TBS, "carry": carry_TB}
        masks = {name: None if mask is None else window.read(name, mask) for name, mask in masks.items()}
        weights, vectors = _read(window, "weights", weights), _read(window, "vectors", vectors)
        windows = _read(window if passes.reads_windows else passing, "windows", windows)
        states = window.new("states", state[0], len(state), 1 + T, B, H)
        for first, tensor in zip(states[:, 0], state, strict=True):
            first.copy_(tensor)
        steps, pre_zoneout = T if call.with_backward else 1, zoneout_TBS is not None or carry_TB is not None
        saved = saved_for_backward(
            call.driver, passes, call.input_size, window, state[0], steps, pre_zoneout=pre_zoneout
        )
        outputs = None if carry_TB is None else passing.new("outputs", states, *states.shape[1:]).narrow(0, 0, T)
        kept = {**masks, **saved, "ids": ids_TB, "states": states, "vectors": vectors}
        call.driver.run(
            Window(
                passes, T, B, H, call.input_size, call.bf16, steps, **kept,
                weights=call.matrices(weights), windows=windows, outputs=outputs,
            )
        )  # fmt: skip
        ctx.call, ctx.window, ctx.V = call, window, len(windows[0]) if windows else 0
        _save(ctx, {**kept, "weights": weights, "windows": windows if passes.reads_windows else []})
        # Clones: views would hold the states of the whole window in memory.
        return passing.result(states[0, 1:] if outputs is None else outputs), *states[:, -1].clone()

    @staticmethod
    @first_derivative
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, dy_TBH: Tensor, *d_last: Tensor
    ) -> tuple[Tensor | None, ...]:
        call: _Call = ctx.call
        saved, passes, buffers = _saved(ctx), call.passes, call.buffers_of("backward")
        weights, states, ids_TB = saved.pop("weights"), saved["states"], saved["ids"]
        T, B, H = dy_TBH.shape
        widths = [product.gates * units(product.size, H, call.input_size) for product in passes.products]
        d_products = [buffers.new(f"d_products{k}", states, T, B, width) for k, width in enumerate(widths)]
        d_first = buffers.new("d_first", states, len(states), B, H)
        like_windows, like_vectors = passes.like_windows, passes.like_vectors
        nodes = [passes.split.program.nodes[place] for place in passes.split.windows]
        widths = [node.count * units(node.size, H, call.input_size) for node in nodes]
        d_windows = [
            d_products[like_windows[k]] if k in like_windows else buffers.new(f"d_windows{k}", states, T, B, width)
            for k, width in enumerate(widths)
        ]
        d_vectors = [
            None if k in like_vectors else buffers.new(f"d_vectors{k}", states, *vector.shape).zero_()
            for k, vector in enumerate(saved["vectors"])
        ]
        call.driver.run(
            Window(
                passes, T, B, H, call.input_size, call.bf16, T, **saved, weights=call.matrices(weights),
                d_outputs=buffers.read("d_outputs", dy_TBH), d_last=buffers.read("d_last", torch.stack(d_last)),
                d_products=d_products, d_windows=d_windows, d_vectors=d_vectors, d_first=d_first,
            )
        )  # fmt: skip
        d_rows = [call.driver.gradient_of_rows(buffers.result(one), ids_TB, ctx.V) for one in d_windows]
        d_vectors = [
            d_products[like_vectors[k]].sum((0, 1)) if one is None else buffers.result(one)
            for k, one in enumerate(d_vectors)
        ]
        d_weights = _matrix_gradients(call, weights, d_products, saved)
        return None, None, None, None, None, *d_rows, *d_vectors, *d_weights, *buffers.result(d_first)


def _matrix_gradients(
    call: _Call, weights: list[Tensor], d_products: list[Tensor], saved: dict[str, Any]
) -> list[Tensor]:
    """The gradients of the matrices: each product's output gradient times its operand, summed over steps."""
    passes, states, mask_BH = call.passes, saved["states"], saved["mask"]
    d_weights, written = [torch.empty_like(weight) for weight in weights], set()
    for product, d_TBG, d_matrix in zip(passes.products, d_products, call.matrices(d_weights), strict=True):
        operand = passes.operands[product.operand]
        if operand.state:
            v_TBK = states[passes.split.loop.states.index(operand.state), :-1]
        else:
            v_TBK = saved["operands"][passes.stored_operands.index(product.operand)][: len(d_TBG)]
        if mask_BH is not None and operand.size == "H":
            v_TBK = v_TBK * mask_BH
        again = (product.name, product.index) in written
        written.add((product.name, product.index))
        out = torch.empty_like(d_matrix) if again else d_matrix
        call.driver.matmul(d_TBG.flatten(0, 1).t(), v_TBK.flatten(0, 1), bf16=call.bf16, out=out)
        if again:
            d_matrix += out
    return d_weights


def _read(buffers: Buffers, name: str, tensors: Sequence[Tensor]) -> list[Tensor]:
    """The tensors as the driver reads them."""
    return [buffers.read(f"{name}{k}", tensor) for k, tensor in enumerate(tensors)]


def _save(ctx: Any, values: dict[str, Any]) -> None:
    """Save tensors, and lists of them, for the backward pass."""
    ctx.lengths = {name: len(value) if isinstance(value, list) else None for name, value in values.items()}
    lists = (value if isinstance(value, list) else [value] for value in values.values())
    ctx.save_for_backward(*(tensor for tensors in lists for tensor in tensors))


def _saved(ctx: Any) -> dict[str, Any]:
    """The inverse of `_save`."""
    tensors = iter(ctx.saved_tensors)
    return {
        name: next(tensors) if length is None else [next(tensors) for _ in range(length)]
        for name, length in ctx.lengths.items()
    }
