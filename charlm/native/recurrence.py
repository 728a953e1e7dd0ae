"""One recurrent layer over a window: the autograd function, and memory for both passes of any cell."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from charlm.cells.passes import Passes
from charlm.cells.program import units
from charlm.native.call import autocasts_to_bf16, first_derivative
from charlm.native.structs import Value


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
    """0 if no vector in the loop has as many units: layers of different inputs are then alike."""
    steps: int


class Memory:
    """Where a call of a layer has its tensors: here wherever PyTorch puts them; see also gpu/memory.py."""

    def new(self, name: str, like: Tensor, *shape: int) -> Tensor:
        """A tensor for the driver to write; it may hold anything."""
        return like.new_empty(shape)

    def read(self, name: str, tensor: Tensor) -> Tensor:
        """What the driver reads as this tensor."""
        return tensor.contiguous()

    def result(self, tensor: Tensor) -> Tensor:
        """What the caller gets of a tensor that the driver wrote."""
        return tensor


Lease = Callable[[str], Memory]
"""Memory for a part of a call: "window" until its backward pass is over; "forward" or "backward" during that pass."""
Values = dict[str, Value | Sequence[Tensor | None]]
"""The fields of `Arguments` in recurrence.h; a table of pointers is a list of tensors."""


def fresh(part: str) -> Memory:
    """The lease that keeps nothing."""
    return Memory()


class Driver:
    """Computes a window's steps and their gradients. The autograd function around them is the same for every driver."""

    def padded(self, units: int) -> int:
        """Units for which `saved` has room, in a layout that the driver chooses."""
        return units

    def run(self, function: str, passes: Passes, values: Values) -> None:
        """recurrence_forward or recurrence_backward; the values are the fields of `Arguments` in recurrence.h."""
        raise NotImplementedError

    takes_ids = False
    """Whether the windows may be rows of a table, which each step reads by an id."""

    def linear(self, x: Tensor, w_NK: Tensor, bias_N: Tensor | None = None) -> Tensor:
        """x wᵀ + bias over the last dimension of x, as `F.linear`; float32 also of operands rounded to bfloat16."""
        raise NotImplementedError

    def gradient_of_rows(self, d_rows_TBN: Tensor, ids_TB: Tensor | None, V: int) -> Tensor:
        """The gradient of a window's rows [V, N], from that of the row that each step reads."""
        raise NotImplementedError

    def matmul(self, a_MK: Tensor, b_KN: Tensor, *, bf16: bool, out: Tensor) -> None:
        """out = a b, [M, N]."""
        raise NotImplementedError

    def lease(self, numbers: tuple[Any, ...], tensors: Sequence[Tensor | None], memory: object) -> Lease:
        """What gives a call its memory. memory: see `layer`; numbers and tensors: all that the call takes."""
        return fresh

    def layer(
        self,
        passes: Passes,
        inputs: LoopInputs,
        state: tuple[Tensor, ...],
        mask_BH: Tensor | None = None,
        kept_TBS: Tensor | None = None,
        carried_TB: Tensor | None = None,
        memory: object = None,
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Outputs [T, B, H] and last state, [B, H] for each state tensor.

        Under autocast to bfloat16 the products are bfloat16; sums, gates and states stay float32. For mask, kept and
        carried see `LayerCall`. memory: the stack's `KeptMemory`, for drivers that take it.
        """
        if carried_TB is not None:
            state = tuple(tensor * carried_TB[0, :, None] for tensor in state)
        names = tuple(dict.fromkeys(product.name for product in passes.products))
        weights = [inputs.weights[name] for name in names]
        numbers = passes, inputs.input_size, inputs.steps, torch.is_grad_enabled(), autocasts_to_bf16(state[0].device)
        tensors = (inputs.ids_TB, mask_BH, kept_TBS, carried_TB, *inputs.windows, *inputs.vectors, *weights, *state)
        call = _Call(self, *numbers, names, self.lease(numbers, tensors, memory))
        y_TBH, *last = _Sequence.apply(call, *tensors)  # type: ignore[misc]
        return y_TBH, tuple(last)


class _Call(NamedTuple):
    """What a call takes besides tensors."""

    driver: Driver
    passes: Passes
    input_size: int
    steps: int
    with_backward: bool
    bf16: bool
    names: tuple[str, ...]
    """Of the matrices."""
    lease: Lease

    def shares(self, tensors: Sequence[Tensor]) -> tuple[list[Tensor], ...]:
        """Windows, vectors, matrices and states."""
        split = self.passes.split
        shares, rest = [], list(tensors)
        for count in (len(split.windows), len(split.vectors), len(self.names)):
            shares.append(rest[:count])
            rest = rest[count:]
        return (*shares, rest)

    def matrices(self, weights: Sequence[Tensor]) -> list[Tensor]:
        """The matrix of each product, from the tensors of `names`."""
        return matrices(self.passes, dict(zip(self.names, weights, strict=True)))


def matrix(weights: Tensor, index: int) -> Tensor:
    """Matrix `index` of a stack, or the only one."""
    return weights[index] if weights.dim() == 3 else weights


def matrices(passes: Passes, weights: Mapping[str, Tensor]) -> list[Tensor]:
    """The matrix of each product in the loop."""
    return [matrix(weights[product.name], product.index) for product in passes.products]


def buffers(
    driver: Driver, passes: Passes, input_size: int, memory: Memory, like: Tensor, steps: int, *, makes: bool
) -> Values:
    """The tensors that the backward pass needs, by their fields in `Arguments`, for this many steps.

    Without a backward pass they are written all the same: with and without gradients the outputs are then the same to
    the last bit. like: a state.
    """
    B, H = like.shape
    operands = {k: units(passes.operands[k].size, H, input_size) for k in passes.kept}
    saved = {size: (len(rows), units(size, H, input_size)) for size, rows in passes.forward.saved.items()}
    norms = len(passes.normalizations)
    return {
        # Without a backward pass in two places in turn: one is written while others still read the other.
        "operands": [memory.new(f"operands{k}", like, max(steps, 2), B, n) for k, n in operands.items()],
        "saved": [
            memory.new(f"saved{size}", like, steps, B, count, driver.padded(n)) for size, (count, n) in saved.items()
        ],
        "made": memory.new("made", like, len(passes.split.loop.states), steps, B, H) if makes else None,
        "moments": memory.new("moments", like, steps, B, norms, 2) if norms else None,
    }


def numbers(input_size: int, T: int, like: Tensor, kept_TBS: Tensor | None, *, steps: int, bf16: bool) -> Values:
    """The numbers in `Arguments`. like: a state; steps: those that `buffers` are for."""
    B, H = like.shape
    rows = 0 if kept_TBS is None else kept_TBS.shape[0] * kept_TBS.shape[1]
    return {"T": T, "B": B, "H": H, "I": input_size, "bf16": bf16, "saved_steps": steps, "kept_rows": rows}


class _Sequence(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        call: _Call,
        ids_TB: Tensor | None,
        mask_BH: Tensor | None,
        kept_TBS: Tensor | None,
        carried_TB: Tensor | None,
        *tensors: Tensor,
    ) -> tuple[Tensor, ...]:
        passes, window, passing = call.passes, call.lease("window"), call.lease("forward")
        windows, vectors, weights, state = call.shares(tensors)
        T = call.steps
        masks = {"mask": mask_BH, "kept": kept_TBS, "carried": carried_TB}
        masks = {name: None if one is None else window.read(name, one) for name, one in masks.items()}
        weights, vectors = _read(window, "weights", weights), _read(window, "vectors", vectors)
        windows = _read(window if passes.reads_windows else passing, "windows", windows)
        states = window.new("states", state[0], len(state), 1 + T, *state[0].shape)
        for first, tensor in zip(states[:, 0], state, strict=True):
            first.copy_(tensor)
        steps, makes = T if call.with_backward else 1, kept_TBS is not None or carried_TB is not None
        saved = buffers(call.driver, passes, call.input_size, window, state[0], steps, makes=makes)
        outputs = None if carried_TB is None else passing.new("outputs", states, *states.shape[1:]).narrow(0, 0, T)
        counts = numbers(call.input_size, T, state[0], kept_TBS, steps=steps, bf16=call.bf16)
        values = {**counts, **masks, **saved, "ids": ids_TB, "vectors": vectors}
        values |= {"weights": call.matrices(weights), "windows": windows, "states": states, "outputs": outputs}
        call.driver.run("recurrence_forward", passes, values)
        ctx.call, ctx.window, ctx.V = call, window, len(windows[0]) if windows else 0
        reads = {"windows": windows if passes.reads_windows else [], "vectors": vectors, "weights": weights}
        _keep(ctx, {**masks, **saved, **reads, "ids": ids_TB, "states": states})
        # Copies: a view would keep the states of the whole window.
        return passing.result(states[0, 1:] if outputs is None else outputs), *states[:, -1].clone()

    @staticmethod
    @first_derivative
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, dy_TBH: Tensor, *d_last: Tensor
    ) -> tuple[Tensor | None, ...]:
        call: _Call = ctx.call
        kept, passes, memory = _kept(ctx), call.passes, call.lease("backward")
        weights, states, ids_TB = kept.pop("weights"), kept["states"], kept["ids"]
        T, B, H = dy_TBH.shape
        widths = [product.gates * units(product.size, H, call.input_size) for product in passes.products]
        d_products = [memory.new(f"d_products{k}", states, T, B, width) for k, width in enumerate(widths)]
        d_first = memory.new("d_first", states, len(states), B, H)
        like_windows, like_vectors = passes.like_windows, passes.like_vectors
        nodes = [passes.split.program.nodes[place] for place in passes.split.windows]
        widths = [node.count * units(node.size, H, call.input_size) for node in nodes]
        d_windows = [
            d_products[like_windows[k]] if k in like_windows else memory.new(f"d_windows{k}", states, T, B, width)
            for k, width in enumerate(widths)
        ]
        d_vectors = [
            None if k in like_vectors else memory.new(f"d_vectors{k}", states, *vector.shape).zero_()
            for k, vector in enumerate(kept["vectors"])
        ]
        call.driver.run("recurrence_backward", passes, {
            **numbers(call.input_size, T, d_first[0], kept["kept"], steps=T, bf16=call.bf16),
            **kept, "weights": call.matrices(weights),
            "d_outputs": memory.read("d_outputs", dy_TBH), "d_last": memory.read("d_last", torch.stack(d_last)),
            "d_products": d_products, "d_windows": d_windows, "d_vectors": d_vectors, "d_first": d_first,
        })  # fmt: skip
        d_rows = [call.driver.gradient_of_rows(memory.result(one), ids_TB, ctx.V) for one in d_windows]
        d_vectors = [
            d_products[like_vectors[k]].sum((0, 1)) if one is None else memory.result(one)
            for k, one in enumerate(d_vectors)
        ]
        d_weights = _of_matrices(call, weights, d_products, kept)
        return None, None, None, None, None, *d_rows, *d_vectors, *d_weights, *memory.result(d_first)


def _of_matrices(call: _Call, weights: list[Tensor], d_products: list[Tensor], kept: dict[str, Any]) -> list[Tensor]:
    """The gradients of the matrices: of each product's gates, times what it multiplied."""
    passes, states, mask_BH = call.passes, kept["states"], kept["mask"]
    d_weights, begun = [torch.empty_like(weight) for weight in weights], set()
    for product, d_TBG, d_matrix in zip(passes.products, d_products, call.matrices(d_weights), strict=True):
        operand = passes.operands[product.operand]
        if operand.state:
            v_TBK = states[passes.split.loop.states.index(operand.state), :-1]
        else:
            v_TBK = kept["operands"][passes.kept.index(product.operand)][: len(d_TBG)]
        if mask_BH is not None and operand.size == "H":
            v_TBK = v_TBK * mask_BH
        again = (product.name, product.index) in begun
        begun.add((product.name, product.index))
        out = torch.empty_like(d_matrix) if again else d_matrix
        call.driver.matmul(d_TBG.flatten(0, 1).t(), v_TBK.flatten(0, 1), bf16=call.bf16, out=out)
        if again:
            d_matrix += out
    return d_weights


def _read(memory: Memory, name: str, tensors: Sequence[Tensor]) -> list[Tensor]:
    """What the driver reads as these tensors."""
    return [memory.read(f"{name}{k}", tensor) for k, tensor in enumerate(tensors)]


def _keep(ctx: Any, values: Values) -> None:
    """Save tensors, and lists of them, for the backward pass."""
    ctx.lengths = {name: len(value) if isinstance(value, list) else None for name, value in values.items()}
    lists = (value if isinstance(value, list) else [value] for value in values.values())
    ctx.save_for_backward(*(tensor for tensors in lists for tensor in tensors))


def _kept(ctx: Any) -> dict[str, Any]:
    """The inverse of `_keep`."""
    tensors = iter(ctx.saved_tensors)
    return {
        name: next(tensors) if length is None else [next(tensors) for _ in range(length)]
        for name, length in ctx.lengths.items()
    }
