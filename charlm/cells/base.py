"""What every kind of cell shares: checks, states, dropout, initialisation, choice of implementation."""

import math
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, TypedDict

import torch
from torch import Tensor, nn

from charlm.native.build import KernelError, load
from charlm.native.call import Kernel, autocasts_to_bf16
from charlm.native.generate import Generator, Step
from charlm.native.lookup import Lookup
from charlm.native.random import random_mask
from charlm.native.shared import SHARED_KERNELS

LayerState = tuple[Tensor, ...]
"""The state of one layer: a tensor [B, H] for every name in `RecurrentBase.state_names`."""

RecurrentState = Tensor | tuple[Tensor, ...]
"""The state of a stack: [L, B, H], or a tuple of these where a kind has several (LSTM: h and c)."""


class LayerCall(NamedTuple):
    """What one layer computes with, in one call."""

    parameters: list[Tensor]
    """In the order of `parameter_shapes`; `weight_hh` with the weights of this call dropped."""
    state: LayerState
    mask_BH: Tensor | None = None
    """Multiplies the state where it enters the recurrent linear maps."""
    kept_TBS: Tensor | None = None
    """How much of its former value every unit of the state keeps, see `zone_out`: H units of each of `state_names`."""


LayerFunction = Callable[[Any, LayerCall], tuple[Tensor, LayerState]]
"""(x_TBI, call) → (y_TBH, the layer's last state)."""


class Implementation(NamedTuple):
    """The function that computes a layer, and the line that tells a person which it is and why."""

    layer: LayerFunction
    description: str
    is_kernel: bool = False
    """Whether it is the kind's kernel, which also takes a Lookup in place of x_TBI."""


def dropout_mask(shape: tuple[int, ...], p: float, like: Tensor) -> Tensor:
    """0 with probability p, else 1/(1−p), so that the expected product with it changes nothing.

    Drawn from torch's global generator, in the dtype and on the device of `like`. On the CPU p is rounded to a
    multiple of 2⁻¹⁶: sixteen random bits an element take a small part of the time of torch's own draws.
    """
    if like.device.type != "cpu":
        return torch.empty(shape, dtype=like.dtype, device=like.device).bernoulli_(1 - p).div_(1 - p)
    return random_mask(shape, kept=max(1, round((1 - p) * 2**16))).to(like.dtype)


def zone_out(new_BH: Tensor, old_BH: Tensor, kept_TBH: Tensor | None, t: int) -> Tensor:
    """kept ⊙ old + (1 − kept) ⊙ new: what step t makes of a state (Krueger et al. 2017).

    kept is [T, B, H] or, alike for all steps and streams, [1, 1, H]; None: 0 everywhere.
    """
    if kept_TBH is None:
        return new_BH
    return torch.lerp(new_BH, old_BH, kept_TBH[t % len(kept_TBH)])


def add_product(a_BG: Tensor, h_BH: Tensor, w_HG: Tensor, mask_BH: Tensor | None) -> Tensor:
    """a + (h ⊙ mask) w: the recurrent linear map of every kind; returns [B, G] in h's dtype.

    Autocast takes the product in bfloat16; what follows, the state above all, stays float32. Pass w as
    a view of its parameter: autocast then casts it anew at every step, and its gradient adds up over
    the steps in float32 instead of bfloat16.
    """
    if mask_BH is not None:
        h_BH = h_BH * mask_BH
    return torch.addmm(a_BG, h_BH, w_HG).to(h_BH.dtype)


class RecurrentOptions(TypedDict, total=False):
    """The options that every kind has; see `RecurrentBase`."""

    dropout: float
    state_dropout: float
    weight_dropout: float
    variational: bool
    zoneout: float
    residual: bool


class RecurrentBase(nn.Module):
    """`num_layers` recurrent layers over a window of T steps, each reading the one below.

    A kind of cell is a subclass: it names its states and parameters, takes its own options, calls
    `create_parameters` at the end of `__init__`, and gives `reference_layer`; with a `kernel` also `kernel_layer`
    and `kernel_step`.

    Args:
        dropout: probability of dropping a unit of the input of every layer above the first.
        variational: one such mask for all steps of a call, instead of a fresh one at every step.
        state_dropout: probability of dropping a unit of the state where it enters the recurrent
            linear maps; one mask per layer for all steps of a call (Gal & Ghahramani 2016).
        weight_dropout: probability of dropping a weight of the recurrent linear maps; one mask of
            `weight_hh` per layer for all steps and streams of a call (Merity et al. 2018).
        zoneout: probability that a unit of the state keeps its former value in a step, drawn anew for every
            unit of every tensor of the state; in evaluation the expected value (Krueger et al. 2017,
            arXiv:1606.01305).
        residual: add the input of every layer above the first to its output, for the layer above and for
            the stack's outputs (Wu et al. 2016, arXiv:1609.08144, (6)). The states stay the layers' own, and
            dropout acts on what a layer reads, not on what is added.

    Dropout acts in training mode only. Each call draws, from the lowest layer to the highest: the
    mask of the layer's input (above the first), that of its state, that of its weights, and what zoneout
    keeps of each tensor of its state, side by side.
    """

    kind: ClassVar[str]
    kernel: ClassVar[Kernel | None] = None
    """The kind's cpu.cpp, if it has one."""
    state_names: ClassVar[tuple[str, ...]] = ("h",)
    option_names: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        dropout: float = 0.0,
        state_dropout: float = 0.0,
        weight_dropout: float = 0.0,
        variational: bool = False,
        zoneout: float = 0.0,
        residual: bool = False,
    ) -> None:
        super().__init__()
        self.check_positive(input_size=input_size, hidden_size=hidden_size, num_layers=num_layers)
        self.check_probability(dropout=dropout, state_dropout=state_dropout, weight_dropout=weight_dropout)
        self.check_probability(zoneout=zoneout)
        self.check_choice((False, True), variational=variational, residual=residual)
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.dropout = dropout
        self.state_dropout = state_dropout
        self.weight_dropout = weight_dropout
        self.variational = variational
        self.zoneout = zoneout
        self.residual = residual

    # What a kind of cell defines

    def parameter_shapes(self, layer: int) -> dict[str, tuple[int, ...]]:
        """Names, without their suffix `_l{layer}`, and shapes of one layer's parameters, in order."""
        raise NotImplementedError

    def reference_layer(self, x_TBI: Tensor, call: LayerCall) -> tuple[Tensor, LayerState]:
        """One layer by the equations of the kind's `reference.py`."""
        raise NotImplementedError

    def kernel_layer(self, x: Tensor | Lookup, call: LayerCall) -> tuple[Tensor, LayerState]:
        """One layer by the kind's kernel; float32 on the CPU."""
        raise NotImplementedError

    def kernel_step(self, call: LayerCall) -> Step:
        """One layer, for the kernel's generation of characters from the call's state on."""
        raise NotImplementedError

    def set_special_biases(self) -> None:
        """Set the biases that start at a value of their own; the rest are initialised already."""

    # Forward

    def forward(self, x: Tensor | Lookup, state: RecurrentState | None = None) -> tuple[Tensor, RecurrentState]:
        """Outputs [T, B, H] of the top layer, and the last state of every layer, [L, B, H].

        x is [T, B, I], as a tensor or as a lookup. Without `state` the window starts from zeros. Outputs and
        states have the parameters' dtype, under autocast too. ValueError for shapes that do not fit.
        """
        device = x.ids_TB.device if isinstance(x, Lookup) else x.device
        return self.run_layers(self.choose(device, self.training), x, state)

    def forward_reference(
        self, x: Tensor | Lookup, state: RecurrentState | None = None
    ) -> tuple[Tensor, RecurrentState]:
        """`forward` by the reference equations, whatever else could run: what every other way is held to."""
        return self.run_layers(Implementation(self.reference_layer, ""), x, state)

    def choose(self, device: torch.device, training: bool) -> Implementation:
        """What computes a layer in `forward`: the kind's kernel wherever it can."""
        if device.type != "cpu" or self.kernel is None:
            return self.choose_other(device, training)
        if reason := self.why_no_kernel():
            other = self.choose_other(device, training)
            return other._replace(description=f"{other.description}; no fused CPU kernel: {reason}")
        return Implementation(self.kernel_layer, f"{self.kind}: fused CPU kernel", is_kernel=True)

    def generator(
        self, state: RecurrentState, table_VI: Tensor | None, decoder: tuple[Tensor, Tensor]
    ) -> Generator | None:
        """What draws characters by the kind's kernel after `state`, in evaluation mode; None where no kernel can.

        table_VI: what the stack reads of each character, None for one-hot; decoder: weights [V, H] and biases [V]
        of the logits.
        """
        device = next(self.parameters()).device
        if not self.choose(device, training=False).is_kernel:
            return None
        assert self.kernel is not None
        layer_states = self.split_state(state, (state if isinstance(state, Tensor) else state[0]).shape[1])
        steps = [
            self.kernel_step(self.layer_call(layer, layer_state, steps=1, training=False))
            for layer, layer_state in enumerate(layer_states)
        ]
        return Generator(self.kernel, self.kind, steps, table_VI, decoder, residual=self.residual)

    def choose_other(self, device: torch.device, training: bool) -> Implementation:
        """What computes a layer where the kernel cannot."""
        return Implementation(self.reference_layer, f"{self.kind}: reference loop")

    def why_no_kernel(self) -> str | None:
        """Why the kind's kernel cannot compute a layer on the CPU; None if it can. Compiles it at first use."""
        parameter = next(self.parameters())
        if parameter.device.type != "cpu" or parameter.dtype != torch.float32:
            return "it computes in float32 on the CPU"
        if torch.is_autocast_enabled("cpu") and not autocasts_to_bf16():
            return "it takes products in float32 or bfloat16"
        assert self.kernel is not None
        try:
            load(self.kernel.source, *(kernel.source for kernel in SHARED_KERNELS))
        except KernelError as error:
            return str(error)
        return None

    def implementation(self, device: torch.device | str, training: bool = True) -> str:
        """A line for people: what `forward` runs on `device`, and why.

        Ask under the autocast that `forward` will run under, since it takes part in the choice.
        """
        return self.choose(torch.device(device), training).description

    def run_layers(
        self, implementation: Implementation, x: Tensor | Lookup, state: RecurrentState | None
    ) -> tuple[Tensor, RecurrentState]:
        """`forward` with the given function for a layer."""
        T, B = self.check_input(x)
        mask_shape = (1 if self.variational else T, B, self.hidden_size)
        if isinstance(x, Lookup) and not implementation.is_kernel:
            x = x.dense(self.input_size, like=next(self.parameters()))
        layer_states: list[LayerState] = []
        y: Any = x
        for layer, layer_state in enumerate(self.split_state(state, B)):
            inputs = y
            if layer > 0 and self.dropout > 0 and self.training:
                inputs = y * dropout_mask(mask_shape, self.dropout, like=y)
            call = self.layer_call(layer, layer_state, steps=T, training=self.training)
            output, layer_state = implementation.layer(inputs, call)
            y = y + output if layer > 0 and self.residual else output
            layer_states.append(layer_state)
        return y, self.join_states(layer_states)

    def layer_call(self, layer: int, state: LayerState, steps: int, training: bool) -> LayerCall:
        """A call of one layer, for which training draws masks."""
        parameters = dict(zip(self.parameter_shapes(layer), self.layer_parameters(layer), strict=True))
        weights = parameters["weight_hh"]
        mask_BH = kept_TBS = None
        if training and self.state_dropout > 0:
            mask_BH = dropout_mask(tuple(state[0].shape), self.state_dropout, like=weights)
        if training and self.weight_dropout > 0:
            parameters["weight_hh"] = weights * dropout_mask(tuple(weights.shape), self.weight_dropout, like=weights)
        B, S = len(state[0]), len(state) * self.hidden_size
        if training and self.zoneout > 0:
            kept_TBS = (dropout_mask((steps, B, S), self.zoneout, like=weights) == 0).to(weights.dtype)
        elif self.zoneout > 0:
            kept_TBS = weights.new_full((1, 1, S), self.zoneout)
        return LayerCall(list(parameters.values()), state, mask_BH, kept_TBS)

    def check_input(self, x: Tensor | Lookup) -> tuple[int, int]:
        """T and B of an input; ValueError unless it is [T, B, I] with T ≥ 1."""
        if isinstance(x, Lookup):
            size = self.input_size if x.table_VI is None else x.table_VI.shape[1]
            shape = [*x.ids_TB.shape, size]
        else:
            shape = list(x.shape)
        if len(shape) != 3 or shape[0] == 0 or shape[2] != self.input_size:
            raise ValueError(f"{self.kind}: input of shape {shape}; allowed is [T, B, {self.input_size}] with T ≥ 1")
        return shape[0], shape[1]

    # State

    def zero_state(self, batch_size: int) -> RecurrentState:
        """The state that a stream starts with."""
        zeros = next(self.parameters()).new_zeros
        shape = (self.num_layers, batch_size, self.hidden_size)
        states = tuple(zeros(shape) for _ in self.state_names)
        return states[0] if len(states) == 1 else states

    def split_state(self, state: RecurrentState | None, batch_size: int) -> list[LayerState]:
        """The state of each layer; ValueError unless it is made of as many [L, B, H] as the kind has."""
        if state is None:
            state = self.zero_state(batch_size)
        tensors = (state,) if isinstance(state, Tensor) else tuple(state)
        shape = [self.num_layers, batch_size, self.hidden_size]
        found = [list(tensor.shape) for tensor in tensors]
        if found != [shape] * len(self.state_names):
            raise ValueError(
                f"{self.kind}: state of shapes {', '.join(map(str, found))}; "
                f"allowed is ({', '.join(self.state_names)}) of shape [L, B, H] = {shape} each"
            )
        return list(zip(*(tensor.unbind() for tensor in tensors), strict=True))

    def join_states(self, layer_states: list[LayerState]) -> RecurrentState:
        """The inverse of `split_state`."""
        states = tuple(torch.stack(tensors) for tensors in zip(*layer_states, strict=True))
        return states[0] if len(states) == 1 else states

    # Parameters

    def create_parameters(self) -> None:
        """Register the parameters of every layer and initialise them."""
        for layer in range(self.num_layers):
            for name, shape in self.parameter_shapes(layer).items():
                self.register_parameter(f"{name}_l{layer}", nn.Parameter(torch.empty(shape)))
        self.reset_parameters()

    def layer_input_size(self, layer: int) -> int:
        return self.input_size if layer == 0 else self.hidden_size

    def layer_parameters(self, layer: int) -> list[Tensor]:
        """The parameters of one layer, in the order of `parameter_shapes`."""
        return [getattr(self, f"{name}_l{layer}") for name in self.parameter_shapes(layer)]

    def reset_parameters(self) -> None:
        """U(±1/√H) for weights and biases, as torch.nn; biases that have their own value start at it."""
        bound = 1 / math.sqrt(self.hidden_size)
        self.draw_parameters(weight_bound=bound, bias_bound=bound)

    def init_uniform_(self, bound: float) -> None:
        """U(±bound) for weights, zero for biases; biases that have their own value start at it."""
        if not 0 <= bound < math.inf:
            raise ValueError(f"{self.kind}: bound={bound!r}; allowed are 0 ≤ bound < ∞")
        self.draw_parameters(weight_bound=bound, bias_bound=0.0)

    @torch.no_grad()
    def init_orthogonal_(self) -> None:
        """Every [H, H] block of the recurrent weights, gate by gate, a random orthogonal matrix (Saxe et al. 2014)."""
        for name, parameter in self.named_parameters():
            if name.startswith("weight_hh"):
                for block_HH in parameter.view(-1, self.hidden_size, self.hidden_size):
                    nn.init.orthogonal_(block_HH)

    @torch.no_grad()
    def draw_parameters(self, weight_bound: float, bias_bound: float) -> None:
        for name, parameter in self.named_parameters():
            if name.startswith("weight_ln"):
                nn.init.ones_(parameter)
            elif name.startswith("bias_ln"):
                nn.init.zeros_(parameter)
            else:
                bound = weight_bound if name.startswith("weight") else bias_bound
                nn.init.uniform_(parameter, -bound, bound)
        self.set_special_biases()

    def extra_repr(self) -> str:
        names = ("num_layers", *self.option_names, *RecurrentOptions.__annotations__)
        options = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{self.input_size}, {self.hidden_size}, {options}"

    # Checks of options

    def check_positive(self, **values: int) -> None:
        for name, value in values.items():
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{self.kind}: {name}={value!r}; allowed are integers ≥ 1")

    def check_probability(self, **values: float) -> None:
        for name, value in values.items():
            if not 0 <= value < 1:
                raise ValueError(f"{self.kind}: {name}={value!r}; allowed are 0 ≤ {name} < 1")

    def check_finite(self, **values: float) -> None:
        for name, value in values.items():
            if not math.isfinite(value):
                raise ValueError(f"{self.kind}: {name}={value!r}; allowed are finite numbers")

    def check_choice(self, allowed: tuple[Any, ...], **values: Any) -> None:
        for name, value in values.items():
            if value not in allowed:
                listed = ", ".join(map(repr, allowed))
                raise ValueError(f"{self.kind}: {name}={value!r}; allowed are {listed}")
