"""What a `Generator` needs of a layer: its loop, and what comes before it, such as W x + b of an LSTM.

Training computes the part before the loop for all steps at once. In generation the first layer looks it up in a table
with a row for each character, and the layers above compute it in the kernel, from the output of the layer below.
"""

import ctypes
from functools import partial

import torch

from charlm.cells.cpp import norm_counts
from charlm.cells.on_tensors import matrix
from charlm.cells.program import units
from charlm.cells.split import before_loop
from charlm.cells.window import LoopInputs
from charlm.layers.backend import LayerCall, Lookup
from charlm.layers.buffers import Buffers
from charlm.layers.operators import linear_by
from charlm.layers.recurrence import matrices, new_window, values_before_loop
from charlm.layers.reference import TensorProgram
from charlm.native.recurrence import CpuDriver, copies, partials, scratch
from charlm.system.device import autocasts_to_bf16


@torch.no_grad()
def generating_layer(
    driver: CpuDriver, input_size: int, call: LayerCall, characters: Lookup | None
) -> ctypes.Structure:
    """The struct `Arguments` of a layer, without ids. In its tables the part before the loop comes last.

    characters: the first layer's input for each character; None above it. Both halves of the states, [S, 2, B, H], are
    those before the next character. The windows above the first layer are scratch [B, n].
    """
    split, parameters, state = call.passes.split, call.parameters, call.state
    B, H = state[0].shape
    before = before_loop(split)
    nodes, all_nodes = before.program.nodes, split.program.nodes
    if characters is None:
        windows = []
        for place in split.windows:
            width = all_nodes[place].count * units(all_nodes[place].size, H, input_size)
            windows.append(state[0].new_empty(B, width))
    else:
        windows, _, _ = values_before_loop(driver, split, characters, parameters, input_size)
    ends = (*split.vectors, *before.vectors)
    static = TensorProgram(split.program, ends, parameters, linear=partial(linear_by, driver.matmul))
    vectors = [vector.contiguous() for vector in static({})]
    inputs = LoopInputs(
        passes=call.passes,
        T=1,
        B=B,
        H=H,
        I=input_size,
        bf16=autocasts_to_bf16(),
        saved_steps=1,
        weights=matrices(call.passes, parameters),
        windows=windows,
        vectors=vectors[: len(split.vectors)],
        zoneout=call.zoneout_TBS,
    )
    window = new_window(driver, inputs, state, Buffers(), Buffers())
    window.states[:, 1] = window.states[:, 0]
    weights = [matrix(parameters[nodes[place].name], nodes[place].index).contiguous() for place in before.products]
    tables = scratch(window, [window.units(operand.size) if window.bf16 else 0 for operand in call.passes.operands])
    tables["copies"] += copies(B, [window.units(nodes[place].size) for place in before.operands])
    tables["partials"] += partials(B, norm_counts(before.norms).values())
    tables["weights"] = [*window.weights, *weights]
    tables["vectors"] = vectors
    return driver.arguments(window, **tables)
