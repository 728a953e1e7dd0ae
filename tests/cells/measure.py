"""Cases to run the tests over, and the one way in which they run a stack and compare two runs."""

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from charlm.cells import CELLS, LSTM, RHN, Cell, Parameters
from charlm.cells.on_tensors import TensorProgram
from charlm.cells.program import Program
from charlm.cells.state_options import ALL, PLAIN, StateOptions
from charlm.config.schema import Dropout
from charlm.gpu.recurrence import GpuDriver
from charlm.layers import RecurrentLayers, RecurrentState
from charlm.layers.selection import cpu_backend, gpu_backend

Run = dict[str, Tensor]


def layers_of(cell: Cell, input_size: int, num_layers: int = 1, **options: Any) -> RecurrentLayers:
    """Layers with these options, and places of dropout."""
    dropout = {name: value for name, value in options.items() if name in Dropout.model_fields}
    others = {name: value for name, value in options.items() if name not in dropout}
    return RecurrentLayers(cell, input_size, num_layers, dropout=Dropout(**dropout), **others)


@dataclass(frozen=True)
class Case:
    """A kind of cell with options."""

    kind: str
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return "-".join([self.kind, *(f"{name}={value}" for name, value in self.options.items())])

    def start(self, input_size: int, hidden_size: int, num_layers: int = 1, **more: Any) -> RecurrentLayers:
        """A stack as it starts; `more` are options of the cell or of the layers, or places of dropout."""
        fields = CELLS[self.kind].model_fields
        options = {name: value for name, value in more.items() if name in fields}
        others = {name: value for name, value in more.items() if name not in fields}
        cell = CELLS[self.kind](hidden=hidden_size, **(self.options | options))
        return layers_of(cell, input_size, num_layers, **others)

    def build(self, input_size: int, hidden_size: int, num_layers: int = 1, **more: Any) -> RecurrentLayers:
        """A stack in float64 in which no parameter, gains and special biases included, is at its default."""
        stack = self.start(input_size, hidden_size, num_layers, **more).double()
        with torch.no_grad():
            for parameter in stack.parameters():
                parameter += 0.2 * torch.randn_like(parameter)
        return stack


# Beside the defaults of every kind: the options that change the equations.
VARIANTS = [
    Case("rnn", {"nonlinearity": "relu"}),
    Case("lstm", {"layer_norm": True}),
    Case("rhn", {"depth": 1}),
    Case("rhn", {"couple_gates": False}),
    Case("slstm", {"forget_gate": "exponential"}),
    Case("mingru", {"positive": True}),
    Case("mogrifier", {"rounds": 2, "rank": 16}),
]


EXTREMES = (0.0, 88.0, -88.0, 110.0, -110.0, 1e4, -1e4)
"""Arguments of gates far out of their range."""


CASES = [Case(kind) for kind in CELLS] + VARIANTS


def random_state(stack: RecurrentLayers, batch_size: int) -> RecurrentState:
    """A state that two steps from zeros reach, not contiguous, in the stack's dtype and on its device."""
    x = 2 * random_input(stack, 2, batch_size).to(next(stack.parameters()))
    with torch.no_grad():
        _, state = stack.forward_reference(x)
    return tuple(tensor.transpose(0, 1).contiguous().transpose(0, 1) for tensor in state)


def random_input(stack: RecurrentLayers, steps: int, batch_size: int) -> Tensor:
    """An input [T, B, I] that is not contiguous, in float64 on the stack's device."""
    device = next(stack.parameters()).device
    return torch.randn(batch_size, steps, stack.input_size, dtype=torch.float64, device=device).transpose(0, 1)


def run(forward: Callable[..., Any], stack: RecurrentLayers, x: Tensor, state: RecurrentState, seed: int = 0) -> Run:
    """Outputs, last state, and every gradient under random gradients of both; in x's dtype, unscaled.

    The gradients from above depend on `seed` alone, so that runs in two precisions can be compared.
    """
    x = x.detach().requires_grad_()
    first = [tensor.detach().requires_grad_() for tensor in state]
    y, last = forward(x, tuple(first))
    outputs = {"y": y} | dict(zip(stack.state_names, last, strict=True))
    generator = torch.Generator().manual_seed(seed)
    upstream = [torch.randn(o.shape, generator=generator, dtype=torch.float64) for o in outputs.values()]
    inputs = {"dx": x} | {f"d{name}0": tensor for name, tensor in zip(stack.state_names, first, strict=True)}
    inputs |= {f"d{name}": parameter for name, parameter in stack.named_parameters()}
    # A state that has no gradient, as the m of an sLSTM, is compared by its value alone.
    pairs = [(o, gradient.to(o)) for gradient, o in zip(upstream, outputs.values(), strict=True) if o.requires_grad]
    used, upstream = zip(*pairs, strict=True)
    # A state that no step reads, as the SRU's h, has a gradient of 0.
    gradients = torch.autograd.grad(used, list(inputs.values()), upstream, allow_unused=True, materialize_grads=True)
    found = outputs | dict(zip(inputs, gradients, strict=True))
    return {name: tensor.detach() for name, tensor in found.items()}


def error(found: Tensor, truth: Tensor) -> float:
    return float((found.cpu().double() - truth.cpu().double()).abs().max())


def assert_as_accurate(found: list[Run], reference: list[Run], truth: list[Run], slack: float = 1.0) -> None:
    """`found` errs at most 4 times as much as `reference`, which has the same precision; or `slack` times that.

    The bound holds for the geometric mean over several runs with other inputs. In a single run an ill-conditioned input
    can make one lucky rounding of the reference decide.

    Where the reference is right to the last bit by luck, as it can be in tensors of a few elements,
    two units in the last place are allowed: of the largest element, or of 1, the order of the terms that
    the elements are sums of.
    """
    faults = []
    for name in truth[0]:
        shares = []
        for one, other, true in zip(found, reference, (run[name] for run in truth), strict=True):
            assert one[name].dtype == other[name].dtype, name
            assert one[name].shape == true.shape, name
            assert one[name].isfinite().all(), name
            floor = 2 * torch.finfo(other[name].dtype).eps * max(1.0, float(true.abs().max()))
            # At least what two equal errors give: one exact result must not make up for a wrong one.
            allowed = slack * (4 * error(other[name], true) + floor)
            shares.append(max(0.25, error(one[name], true) / allowed))
        if math.prod(shares) > 1:
            faults.append(
                f"{name}: in each run, error ÷ allowed error: {', '.join(f'{share:.2f}' for share in shares)}"
            )
    assert not faults, "\n".join(faults)


def assert_equal_runs(found: Run, expected: Run, tolerance: float = 1e-12) -> None:
    """Equal up to the rounding of float64."""
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(
            found[name], tensor, rtol=tolerance, atol=tolerance, msg=lambda m, name=name: f"{name}: {m}"
        )


def in_dtype_of(stack: RecurrentLayers, x: Tensor, state: RecurrentState) -> tuple[Tensor, RecurrentState]:
    dtype = next(stack.parameters()).dtype
    return x.to(dtype), tuple(tensor.to(dtype) for tensor in state)


def rounded(tensor: Tensor) -> Tensor:
    return tensor.bfloat16().to(tensor.dtype)


def own(stack: RecurrentLayers, driver: GpuDriver | None = None) -> Callable[..., tuple[Tensor, RecurrentState]]:
    """`forward` by the loop of GPUs; on the CPU in Triton's interpreter, in float32."""
    loop = gpu_backend(driver or GpuDriver(None), stack.task(training=stack.training))
    return partial(RecurrentLayers.forward_by, stack, loop)


def compiled_options(cell: Cell) -> list[StateOptions]:
    """Those of its kernels, which take seconds to compile: of an LSTM and an RHN there is one for each combination."""
    if cell in (LSTM(hidden=cell.hidden), RHN(hidden=cell.hidden)):
        return [StateOptions(*which) for which in itertools.product((False, True), repeat=3)]
    return [PLAIN, ALL]


def by_kernel(stack: RecurrentLayers) -> Callable[..., tuple[Tensor, RecurrentState]]:
    """`forward` by the fused CPU kernel for the options of a call, or by the one for all options."""
    compiled = compiled_options(stack.cell)

    def forward(x: Any, state: Any = None, resets_TB: Any = None, lengths_B: Any = None) -> Any:
        options = stack.options(stack.training, resets_TB is not None, lengths_B is not None)
        backend = cpu_backend(stack.task(stack.training), options if options in compiled else ALL)
        return stack.forward_by(backend, x, state, resets_TB, lengths_B)

    return forward


def seeded(forward: Callable[..., Any], *more: Any) -> Callable[..., Any]:
    """`forward` with the same masks at every call, and `more` arguments behind its own."""

    def call(*args: Any) -> Any:
        torch.manual_seed(1)
        return forward(*args, *more)

    return call


# Steps at which streams are reset: at the first and the last, twice in a row, and never.
RESET_STEPS = ((0, 4), (2, 3), (6,), ())


def resets_of(steps: int, batch_size: int) -> Tensor:
    resets_TB = torch.zeros(steps, batch_size, dtype=torch.bool)
    for b in range(batch_size):
        for t in RESET_STEPS[b % len(RESET_STEPS)]:
            resets_TB[min(t, steps - 1), b] = True
    return resets_TB


def hold_to_the_rule(stack: RecurrentLayers, steps: int, batch_size: int, forward_of: Any = by_kernel, resets=False):
    """`forward_of(stack)` in float32 errs no more than the reference, over three inputs; takes a stack in float64."""
    inputs = [(random_input(stack, steps, batch_size), random_state(stack, batch_size)) for _ in range(3)]
    resets_TB = resets_of(steps, batch_size) if resets else None

    def runs(forward: Callable[..., Any]) -> list[Run]:
        return [run(seeded(forward, resets_TB), stack, *in_dtype_of(stack, *pair)) for pair in inputs]

    truth = runs(stack.forward_reference)
    stack = stack.float()
    assert_as_accurate(runs(forward_of(stack)), runs(stack.forward_reference), truth)


# A cell's step on tensors, the truth that programs and kernels are held against, and its program on tensors.


class TensorParameters(Parameters):
    """A layer's parameters as tensors, so that `cell.step(p, x_BI, *states)` computes the states after a step.

    Several vectors side by side are [gates, B, H]; rows of a vector are [gates, 1, H], one alone is [1, H].
    """

    def __init__(self, parameters: Mapping[str, Tensor], square: bool) -> None:
        self.parameters, self.square = parameters, square

    def product(self, name: str, operand: Any, gates: int = 1, *, index: int | None = None, **other: Any) -> Tensor:
        product_BG = F.linear(operand, self._of_stack(name, index))
        return product_BG if gates == 1 else product_BG.unflatten(-1, (gates, -1)).movedim(-2, 0)

    def transposed(self, name: str, operand: Any, index: int = 0) -> Tensor:
        return operand @ self._of_stack(name, index if self.parameters[name].dim() == 3 else None)

    def vector(self, name: str, gates: int = 1, *, index: int | None = None, of: int = 0, **other: Any) -> Tensor:
        rows = gates if index is not None else gates * max(of, 1)
        vectors = self._of_stack(name, index)
        return vectors.reshape(1, -1) if rows == 1 else vectors.reshape(rows, 1, -1)

    def note(self, **gates: Any) -> None:
        """Nobody watches."""

    show = note

    def _of_stack(self, name: str, index: int | None) -> Tensor:
        return self.parameters[name] if index is None else self.parameters[name][index]


def by_step(layers: RecurrentLayers) -> Callable[..., tuple[Tensor, RecurrentState]]:
    """By calling the cell's own `step`."""
    p = TensorParameters(layers.layer_parameters(0), square=layers.input_size == layers.hidden_size)
    return _repeated(lambda x_BI, *states: layers.cell.step(p, x_BI, *states))


def by_program(layers: RecurrentLayers, program: Program) -> Callable[..., tuple[Tensor, RecurrentState]]:
    """By evaluating a whole program."""
    evaluate = TensorProgram(program, program.results, layers.layer_parameters(0))

    def step(x_BI: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
        return tuple(evaluate({"input": x_BI, "state": dict(zip(program.states, states, strict=True))}))

    return _repeated(step)


def _repeated(step: Callable[..., Any]) -> Callable[..., tuple[Tensor, RecurrentState]]:
    """A step again and again."""

    def forward(x_TBI: Tensor, state: RecurrentState) -> tuple[Tensor, RecurrentState]:
        states, outputs = tuple(tensor[0] for tensor in state), []
        for x_BI in x_TBI:
            after = step(x_BI, *states)
            states = after if isinstance(after, tuple) else (after,)
            outputs.append(states[0])
        return torch.stack(outputs), tuple(tensor[None] for tensor in states)

    return forward
