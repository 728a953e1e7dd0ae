"""Generates characters in the kernel of a kind: any number in one call."""

import ctypes
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from charlm.native.call import Kernel, Value, fill

_HEADER = Path(__file__).with_name("generate.h")


class Step(NamedTuple):
    """One layer, set up for one step at a time."""

    w_ih_GI: Tensor
    bias_G: Tensor
    """The sum of all biases added to the product of input and `w_ih_GI`."""
    fields: dict[str, Value]
    """All fields of the kernel's Arguments except `inputs` and `ids`. The second half of states [2, B, H] is set."""


class Generator:
    """Draws characters from a model, starting from the state after a prompt. float32 on the CPU, no gradients.

    Args:
        kernel, kind: the kernel, and the prefix of its functions.
        steps: the layers, from the lowest to the highest.
        table_VI: the first layer's input for each character; None: one-hot.
        decoder: weights [V, H] and biases [V] of the logits.
        residual: whether layers above the first add their input to their output.
    """

    def __init__(
        self,
        kernel: Kernel,
        kind: str,
        steps: list[Step],
        table_VI: Tensor | None,
        decoder: tuple[Tensor, Tensor],
        *,
        residual: bool,
    ) -> None:
        self._call = lambda struct: kernel.call(f"{kind}_generate", struct)
        w_VH, b_V = (parameter.detach().contiguous() for parameter in decoder)
        V, H = w_VH.shape
        B = self._batch_size = int(steps[0].fields["B"])  # type: ignore[arg-type]
        rows = len(steps[0].bias_G)
        self._ids = torch.zeros(B, dtype=torch.int64)
        first, *others = steps
        w_ih, bias = first.w_ih_GI.detach(), first.bias_G.detach()
        maps = bias + (w_ih.t() if table_VI is None else table_VI.detach() @ w_ih.t())
        assert len(maps) == V, (maps.shape, V)
        inputs = [maps.contiguous(), *(maps.new_empty(B, rows) for _ in others)]
        ids = [self._ids, *(None for _ in others)]
        layers = [
            kernel.arguments(**step.fields, inputs=input, ids=id)
            for step, input, id in zip(steps, inputs, ids, strict=True)
        ]
        weights = [step.w_ih_GI.detach().contiguous() for step in steps]
        biases = [step.bias_G.detach().contiguous() for step in steps]
        logits = w_VH.new_empty(B, V)
        self._sizes = {"B": B, "H": H, "G": rows // H, "V": V, "L": len(steps), "residual": residual}
        # Fixed here, because the steps' scratch is allocated for this number of threads.
        self._sizes["threads"] = torch.get_num_threads()
        self._tensors = {"output_weights": w_VH, "output_biases": b_V, "logits": logits, "ids": self._ids}
        self._tables = {
            "layers": _addresses([ctypes.addressof(layer) for layer in layers]),
            "weights": _addresses([weight.data_ptr() for weight in weights]),
            "biases": _addresses([bias.data_ptr() for bias in biases]),
        }
        # The structs hold addresses only.
        self._kept_alive = (steps, inputs, layers, weights, biases)

    def draw(self, draws_NB: Tensor, *, temperature: float, top_k: int, top_p: float) -> Tensor:
        """The next N characters of every stream, [N, B], drawn with uniform random numbers [N, B] in [0, 1)."""
        draws_NB = draws_NB.double().contiguous()
        drawn = torch.empty(draws_NB.shape, dtype=torch.int64)
        assert draws_NB.shape[1] == self._batch_size, draws_NB.shape
        tables = {name: ctypes.addressof(table) for name, table in self._tables.items()}
        choice = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
        self._call(
            fill(
                _HEADER,
                "Generation",
                count=len(draws_NB),
                draws=draws_NB,
                drawn=drawn,
                **self._sizes,
                **self._tensors,
                **tables,
                **choice,
            )
        )
        return drawn


def _addresses(values: list[int]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * len(values))(*values)
