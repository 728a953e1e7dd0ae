"""Generates characters in the kernels of a model's cell (generate.h): any number in one call."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from charlm.cells.window import Window
from charlm.native.recurrence import CpuDriver, copies, partials, scratch
from charlm.system.device import autocasts_to_bf16


@dataclass(eq=False)
class GeneratingLayer:
    """A layer as generation reads it: its loop, and the part before it, see `before_loop`.

    Above the first layer the part before the loop is computed character by character.
    """

    window: Window
    """Of a single step. Both halves of `states`, [S, 2, B, H], are the states before the next character. The windows of
    a first layer are tables with a row for each character; those of other layers are scratch [B, n]."""
    before_weights: list[Tensor]
    before_vectors: list[Tensor]
    before_widths: list[int]
    """Units of each operand of the products before the loop, other than the input."""
    before_norms: list[int]
    """Number of normalizations before the loop, for each size."""


class Generator:
    """Draws characters from a model, starting from the state after a prompt. On the CPU, no gradients.

    Several networks of the same kind and size predict together, by the mean of their probabilities. Under autocast to
    bfloat16 the products are bfloat16; logits and states stay float32.

    Args:
        driver: of all layers.
        layers: of each network from the lowest to the highest, one network after the other.
        decoders: of each network the weights [V, H] and biases [V] of the logits.
        residual: whether layers above the first add their input to their output.
    """

    def __init__(
        self,
        driver: CpuDriver,
        layers: Sequence[GeneratingLayer],
        decoders: Sequence[tuple[Tensor, Tensor]],
        *,
        residual: bool,
    ) -> None:
        self._kernel = driver.kernel
        weights = [weight.detach().contiguous() for weight, _ in decoders]
        biases = [bias.detach().contiguous() for _, bias in decoders]
        (V, H), M = weights[0].shape, len(decoders)
        B, L = layers[0].window.B, len(layers) // M
        self._batch_size = B
        ids = torch.zeros(B, dtype=torch.int64)
        structs = []
        for place, layer in enumerate(layers):
            is_first = place % L == 0
            structs.append(_arguments(driver, layer, ids if is_first else None))
        sizes = {"B": B, "M": M, "H": H, "V": V, "L": L, "residual": residual, "bf16": autocasts_to_bf16()}
        tensors = {"weights": weights, "biases": biases, "logits": weights[0].new_empty(M, B, V), "ids": ids}
        self._fields = sizes | tensors
        # No call uses more threads, because the layers' scratch is allocated for this number.
        self._threads = torch.get_num_threads()
        self._layers = (ctypes.c_void_p * len(structs))(*map(ctypes.addressof, structs))
        self._structs = structs  # kept alive

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
        self._kernel.library().recurrence_generate(ctypes.byref(generation))
        return drawn


def _arguments(driver: CpuDriver, layer: GeneratingLayer, ids_B: Tensor | None) -> ctypes.Structure:
    """The struct of a layer. What belongs to the part before the loop comes last."""
    window = replace(layer.window, ids=ids_B)
    widths = [window.units(operand.size) if window.bf16 else 0 for operand in window.passes.operands]
    tables = scratch(window, widths)
    tables["copies"] += copies(window.B, layer.before_widths)
    tables["partials"] += partials(window.B, layer.before_norms)
    tables["weights"] = [*window.weights, *layer.before_weights]
    tables["vectors"] = [*window.vectors, *layer.before_vectors]
    return driver.arguments(window, **tables)
