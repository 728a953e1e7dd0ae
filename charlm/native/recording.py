"""A function's operations, recorded once and then repeated, without Python's and autograd's share of the time.

A recording repeats calls of kernels and of PyTorch's operators in the same order on the same memory, so it gives the
same bits. A function that reads the value of a tensor may take another course the next time: it is not recorded.
"""

import ctypes
import functools
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

from charlm.native.loading import recorder

_CACHE_LINE = 64  # bytes
_READS_A_VALUE = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
_ALLOCATIONS = {
    torch.ops.aten.empty.memory_format,
    torch.ops.aten.new_empty.default,
    torch.ops.aten.empty_like.default,
    torch.ops.aten.new_empty_strided.default,
}


def repeated_whole(function: Callable[..., None]) -> Callable[..., None]:
    """Decorates a function that may read values: a recording calls it again, with the same tensors."""

    @functools.wraps(function)
    def called(*arguments: Any) -> None:
        if (recording := recorder.get()) is None:
            function(*arguments)
        else:
            recording.keep_whole(partial(function, *arguments))

    return called


class Recorded:
    """A function of tensors on the CPU; repeats the recording of a call of the same form.

    The second of two calls of one form is recorded. The next call overwrites what a call returns.
    """

    def __init__(self, function: Callable[..., Any], refusal: str = "") -> None:
        self._function = function
        self._last_form: Any = None
        self._recording: _Recording | None = None
        self.refusal = refusal
        """Why the function is not recorded."""

    def __call__(self, form: Any, *arguments: Any) -> Any:
        """The function's result. form: equal for calls that take the same course if their tensors have equal shapes.

        arguments: tensors without gradients, tuples of them, and None.
        """
        if self.refusal:
            return self._function(*arguments)
        tensors = _tensors(arguments)
        form = form, len(arguments), [(tensor.shape, tensor.dtype) for tensor in tensors], torch.get_num_threads()
        if self._recording is not None and self._recording.form == form:
            return self._recording.repeat(tensors)
        is_second, self._last_form = form == self._last_form, form
        if not is_second:
            return self._function(*arguments)
        recording = _Recording(form)
        result = recording.record(self._function, arguments)
        self._recording, self.refusal = recording, recording.refusal
        return result


class _Recording(TorchDispatchMode):
    """What a function did: calls without arguments, in order."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False, or torch would import torch._dynamo, which takes a second and 100 MB."""
        return False

    def __init__(self, form: Any) -> None:
        super().__init__()
        self.form, self.refusal = form, ""
        self._steps: list[Callable[[], Any]] = []
        self._memory = _Memory()
        self._inputs: list[Tensor] = []
        self._result: Any = None

    def record(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """Call the function, and keep what it does."""
        arguments = tree_map_only(Tensor, Tensor.clone, arguments)
        self._inputs = _tensors(arguments)
        before = recorder.set(self)
        try:
            with self:
                self._result = function(*arguments)
        finally:
            recorder.reset(before)
        return self._result

    @torch.no_grad()
    def repeat(self, tensors: list[Tensor]) -> Any:
        """Do the same with these arguments."""
        for own, tensor in zip(self._inputs, tensors, strict=True):
            own.copy_(tensor)
        for step in self._steps:
            step()
        return self._result

    def keep_whole(self, step: Callable[[], None]) -> None:
        """Take a step, without a look at what it does."""
        self._steps.append(step)
        with _disable_current_modes():
            step()

    def keep_call(self, function: Any, arguments: ctypes.Structure) -> None:
        values, tables = arguments.kept_alive
        # Memory of its own may serve several tensors, one after another.
        arguments.kept_alive = [tensor for tensor in _tensors(values) if not self._memory.has(tensor)], tables
        self._steps.append(partial(function, ctypes.byref(arguments)))

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """A call of one of PyTorch's operators."""
        kwargs = kwargs or {}
        result = operator(*args, **kwargs)
        if operator in _ALLOCATIONS:
            return self._memory.like(result)
        args, kwargs, results = *_detached((args, kwargs)), tree_leaves(_detached(result))
        if operator._schema.is_mutable:
            self._steps.append(partial(operator, *args, **kwargs))
        elif not _READS_A_VALUE.isdisjoint(operator.tags) or not all(isinstance(one, Tensor) for one in results):
            self.refusal = f"{operator} gives other results than tensors"
        elif not any(returned.alias_info for returned in operator._schema.returns):  # views stay
            self._steps.append(_writing(results, operator, args, kwargs))
        return result


def _writing(results: list[Any], operator: Any, args: Any, kwargs: Any) -> Callable[[], Any]:
    """A call that computes the results again, in their memory."""
    if len(results) == 1 and (in_place := _overload_with_out(operator)):
        names = {argument.name for argument in in_place._schema.arguments}
        return partial(in_place, *args, **{name: kwargs[name] for name in names & kwargs.keys()}, out=results[0])
    return partial(_compute_again, results, operator, args, kwargs)


def _overload_with_out(operator: Any) -> Any:
    """The overload of an operator that writes its result in `out`, or None."""

    def read(overload: Any) -> list[tuple[str, str]]:
        found = [(argument.name, str(argument.type)) for argument in overload._schema.arguments if not argument.is_out]
        return [argument for argument in found if argument[0] not in ("dtype", "layout", "device", "pin_memory")]

    for name in operator.overloadpacket.overloads():
        overload = getattr(operator.overloadpacket, name)
        outs = [argument.name for argument in overload._schema.arguments if argument.is_out]
        if outs == ["out"] and read(overload) == read(operator):
            return overload
    return None


def _compute_again(results: list[Any], operator: Any, args: Any, kwargs: Any) -> None:
    for result, again in zip(results, tree_leaves(operator(*args, **kwargs)), strict=True):
        result.copy_(again)


class _Memory:
    """Memory that stays: blocks that are free again when no tensor is in them."""

    def __init__(self) -> None:
        self._free: dict[int, list[np.ndarray]] = {}
        self._addresses: set[int] = set()

    def has(self, tensor: Tensor) -> bool:
        """Whether a tensor is in this memory."""
        return tensor.untyped_storage().data_ptr() in self._addresses

    def like(self, tensor: Tensor) -> Tensor:
        """A tensor with the dtype, shape and strides of one that was just allocated."""
        size = tensor.untyped_storage().nbytes()
        free = self._free.setdefault(size, [])
        block = free.pop() if free else _aligned(size)
        self._addresses.add(block.ctypes.data)
        used = block[:]  # the tensor holds this view; the block is free when it dies
        weakref.finalize(used, free.append, block).atexit = False
        values = torch.from_numpy(used).view(tensor.dtype)
        return values.as_strided(tensor.shape, tensor.stride())


def _aligned(size: int) -> np.ndarray:
    """Bytes that begin a cache line."""
    block = np.empty(size + _CACHE_LINE, np.uint8)
    begin = -block.ctypes.data % _CACHE_LINE
    return block[begin : begin + size]


def _detached(values: Any) -> Any:
    """The same memory, unknown to autograd."""
    return tree_map_only(Tensor, Tensor.detach, values)


def addresses(tensors: Iterable[Any]) -> list[int | None]:
    """Where tensors begin in memory: part of the form of a function that reads them without getting them."""
    return [tensor.data_ptr() if isinstance(tensor, Tensor) else None for tensor in tensors]


def _tensors(values: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]
