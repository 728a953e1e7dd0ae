"""Generates characters in the kernel of a kind: any number in one call."""

import ctypes

import torch
from torch import Tensor

from charlm.native.call import autocasts_to_bf16
from charlm.native.linear import linear
from charlm.native.recurrence import LayerWeights, Recurrence
from charlm.native.structs import Value


class Generator:
    """Draws characters from a model, starting from the state after a prompt. On the CPU, no gradients.

    Under autocast to bfloat16 the products are bfloat16; logits and states stay float32.

    Args:
        kernel: the kind's.
        layers: parameters, state and zoneout's share of each layer, from the lowest to the highest; see
            `Recurrence.layer`.
        table_VI: the first layer's input for each character; None: one-hot.
        decoder: weights [V, H] and biases [V] of the logits.
        residual: whether layers above the first add their input to their output.
    """

    def __init__(
        self,
        kernel: Recurrence,
        layers: list[tuple[LayerWeights, tuple[Tensor, ...], Tensor | None]],
        table_VI: Tensor | None,
        decoder: tuple[Tensor, Tensor],
        *,
        residual: bool,
    ) -> None:
        self._kernel = kernel
        w_VH, b_V = (parameter.detach().contiguous() for parameter in decoder)
        V, H = w_VH.shape
        weights = [layer.w_ih_GI.detach().contiguous() for layer, _, _ in layers]
        biases = [layer.bias_G.detach().contiguous() for layer, _, _ in layers]
        B, rows = len(layers[0][1][0]), len(biases[0])
        self._batch_size, self._ids = B, torch.zeros(B, dtype=torch.int64)
        maps = biases[0] + weights[0].t() if table_VI is None else linear(table_VI.detach(), weights[0], biases[0])
        assert len(maps) == V, (maps.shape, V)
        inputs = [maps.contiguous(), *(maps.new_empty(B, rows) for _ in layers[1:])]
        fields: list[dict[str, Value]] = [kernel.one_step(state, layer, kept) for layer, state, kept in layers]
        for fields_of_layer, input in zip(fields, inputs, strict=True):
            fields_of_layer["inputs"] = input
        fields[0]["ids"] = self._ids
        structs = [kernel.structs[0].fill(**fields_of_layer) for fields_of_layer in fields]
        logits = w_VH.new_empty(B, V)
        self._sizes = {
            "B": B,
            "H": H,
            "G": rows // H,
            "V": V,
            "L": len(layers),
            "residual": residual,
            "bf16": autocasts_to_bf16(),
        }
        # At most so many, because the layers' scratch is allocated for them.
        self._threads = torch.get_num_threads()
        self._tensors = {"output_weights": w_VH, "output_biases": b_V, "logits": logits, "ids": self._ids}
        self._tables = {
            "layers": _addresses([ctypes.addressof(struct) for struct in structs]),
            "weights": _addresses([weight.data_ptr() for weight in weights]),
            "biases": _addresses([bias.data_ptr() for bias in biases]),
        }
        # The structs hold addresses only.
        self._kept_alive = (fields, structs, weights, biases)

    def draw(self, draws_NB: Tensor, *, temperature: float, top_k: int, top_p: float, min_p: float) -> Tensor:
        """The next N characters of every stream, [N, B], drawn with uniform random numbers [N, B] in [0, 1).

        −1 where a logit is not finite.
        """
        draws_NB = draws_NB.double().contiguous()
        drawn = torch.empty(draws_NB.shape, dtype=torch.int64)
        assert draws_NB.shape[1] == self._batch_size, draws_NB.shape
        tables = {name: ctypes.addressof(table) for name, table in self._tables.items()}
        choice = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
        threads = min(self._threads, torch.get_num_threads())  # one in a process that was forked since
        values = self._sizes | self._tensors | tables | choice | {"threads": threads}
        struct = self._kernel.structs[1].fill(count=len(draws_NB), draws=draws_NB, drawn=drawn, **values)
        self._kernel.call("recurrence_generate", struct)
        return drawn


def _addresses(values: list[int]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * len(values))(*values)
