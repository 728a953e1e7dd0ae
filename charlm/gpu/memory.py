"""Memory of windows that keeps its addresses: CUDA graphs are replayed only on those on which they were recorded."""

import threading
import weakref
from collections import OrderedDict
from collections.abc import Hashable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from charlm.native.recurrence import Lease, Memory

_Tensors = dict[str, Tensor]

_FORMS = 2
"""How many forms of calls memory is kept for, of each sort of layer and part, with gradients and without: a text's
windows, and its last, which is shorter."""


class KeptMemory:
    """The memory of a stack's layers: a call takes that of an earlier call of the same form, if that is over.

    So the calls of several layers, or of windows that wait for their backward passes, never share what these need. What
    is needed only during a pass is the same for all layers.
    """

    def __init__(self) -> None:
        self._free: dict[Hashable, OrderedDict[Hashable, list[_Tensors]]] = {}
        self._lock = threading.RLock()  # taken again where memory is given back while it is given back

    def lease(self, form: Hashable, sort: Hashable = None) -> Lease:
        """The memory of a call of this form, which is equal for calls whose tensors have the same shapes.

        sort: of the layer; a stack's first layer can have more vectors than the others.
        """
        # Tensors that were made in inference mode cannot be written outside; those of another stream may be in use.
        stream = torch.cuda.current_stream().cuda_stream if torch.cuda.is_available() else None
        return partial(self._take, (form, torch.is_inference_mode_enabled(), stream), (sort, torch.is_grad_enabled()))

    def _take(self, form: Hashable, sort: Hashable, part: str) -> Memory:
        sort = part, sort
        with self._lock:
            free = self._free.get(sort, {}).get(form)
            tensors = free.pop() if free else {}
        return _Leased(tensors, partial(self._give_back, sort, form))

    def _give_back(self, sort: Hashable, form: Hashable, tensors: _Tensors) -> None:
        """Last in, first out: layers return their memory from the last to the first, so each gets its own again."""
        with self._lock:
            forms = self._free.setdefault(sort, OrderedDict())
            forms[form] = [*forms.pop(form, []), tensors]
            if len(forms) > _FORMS:
                forms.popitem(last=False)

    def __deepcopy__(self, memo: dict[int, Any]) -> "KeptMemory":
        """A copied stack has memory of its own."""
        return KeptMemory()

    def __reduce__(self) -> tuple[type["KeptMemory"], tuple[()]]:
        """Nothing of it is stored."""
        return KeptMemory, ()


class _Leased(Memory):
    """Tensors by name, made at their first use. Inputs are copied in, results are copied out."""

    def __init__(self, tensors: _Tensors, give_back: partial[None]) -> None:
        self._tensors = tensors
        weakref.finalize(self, give_back, tensors).atexit = False

    def new(self, name: str, like: Tensor, *shape: int) -> Tensor:
        if (tensor := self._tensors.get(name)) is None:
            tensor = self._tensors[name] = super().new(name, like, *shape)
        assert (tensor.shape, tensor.dtype, tensor.device) == (shape, like.dtype, like.device), name
        return tensor

    def read(self, name: str, tensor: Tensor) -> Tensor:
        return self.new(name, tensor, *tensor.shape).copy_(tensor)

    def result(self, tensor: Tensor) -> Tensor:
        return tensor.clone()
