"""What a person writes: a subclass of `Cell` with its options and one `step`."""

import contextlib
import functools
import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, field_validator

from charlm.cells.program import EPSILON, MOST_SIZE, Program, Size
from charlm.errors import CellError
from charlm.system.section import Count, Section


class Cell(Section):
    """A recurrent cell: its options, and the equations of one step.

    Options are annotated attributes with a default; the text below one is its help. `step` is the only place where
    the equations stand: it runs on tensors, and charlm traces it for each model to derive everything else.
    """

    states: ClassVar[tuple[str, ...]] = ("h",)
    """Names of the state's vectors, each of H units; the first is the output."""
    internal: ClassVar[tuple[str, ...]] = ()
    """States that mean something only together: zoneout leaves them alone, and people do not look at them."""
    initial: ClassVar[tuple[str, ...]] = ()
    """Options that only set initial values, so a run that starts from trained weights may change them."""
    meanings: ClassVar[dict[str, tuple[str, ...]]] = {}
    """What pages call a state, a candidate or a gate; of a gate also what it does at 0 and at 1. Not in checkpoints."""

    model_config = ConfigDict(validate_default=True)

    kind: str = ""
    """The name of a built-in kind, or FILE.py:CLASS."""
    hidden: Annotated[Count, Field(le=MOST_SIZE)] = 256
    """Hidden units of each layer, H."""

    @field_validator("hidden")
    @classmethod
    def _is_count(cls, hidden: Any) -> Any:
        """For a class that gives `hidden` a type of its own."""
        if type(hidden) is not int or not 1 <= hidden <= MOST_SIZE:
            raise ValueError(f"found {hidden!r:.40}; allowed: an integer ≥ 1 and ≤ {MOST_SIZE:,}")
        return hidden

    @field_validator("*")
    @classmethod
    def _is_plain(cls, value: Any) -> Any:
        """Checkpoints keep options as plain data."""
        check_plain(value)
        return value

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Another process may lack the class of a cell that is not built in: it gets the programs instead."""
        if not is_in_file(self.kind):
            return super().__reduce_ex__(protocol)
        from charlm.cells.stored import as_json, restored  # which need this module

        return restored, (self.model_dump(mode="json"), as_json(self))

    def with_options(self, section: Mapping[str, Any]) -> "Cell":
        """A cell of this class with the options of a config's section; ValidationError if they are not allowed."""
        return type(self).model_validate(dict(section))

    @property
    def name(self) -> str:
        """The kind; of a class in a file only the class name."""
        return self.kind.rpartition(":")[2] or type(self).__name__

    def program(self, square: bool) -> Program:
        """The program of `step` in a layer; square: with as many inputs as hidden units. CellError if it has none."""
        from charlm.cells.trace import trace  # which needs this module

        return trace(self, square)

    def programs(self) -> "tuple[Program | None, Program]":
        """The programs for layers with another number of inputs than H, None if it has none, and for those with H.

        CellError if there is none for H inputs.
        """
        square, general = self.program(square=True), None
        with contextlib.suppress(CellError):  # a cell that adds its input to its state has none
            general = self.program(square=False)
        return general, square

    def options(self) -> dict[str, Any]:
        """The options that only this kind has."""
        return self.model_dump(exclude={"kind", "hidden"})

    def step(self, *args: Any, **kwargs: Any) -> Any:
        """step(p, x, *states): the states after a step, from its input x and the states before it.

        p: the layer's parameters, see `Parameters`. Vectors are tensors [B, I] (x) and [B, H]; several side by side are
        [gates, B, H], and unpack into vectors.
        """
        raise NotImplementedError


def check_plain(value: Any) -> None:
    """ValueError unless an option's value is a single value or lists of them."""
    if isinstance(value, list | tuple):
        for item in value:
            check_plain(item)
    elif isinstance(value, dict | set | frozenset | BaseModel):
        raise ValueError("found a section; allowed: single values, and lists of them")


def is_in_file(kind: object) -> bool:
    """Whether a kind names a Python file, and perhaps a class in it."""
    return isinstance(kind, str) and re.search(r"\.py(:|$)", kind) is not None


class Parameters:
    """A layer's parameters, as a step uses them. The first use of a name declares the parameter."""

    square: bool
    """Whether the layer has as many inputs as hidden units, so that x and the states can be added."""

    def product(
        self,
        name: str,
        operand: Any,
        gates: int = 1,
        *,
        index: int | None = None,
        of: int = 0,
        size: Size = "H",
        start: Any = None,
    ) -> Any:
        """W v: a matrix times a vector. Several gates: the vectors of each, side by side.

        index, of: the parameter is a stack of matrices, and this is one of them. size: the result's units, "H", "I"
        for as many as the input has, or a number. start: the initial matrix, or one for each gate: "identity",
        "orthogonal", or a number for all entries; None: drawn at random.
        """
        raise NotImplementedError

    def vector(
        self,
        name: str,
        gates: int = 1,
        *,
        start: Any = None,
        bound: float | None = None,
        index: int | None = None,
        of: int = 0,
        size: Size = "H",
    ) -> Any:
        """A parameter with a number for each unit; several gates: one for each, side by side.

        start: the initial value, or one for each gate; None: drawn at random, from U(±bound) or like a bias. of: the
        parameter has a first dimension of this length; index: use this row of it, else all.
        """
        raise NotImplementedError

    def note(self, **gates: Any) -> None:
        """Name gates and candidates, for people who watch a model at work."""

    def show(self, **states: Any) -> None:
        """Name values for people to watch besides a state, or in its place."""

    def linear(self, x: Any, h: Any, gates: int = 1, start: tuple[float | None, ...] | None = None) -> Any:
        """W x + b + R h + b', with torch.nn's names of the parameters. start: initial value of b + b'."""
        other = start and tuple(None if one is None else 0.0 for one in start)
        biases = self.vector("bias_ih", gates, start=start) + self.vector("bias_hh", gates, start=other)
        return self.product("weight_ih", x, gates) + biases + self.product("weight_hh", h, gates)

    def layer_norm(self, value: Any, name: str, of: int = 0, start: Any = 0.0) -> Any:
        """Layer normalization (Ba et al. 2016) of each vector over its units; of: how many, 0 for one alone."""
        gain = self.vector(f"weight_ln_{name}", of=of, start=1.0)
        return normalize(value) * gain + self.vector(f"bias_ln_{name}", of=of, start=start)


def sigmoid(v: Any) -> Any:
    """1 / (1 + e^−v)"""
    return v.sigmoid()


def tanh(v: Any) -> Any:
    return v.tanh()


def exp(v: Any) -> Any:
    return v.exp()


def log(v: Any) -> Any:
    return v.log()


def sqrt(v: Any) -> Any:
    return v.sqrt()


def relu(v: Any) -> Any:
    """max(v, 0)"""
    return v.relu()


def log_sigmoid(v: Any) -> Any:
    """log σ(v)"""
    return -v.tracing.apply("softplus", -v) if hasattr(v, "tracing") else _of_tensors().logsigmoid(v)


def softplus(v: Any) -> Any:
    """log(1 + eᵛ)"""
    return -log_sigmoid(-v)


def maximum(a: Any, b: Any) -> Any:
    """The greater of two vectors, or of a vector and a number."""
    return _extreme("maximum", a, b)


def minimum(a: Any, b: Any) -> Any:
    """The smaller of two vectors, or of a vector and a number."""
    return _extreme("minimum", a, b)


def where(condition: Any, a: Any, b: Any) -> Any:
    """a where the condition holds, else b; as in where(x > 0, x, 0.1 * x)."""
    if hasattr(condition, "tracing"):
        return condition.tracing.apply("where", condition, a, b)
    import torch

    return torch.where(condition, a, b)


def stop_gradient(v: Any) -> Any:
    """v, through which no gradient flows."""
    return v.tracing.over_units("stop", v) if hasattr(v, "tracing") else v.detach()


def normalize(v: Any, epsilon: float = EPSILON) -> Any:
    """(v − mean v) / √(var v + ε) over the units of each vector."""
    if hasattr(v, "tracing"):
        return v.tracing.over_units("normalize", v, epsilon)
    return _of_tensors().layer_norm(v, v.shape[-1:], eps=epsilon)


def rms_normalize(v: Any, epsilon: float = EPSILON) -> Any:
    """v / √(mean v² + ε) over the units of each vector."""
    if hasattr(v, "tracing"):
        return v.tracing.over_units("normalize", v, epsilon, 1)
    return _of_tensors().rms_norm(v, v.shape[-1:], eps=epsilon)


def _extreme(name: str, a: Any, b: Any) -> Any:
    if isinstance(a, int | float):
        a, b = b, a
    if isinstance(b, int | float):
        return a.clamp(min=b) if name == "maximum" else a.clamp(max=b)
    return getattr(a, name)(b)


@functools.cache
def _of_tensors() -> Any:
    """torch.nn.functional, imported only where a step runs on tensors or is traced: reading a config must be fast."""
    import torch.nn.functional

    return torch.nn.functional
