"""Generates characters in the kernels of a model's cell (generate.h): any number in one call."""

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from charlm.native.build import Kernel
from charlm.system.device import autocasts_to_bf16


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
        self._kernel.library().recurrence_generate(ctypes.byref(generation))
        return drawn
