"""The reference loop: a cell's program in PyTorch's operators, step by step. It defines the right results."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from charlm.cells.on_tensors import evaluate, matrix, normalized
from charlm.cells.program import Node, Program, ordered
from charlm.cells.split import Split, split
from charlm.layers.backend import Backend, LayerCall, LayerState


def reference_layer(x_TBI: Tensor, call: LayerCall) -> tuple[Tensor, LayerState]:
    """Outputs [T, B, H] and last states [B, H] from inputs [T, B, I], by autograd's operators."""
    parts, parameters = call.passes.split, call.parameters
    if call.activations is not None:
        parts = split(parts.program, looked_at=True)
    loop = parts.loop
    windows, vectors = values_before_loop(parts, x_TBI, parameters)
    named = (*loop.shown, *loop.gates) if call.activations is not None else ()
    ends = (*loop.results, *(place for _, place in named))
    step = TensorProgram(loop, ends, parameters, additions=parts.loop_additions)
    states, outputs = call.state, []
    for t in range(len(x_TBI)):
        values = step(
            {
                "state": dict(zip(loop.states, states, strict=True)),
                "window": [window[t] for window in windows],
                "static": vectors,
                "given": {name: tensor[t % len(tensor)] for name, tensor in call.given.items()},
            }
        )
        states = tuple(values[: len(states)])
        outputs.append(states[0])
        if call.activations is not None:
            _record(call, loop, states, dict(zip(named, values[len(states) :], strict=True)))
    return torch.stack(outputs), states


def _record(call: LayerCall, loop: Program, states: LayerState, values: Mapping[tuple[str, int], Tensor]) -> None:
    """Record the activations of a step. values: those that people look at, by their names and nodes."""
    assert call.activations is not None
    shown = {name: s_BH for name, s_BH in zip(loop.states, states, strict=True) if name not in loop.internal}
    # What depends on parameters only is the same in all streams.
    shown |= {name: values[name, place].expand_as(states[0]) for name, place in loop.shown}
    for name, state in shown.items():
        call.activations[name, False].append(state)
    for name, place in loop.gates:
        call.activations[name, True].append(values[name, place].expand_as(states[0]))


REFERENCE = Backend("reference loop", reference_layer)


def values_before_loop(
    split: Split,
    rows: Tensor | None,
    parameters: Mapping[str, Tensor],
    *,
    input_size: int = 0,
    linear: Callable[..., Tensor] = F.linear,
) -> tuple[list[Tensor], list[Tensor]]:
    """The windows and vectors that a loop reads.

    rows: of the input; None: all one-hot vectors, of this size. linear: products with a bias.
    """
    before = TensorProgram(
        split.program,
        (*split.windows, *split.vectors),
        parameters,
        additions=split.additions,
        one_hot_size=input_size if rows is None else 0,
        linear=linear,
    )
    values = before({"input": rows})
    return values[: len(split.windows)], values[len(split.windows) :]


class TensorProgram:
    """The values of a program's nodes `ends`, as a function of its leaves.

    additions: see `Split`. one_hot_size: V if the input is all one-hot vectors,
    [V, V], which are not given. linear: products with a bias.
    """

    def __init__(
        self,
        program: Program,
        ends: Iterable[int],
        parameters: Mapping[str, Tensor],
        *,
        additions: Mapping[int, tuple[int, int]] | None = None,
        one_hot_size: int = 0,
        linear: Callable[..., Tensor] = F.linear,
    ) -> None:
        self.ends, self.parameters = tuple(ends), parameters
        self.nodes = _with_products(program.nodes, additions or {}, is_one_hot=one_hot_size > 0)
        # The order decides in which order autograd adds gradients.
        self.order = ordered(self.ends, lambda place: reversed(self.nodes[place].args))
        self.rows = {parameter.name: max(parameter.stack, 1) * parameter.gates for parameter in program.parameters}
        self.one_hot_size, self.linear = one_hot_size, linear
        self.dtype = next(iter(parameters.values())).dtype

    def __call__(self, leaves: Mapping[str, Any]) -> list[Any]:
        """The values, each [..., count · units]; of a constant a float.

        leaves: values by their operation: "input" [..., I], "state" and "given" by name, others by index.
        """

        def leaf(place: int, args: list[Any]) -> Any:
            node = self.nodes[place]
            match node.op:
                case "input":
                    return self._one_hot() if self.one_hot_size else leaves["input"]
                case "state" | "given":
                    return leaves[node.op][node.name]
                case "window" | "static":
                    return leaves[node.op][node.index]
                case "constant":
                    return node.number
                case "vector":
                    return self._vector(node)
                case "product":
                    return self._product(node, *args)
                case "columns":
                    columns = self._weights(node).t()
                    return columns + args[0] if args else columns
                case "normalize":
                    gates = args[0].unflatten(-1, (node.count, -1))
                    return normalized(gates, node).flatten(-2)
            raise AssertionError(node.op)

        values = evaluate(self.nodes, self.order, leaf, self.dtype)
        return [values[place] for place in self.ends]

    def _product(self, node: Node, v: Tensor, added: Tensor | None = None) -> Tensor:
        """added + v Wᵀ, in the state's dtype: under autocast the product is bfloat16, but nothing after it."""
        weights = self._weights(node)
        if added is None or added.dim() == 1:
            return self.linear(v, weights, added).to(self.dtype)
        if v.dim() == 2:
            return torch.addmm(added, v, weights.t()).to(self.dtype)
        return self.linear(v, weights).to(self.dtype) + added

    def _weights(self, node: Node) -> Tensor:
        """A product's matrix."""
        weights = matrix(self.parameters, node)
        return weights.view_as(weights)  # so that under autocast gradients add up over the steps in float32

    def _vector(self, node: Node) -> Tensor:
        count, parameter = self.rows[node.name], self.parameters[node.name].flatten()
        if node.count == count:
            return parameter
        H = len(parameter) // count
        return parameter[node.index * H : (node.index + node.count) * H]

    def _one_hot(self) -> Tensor:
        like = next(iter(self.parameters.values()))
        return torch.eye(self.one_hot_size, dtype=self.dtype, device=like.device)


def _with_products(nodes: Sequence[Node], additions: Mapping[int, tuple[int, int]], is_one_hot: bool) -> list[Node]:
    """The nodes with what PyTorch computes at once: `product` with what is added, and `columns`, its one-hot form."""
    found = list(nodes)
    for place, (product, added) in additions.items():
        found[place] = replace(nodes[product], args=(*nodes[product].args, added))
    for place, node in enumerate(found):
        if is_one_hot and node.op == "product" and nodes[node.args[0]].op == "input":
            found[place] = replace(node, op="columns", args=node.args[1:])
    return found
