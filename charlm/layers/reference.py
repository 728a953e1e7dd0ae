"""The reference loop: a cell's program in PyTorch's operators, step by step. It defines the right results."""

from collections.abc import Mapping

import torch
from torch import Tensor

from charlm.cells.on_tensors import TensorProgram, values_before_loop
from charlm.cells.program import Program
from charlm.cells.split import split
from charlm.layers.backend import Backend, LayerCall, LayerState


def reference_layer(x_TBI: Tensor, call: LayerCall) -> tuple[Tensor, LayerState]:
    """Outputs [T, B, H] and last states [B, H] from inputs [T, B, I], by autograd's operators."""
    parts, parameters = call.passes.split, call.parameters
    if call.activations is not None:
        parts = split(parts.program, looked_at=True)
    loop = parts.loop
    windows, vectors = values_before_loop(parts, x_TBI, parameters)
    named = (*loop.shown, *loop.gates)
    ends = (*loop.results, *(place for _, place in named))
    step = TensorProgram(parts.loop_with_sums, ends, parameters)
    states, outputs = call.state, []
    for t in range(len(x_TBI)):
        values = step(
            {
                "state": dict(zip(loop.states, states, strict=True)),
                "window": [window[t] for window in windows],
                "static": vectors,
                "given": {name: tensor[t % len(tensor)] for name, tensor in call.given.items()},
            }
        )
        states = tuple(values[: len(states)])
        outputs.append(states[0])
        if call.activations is not None:
            _record(call, loop, states, dict(zip(named, values[len(states) :], strict=True)))
    return torch.stack(outputs), states


def _record(call: LayerCall, loop: Program, states: LayerState, values: Mapping[tuple[str, int], Tensor]) -> None:
    """Record the activations of a step. values: those that people look at, by their names and nodes."""
    assert call.activations is not None
    shown = {name: s_BH for name, s_BH in zip(loop.states, states, strict=True) if name not in loop.internal}
    # What depends on parameters only is the same in all streams.
    shown |= {name: values[name, place].expand_as(states[0]) for name, place in loop.shown}
    for name, state in shown.items():
        call.activations[name, False].append(state)
    for name, place in loop.gates:
        call.activations[name, True].append(values[name, place].expand_as(states[0]))


REFERENCE = Backend("reference loop", reference_layer)
