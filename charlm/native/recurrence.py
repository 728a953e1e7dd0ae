"""One recurrent layer over a window, with the equations of a kind: the autograd function, and the driver in C++."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from charlm.native.call import Kernel, autocasts_to_bf16, first_derivative
from charlm.native.linear import gradient_of_inputs, matmul, project
from charlm.native.lookup import Lookup
from charlm.native.structs import Struct, Value

_HERE = Path(__file__).parent
_WIDEST = 16  # the largest W of vector.h


class LayerWeights(NamedTuple):
    """The parameters of one layer, in float32, as the driver takes them."""

    w_ih_GI: Tensor
    bias_G: Tensor
    """All biases that are added to the product of the input, see `b_hh_DG`."""
    w_hh_DGH: Tensor
    """[G, H] for one micro-step per step, or [D, G, H]."""
    b_hh_DG: Tensor | None = None
    """Biases of the recurrent products of the second and later micro-steps and, in the first, of the gates that stay
    apart; other elements are not used. None: there are none."""
    norm: tuple[Tensor, Tensor] | None = None
    """Gains and biases of layer normalization, [gates + 1, H] each: those of the gates, then of the second state."""
    epsilon: float = 0.0
    """Added to the variance in layer normalization."""
    variant: int = 0
    """The index in `Variants` of gates.h."""


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


class Driver:
    """Computes a window's steps and their gradients. The autograd function around them is the same for every driver."""

    def sizes(self, variant: int) -> tuple[int, int]:
        """Vectors per unit that the backward pass needs, and the number of gates that stay apart."""
        raise NotImplementedError

    def padded(self, units: int) -> int:
        """Units for which `saved` and `normal` have room, in a layout that the driver chooses."""
        return units

    def __call__(self, function: str, **values: Value) -> None:
        """recurrence_forward or recurrence_backward; the values are the fields of `Arguments` in recurrence.h."""
        raise NotImplementedError

    def project(self, x: Tensor | Lookup, w_GI: Tensor, bias_G: Tensor) -> tuple[Tensor, Tensor | None]:
        """Input products, see `native.linear.project`."""
        raise NotImplementedError

    def gradient_of_inputs(self, d_rows_TBG: Tensor, ids_TB: Tensor | None, V: int) -> Tensor:
        """The gradient of the first result of `project`, see `native.linear.gradient_of_inputs`."""
        raise NotImplementedError

    def matmul(self, a_MK: Tensor, b_KN: Tensor, *, bf16: bool, out: Tensor) -> None:
        """out = a b, [M, N]."""
        raise NotImplementedError

    def scratch(self, like_BK: Tensor, *, copied: bool, gains: Tensor | None) -> dict[str, Value]:
        """Further fields of `Arguments` for a call: scratch memory. copied: whether products read copies like this."""
        return {}

    def lease(self, numbers: tuple[Any, ...], tensors: Sequence[Tensor | None], memory: object) -> "Lease":
        """What gives a call its memory. memory: see `layer`; numbers and tensors: all that the call takes."""
        return _fresh

    def layer(
        self,
        x: Tensor | Lookup,
        state: tuple[Tensor, ...],
        weights: LayerWeights,
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
        inputs, ids_TB = self.project(x, weights.w_ih_GI, weights.bias_G)
        numbers = weights.variant, weights.epsilon, torch.is_grad_enabled(), autocasts_to_bf16(state[0].device)
        tensors = (
            inputs, ids_TB, weights.w_hh_DGH, weights.b_hh_DG, *(weights.norm or (None, None)),
            mask_BH, kept_TBS, carried_TB, *state,
        )  # fmt: skip
        call = _Call(self, *numbers, self.lease(numbers, tensors, memory))
        y_TBH, *last = _Sequence.apply(call, *tensors)  # type: ignore[misc]
        return y_TBH, tuple(last)


class Recurrence(Kernel, Driver):
    """The driver in C++, compiled with the equations in the gates.h of `folder`. In float32 on the CPU."""

    def __init__(self, folder: Path) -> None:
        structs = Struct(_HERE / "recurrence.h"), Struct(_HERE / "generate.h", "Generation")
        super().__init__(_HERE / "recurrence.cpp", structs, folder)
        self._sizes: dict[int, tuple[int, int]] = {}

    def sizes(self, variant: int) -> tuple[int, int]:
        if variant not in self._sizes:
            sizes = self.structs[0].fill(variant=variant)
            self.call("recurrence_sizes", sizes)
            self._sizes[variant] = sizes.saved_count, sizes.apart_count
        return self._sizes[variant]

    def padded(self, units: int) -> int:
        return -(-units // _WIDEST) * _WIDEST

    def project(self, x: Tensor | Lookup, w_GI: Tensor, bias_G: Tensor) -> tuple[Tensor, Tensor | None]:
        return project(x, w_GI, bias_G)

    def gradient_of_inputs(self, d_rows_TBG: Tensor, ids_TB: Tensor | None, V: int) -> Tensor:
        return gradient_of_inputs(d_rows_TBG, ids_TB, V)

    def matmul(self, a_MK: Tensor, b_KN: Tensor, *, bf16: bool, out: Tensor) -> None:
        matmul(a_MK, b_KN, bf16=bf16, out=out)

    def scratch(self, like_BK: Tensor, *, copied: bool, gains: Tensor | None) -> dict[str, Value]:
        B, K = like_BK.shape
        # Two buffers for copies, in float32, or in bfloat16 padded to a multiple of 32 elements; the padding must be 0.
        operands = like_BK.new_zeros(2, B, K + 16) if copied else None
        # The sums that threads exchange in layer normalization.
        partials = None if gains is None else gains.new_empty(torch.get_num_threads(), 2 * len(gains), B)
        return {"operands": operands, "partials": partials}

    def one_step(
        self, state: tuple[Tensor, ...], weights: LayerWeights, kept_11S: Tensor | None = None
    ) -> dict[str, Value]:
        """Fields of `Arguments` for generation from `state`, all but the input's; states are [S, 2, B, H].

        Call it under the same autocast as `Generator`.
        """
        call = _Call(self, weights.variant, weights.epsilon, False, autocasts_to_bf16(), _fresh)
        gains, shifts = weights.norm or (None, None)
        return {
            **_sizes(call, 1, state[0], weights.w_hh_DGH, kept_11S),
            **_saved(call, call.lease("window"), 1, state, weights.w_hh_DGH, gains, makes=kept_11S is not None),
            "weights": weights.w_hh_DGH.detach().contiguous(),
            "biases": None if weights.b_hh_DG is None else weights.b_hh_DG.detach().contiguous(),
            "gains": gains,
            "shifts": shifts,
            "kept": kept_11S,
            "states": torch.stack([torch.stack([tensor, tensor]) for tensor in state]),
            **self.scratch(state[0], copied=call.bf16, gains=gains),
        }


Lease = Callable[[str], Memory]
"""Memory for a part of a call: "window" until its backward pass is over; "forward" or "backward" during that pass."""


def _fresh(part: str) -> Memory:
    """The lease that keeps nothing."""
    return Memory()


class _Call(NamedTuple):
    """What a call takes besides tensors."""

    driver: Driver
    variant: int
    epsilon: float
    with_backward: bool
    bf16: bool
    lease: Lease


def _read(memory: Memory, **tensors: Tensor | None) -> dict[str, Tensor | None]:
    """What the driver reads as these tensors."""
    return {name: None if tensor is None else memory.read(name, tensor) for name, tensor in tensors.items()}


class _Sequence(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        call: _Call,
        inputs: Tensor,
        ids_TB: Tensor | None,
        w_hh_DGH: Tensor,
        b_hh_DG: Tensor | None,
        gains: Tensor | None,
        shifts: Tensor | None,
        mask_BH: Tensor | None,
        kept_TBS: Tensor | None,
        carried_TB: Tensor | None,
        *state: Tensor,
    ) -> tuple[Tensor, ...]:
        T, B = (inputs if ids_TB is None else ids_TB).shape[:2]
        H, window, passing = w_hh_DGH.shape[-1], call.lease("window"), call.lease("forward")
        read = _read(
            window, weights=w_hh_DGH, gains=gains, shifts=shifts, mask=mask_BH, kept=kept_TBS, carried=carried_TB
        )
        states = window.new("states", w_hh_DGH, len(state), 1 + T, B, H)
        for first, tensor in zip(states[:, 0], state, strict=True):
            first.copy_(tensor)
        makes = kept_TBS is not None or carried_TB is not None
        saved = _saved(call, window, T, state, w_hh_DGH, gains, makes=makes)
        outputs = None if carried_TB is None else passing.new("outputs", w_hh_DGH, T, B, H)
        call.driver(
            "recurrence_forward",
            **_sizes(call, T, state[0], w_hh_DGH, kept_TBS),
            **saved,
            **read,
            **_read(passing, inputs=inputs, biases=b_hh_DG),
            ids=ids_TB,
            outputs=outputs,
            states=states,
            **call.driver.scratch(state[0], copied=call.bf16 or mask_BH is not None, gains=gains),
        )
        ctx.call, ctx.window, ctx.V, ctx.has_biases = call, window, len(inputs), b_hh_DG is not None
        ctx.save_for_backward(ids_TB, states, *read.values(), *saved.values())
        # Copies: a view would keep the states of the whole window.
        return passing.result(states[0, 1:] if outputs is None else outputs), *states[:, -1].clone()

    @staticmethod
    @first_derivative
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, dy_TBH: Tensor, *d_last: Tensor
    ) -> tuple[Tensor | None, ...]:
        ids_TB, states, *rest = ctx.saved_tensors
        read: dict[str, Any] = dict(zip(_READ, rest[: len(_READ)], strict=True))
        saved: dict[str, Any] = dict(zip(_SAVED, rest[len(_READ) :], strict=True))
        call: _Call = ctx.call
        weights, gains, mask_BH = read["weights"], read["gains"], read["mask"]
        (T, B, H), G, D = dy_TBH.shape, weights.shape[-2], _depth(weights)
        passing = call.lease("backward")
        new, result = passing.new, passing.result
        d_maps, d_first = new("d_maps", dy_TBH, D, T, B, G), new("d_first", dy_TBH, len(states), B, H)
        apart = call.driver.sizes(call.variant)[1]
        d_inputs = new("d_inputs", dy_TBH, T, B, G) if apart else None
        d_gains = d_shifts = None
        if gains is not None:
            d_gains, d_shifts = (new(name, gains, *gains.shape).zero_() for name in ("d_gains", "d_shifts"))
        call.driver(
            "recurrence_backward",
            **_sizes(call, T, d_first[0], weights, read["kept"]),
            **read,
            **saved,
            **_read(passing, d_outputs=dy_TBH, d_last=torch.stack(d_last)),
            states=states,
            d_maps=d_maps,
            d_inputs=d_inputs,
            d_gains=d_gains,
            d_shifts=d_shifts,
            d_first=d_first,
            **call.driver.scratch(d_maps[0, 0], copied=call.bf16, gains=gains),
        )
        dw_hh, db_DG = torch.empty_like(weights), None
        for d, dw_GH in enumerate(dw_hh.view(D, G, H)):
            before = states[0, :-1] if d == 0 else saved["inner"][d - 1]
            operands = before if mask_BH is None else before * mask_BH
            call.driver.matmul(d_maps[d].flatten(0, 1).t(), operands.flatten(0, 1), bf16=call.bf16, out=dw_GH)
        if ctx.has_biases:
            db_DG = d_maps.sum((1, 2))
            # The inputs contain the other biases of the first micro-step.
            db_DG[0, : G - apart * H] = 0
        d_inputs = result(d_maps[0] if d_inputs is None else d_inputs)
        d_inputs = call.driver.gradient_of_inputs(d_inputs, ids_TB, ctx.V)
        if d_gains is not None and d_shifts is not None:
            d_gains, d_shifts = result(d_gains), result(d_shifts)
        return None, d_inputs, None, dw_hh, db_DG, d_gains, d_shifts, None, None, None, *result(d_first)


def _depth(w_hh_DGH: Tensor) -> int:
    """D; weights without this dimension have 1."""
    return 1 if w_hh_DGH.dim() == 2 else len(w_hh_DGH)


_READ = ("weights", "gains", "shifts", "mask", "kept", "carried")
_SAVED = ("inner", "saved", "made", "normal", "moments")


def _saved(
    call: _Call,
    memory: Memory,
    T: int,
    state: tuple[Tensor, ...],
    weights: Tensor,
    gains: Tensor | None,
    *,
    makes: bool,
) -> dict[str, Tensor | None]:
    """The tensors that the backward pass needs, by their fields in `Arguments`; for one step only without it.

    Without a backward pass they are written all the same: with and without gradients the outputs are then the same to
    the last bit.
    """
    (B, H), G, steps = state[0].shape, weights.shape[-2], T if call.with_backward else 1
    D, padded = _depth(weights), call.driver.padded(H)
    shapes = {
        "inner": (D - 1, steps, B, H),
        "saved": (D, steps, B, call.driver.sizes(call.variant)[0], padded),
        "made": (len(state), steps, B, H) if makes else None,
        "normal": None if gains is None else (steps, B, G // H * padded),
        "moments": None if gains is None else (steps, B, len(gains) + 1),
    }
    return {name: None if shape is None else memory.new(name, weights, *shape) for name, shape in shapes.items()}


def _sizes(call: _Call, T: int, state_BH: Tensor, weights: Tensor, kept_TBS: Tensor | None) -> dict[str, Value]:
    """The numbers in `Arguments`."""
    B, H = state_BH.shape
    return {
        **{"T": T, "B": B, "H": H, "D": _depth(weights)},
        **{"variant": call.variant, "epsilon": call.epsilon, "bf16": call.bf16},
        "saved_steps": T if call.with_backward else 1,
        "kept_rows": 0 if kept_TBS is None else kept_TBS.shape[0] * kept_TBS.shape[1],
    }
