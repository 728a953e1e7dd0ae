"""Memory of windows that keeps its addresses: CUDA graphs are replayed only on those on which they were recorded."""

import weakref
from collections import OrderedDict
from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor

from charlm.native.recurrence import Memory

_Tensors = dict[str, Tensor]

_FORMS = 2
"""How many forms of calls a stack keeps memory for: those of training and of evaluation, as a rule."""


class KeptMemory:
    """The memory of a stack's layers. A call leases the tensors that an earlier call of the same form gave back.

    It gives them back when autograd has dropped its backward pass, so calls of several layers, or of several windows
    that wait for their backward passes, never share them. What the last forms of calls used is kept.
    """

    def __init__(self) -> None:
        self._free: OrderedDict[Hashable, list[_Tensors]] = OrderedDict()

    def lease(self, form: Hashable) -> Memory:
        """Memory for a call of this form; other memory than that of all calls that are not over."""
        form = form, torch.is_inference_mode_enabled()  # its tensors cannot be written outside
        free = self._free.get(form)
        return _Leased(free.pop() if free else {}, self, form)

    def give_back(self, tensors: _Tensors, form: Hashable) -> None:
        """Keep the tensors for the next call of this form. The last to come is the first to go, in backward order."""
        self._free.setdefault(form, []).append(tensors)
        self._free.move_to_end(form)
        while len(self._free) > _FORMS:
            self._free.popitem(last=False)

    def __deepcopy__(self, memo: dict[int, Any]) -> "KeptMemory":
        """A copied stack has memory of its own."""
        return KeptMemory()

    def __reduce__(self) -> tuple[type["KeptMemory"], tuple[()]]:
        """Nothing of it is stored."""
        return KeptMemory, ()


class _Leased(Memory):
    """Tensors by name, made at their first use. Whatever comes from outside is copied to them, or from them."""

    def __init__(self, tensors: _Tensors, memory: KeptMemory, form: Hashable) -> None:
        self._tensors = tensors
        weakref.finalize(self, memory.give_back, tensors, form).atexit = False

    def new(self, name: str, like: Tensor, *shape: int) -> Tensor:
        if name not in self._tensors:
            self._tensors[name] = super().new(name, like, *shape)
        return self._tensors[name]

    def read(self, name: str, tensor: Tensor) -> Tensor:
        return self.new(name, tensor, *tensor.shape).copy_(tensor)

    def result(self, tensor: Tensor) -> Tensor:
        return tensor.clone()
