"""Recurrent layers of any cell: states, dropout, initialization, choice of the backend."""

import math
from collections.abc import Iterator, Sequence
from functools import partial
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn

from charlm.cells import Cell
from charlm.cells.derivative import both_passes
from charlm.cells.passes import Passes
from charlm.cells.program import Parameter, Program
from charlm.config.schema import Dropout
from charlm.gpu.buffers import BufferCache
from charlm.gpu.recurrence import TensorRecurrence
from charlm.layers.backend import Activations, Backend, LayerCall, LayerState, Selection
from charlm.layers.driven import Lookup, driven_layer, generating_layer
from charlm.layers.reference import REFERENCE
from charlm.layers.torch_operator import torch_backend
from charlm.native.autograd import autocasts_to_bf16
from charlm.native.build import KernelError, load
from charlm.native.fused import FusedDriver, driver_of
from charlm.native.generate import GeneratingLayer
from charlm.native.kernels import SHARED_KERNELS
from charlm.native.random import dropout_mask
from charlm.native.structs import check_tensor
from charlm.system.process_group import WHOLE_BATCH

RecurrentState = tuple[Tensor, ...]
"""The state of all layers: [L, B, H] for each of `state_names` (LSTM: h and c)."""

NO_DROPOUT = Dropout()


class RecurrentLayers(nn.Module):
    """`num_layers` recurrent layers of a cell over a window of T steps; each reads the outputs of the one below.

    Args:
        cell: the kind with its options; H is `cell.hidden`.
        input_size: I, the features of the first layer's input.
        dropout: probabilities of dropping. `between_layers`: a unit of the input of every layer above the first.
            `state`: a unit of the operands of recurrent products, except units of the input; one mask per layer for all
            steps of a call (Gal & Ghahramani 2016). `weights`: a recurrent weight; one mask of each recurrent matrix
            per layer for all steps and streams of a call (Merity et al. 2018). `variational`: one mask of the input for
            all steps of a call, instead of a new one at every step. The other places are not those of these layers.
        zoneout: probability that a unit of the state keeps its previous value in a step, drawn independently for
            every unit of every state tensor that is not internal; evaluation uses the expected value (Krueger et al.
            2017, arXiv:1606.01305). It acts after the whole step: no new state is computed from a kept one.
        residual: add the input of every layer above the first to its output (Wu et al. 2016, arXiv:1609.08144,
            (6)). The sum is the input of the next layer, or the output of the last. States do not include the
            added input, and dropout does not apply to it.
        batch_first: input and output tensors are [B, T, …], as in torch.nn. States stay [L, B, H], and `resets_TB`
            and the ids of a `Lookup` stay [T, B].

    All dropout acts in training mode only. Each call draws, from the lowest layer to the highest: the mask of the
    layer's input (above the first layer), the mask of its state, the masks of its weights, and zoneout's mask of all
    its state tensors, side by side.

    Shapes: input [T, B, I], time first, output [T, B, H], state [L, B, H] for each of the cell's states, in a tuple.
    `{name}_l{layer}` is the parameter `name` of the cell's program in a layer, as in torch.nn.
    """

    def __init__(
        self,
        cell: Cell,
        input_size: int,
        num_layers: int = 1,
        *,
        dropout: Dropout = NO_DROPOUT,
        zoneout: float = 0.0,
        residual: bool = False,
        batch_first: bool = False,
    ) -> None:
        super().__init__()
        if not isinstance(cell, Cell):
            raise TypeError(f"cell: found {cell!r}; allowed: an object of a cell, such as LSTM(hidden=256)")
        for name, number in {"input_size": input_size, "num_layers": num_layers}.items():
            if type(number) is not int or number < 1:
                raise ValueError(f"{cell.name}: {name}: found {number!r}; allowed: a whole number ≥ 1")
        self.kind = cell.name
        self.cell = cell
        self.state_names = cell.states
        self.input_size = input_size
        self.hidden_size = cell.hidden
        self.num_layers = num_layers
        self.dropout = dropout
        self.zoneout = zoneout
        self.residual = residual
        self.batch_first = batch_first
        self.shard = WHOLE_BATCH
        """The shard of the batch that `forward` computes; masks are drawn for it."""
        self._programs = cell.programs()
        self._passes = both_passes(*self._programs)
        self._buffer_cache = BufferCache()
        self._selections: dict[object, Selection] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        """Of each parameter."""
        for layer in range(num_layers):
            for declared in self.program(layer).parameters:
                name = f"{declared.name}_l{layer}"
                self._shapes[name] = declared.shape(self.hidden_size, self.layer_input_size(layer))
                self.register_parameter(name, nn.Parameter(torch.empty(self._shapes[name])))
        bound = 1 / math.sqrt(self.hidden_size)
        self.init_uniform_(bound, bias_bound=bound)

    def passes(self, layer: int) -> Passes:
        """The passes of the cell's step in this layer."""
        passes = self._passes[self.layer_input_size(layer) == self.hidden_size]
        assert passes is not None
        return passes

    def program(self, layer: int) -> Program:
        """The cell's step in this layer, as it was when these layers were made."""
        square = self.layer_input_size(layer) == self.hidden_size
        return self._programs[square] or self.cell.program(square)  # which raises: there is none

    def layer_input_size(self, layer: int) -> int:
        return self.input_size if layer == 0 else self.hidden_size

    def layer_parameters(self, layer: int) -> dict[str, Tensor]:
        """The parameters of one layer by the names in the cell's program, in its order.

        ValueError for one that was replaced by another shape, or by another type or device than the first has.
        """
        parameters = {one.name: getattr(self, f"{one.name}_l{layer}") for one in self.program(layer).parameters}
        like = next(iter(parameters.values()))
        for name, parameter in parameters.items():
            name_of_layer = f"{name}_l{layer}"
            check_tensor(name_of_layer, parameter, self._shapes[name_of_layer], like.dtype, like.device)
        return parameters

    def vectors(self) -> list[Tensor]:
        """The parameters with a number for each unit. All others are matrices, or stacks of them."""
        vectors = []
        for layer in range(self.num_layers):
            parameters = self.layer_parameters(layer)
            vectors += [parameters[one.name] for one in self.program(layer).parameters if one.columns == ""]
        return vectors

    def state_matrices(self) -> dict[Tensor, tuple[int, ...]]:
        """The shape of one gate's matrix in each parameter that multiplies a state of its layer or the layer below."""
        shapes = {}
        for layer in range(self.num_layers):
            program, parameters = self.program(layer), self.layer_parameters(layer)
            for one in program.parameters:
                if one.name in program.recurrent() or (layer > 0 and one.columns == "I"):
                    shapes[parameters[one.name]] = self._gate_shape(one, layer)
        return shapes

    def _gate_shape(self, declared: Parameter, layer: int) -> tuple[int, ...]:
        """The shape of one gate's matrix."""
        return declared._replace(gates=1, stack=0).shape(self.hidden_size, self.layer_input_size(layer))

    # Forward

    def forward(
        self,
        x: Tensor | Lookup,
        state: RecurrentState | None = None,
        resets_TB: Tensor | None = None,
        lengths_B: Tensor | Sequence[int] | None = None,
    ) -> tuple[Tensor, RecurrentState]:
        """Outputs [T, B, H] of the last layer, and the last state of every layer, [L, B, H].

        x is [T, B, I], as a tensor or as a lookup. Without `state` the window starts from zeros. Where `resets_TB`,
        a bool tensor, is true, the state of all layers of that stream is set to zero before the step. `lengths_B`: how
        many steps each stream has; what stands in x after them is not read, outputs there are 0, and the last state is
        that after the stream's last step. Outputs and states have the parameters' dtype, even under autocast.
        TypeError and ValueError for arguments that do not fit.
        """
        device = next(self.parameters()).device
        selection = self.select_backend(device, self.training, resets=resets_TB is not None)
        return self.run_layers(selection.backend, x, state, resets_TB, lengths_B)

    def forward_reference(
        self,
        x: Tensor | Lookup,
        state: RecurrentState | None = None,
        resets_TB: Tensor | None = None,
        lengths_B: Tensor | Sequence[int] | None = None,
        activations: list[Activations] | None = None,
    ) -> tuple[Tensor, RecurrentState]:
        """`forward` by the reference loop, which defines the right results for every other backend.

        activations: one for each layer, which records them.
        """
        return self.run_layers(REFERENCE, x, state, resets_TB, lengths_B, activations)

    def run_layers(
        self,
        backend: Backend,
        x: Tensor | Lookup,
        state: RecurrentState | None,
        resets_TB: Tensor | None = None,
        lengths_B: Tensor | Sequence[int] | None = None,
        activations: list[Activations] | None = None,
    ) -> tuple[Tensor, RecurrentState]:
        """`forward` by the given backend."""
        T, B = self._check_input(x)
        carry_TB = None
        if resets_TB is not None:
            form = (resets_TB.dtype, *resets_TB.shape) if isinstance(resets_TB, Tensor) else ()
            if form != (torch.bool, T, B):
                given = f"{form[0]} of shape {list(form[1:])}" if form else f"a {type(resets_TB).__name__}"
                raise ValueError(f"{self.kind}: resets are {given}; allowed: torch.bool of shape [T, B] = {[T, B]}")
            carry_TB = (~resets_TB).to(next(self.parameters()).dtype)
        p, mask_shape = self.dropout.between_layers, (1 if self.dropout.variational else T, B, self.hidden_size)
        y: Any = x
        if isinstance(x, Lookup) and (lengths_B is not None or not backend.takes_lookup):
            y = x.dense(self.input_size, like=next(self.parameters()))
        elif self.batch_first and isinstance(x, Tensor):
            y = x.transpose(0, 1)
        after_end_TB1 = None
        if lengths_B is not None:
            lengths_B = self._check_lengths(lengths_B, T, B)
            after_end_TB1 = (torch.arange(T)[:, None] >= lengths_B)[:, :, None].to(y.device)
            y = y.masked_fill(after_end_TB1, 0)
        layer_states: list[LayerState] = []
        for layer, layer_state in enumerate(self.split_state(state, B)):
            inputs = y
            if layer > 0 and p > 0 and self.training:
                inputs = y * dropout_mask(mask_shape, p, like=y, shard=self.shard)
            call = self.layer_call(layer, layer_state, steps=T, training=self.training)
            call = call._replace(carry_TB=carry_TB, lengths_B=lengths_B)
            if activations:
                call = call._replace(activations=activations[layer])
            output, layer_state = backend.compute(inputs, call)
            if after_end_TB1 is not None:
                output = output.masked_fill(after_end_TB1, 0)
            y = y + output if layer > 0 and self.residual else output
            layer_states.append(layer_state)
        last_state = tuple(torch.stack(tensors) for tensors in zip(*layer_states, strict=True))
        return y.transpose(0, 1) if self.batch_first else y, last_state

    def layer_call(self, layer: int, state: LayerState, steps: int, training: bool) -> LayerCall:
        """The call of one layer; draws its masks in training."""
        passes, parameters = self.passes(layer), self.layer_parameters(layer)
        like, mask_BH = next(iter(parameters.values())), None
        if training and (p := self.dropout.state) > 0:
            mask_BH = dropout_mask(tuple(state[0].shape), p, like=like, shard=self.shard, streams=0)
        if training and (p := self.dropout.weights) > 0:
            for name in passes.split.program.recurrent():
                weights = parameters[name]
                parameters[name] = weights * dropout_mask(tuple(weights.shape), p, like=weights)
        zoneout_TBS = self.zoneout_share(state, steps, training, like)
        return LayerCall(passes, parameters, state, mask_BH, zoneout_TBS)

    def zoneout_share(self, state: LayerState, steps: int, training: bool, like: Tensor) -> Tensor | None:
        """Zoneout's `zoneout_TBS` of a call: drawn in training, the expected value otherwise; None without zoneout."""
        B, S = len(state[0]), len(state) * self.hidden_size
        if self.zoneout == 0:
            return None
        if training:
            zoneout_TBS = (dropout_mask((steps, B, S), self.zoneout, like=like, shard=self.shard) == 0).to(like.dtype)
        else:
            zoneout_TBS = like.new_full((1, 1, S), self.zoneout)
        for name, zoneout_TBH in zip(self.state_names, zoneout_TBS.chunk(len(state), dim=2), strict=True):
            if name in self.cell.internal:
                zoneout_TBH.zero_()
        return zoneout_TBS

    def generating_layers(self, state: RecurrentState, characters: Lookup) -> list[GeneratingLayer]:
        """The layers for a `Generator`, starting from `state`, in evaluation mode. characters: their inputs."""
        layers = []
        for layer, layer_state in enumerate(self.split_state(state, state[0].shape[1])):
            call = self.layer_call(layer, layer_state, steps=1, training=False)
            inputs = characters if layer == 0 else None
            layers.append(generating_layer(self.cpu_driver, self.layer_input_size(layer), call, inputs))
        return layers

    # Backends

    def backends(self, device: torch.device) -> list[Backend]:
        """The ways to compute a layer on `device`, fastest first; the last one can compute every layer."""
        takes_all = partial(Backend, takes_lookup=True, takes_resets=True)
        torchs = [] if (backend := torch_backend(self, device)) is None else [backend]
        if device.type == "cpu":
            own = takes_all("fused CPU kernel", self.fused_layer, self.compile_cpu_kernel, generates=True)
            return [own, *torchs, REFERENCE]
        layer = partial(driven_layer, self.gpu_driver, self.input_size, self._buffer_cache)
        own = takes_all("loop with its own backward pass", layer, library=self.gpu_driver.library())
        return [*torchs, own, REFERENCE]

    gpu_driver = TensorRecurrence()
    """For all cells on a GPU."""

    @property
    def cpu_driver(self) -> FusedDriver:
        """The kernels of all layers."""
        return driver_of(self.kind, *self._passes)

    def fused_layer(self, x: Tensor | Lookup, call: LayerCall) -> tuple[Tensor, LayerState]:
        """One layer by the CPU kernels."""
        return driven_layer(self.cpu_driver, self.input_size, self._buffer_cache, x, call)

    def select_backend(self, device: torch.device | str, training: bool = True, resets: bool = False) -> Selection:
        """The backend that `forward` uses on `device`, and why not a faster one. Compiles kernels at first use.

        resets: whether `forward` gets `resets_TB`.

        Call it under the same autocast as `forward`: the choice depends on it.
        """
        device, like = torch.device(device), next(self.parameters())
        autocast = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
        conditions = device, training, resets, like.device.type, like.dtype, autocast
        if conditions not in self._selections:
            passed_over: dict[str, str] = {}
            backends = self.backends(device)
            if resets:  # those that take them are faster than calls for every step at which any stream is reset
                backends.sort(key=lambda backend: not backend.takes_resets)
            while reason := backends[0].prepare(training):
                passed_over[backends.pop(0).name] = reason
            self._selections[conditions] = Selection(self.kind, backends[0], passed_over)
        return self._selections[conditions]

    def __getstate__(self) -> dict[str, Any]:
        """A copy selects its own backends, which refer to it."""
        return {**self.__dict__, "_selections": {}}

    def compile_cpu_kernel(self, training: bool) -> str | None:
        """Compile the kind's CPU kernel at first use; why it cannot compute a layer, or None if it can."""
        parameter = next(self.parameters())
        if parameter.device.type != "cpu" or parameter.dtype != torch.float32:
            return "it needs float32 parameters on the CPU"
        if torch.is_autocast_enabled("cpu") and not autocasts_to_bf16():
            return "it multiplies in float32 or bfloat16 only"
        try:
            load(self.cpu_driver, *SHARED_KERNELS)
        except KernelError as error:
            return str(error)
        return None

    # Checks of input

    @property
    def _order(self) -> str:
        """The first two dimensions of an input tensor."""
        return "B, T" if self.batch_first else "T, B"

    def _check_input(self, x: Tensor | Lookup) -> tuple[int, int]:
        """T and B of an input; TypeError or ValueError unless it is a tensor [T, B, I] with T ≥ 1 on the device."""
        like = next(self.parameters())
        if isinstance(x, Lookup):
            ids, table = x
            check_tensor("ids of a lookup", ids, ids.shape, torch.int64, like.device)
            if table is not None:
                check_tensor("table of a lookup", table, (len(table), self.input_size), like.dtype, like.device)
            shape, order = [*ids.shape, self.input_size], "T, B"
        elif isinstance(x, Tensor):
            # As in torch.nn: autocast converts the results of operators before these layers.
            is_converted = torch.is_autocast_enabled("cpu" if like.is_cpu else "cuda") and x.is_floating_point()
            check_tensor(f"{self.kind}: input", x, x.shape, x.dtype if is_converted else like.dtype, like.device)
            shape, order = list(x.shape), self._order
        else:
            raise TypeError(
                f"{self.kind}: input is a {type(x).__name__}; allowed: a tensor [{self._order}, {self.input_size}], "
                "and lengths_B for sequences of different lengths"
            )
        sizes = dict(zip(order.split(", "), shape, strict=False))
        if len(shape) != 3 or sizes["T"] == 0 or shape[2] != self.input_size:
            raise ValueError(f"{self.kind}: input of shape {shape}; allowed: [{order}, {self.input_size}] with T ≥ 1")
        return sizes["T"], sizes["B"]

    def _check_lengths(self, lengths_B: Tensor | Sequence[int], steps: int, batch_size: int) -> Tensor:
        """The lengths as a tensor on the CPU; ValueError unless there is one from 1 to T for each stream."""
        lengths: Any = lengths_B.tolist() if hasattr(lengths_B, "tolist") else lengths_B  # type: ignore[union-attr]
        is_list = isinstance(lengths, Sequence) and len(lengths) == batch_size
        counts = [each for each in lengths if isinstance(each, Integral) and type(each) is not bool] if is_list else []
        if len(counts) != batch_size or not all(1 <= int(count) <= steps for count in counts):
            raise ValueError(
                f"{self.kind}: lengths are {lengths!r:.80}; allowed: for each of {batch_size} streams a whole "
                f"number from 1 to {steps}, the steps of the input"
            )
        return torch.tensor(lengths)

    # State

    def zero_state(self, batch_size: int) -> RecurrentState:
        """The initial state of so many streams."""
        zeros = next(self.parameters()).new_zeros
        shape = (self.num_layers, batch_size, self.hidden_size)
        return tuple(zeros(shape) for _ in self.state_names)

    def split_state(self, state: RecurrentState | None, batch_size: int) -> list[LayerState]:
        """The state of each layer; ValueError unless `state` is one [L, B, H] for each of `state_names`."""
        if state is None:
            state = self.zero_state(batch_size)
        like, names = next(self.parameters()), ", ".join(self.state_names)
        if not isinstance(state, tuple | list) or not all(isinstance(tensor, Tensor) for tensor in state):
            items = {type(item).__name__ for item in state} if isinstance(state, tuple | list) else ()
            given = " of ".join((type(state).__name__, *items))
            raise TypeError(f"{self.kind}: state is a {given}; allowed: a tuple ({names}) of tensors [L, B, H]")
        shape = self.num_layers, batch_size, self.hidden_size
        expected = shape, like.dtype, like.device, torch.strided
        forms = [(tuple(tensor.shape), tensor.dtype, tensor.device, tensor.layout) for tensor in state]
        if forms != [expected] * len(self.state_names):
            raise ValueError(
                f"{self.kind}: state ({', '.join(map(_form_text, forms))}); allowed: ({names}), each [L, B, H] = "
                f"{_form_text(expected)}; the input is read as [{self._order}, I], see batch_first"
            )
        return list(zip(*(tensor.unbind() for tensor in state), strict=True))

    # Initial values

    @torch.no_grad()
    def init_orthogonal_(self) -> None:
        """Make each block of the recurrent weights, one per gate, orthogonal and random (Saxe et al. 2014).

        Blocks that have an initial value of their own keep it.
        """
        for layer in range(self.num_layers):
            program = self.program(layer)
            for declared in program.parameters:
                if declared.name in program.recurrent():
                    for block, start in self._blocks(layer, declared):
                        if start is None:
                            nn.init.orthogonal_(block)

    @torch.no_grad()
    def init_uniform_(self, bound: float, bias_bound: float = 0.0) -> None:
        """Draw weights and biases from U(±bound); matrices and rows of vectors that have an initial value get it."""
        for layer in range(self.num_layers):
            for declared in self.program(layer).parameters:
                parameter = self.get_parameter(f"{declared.name}_l{layer}")
                if None in declared.starts or not declared.starts:
                    drawn = bias_bound if declared.columns == "" else bound
                    if declared.bound is not None:
                        drawn = declared.bound
                    nn.init.uniform_(parameter, -drawn, drawn)
                for block, start in self._blocks(layer, declared):
                    if start == "identity":
                        nn.init.eye_(block)
                    elif start == "orthogonal":
                        nn.init.orthogonal_(block)
                    elif isinstance(start, float):
                        block.fill_(start)

    def _blocks(self, layer: int, declared: Parameter) -> Iterator[tuple[Tensor, float | str | None]]:
        """The rows of a vector, or the matrices, of which a layer's parameter consists, each with its initial value."""
        blocks = self.get_parameter(f"{declared.name}_l{layer}").view(-1, *self._gate_shape(declared, layer))
        return zip(blocks, declared.starts or [None] * len(blocks), strict=True)


def _form_text(form: tuple[Sequence[int], torch.dtype, torch.device, torch.layout]) -> str:
    """Shape, dtype, device and layout of a tensor, e.g. "[1, 3, 8] float32 cpu"."""
    shape, dtype, device, layout = form
    text = f"{list(shape)} {str(dtype).removeprefix('torch.')} {device}"
    return text if layout == torch.strided else f"{text} {layout}"
