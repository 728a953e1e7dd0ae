"""A layer by a driver: what comes before the loop in PyTorch's operators, then the driver's two passes."""

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor
from torch.nn import functional as F

from charlm.cells.loop import Split, before_loop
from charlm.cells.program import units
from charlm.layers.backend import LayerCall, LayerState
from charlm.layers.reference import NodeValues
from charlm.native.generate import GeneratingLayer
from charlm.native.loss import check_ids
from charlm.native.recurrence import Driver, LoopInputs, matrices, matrix


class Lookup(NamedTuple):
    """An input [T, B, I] whose vectors are rows of a table [V, I].

    A layer can multiply the table by its weights and look up rows of the product: V products instead of T · B.
    """

    ids_TB: Tensor
    table_VI: Tensor | None
    """None: the identity matrix, so the input is one-hot and I = V."""

    def dense(self, input_size: int, like: Tensor) -> Tensor:
        """The input as a tensor [T, B, I]; a one-hot input has the dtype and device of `like`."""
        if self.table_VI is not None:
            return F.embedding(self.ids_TB, self.table_VI)
        return like.new_zeros(*self.ids_TB.shape, input_size).scatter_(-1, self.ids_TB.unsqueeze(-1), 1.0)


def driven_layer(
    driver: Driver, input_size: int, cache: object, x: Tensor | Lookup, call: LayerCall
) -> tuple[Tensor, LayerState]:
    """Outputs [T, B, H] and last states [B, H] from inputs [T, B, I].

    input_size: that of a lookup without a table; cache: see `Driver.layer`.
    """
    inputs = loop_inputs(driver, call.passes.split, x, call.parameters, input_size)
    return driver.layer(call.passes, inputs, call.state, call.mask_BH, call.zoneout_TBS, call.carry_TB, cache)


def loop_inputs(
    driver: Driver, split: Split, x: Tensor | Lookup, parameters: Mapping[str, Tensor], input_size: int
) -> LoopInputs:
    """What a loop reads besides states. For a lookup, its windows are computed for each row of the table.

    ValueError for ids on the CPU that are outside of the table.
    """
    dtype = next(iter(parameters.values())).dtype
    input_size = input_size if isinstance(x, Lookup) else x.shape[-1]
    rows, ids_TB = _rows_of_table(x, input_size) if isinstance(x, Lookup) else (x.to(dtype), None)
    before = NodeValues(
        split.program,
        parameters,
        {"input": rows},
        additions=split.additions,
        input_size=input_size,
        linear=driver.linear,
    )
    windows = [before.value(place) for place in split.windows]
    vectors = [before.value(place) for place in split.vectors]
    if ids_TB is not None and not driver.takes_ids:
        windows, ids_TB = [F.embedding(ids_TB, window) for window in windows], None
    steps = len(x.ids_TB if isinstance(x, Lookup) else x)
    reads_size = any(node.size == "I" for node in split.loop.nodes)
    return LoopInputs(windows, ids_TB, vectors, parameters, input_size if reads_size else 0, steps)


def generating_layer(driver: Driver, input_size: int, call: LayerCall, characters: Lookup | None) -> GeneratingLayer:
    """A layer for generation. characters: the first layer's input for each character; None above it."""
    derived, parameters, split = call.passes, call.parameters, call.passes.split
    before = before_loop(split)
    B, H = call.state[0].shape
    values = NodeValues(split.program, parameters, {}, input_size=input_size, linear=driver.linear)
    vectors = [values.value(place) for place in (*split.vectors, *before.vectors)]
    if characters is None:
        nodes = [split.program.nodes[place] for place in split.windows]
        widths = [node.count * units(node.size, H, input_size) for node in nodes]
        windows = [call.state[0].new_empty(B, width) for width in widths]
    else:
        inputs = loop_inputs(driver, split, characters, parameters, input_size)
        windows = inputs.windows
    nodes = before.program.nodes
    of_before = [matrix(parameters[nodes[place].name], nodes[place].index) for place in before.products]
    widths = [units(nodes[place].size, H, input_size) for place in before.operands]
    norms = [node.size for node in before.norms]
    return GeneratingLayer(
        derived, windows, vectors, [*matrices(derived, parameters), *of_before], widths,
        [norms.count(size) for size in dict.fromkeys(norms)], call.state, call.zoneout_TBS, input_size,
    )  # fmt: skip


def _rows_of_table(x: Lookup, input_size: int) -> tuple[Tensor | None, Tensor | None]:
    """The table's rows, None if they are one-hot, and ids; or the inputs of all steps, if they are fewer."""
    ids_TB, table_VI = x.ids_TB.contiguous(), x.table_VI
    V = input_size if table_VI is None else len(table_VI)
    if ids_TB.device.type == "cpu":
        check_ids("ids of a lookup", ids_TB, V)
    if table_VI is not None and ids_TB.numel() < V:
        return F.embedding(ids_TB, table_VI), None
    return table_VI, ids_TB
