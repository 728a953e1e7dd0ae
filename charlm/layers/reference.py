"""The reference loop: a cell's program in PyTorch's operators, step by step. It defines the right results."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from charlm.cells.loop import split
from charlm.cells.program import Node, Program
from charlm.gpu.steps import OPERATORS
from charlm.layers.backend import Backend, LayerCall, LayerState
from charlm.native.recurrence import matrix


def zone_out(new_BH: Tensor, old_BH: Tensor, zoneout_TBH: Tensor | None, t: int) -> Tensor:
    """Zoneout (Krueger et al. 2017): share ⊙ old + (1 − share) ⊙ new, the state after step t.

    The shares are [T, B, H], or [1, 1, H] for all steps and streams; None means 0.
    """
    if zoneout_TBH is None:
        return new_BH
    return torch.lerp(new_BH, old_BH, zoneout_TBH[t % len(zoneout_TBH)])


def reference_layer(x_TBI: Tensor, call: LayerCall) -> tuple[Tensor, LayerState]:
    """Outputs [T, B, H] and last states [B, H] from inputs [T, B, I], by autograd's operators."""
    parts, parameters = call.passes.split, call.parameters
    if call.activations is not None:
        parts = split(parts.program, looked_at=True)
    program = parts.program
    before = NodeValues(program, parameters, {"input": x_TBI}, additions=parts.additions)
    windows = [before.value(place) for place in parts.windows]
    vectors = [before.value(place) for place in parts.vectors]
    shares: Sequence[Tensor | None] = [None] * len(program.states)
    if call.zoneout_TBS is not None:
        chunks = call.zoneout_TBS.chunk(len(program.states), dim=2)
        named = zip(program.states, chunks, strict=True)
        shares = [None if name in program.internal else chunk for name, chunk in named]
    loop = parts.loop
    states, outputs = call.state, []
    for t in range(len(x_TBI)):
        leaves = {
            "state": dict(zip(loop.states, states, strict=True)),
            "window": [window[t] for window in windows],
            "static": vectors,
        }
        step = NodeValues(loop, parameters, leaves, additions=parts.loop_additions, mask_BH=call.mask_BH)
        after = [step.value(place) for place in loop.results]
        pairs = zip(after, states, shares, strict=True)
        states = tuple(zone_out(new_BH, old_BH, zoneout_TBH, t) for new_BH, old_BH, zoneout_TBH in pairs)
        if call.activations is not None:
            shown = {name: s_BH for name, s_BH in zip(loop.states, states, strict=True) if name not in loop.internal}
            for name, state in (shown | step.values_of(loop.shown)).items():
                call.activations[name, False].append(state)
            for name, gate in step.values_of(loop.gates).items():
                call.activations[name, True].append(gate)
        outputs.append(states[0])
    return torch.stack(outputs), states


REFERENCE = Backend("reference loop", reference_layer)


class NodeValues:
    """The values of a program's nodes for given leaves, each computed when it is first asked for.

    Several vectors side by side are one tensor [..., gates · units].

    leaves: the values by their operation: "input" [..., I], or None for all one-hot vectors of `input_size`, [I, I];
    "state" by name; "window" and "static" by index. additions: see `Split`. linear: products of the input.
    """

    def __init__(
        self,
        program: Program,
        parameters: Mapping[str, Tensor],
        leaves: Mapping[str, Any],
        *,
        additions: Mapping[int, tuple[int, int]] | None = None,
        mask_BH: Tensor | None = None,
        input_size: int = 0,
        linear: Callable[..., Tensor] = F.linear,
    ) -> None:
        self.nodes, self.parameters, self.leaves = program.nodes, parameters, leaves
        self.rows = {parameter.name: max(parameter.stack, 1) * parameter.gates for parameter in program.parameters}
        self.additions, self.mask_BH = additions or {}, mask_BH
        self.input_size, self.linear = input_size, linear
        self.dtype = next(iter(parameters.values())).dtype
        self.values: dict[int, Any] = {}

    def value(self, place: int) -> Any:
        """The value of a node. The nodes that it needs come first, without recursion: a step may have thousands."""
        waiting = [place]
        while waiting:
            if waiting[-1] in self.values:
                waiting.pop()
            elif missing := [arg for arg in self._needed(waiting[-1]) if arg not in self.values]:
                waiting += missing
            else:
                self._compute(waiting.pop())
        value = self.values[place]
        return self.one_hot() if value is None else value

    def values_of(self, named: Iterable[tuple[str, int]]) -> dict[str, Tensor]:
        """Values by their names, each [B, H]: what depends on parameters only is the same in all streams."""
        like = next(iter(self.leaves["state"].values()))
        return {name: self.value(place).expand_as(like) for name, place in named}

    def _needed(self, place: int) -> tuple[int, ...]:
        """The nodes whose values a node needs before its own can be computed."""
        if place in self.additions:
            product, other = self.additions[place]
            return (*self.nodes[product].args, other)
        return self.nodes[place].args

    def _compute(self, place: int) -> None:
        node = self.nodes[place]
        if place in self.additions:
            product, other = self.additions[place]
            self.values[place] = self.product(self.nodes[product], self.values[other])
        elif node.op in _VALUES:
            self.values[place] = _VALUES[node.op](self, node)
        else:
            args = [self.one_hot() if self.values[arg] is None else self.values[arg] for arg in node.args]
            if node.op == "where" and isinstance(args[1], float):
                args[1] = torch.tensor(args[1], dtype=self.dtype)  # torch.where of two numbers gives float32
            if node.op == "normalize":
                self.values[place] = _normalize(node, *args)
            else:
                self.values[place] = OPERATORS[node.op](*self._alike(node, args))

    def product(self, node: Node, added: Tensor | None = None) -> Tensor:
        """added + v Wᵀ, in the state's dtype.

        Under autocast the product is bfloat16; everything after it, above all the state, stays float32. W is a view of
        its parameter: autocast then casts it at every step, and its gradient adds up over the steps in float32 instead
        of bfloat16.
        """
        weights = matrix(self.parameters[node.name], node.index)
        weights = weights.view_as(weights)
        v = self.values[node.args[0]]
        if v is None:  # one-hot inputs
            return weights.t() if added is None else weights.t() + added
        if self.mask_BH is not None and self.nodes[node.args[0]].size == "H":
            v = v * self.mask_BH
        if added is None or added.dim() == 1:
            return self.linear(v, weights, added).to(self.dtype)
        if v.dim() == 2:
            return torch.addmm(added, v, weights.t()).to(self.dtype)
        return self.linear(v, weights).to(self.dtype) + added

    def one_hot(self) -> Tensor:
        """All one-hot inputs, [I, I]; products do not need them."""
        like = next(iter(self.parameters.values()))
        return torch.eye(self.input_size, dtype=self.dtype, device=like.device)

    def vector(self, node: Node) -> Tensor:
        count, parameter = self.rows[node.name], self.parameters[node.name].flatten()
        if node.count == count:
            return parameter
        H = len(parameter) // count
        return parameter[node.index * H : (node.index + node.count) * H]

    def part(self, node: Node) -> Tensor:
        [whole] = node.args
        return self.values[whole].chunk(self.nodes[whole].count, dim=-1)[node.index]

    def _alike(self, node: Node, args: list[Any]) -> list[Any]:
        """The arguments, each with as many vectors as the result."""
        if node.op == "stop":
            return args
        counts = [self.nodes[arg].count for arg in node.args]
        sizes = [self.nodes[arg].size for arg in node.args]
        return [
            arg.repeat(*([1] * (arg.dim() - 1)), node.count) if count < node.count and size != "" else arg
            for arg, count, size in zip(args, counts, sizes, strict=True)
        ]


_VALUES: dict[str, Callable[[NodeValues, Node], Any]] = {
    "input": lambda self, node: self.leaves["input"],
    "state": lambda self, node: self.leaves["state"][node.name],
    "window": lambda self, node: self.leaves["window"][node.index],
    "static": lambda self, node: self.leaves["static"][node.index],
    "constant": lambda self, node: node.number,
    "vector": lambda self, node: self.vector(node),
    "product": lambda self, node: self.product(node),
    "part": lambda self, node: self.part(node),
}


def _normalize(node: Node, v: Tensor) -> Tensor:
    gates = v.unflatten(-1, (node.count, -1))
    if not node.index:
        return F.layer_norm(gates, gates.shape[-1:], eps=node.number).flatten(-2)
    # torch's own rms_norm takes twice as many operators.
    norm = torch.linalg.vector_norm(gates, dim=-1, keepdim=True)
    return (gates * (norm.square() / gates.shape[-1] + node.number).rsqrt()).flatten(-2)
