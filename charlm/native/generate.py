"""Generates characters in the kernels of a model's cell: any number in one call."""

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from charlm.cells.passes import Passes
from charlm.native.autograd import autocasts_to_bf16
from charlm.native.fused import FusedDriver
from charlm.native.recurrence import Buffers, Window, saved_for_backward


class GeneratingLayer(NamedTuple):
    """A layer as generation reads it."""

    passes: Passes
    windows: Sequence[Tensor]
    """First layer: a row for each character, [V, n]. Other layers: scratch [B, n]."""
    vectors: Sequence[Tensor]
    """The vectors of the loop, then those of the part before it."""
    weights: Sequence[Tensor]
    """The matrices of the products in the loop, then of those before it."""
    before_widths: Sequence[int]
    """Units of each operand of the products before the loop, other than the input."""
    before_norms: Sequence[int]
    """Number of normalizations before the loop, for each size."""
    state: tuple[Tensor, ...]
    zoneout_11S: Tensor | None
    """Zoneout's share."""
    input_size: int


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
        driver: FusedDriver,
        layers: Sequence[GeneratingLayer],
        decoders: Sequence[tuple[Tensor, Tensor]],
        *,
        residual: bool,
    ) -> None:
        self._driver = driver
        weights, biases = ([each.detach().contiguous() for each in of_all] for of_all in zip(*decoders, strict=True))
        (V, H), M = weights[0].shape, len(decoders)
        B, L = len(layers[0].state[0]), len(layers) // M
        self._batch_size, self._ids = B, torch.zeros(B, dtype=torch.int64)
        windows = [self._window(layer, None if place % L else self._ids) for place, layer in enumerate(layers)]
        scratch = [self._scratch(layer, window) for layer, window in zip(layers, windows, strict=True)]
        structs = [driver.filled(*each) for each in zip(windows, scratch, strict=True)]
        logits = weights[0].new_empty(M, B, V)
        bf16 = autocasts_to_bf16()
        self._sizes = {"B": B, "M": M, "H": H, "V": V, "L": L, "residual": residual, "bf16": bf16}
        # No call uses more threads, because the layers' scratch is allocated for this number.
        self._threads = torch.get_num_threads()
        self._tensors = {"weights": weights, "biases": biases, "logits": logits, "ids": self._ids}
        self._layers = (ctypes.c_void_p * len(structs))(*map(ctypes.addressof, structs))
        # The structs hold addresses only.
        self._kept_alive = (windows, scratch, structs)

    def _window(self, layer: GeneratingLayer, ids_B: Tensor | None) -> Window:
        """A window of a single step; states are [S, 2, B, H]."""
        like, zoneout = layer.state[0], layer.zoneout_11S
        B, H = like.shape
        saved = saved_for_backward(
            self._driver, layer.passes, layer.input_size, Buffers(), like, 1, pre_zoneout=zoneout is not None
        )
        return Window(
            layer.passes, 1, B, H, layer.input_size, autocasts_to_bf16(), 1, **saved,
            states=torch.stack([torch.stack([tensor, tensor]) for tensor in layer.state]),
            weights=[weight.detach().contiguous() for weight in layer.weights],
            vectors=[vector.detach().contiguous() for vector in layer.vectors],
            windows=[window.detach().contiguous() for window in layer.windows],
            ids=ids_B, zoneout=zoneout,
        )  # fmt: skip

    def _scratch(self, layer: GeneratingLayer, window: Window) -> dict[str, list[Tensor | None]]:
        scratch = self._driver.scratch(window)
        scratch["copies"] += [torch.zeros(2, window.B, width + 16) for width in layer.before_widths]
        threads = torch.get_num_threads()
        scratch["partials"] += [torch.empty(2, threads, count, 2, window.B) for count in layer.before_norms]
        return scratch

    def draw(self, draws_NB: Tensor, *, temperature: float, top_k: int, top_p: float) -> Tensor:
        """The next N characters of every stream, [N, B], drawn with uniform random numbers [N, B] in [0, 1).

        −1 where a logit is not finite.
        """
        draws_NB = draws_NB.double().contiguous()
        drawn = torch.empty(draws_NB.shape, dtype=torch.int64)
        assert draws_NB.shape[1] == self._batch_size, draws_NB.shape
        sampling = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
        threads = min(self._threads, torch.get_num_threads())  # one in a process that was forked since
        values = self._sizes | self._tensors | sampling | {"threads": threads, "layers": ctypes.addressof(self._layers)}
        struct = self._driver.structs[1].fill(count=len(draws_NB), draws=draws_NB, drawn=drawn, **values)
        self._driver.call("recurrence_generate", struct)
        return drawn
