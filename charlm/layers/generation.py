"""Generates characters in the kernels of a model's cell (native/generate.h): any number in one call.

Training computes what precedes a layer's loop, such as W x + b of an LSTM, for all steps at once. In generation the
first layer looks it up in a table with one row per character; the layers above compute it in the kernel.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from charlm.cells.cpp import norm_counts
from charlm.cells.on_tensors import TensorProgram, matrix
from charlm.cells.split import before_loop
from charlm.layers.backend import LayerCall, Lookup
from charlm.layers.buffers import Buffers
from charlm.layers.operators import linear
from charlm.layers.recurrence import loop_inputs, new_window
from charlm.native.compiler import Kernel
from charlm.native.loading import run
from charlm.native.recurrence import CpuDriver, copies, partials, scratch
from charlm.system.device import autocasts_to_bf16


@torch.no_grad()
def generating_layer(driver: CpuDriver, call: LayerCall, characters: Lookup | None) -> ctypes.Structure:
    """The struct `Arguments` of a layer, without ids. In its tables the part before the loop comes last.

    characters: the first layer's input for each character; None above it. The states before the next character fill
    both halves of [S, 2, B, H]. The windows above the first layer are scratch [B, n].
    """
    split, state = call.passes.split, call.state
    B = len(state[0])
    before = before_loop(split)
    nodes = before.program.nodes
    # Above the first layer, the kernel overwrites these windows of zeros.
    x = state[0].new_zeros(1, B, call.inputs) if characters is None else characters
    inputs = replace(loop_inputs(x, call), T=1, I=call.inputs, ids=None)
    window = new_window(driver, inputs, state, Buffers(), Buffers())
    window.states[:, 1] = window.states[:, 0]
    weights = [matrix(call.parameters, node).contiguous() for node in nodes if node.op == "product"]
    vectors = TensorProgram(split.program, before.vectors, call.parameters, linear=linear)({})
    tables = scratch(window, [window.units(operand.size) for operand in call.passes.operands])
    tables["copies"] += copies(B, [window.units(nodes[place].size) for place in before.operands])
    tables["partials"] += partials(B, norm_counts(before.norms).values())
    tables["weights"] = [*window.weights, *weights]
    tables["vectors"] = [*window.vectors, *(vector.contiguous() for vector in vectors)]
    return driver.arguments(window, **tables)


class Generator:
    """Draws characters from a model, starting from the state after a prompt. On the CPU, no gradients.

    Several networks of the same kind and size predict together, by the mean of their probabilities. Under autocast to
    bfloat16 the products are bfloat16; logits and states stay float32.

    Args:
        kernel: of all layers.
        layers: the structs of each network from the lowest to the highest, one network after the other.
        decoders: of each network the weights [V, H] and biases [V] of the logits.
        residual: whether layers above the first add their input to their output.
    """

    def __init__(
        self,
        kernel: Kernel,
        layers: Sequence[ctypes.Structure],
        decoders: Sequence[tuple[Tensor, Tensor]],
        *,
        residual: bool,
    ) -> None:
        self._kernel = kernel
        weights = [weight.detach().contiguous() for weight, _ in decoders]
        biases = [bias.detach().contiguous() for _, bias in decoders]
        (V, H), M = weights[0].shape, len(decoders)
        B, L = layers[0].B, len(layers) // M
        self._batch_size = B
        ids = torch.zeros(B, dtype=torch.int64)
        for first in layers[::L]:
            first.ids = ids.data_ptr()
        sizes = {"B": B, "M": M, "H": H, "V": V, "L": L, "residual": residual, "bf16": autocasts_to_bf16()}
        tensors = {"weights": weights, "biases": biases, "logits": weights[0].new_empty(M, B, V), "ids": ids}
        self._fields = sizes | tensors
        # No call uses more threads, because the layers' scratch is allocated for this number.
        self._threads = torch.get_num_threads()
        self._layers = (ctypes.c_void_p * len(layers))(*map(ctypes.addressof, layers))
        self._structs = layers  # kept alive

    def draw(self, draws_NB: Tensor, *, temperature: float, top_k: int, top_p: float) -> Tensor:
        """The next N characters of every stream, [N, B], drawn with uniform random numbers [N, B] in [0, 1).

        −1 where a logit is not finite.
        """
        draws_NB = draws_NB.double().contiguous()
        drawn = torch.empty(draws_NB.shape, dtype=torch.int64)
        assert draws_NB.shape[1] == self._batch_size, draws_NB.shape
        generation = self._kernel.structs[1].fill(
            count=len(draws_NB),
            threads=min(self._threads, torch.get_num_threads()),  # one in a process that was forked since
            layers=ctypes.addressof(self._layers),
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            draws=draws_NB,
            drawn=drawn,
            **self._fields,
        )
        run(self._kernel, "recurrence_generate", generation)
        return drawn
