"""What every kind of cell shares: options, states, dropout, initialization, choice of the backend."""

import math
from functools import partial
from typing import Any, ClassVar, TypedDict

import torch
from torch import Tensor, nn

from charlm.cells.backend import Backend, LayerCall, LayerState, Seen, Selection, select
from charlm.gpu.memory import KeptMemory
from charlm.gpu.recurrence import TensorRecurrence
from charlm.native.build import KernelError, load
from charlm.native.call import autocasts_to_bf16
from charlm.native.generate import Generator
from charlm.native.lookup import Lookup
from charlm.native.random import random_mask
from charlm.native.recurrence import Driver, LayerWeights, Recurrence
from charlm.native.shared import SHARED_KERNELS
from charlm.system.world import WHOLE, Part

RecurrentState = Tensor | tuple[Tensor, ...]
"""The state of all layers: [L, B, H], or one such tensor for each of `state_names` (LSTM: h and c)."""


def as_tuple(state: RecurrentState) -> tuple[Tensor, ...]:
    """The tensors of a recurrent state."""
    return (state,) if isinstance(state, Tensor) else tuple(state)


def dropout_mask(shape: tuple[int, ...], p: float, like: Tensor, *, part: Part = WHOLE, streams: int = 1) -> Tensor:
    """A mask of 0 with probability p, else 1/(1−p): multiplying by it leaves the expected value unchanged.

    Drawn from torch's global generator, in the dtype and on the device of `like`. On the CPU, p is rounded to a
    multiple of 2⁻¹⁶: drawing sixteen random bits per element is much faster than torch's own draws.

    part: the mask is this part, along the dimension `streams`, of the mask of a whole batch: the processes of a run
    have the masks of a single one.
    """
    if like.device.type == "cpu":
        return random_mask(shape, max(1, round((1 - p) * 2**16)), part, streams).to(like.dtype)
    whole = (*shape[:streams], shape[streams] * part.count, *shape[streams + 1 :])
    return part.of(torch.empty(whole, dtype=like.dtype, device=like.device).bernoulli_(1 - p).div_(1 - p), streams)


def zone_out(new_BH: Tensor, old_BH: Tensor, kept_TBH: Tensor | None, t: int) -> Tensor:
    """Zoneout (Krueger et al. 2017): kept ⊙ old + (1 − kept) ⊙ new, the state after step t.

    kept is [T, B, H], or [1, 1, H] for all steps and streams; None means 0.
    """
    if kept_TBH is None:
        return new_BH
    return torch.lerp(new_BH, old_BH, kept_TBH[t % len(kept_TBH)])


def add_product(a_BG: Tensor, h_BH: Tensor, w_HG: Tensor, mask_BH: Tensor | None) -> Tensor:
    """a + (h ⊙ mask) w, the recurrent product of every kind; returns [B, G] in h's dtype.

    Under autocast the product is bfloat16; everything after it, above all the state, stays float32. Pass w as a
    view of its parameter: autocast then casts it at every step, and its gradient adds up over the steps in float32
    instead of bfloat16.
    """
    if mask_BH is not None:
        h_BH = h_BH * mask_BH
    return torch.addmm(a_BG, h_BH, w_HG).to(h_BH.dtype)


class RecurrentOptions(TypedDict, total=False):
    """The options of every kind; see `RecurrentBase`."""

    dropout: float
    state_dropout: float
    weight_dropout: float
    variational: bool
    zoneout: float
    residual: bool


class RecurrentBase(nn.Module):
    """`num_layers` recurrent layers over a window of T steps; each layer reads the outputs of the one below.

    A kind of cell is a subclass. It sets `kind`, `state_names` and `option_names`, calls `create_parameters` at the
    end of `__init__`, and defines `parameter_shapes` and `reference_layer`. A kind with a gates.h or a gates.py also
    sets `cpu_kernel` or `gpu_kernel` and defines `layer_weights`.

    Args:
        dropout: probability of dropping a unit of the input of every layer above the first.
        variational: use one such mask for all steps of a call, instead of a new one at every step.
        state_dropout: probability of dropping a unit of the state where it enters the recurrent products; one mask
            per layer for all steps of a call (Gal & Ghahramani 2016).
        weight_dropout: probability of dropping a recurrent weight; one mask of `weight_hh` per layer for all steps
            and streams of a call (Merity et al. 2018).
        zoneout: probability that a unit of the state keeps its previous value in a step, drawn independently for
            every unit of every state tensor; evaluation uses the expected value (Krueger et al. 2017,
            arXiv:1606.01305).
        residual: add the input of every layer above the first to its output (Wu et al. 2016, arXiv:1609.08144,
            (6)). The sum is the input of the next layer, or the output of the last. States do not include the
            added input, and dropout does not apply to it.

    All dropout acts in training mode only. Each call draws, from the lowest layer to the highest: the mask of the
    layer's input (above the first layer), the mask of its state, the mask of its weights, and zoneout's mask of all
    its state tensors, side by side.
    """

    kind: ClassVar[str]
    cpu_kernel: ClassVar[Recurrence | None] = None
    """The CPU driver with the kind's gates.h, if it has one."""
    gpu_kernel: ClassVar[TensorRecurrence | None] = None
    """The driver for GPUs with the kind's gates.py, if it has one."""
    state_names: ClassVar[tuple[str, ...]] = ("h",)
    option_names: ClassVar[tuple[str, ...]] = ()
    """The kind's own options: arguments of `__init__`, attributes, and fields of its config class."""
    initial_options: ClassVar[tuple[str, ...]] = ()
    """Options that only set initial values, so a run that starts from trained weights may change them."""

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
        self.part = WHOLE
        """The part of the batch that `forward` gets; its masks are those of this part."""
        self._memory = KeptMemory()

    # What a kind of cell defines

    def parameter_shapes(self, layer: int) -> dict[str, tuple[int, ...]]:
        """Names, without the suffix `_l{layer}`, and shapes of one layer's parameters, in order.

        `weight_ih` and `weight_hh` are made of [H, I] and [H, H] blocks, one per gate. Names of layer normalization
        start with `weight_ln` and `bias_ln`, names of all other biases with `bias`.
        """
        raise NotImplementedError

    def reference_layer(self, x_TBI: Tensor, call: LayerCall) -> tuple[Tensor, LayerState]:
        """One layer by the equations in the kind's `reference.py`."""
        raise NotImplementedError

    def layer_weights(self, parameters: list[Tensor]) -> LayerWeights:
        """A layer's parameters as drivers take them, from those in the order of `parameter_shapes`."""
        raise NotImplementedError

    def set_special_biases(self) -> None:
        """Set the biases that have initial values of their own; all parameters are already initialized."""

    @classmethod
    def least_saved_per_unit(cls, **options: Any) -> int:
        """A lower bound on the numbers saved for the backward pass, per hidden unit of a layer, step and stream.

        `options` are the kind's own. The default counts the outputs only.
        """
        return 1

    # Forward

    def forward(
        self, x: Tensor | Lookup, state: RecurrentState | None = None, resets_TB: Tensor | None = None
    ) -> tuple[Tensor, RecurrentState]:
        """Outputs [T, B, H] of the last layer, and the last state of every layer, [L, B, H].

        x is [T, B, I], as a tensor or as a lookup. Without `state` the window starts from zeros. Where `resets_TB`,
        a bool tensor, is true, the state of all layers of that stream is set to zero before the step. Outputs and
        states have the parameters' dtype, even under autocast. ValueError for shapes that do not fit.
        """
        device = x.ids_TB.device if isinstance(x, Lookup) else x.device
        selection = self.select_backend(device, self.training, resets=resets_TB is not None)
        return self.run_layers(selection.backend, x, state, resets_TB)

    def forward_reference(
        self,
        x: Tensor | Lookup,
        state: RecurrentState | None = None,
        resets_TB: Tensor | None = None,
        seen: list[Seen] | None = None,
    ) -> tuple[Tensor, RecurrentState]:
        """`forward` by the reference loop, which defines the right results for every other backend.

        seen: one for each layer, which notes its states and gates.
        """
        return self.run_layers(self.reference_backend(), x, state, resets_TB, seen)

    def run_layers(
        self,
        backend: Backend,
        x: Tensor | Lookup,
        state: RecurrentState | None,
        resets_TB: Tensor | None = None,
        seen: list[Seen] | None = None,
    ) -> tuple[Tensor, RecurrentState]:
        """`forward` by the given backend."""
        T, B = self.check_input(x)
        carried_TB = None if resets_TB is None else self.carried(resets_TB, T, B)
        mask_shape = (1 if self.variational else T, B, self.hidden_size)
        if isinstance(x, Lookup) and not backend.takes_lookup:
            x = x.dense(self.input_size, like=next(self.parameters()))
        layer_states: list[LayerState] = []
        y: Any = x
        for layer, layer_state in enumerate(self.split_state(state, B)):
            inputs = y
            if layer > 0 and self.dropout > 0 and self.training:
                inputs = y * dropout_mask(mask_shape, self.dropout, like=y, part=self.part)
            call = self.layer_call(layer, layer_state, steps=T, training=self.training)
            call = call._replace(carried_TB=carried_TB, seen=seen[layer] if seen else None)
            output, layer_state = backend.compute(inputs, call)
            y = y + output if layer > 0 and self.residual else output
            layer_states.append(layer_state)
        return y, self.join_states(layer_states)

    def layer_call(self, layer: int, state: LayerState, steps: int, training: bool) -> LayerCall:
        """The call of one layer; draws its masks in training."""
        parameters = dict(zip(self.parameter_shapes(layer), self.layer_parameters(layer), strict=True))
        weights, mask_BH = parameters["weight_hh"], None
        if training and self.state_dropout > 0:
            shape = tuple(state[0].shape)
            mask_BH = dropout_mask(shape, self.state_dropout, like=weights, part=self.part, streams=0)
        if training and self.weight_dropout > 0:
            parameters["weight_hh"] = weights * dropout_mask(tuple(weights.shape), self.weight_dropout, like=weights)
        return LayerCall(list(parameters.values()), state, mask_BH, self.kept_share(state, steps, training, weights))

    def kept_share(self, state: LayerState, steps: int, training: bool, like: Tensor) -> Tensor | None:
        """Zoneout's `kept_TBS` of a call: drawn in training, the expected value otherwise; None without zoneout."""
        B, S = len(state[0]), len(state) * self.hidden_size
        if self.zoneout == 0:
            return None
        if training:
            return (dropout_mask((steps, B, S), self.zoneout, like=like, part=self.part) == 0).to(like.dtype)
        return like.new_full((1, 1, S), self.zoneout)

    def generator(
        self, state: RecurrentState, table_VI: Tensor | None, decoder: tuple[Tensor, Tensor]
    ) -> Generator | None:
        """Generates characters in a kernel, starting from `state`, in evaluation mode; None if no kernel can.

        table_VI: the layers' input for each character, None for one-hot; decoder: weights [V, H] and biases [V] of
        the logits.
        """
        backend = self.select_backend(next(self.parameters()).device, training=False).backend
        if not backend.generates:
            return None
        assert self.cpu_kernel is not None
        layers = []
        batch_size = as_tuple(state)[0].shape[1]
        for layer, layer_state in enumerate(self.split_state(state, batch_size)):
            call = self.layer_call(layer, layer_state, steps=1, training=False)
            layers.append((self.layer_weights(call.parameters), call.state, call.kept_TBS))
        return Generator(self.cpu_kernel, layers, table_VI, decoder, residual=self.residual)

    # Backends

    def backends(self, device: torch.device) -> list[Backend]:
        """The ways to compute a layer on `device`, fastest first; the last one can compute every layer."""
        faster = []
        if device.type == "cpu" and self.cpu_kernel is not None:
            name, layer = "fused CPU kernel", partial(self.driven_layer, self.cpu_kernel)
            prepare = self.compile_cpu_kernel
            faster.append(Backend(name, layer, prepare, takes_lookup=True, takes_resets=True, generates=True))
        elif device.type != "cpu" and self.gpu_kernel is not None:
            name, layer = "loop with its own backward pass", partial(self.driven_layer, self.gpu_kernel)
            library = self.gpu_kernel.library
            faster.append(Backend(name, layer, library=library, takes_lookup=True, takes_resets=True))
        return [*faster, self.reference_backend()]

    def reference_backend(self) -> Backend:
        return Backend("reference loop", self.reference_layer)

    def select_backend(self, device: torch.device | str, training: bool = True, resets: bool = False) -> Selection:
        """The backend that `forward` uses on `device`, and why not a faster one. Compiles kernels at first use.

        resets: whether `forward` gets `resets_TB`. A backend that takes them is then faster than one that needs a call
        for every step at which any stream is reset.

        Call it under the same autocast as `forward`: the choice depends on it.
        """
        device = torch.device(device)
        backends = self.backends(device)
        if resets:
            backends = sorted(backends, key=lambda backend: not backend.takes_resets)
        return select(self.kind, backends, device, training)

    def driven_layer(self, driver: Driver, x: Tensor | Lookup, call: LayerCall) -> tuple[Tensor, LayerState]:
        """One layer by a driver."""
        weights = self.layer_weights(call.parameters)
        return driver.layer(x, call.state, weights, call.mask_BH, call.kept_TBS, call.carried_TB, self._memory)

    def compile_cpu_kernel(self, device: torch.device, training: bool) -> str | None:
        """Compile the kind's CPU kernel at first use; why it cannot compute a layer, or None if it can."""
        parameter = next(self.parameters())
        if parameter.device.type != "cpu" or parameter.dtype != torch.float32:
            return "it needs float32 parameters on the CPU"
        if torch.is_autocast_enabled("cpu") and not autocasts_to_bf16():
            return "it multiplies in float32 or bfloat16 only"
        assert self.cpu_kernel is not None
        try:
            load(self.cpu_kernel, *SHARED_KERNELS)
        except KernelError as error:
            return str(error)
        return None

    # Checks of input

    def check_input(self, x: Tensor | Lookup) -> tuple[int, int]:
        """T and B of an input; ValueError unless its shape is [T, B, I] with T ≥ 1."""
        if isinstance(x, Lookup):
            size = self.input_size if x.table_VI is None else x.table_VI.shape[1]
            shape = [*x.ids_TB.shape, size]
        else:
            shape = list(x.shape)
        if len(shape) != 3 or shape[0] == 0 or shape[2] != self.input_size:
            raise ValueError(f"{self.kind}: input of shape {shape}; allowed: [T, B, {self.input_size}] with T ≥ 1")
        return shape[0], shape[1]

    def carried(self, resets_TB: Tensor, T: int, B: int) -> Tensor:
        """`LayerCall.carried_TB`; ValueError unless `resets_TB` is a bool tensor [T, B]."""
        if resets_TB.dtype != torch.bool or list(resets_TB.shape) != [T, B]:
            found = f"{resets_TB.dtype} of shape {list(resets_TB.shape)}"
            raise ValueError(f"{self.kind}: resets are {found}; allowed: torch.bool of shape [T, B] = {[T, B]}")
        return (~resets_TB).to(next(self.parameters()).dtype)

    # State

    def zero_state(self, batch_size: int) -> RecurrentState:
        """The initial state of a stream."""
        zeros = next(self.parameters()).new_zeros
        shape = (self.num_layers, batch_size, self.hidden_size)
        states = tuple(zeros(shape) for _ in self.state_names)
        return states[0] if len(states) == 1 else states

    def split_state(self, state: RecurrentState | None, batch_size: int) -> list[LayerState]:
        """The state of each layer; ValueError unless `state` is one [L, B, H] for each of `state_names`."""
        if state is None:
            state = self.zero_state(batch_size)
        tensors = as_tuple(state)
        shape = [self.num_layers, batch_size, self.hidden_size]
        found = [list(tensor.shape) for tensor in tensors]
        if found != [shape] * len(self.state_names):
            raise ValueError(
                f"{self.kind}: state of shapes {', '.join(map(str, found))}; "
                f"allowed: ({', '.join(self.state_names)}) of shape [L, B, H] = {shape} each"
            )
        return list(zip(*(tensor.unbind() for tensor in tensors), strict=True))

    def join_states(self, layer_states: list[LayerState]) -> RecurrentState:
        """The inverse of `split_state`."""
        states = tuple(torch.stack(tensors) for tensors in zip(*layer_states, strict=True))
        return states[0] if len(states) == 1 else states

    # Parameters

    def create_parameters(self) -> None:
        """Register the parameters of every layer and initialize them."""
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
        """Draw weights and biases from U(±1/√H), as torch.nn does; then set the special biases."""
        bound = 1 / math.sqrt(self.hidden_size)
        self.draw_parameters(weight_bound=bound, bias_bound=bound)

    def init_uniform_(self, bound: float) -> None:
        """Draw weights from U(±bound) and set biases to 0; then set the special biases."""
        if not 0 <= bound < math.inf:
            raise ValueError(f"{self.kind}: bound={bound!r}; allowed: 0 ≤ bound < ∞")
        self.draw_parameters(weight_bound=bound, bias_bound=0.0)

    @torch.no_grad()
    def init_orthogonal_(self) -> None:
        """Make each [H, H] block of the recurrent weights, one per gate, orthogonal and random (Saxe et al. 2014)."""
        for name, parameter in self.named_parameters():
            if name.startswith("weight_hh"):
                for block_HH in parameter.view(-1, self.hidden_size, self.hidden_size):
                    nn.init.orthogonal_(block_HH)

    @torch.no_grad()
    def draw_parameters(self, weight_bound: float, bias_bound: float) -> None:
        """Initialize all parameters; layer normalization starts with gains of 1 and biases of 0."""
        for name, parameter in self.named_parameters():
            if name.startswith("weight_ln"):
                nn.init.ones_(parameter)
            elif name.startswith("bias_ln"):
                nn.init.zeros_(parameter)
            else:
                bound = weight_bound if name.startswith("weight") else bias_bound
                nn.init.uniform_(parameter, -bound, bound)
        if not next(self.parameters()).is_meta:  # where parameters are only counted
            self.set_special_biases()

    def extra_repr(self) -> str:
        names = ("num_layers", *self.option_names, *RecurrentOptions.__annotations__)
        options = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{self.input_size}, {self.hidden_size}, {options}"

    # Checks of options

    def check_positive(self, **values: int) -> None:
        for name, value in values.items():
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{self.kind}: {name}={value!r}; allowed: integers ≥ 1")

    def check_probability(self, **values: float) -> None:
        for name, value in values.items():
            if not 0 <= value < 1:
                raise ValueError(f"{self.kind}: {name}={value!r}; allowed: 0 ≤ {name} < 1")

    def check_finite(self, **values: float) -> None:
        for name, value in values.items():
            if not math.isfinite(value):
                raise ValueError(f"{self.kind}: {name}={value!r}; allowed: finite numbers")

    def check_choice(self, allowed: tuple[Any, ...], **values: Any) -> None:
        for name, value in values.items():
            if value not in allowed:
                listed = ", ".join(map(repr, allowed))
                raise ValueError(f"{self.kind}: {name}={value!r}; allowed: {listed}")
