"""Recurrent layers of any cell: parameters, states, dropout, initialization."""

import ctypes
import math
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from charlm.cells import Cell
from charlm.cells.derivative import both_passes
from charlm.cells.on_tensors import array_of
from charlm.cells.passes import Passes
from charlm.cells.program import START, Parameter, Start
from charlm.cells.state_options import StateOptions, rows_of_start, with_expected_zoneout, with_learned_start
from charlm.config.schema import Dropout
from charlm.errors import LoopError
from charlm.gpu.recurrence import DRIVERS
from charlm.layers.arguments import check_input, check_lengths, check_state, order_of
from charlm.layers.backend import (
    Activations,
    Backend,
    LayerCall,
    LayerForm,
    LayerState,
    Lookup,
    RecurrentState,
    Task,
)
from charlm.layers.buffers import BufferCache
from charlm.layers.dropout import check_probability, drop_units, dropout_mask, zoneout_shares
from charlm.layers.generation import generating_layer
from charlm.layers.operators import refuse_symbols
from charlm.layers.reference import REFERENCE
from charlm.layers.selection import Selection, select
from charlm.native.operators import check_tensor
from charlm.native.recurrence import CpuDriver
from charlm.system.console import say
from charlm.system.device import autocast_state, random_state, set_random_state
from charlm.system.process_group import WHOLE_BATCH
from charlm.system.section import Section

NO_DROPOUT = Dropout()


class RecurrentLayers(nn.Module):
    """`num_layers` recurrent layers of a cell over a window of T steps; each reads the outputs of the one below.

    Args:
        cell: the kind with its options; H is `cell.hidden`.
        input_size: I, the features of the first layer's input.
        dropout: probabilities by place; a number means `between_layers`. `between_layers`: units of the inputs above
            the first layer. `state`: units of the operands of recurrent products; one mask per layer and call (Gal &
            Ghahramani 2016). `weights`: recurrent weights; one mask per layer and call, shared by the streams (Merity
            et al. 2018). `variational`: one input mask per call, not per step. Other places are the caller's.
        zoneout: probability that a unit of a state keeps its value in a step; evaluation uses the expected value
            (Krueger et al. 2017, arXiv:1606.01305). Acts after the step: no new state is computed from a kept one.
        residual: add the input of every layer above the first to its output (Wu et al. 2016, arXiv:1609.08144, (6)),
            after dropout. States do not include it.
        learned_start: learn the initial state of each layer, `start_l{layer}`; else it is zero, as that of internal
            states always is.
        batch_first: input and output tensors are [B, T, …], as in torch.nn; states, resets and ids are not.

    Dropout acts in training mode only. Each layer, from the lowest, draws its masks in this order: input, state,
    weights, zoneout.

    Shapes: input [T, B, I], output [T, B, H], state a tuple of [L, B, H]. `{name}_l{layer}` is the parameter `name` of
    the cell's program in a layer, as in torch.nn.

    TypeError and ValueError for arguments that are not allowed.
    """

    def __init__(
        self,
        cell: Cell,
        input_size: int,
        num_layers: int = 1,
        *,
        dropout: Dropout | float = NO_DROPOUT,
        zoneout: float = 0.0,
        residual: bool = False,
        learned_start: bool = False,
        batch_first: bool = False,
    ) -> None:
        super().__init__()
        if not isinstance(cell, Cell):
            raise TypeError(f"cell: found {cell!r}; allowed: an object of a cell, such as LSTM(hidden=256)")
        for name, number in {"input_size": input_size, "num_layers": num_layers}.items():
            if type(number) is not int or number < 1:
                raise ValueError(f"{cell.name}: {name}: found {number!r}; allowed: a whole number ≥ 1")
        flags = {"residual": residual, "learned_start": learned_start, "batch_first": batch_first}
        for name, flag in flags.items():
            if not isinstance(flag, bool):
                raise TypeError(f"{cell.name}: {name}: found {flag!r}; allowed: True or False")
        check_probability(f"{cell.name}: zoneout", zoneout)
        self.kind = cell.name
        self.cell = cell
        self.state_names = cell.states
        self.input_size = input_size
        self.hidden_size = cell.hidden
        self.num_layers = num_layers
        self.dropout = dropout
        if not isinstance(dropout, Dropout) and dropout > 0 and num_layers == 1:
            warnings.warn(f"{self.kind}: dropout: found {dropout} with one layer; it acts between layers", stacklevel=2)
        self.zoneout = zoneout
        self.residual = residual
        self.learned_start = learned_start
        self.batch_first = batch_first
        self.shard = WHOLE_BATCH
        """The shard of the batch that `forward` computes; masks are drawn for it."""
        general, square = cell.programs()
        if learned_start:
            general, square = general and with_learned_start(general), with_learned_start(square)
        self._programs = general, square
        """The steps of layers, see `Cell.programs`."""
        self._passes: dict[StateOptions, tuple[Passes | None, Passes]] = {}
        self.buffer_cache = BufferCache()
        self._selections: dict[object, Selection] = {}
        self.forms: list[LayerForm] = []
        """Step and sizes of each layer."""
        for layer, inputs in enumerate([input_size] + [cell.hidden] * (num_layers - 1)):
            is_square = inputs == cell.hidden
            program = self._programs[is_square] or cell.program(is_square)  # which raises: there is none
            self.forms.append(LayerForm(program, cell.hidden, inputs))
            for declared in program.parameters:
                name, tensor = f"{declared.name}_l{layer}", torch.empty(declared.shape(cell.hidden, inputs))
                if declared.fixed:
                    self.register_buffer(name, tensor)
                else:
                    self.register_parameter(name, nn.Parameter(tensor))
        bound = 1 / math.sqrt(self.hidden_size)
        self.init_uniform_(bound, bias_bound=bound)

    def extra_repr(self) -> str:
        """The arguments, without those that are defaults."""
        parts = [_without_defaults(self.cell, hidden=self.hidden_size), f"input_size={self.input_size}"]
        parts.append(f"num_layers={self.num_layers}")
        if self.dropout != NO_DROPOUT:
            parts.append(f"dropout={_without_defaults(self.dropout)}")
        for name in ("zoneout", "residual", "learned_start", "batch_first"):
            if value := getattr(self, name):
                parts.append(f"{name}={value}")
        return ", ".join(parts)

    @property
    def dropout(self) -> Dropout:
        """Probabilities by place; may be set to a number, too."""
        return self._dropout

    @dropout.setter
    def dropout(self, dropout: Dropout | float) -> None:
        if not isinstance(dropout, Dropout):
            check_probability(f"{self.kind}: dropout", dropout)
            dropout = Dropout(between_layers=dropout)
        self._dropout = dropout

    @property
    def like(self) -> Tensor:
        """A tensor with the dtype and device of all parameters."""
        return getattr(self, f"{self.forms[0].program.parameters[0].name}_l0")

    def layer_parameters(self, layer: int) -> dict[str, Tensor]:
        """The parameters of one layer by name, in the program's order.

        ValueError for one that was replaced by another shape, or by another type or device than the first has.
        """
        parameters, like, form = {}, self.like, self.forms[layer]
        for declared in form.program.parameters:
            name = f"{declared.name}_l{layer}"
            parameters[declared.name] = getattr(self, name)
            shape = declared.shape(form.hidden, form.inputs)
            check_tensor(name, parameters[declared.name], shape, like.dtype, like.device)
        return parameters

    def _declared(self) -> Iterator[tuple[int, Parameter, Tensor]]:
        """Each parameter, with its layer and what the cell's program declares of it."""
        for layer, form in enumerate(self.forms):
            for declared in form.program.parameters:
                yield layer, declared, getattr(self, f"{declared.name}_l{layer}")

    def fixed_at_start(self) -> dict[str, Tensor]:
        """The fixed weights whose values the cell gives, by name."""
        weights = {}
        for layer, declared, weight in self._declared():
            if declared.fixed and declared.starts and all(isinstance(one, float | bytes) for one in declared.starts):
                weights[f"{declared.name}_l{layer}"] = weight
        return weights

    def evaluation_forms(self) -> list[LayerForm]:
        """The step of each layer in an evaluation, from its input and states alone."""
        return [form._replace(program=with_expected_zoneout(form.program, self.zoneout)) for form in self.forms]

    def vectors(self) -> list[Tensor]:
        """The parameters with a number for each unit. All others are matrices, or stacks of them."""
        return [vector for _, declared, vector in self._declared() if declared.columns == ""]

    def state_matrices(self) -> dict[Tensor, tuple[int, ...]]:
        """The shape of one gate's matrix in each parameter that multiplies a state of its layer or the layer below."""
        shapes = {}
        for layer, declared, parameter in self._declared():
            reads_below = layer > 0 and declared.columns == "I" and not declared.fixed
            if reads_below or declared.name in self.forms[layer].program.recurrent():
                shapes[parameter] = self._gate_shape(layer, declared)
        return shapes

    def _gate_shape(self, layer: int, declared: Parameter) -> tuple[int, ...]:
        """The shape of one gate's matrix."""
        return declared._replace(gates=1, stack=0).shape(self.hidden_size, self.forms[layer].inputs)

    # Forward

    def forward(
        self,
        x: Tensor | Lookup,
        state: RecurrentState | None = None,
        resets_TB: Tensor | None = None,
        lengths_B: Tensor | Sequence[int] | None = None,
        *,
        layer_inputs: list[Tensor] | None = None,
    ) -> tuple[Tensor, RecurrentState]:
        """Outputs [T, B, H] of the last layer, and the last state of every layer, [L, B, H].

        x is [T, B, I], as a tensor or as a lookup. Where `resets_TB`, a bool tensor, is true, the stream has its
        initial state before the step. `lengths_B`: how many steps each stream has; what x has after them is not read,
        outputs there are 0, and the last state is that after the stream's last step. Outputs and states have the
        parameters' dtype, even under autocast. TypeError and ValueError for arguments that do not fit, RuntimeError
        where PyTorch traces or transforms the kernels. torch.compile leaves the call out of its graphs.

        By the fastest backend that can, or the next one where a loop fails on a GPU. layer_inputs: gets the input of
        each layer, [T, B, I]; x is then a tensor.
        """
        if torch.compiler.is_dynamo_compiling():
            from charlm.layers.uncompiled import uncompiled

            return uncompiled(self.forward, x, state, resets_TB, lengths_B, layer_inputs=layer_inputs)
        device, given = self.like.device, {"resets": resets_TB is not None, "lengths": lengths_B is not None}
        while True:
            selection, random = self.select_backend(device, self.training, **given), random_state(device)
            try:
                return self.forward_by(selection.backend, x, state, resets_TB, lengths_B, layer_inputs=layer_inputs)
            except LoopError as error:
                say("gpu", str(error))
            set_random_state(device, random)
            if layer_inputs is not None:
                layer_inputs.clear()

    def forward_reference(
        self,
        x: Tensor | Lookup,
        state: RecurrentState | None = None,
        resets_TB: Tensor | None = None,
        lengths_B: Tensor | Sequence[int] | None = None,
        activations: list[Activations] | None = None,
    ) -> tuple[Tensor, RecurrentState]:
        """`forward` by the reference loop, which defines the right results for every other backend.

        activations: one for each layer, which the loop records.
        """
        return self.forward_by(REFERENCE, x, state, resets_TB, lengths_B, activations=activations)

    def forward_by(
        self,
        backend: Backend,
        x: Tensor | Lookup,
        state: RecurrentState | None = None,
        resets_TB: Tensor | None = None,
        lengths_B: Tensor | Sequence[int] | None = None,
        *,
        activations: list[Activations] | None = None,
        layer_inputs: list[Tensor] | None = None,
    ) -> tuple[Tensor, RecurrentState]:
        """`forward` by a backend."""
        if backend.driver:
            refuse_symbols()
        T, B = check_input(f"{self.kind}: input", x, self.input_size, self.like, batch_first=self.batch_first)
        layer_states, like, keep_TB1 = self._split_state(state, B), self.like, None
        if resets_TB is not None:
            check_tensor(f"{self.kind}: resets", resets_TB, (T, B), torch.bool, like.device)
            keep_TB1 = (~resets_TB).to(like.dtype).unsqueeze(-1)
        y: Any = x
        if isinstance(x, Lookup):
            y = x if backend.driver and lengths_B is None else x.dense(self.input_size, like)
        elif self.batch_first:
            y = x.transpose(0, 1)
        is_after_TB1 = last_B = None
        if lengths_B is not None:
            lengths_B = check_lengths(f"{self.kind}: lengths", lengths_B, T, B, like.device)
            is_after_TB1 = (torch.arange(T, device=like.device)[:, None] >= lengths_B).unsqueeze(-1)
            last_B = (lengths_B - 1).clamp(min=0)
            y = y.masked_fill(is_after_TB1, 0)
            keep_TB1 = None if keep_TB1 is None else torch.where(is_after_TB1, 1, keep_TB1)
        options = backend.options or self.options(self.training, resets_TB is not None, lengths_B is not None)
        last_states: list[LayerState] = []
        for layer, layer_state in enumerate(layer_states):
            p = self.dropout.between_layers if layer > 0 and self.training else 0.0
            inputs = drop_units(y, p, variational=self.dropout.variational, shard=self.shard) if p > 0 else y
            if is_after_TB1 is not None:
                # So that the steps after a stream's end stay finite: of an infinity, a gradient of 0 is no number.
                last_BI = inputs[last_B, torch.arange(B, device=like.device)]
                inputs = torch.where(is_after_TB1, last_BI, inputs)
            if layer_inputs is not None:
                layer_inputs.append(inputs)
            call = self.layer_call(layer, layer_state, T, options, keep_TB1, is_after_TB1, training=self.training)
            if activations:
                call = call._replace(activations=activations[layer])
            output, last_state = backend.layer(inputs, call)
            if is_after_TB1 is not None:
                output = output.masked_fill(is_after_TB1, 0)
            y = y + output if layer > 0 and self.residual else output
            last_states.append(last_state)
        y = y.transpose(0, 1) if self.batch_first else y
        return y, tuple(torch.stack(tensors) for tensors in zip(*last_states, strict=True))

    def layer_call(
        self,
        layer: int,
        state: LayerState,
        steps: int,
        options: StateOptions,
        keep_TB1: Tensor | None = None,
        is_after_TB1: Tensor | None = None,
        *,
        training: bool,
    ) -> LayerCall:
        """The call of one layer; draws its masks in training.

        options: what the step reads; where nothing acts, it has no effect. keep_TB1: 0 where states are reset.
        is_after_TB1: where a stream has ended; its states then stay as they are.
        """
        form, parameters = self.forms[layer], self.layer_parameters(layer)
        given: dict[str, Tensor] = {}
        passes = self._both_passes(options)[form.inputs == form.hidden]
        assert passes is not None
        like = next(iter(parameters.values()))
        B, H = state[0].shape
        if options.resets:
            given["keep"] = like.new_ones(1, 1, 1) if keep_TB1 is None else keep_TB1
        if options.mask:
            given["mask"] = like.new_ones(1, 1, H)
            if training and (p := self.dropout.state) > 0:
                given["mask"] = dropout_mask((B, H), p, like=like, shard=self.shard, streams=0)[None]
        if training and (p := self.dropout.weights) > 0:
            for name in form.program.recurrent():
                weights = parameters[name]
                parameters[name] = weights * dropout_mask(tuple(weights.shape), p, like=weights)
        if options.zoneout:
            shape = steps, B, len(state) * H
            shares = zoneout_shares(self.cell, self.zoneout, shape, like, training=training, shard=self.shard)
            given["zoneout"] = shares if is_after_TB1 is None else torch.where(is_after_TB1, 1.0, shares)
        return LayerCall(passes, parameters, form.inputs, state, given)

    def generating_layers(
        self, driver: CpuDriver, options: StateOptions, state: RecurrentState, characters: Lookup
    ) -> list[ctypes.Structure]:
        """The structs for a `Generator`, in evaluation mode. characters: the input for each character."""
        layers = []
        for layer, layer_state in enumerate(self._split_state(state, state[0].shape[1])):
            call = self.layer_call(layer, layer_state, 1, options, training=False)
            inputs = characters if layer == 0 else None
            layers.append(generating_layer(driver, call, inputs))
        return layers

    # Backends

    def options(self, training: bool, resets: bool = False, lengths: bool = False) -> StateOptions:
        """What happens to states in a call. A stream that has ended keeps its states as zoneout does."""
        return StateOptions(resets, training and self.dropout.state > 0, self.zoneout > 0 or lengths)

    def _both_passes(self, options: StateOptions) -> tuple[Passes | None, Passes]:
        """The passes of all layers; kept, because comparing whole programs takes as long as a small layer."""
        if options not in self._passes:
            self._passes[options] = both_passes(*self._programs, options)
        return self._passes[options]

    def task(self, training: bool, options: StateOptions | None = None) -> Task:
        """What these layers ask of a backend; by default without resets and lengths."""
        return Task(
            cell=self.cell,
            layers=tuple(self.forms),
            both_passes=self._both_passes,
            dtype=self.like.dtype,
            training=training,
            options=options or self.options(training),
            buffers=self.buffer_cache,
        )

    def select_backend(
        self, device: torch.device | str, training: bool = True, resets: bool = False, lengths: bool = False
    ) -> Selection:
        """The backend that `forward` uses on `device`, and why not a faster one. At first use, compiles kernels on
        the CPU, and compares those of a GPU with the reference loop.

        resets, lengths: whether `forward` gets `resets_TB`, `lengths_B`. Call it under the same autocast as `forward`.
        """
        device, options = torch.device(device), self.options(training, resets, lengths)
        faults = [len(driver.faults) for driver in DRIVERS]
        conditions = device, autocast_state(device), self.like.dtype, training, options, *faults
        if conditions not in self._selections:
            self._selections[conditions] = select(self.task(training, options), device)
        return self._selections[conditions]

    def __getstate__(self) -> dict[str, Any]:
        """A copy selects its own backends, which refer to it."""
        return {**self.__dict__, "_selections": {}, "_passes": {}}

    def _split_state(self, state: RecurrentState | None, batch_size: int) -> list[LayerState]:
        """The state of each layer."""
        if state is None:
            state = self.initial_state(batch_size)
        shape = self.num_layers, batch_size, self.hidden_size
        order = order_of(self.input_size, batch_first=self.batch_first)
        check_state(f"{self.kind}: state", state, self.state_names, shape, self.like, order)
        return list(zip(*(tensor.unbind() for tensor in state), strict=True))

    def initial_state(self, batch_size: int) -> RecurrentState:
        """The initial state of `batch_size` streams: zeros, or learned."""
        L, H, rows = self.num_layers, self.hidden_size, rows_of_start(self.forms[0].program)
        states = []
        for name in self.state_names:
            if name in rows:
                learned = [self.layer_parameters(layer)[START].view(-1, H)[rows[name]] for layer in range(L)]
                states.append(torch.stack(learned)[:, None].repeat(1, batch_size, 1))
            else:
                states.append(self.like.new_zeros(L, batch_size, H))
        return tuple(states)

    # Initial values

    @torch.no_grad()
    def init_orthogonal_(self) -> None:
        """Make each gate's recurrent matrix that has no initial value of its own orthogonal (Saxe et al. 2014)."""
        for layer, declared, parameter in self._declared():
            if declared.name in self.forms[layer].program.recurrent():
                for block, start in self._blocks(layer, declared, parameter):
                    if start is None:
                        nn.init.orthogonal_(block)

    @torch.no_grad()
    def init_uniform_(self, bound: float, bias_bound: float = 0.0) -> None:
        """Draw weights and biases from U(±bound); matrices and rows of vectors that have an initial value get it."""
        for layer, declared, parameter in self._declared():
            if None in declared.starts or not declared.starts:
                drawn = bias_bound if declared.columns == "" else bound
                if declared.bound is not None:
                    drawn = declared.bound
                nn.init.uniform_(parameter, -drawn, drawn)
            for block, start in self._blocks(layer, declared, parameter):
                if start == "identity":
                    nn.init.eye_(block)
                elif start == "orthogonal":
                    nn.init.orthogonal_(block)
                elif isinstance(start, float):
                    block.fill_(start)
                elif isinstance(start, bytes):
                    block.copy_(array_of(start).view_as(block))

    def _blocks(self, layer: int, declared: Parameter, parameter: Tensor) -> Iterator[tuple[Tensor, Start]]:
        """The rows of a vector parameter, or its matrices, each with its initial value."""
        blocks = parameter.view(-1, *self._gate_shape(layer, declared))
        return zip(blocks, declared.starts or [None] * len(blocks), strict=True)


def _without_defaults(section: Section, **shown: Any) -> str:
    """How a section is made: `shown`, and its options that are not defaults."""
    options = shown | section.model_dump(exclude={"kind"}, exclude_defaults=True)
    return f"{type(section).__name__}({', '.join(f'{name}={value!r}' for name, value in options.items())})"
