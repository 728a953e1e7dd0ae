"""The tensors of a layer's calls: new ones at each call, or kept ones.

A CUDA graph can be replayed only on the addresses on which it was recorded, so its calls need buffers that keep theirs.
"""

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

import torch
from torch import Tensor


class Buffers:
    """The tensors of a call: new ones, or `tensors` by name, which are allocated at first use."""

    def __init__(self, tensors: dict[str, Tensor] | None = None) -> None:
        self._tensors = tensors

    def new(self, name: str, like: Tensor, *shape: int) -> Tensor:
        """An uninitialized tensor for the driver to write."""
        if self._tensors is None:
            return like.new_empty(shape)
        if (tensor := self._tensors.get(name)) is None:
            tensor = self._tensors[name] = like.new_empty(shape)
        assert (tensor.shape, tensor.dtype, tensor.device) == (shape, like.dtype, like.device), name
        return tensor

    def read(self, name: str, value: Any) -> Any:
        """A tensor as the driver reads it, copied in where the tensors are kept; or each of a list, or None."""
        if isinstance(value, list):
            return [self.read(f"{name}{k}", tensor) for k, tensor in enumerate(value)]
        if value is None or self._tensors is None:
            return value if value is None else value.contiguous()
        return self.new(name, value, *value.shape).copy_(value)

    def result(self, tensor: Tensor) -> Tensor:
        """A tensor that the driver wrote, for the caller."""
        return tensor if self._tensors is None else tensor.clone()


BuffersOf = Callable[[str], Buffers]
"""Phase → its buffers. Those of "window" live until the backward pass is over, those of "forward" and "backward" only
during that pass."""

_MOST_FORMS = 2
"""Cached forms per (phase, kind of layer, grad mode): a text's windows, and its last window, which is shorter."""


class BufferCache:
    """Buffers of a stack's layers: a call reuses those of a finished call of the same form.

    Calls that overlap, such as windows that wait for their backward passes, never share buffers of "window".
    """

    def __init__(self) -> None:
        self._free: dict[Hashable, OrderedDict[Hashable, list[dict[str, Tensor]]]] = {}
        self._lock = threading.RLock()  # reentrant: freeing tensors can return other buffers

    def buffers_of(self, form: Hashable, layer_kind: Hashable = None) -> BuffersOf:
        """The buffers of a call. form: equal for calls in the same stream whose tensors have equal shapes."""
        # Tensors made in inference mode cannot be written outside it.
        form = form, torch.is_inference_mode_enabled()
        return partial(self._take, form, (layer_kind, torch.is_grad_enabled()))

    def _take(self, form: Hashable, kind: Hashable, phase: str) -> Buffers:
        kind = phase, kind
        with self._lock:
            free = self._free.get(kind, {}).get(form)
            tensors = free.pop() if free else {}
        buffers = Buffers(tensors)
        weakref.finalize(buffers, self._give_back, kind, form, tensors).atexit = False
        return buffers

    def _give_back(self, kind: Hashable, form: Hashable, tensors: dict[str, Tensor]) -> None:
        """Last in, first out: layers return their buffers from the last to the first, so each gets its own again."""
        with self._lock:
            forms = self._free.setdefault(kind, OrderedDict())
            forms[form] = [*forms.pop(form, []), tensors]
            if len(forms) > _MOST_FORMS:
                forms.popitem(last=False)

    def __reduce__(self) -> tuple[type["BufferCache"], tuple[()]]:
        """A copied or pickled cache is empty."""
        return BufferCache, ()
