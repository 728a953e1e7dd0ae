"""A model as one page of HTML, which runs it in a browser; charlm/web/model/ is the page.

Each layer has the program of its cell, which the page interprets.

An int8 matrix has one scale per row: its weights are scale · q, with whole numbers q from −127 to 127. Vectors, such as
biases, stay float32.
"""

import base64
from importlib.resources import files
from typing import Any

from torch import Tensor

from charlm.cells.program import Program, needed, scalarized, units, when
from charlm.cells.state_options import rows_of_start
from charlm.data.records import LINE_END, end_of_record
from charlm.errors import DataError
from charlm.export import Weights
from charlm.export.rounding import at_a_cost, stored_matrix
from charlm.inference.sampling import prompt_ids
from charlm.inference.trained import TrainedModel
from charlm.layers import RecurrentLayers
from charlm.look.page import model_facts, tracking_units
from charlm.look.part import opening
from charlm.web.page import html_page, packed

KERNEL = files("charlm.web") / "model" / "kernel.wasm"
_UNITS_LENGTH = 5000
"""Characters of validation text by which units get their names."""
_UNITS_WORK = 2_500_000
"""Characters times operations of all layers, which take seconds."""
_EXAMPLE_LENGTH = 240


def exported(trained: TrainedModel, weights: Weights) -> tuple[bytes, str]:
    """The page, and the nats that it costs, see `at_a_cost`."""
    trained = trained.on_cpu_in_float32()
    tracking, example = _of_validation_text(trained)
    model, after, cost = at_a_cost(trained, weights, lambda: packed_model(trained, weights))
    data = model_facts(trained) | model
    data |= {
        "precision": weights,
        "score": None if after is None else {"bits": after.bits_per_char, "of": after.of.label},
        "units": tracking,
        "example": example,
    }
    return html_page("model", f"{data['name']} · charlm", data, wasm=True).encode(), cost


def _of_validation_text(trained: TrainedModel) -> tuple[list[dict[str, Any]], str]:
    """The units that track a feature of it, as on a page of charlm look, and a text to complete and to score.

    The text is its beginning, up to a space. Nothing if the validation text is gone.
    """
    try:
        operations = sum(len(form.program.nodes) for form in trained.single_network.layers.forms)
        length = min(_UNITS_LENGTH, _UNITS_WORK // operations)
        ids = opening(trained, trained.split("valid"), length).ids
    except DataError:
        return [], ""
    text = trained.vocabulary.decode(ids[:_EXAMPLE_LENGTH].tolist())
    separator = trained.config.data.records or LINE_END
    end = end_of_record(separator)
    text = text.strip(f"{LINE_END}{end}").replace(end, separator)
    return [*tracking_units(trained, ids).values()], text.rpartition(" ")[0] or text


def packed_model(trained: TrainedModel, weights: Weights) -> dict[str, Any]:
    """The keys "model" and "vocabulary" of the page's JSON, of a model on the CPU.

    Its matrices are rounded to what the page has, see `stored_matrix`.
    """
    network, tied = trained.single_network, trained.config.model.tie_embeddings
    layers, embedding = network.layers, network.embedding
    model = {
        "hidden": layers.hidden_size,
        "residual": layers.residual,
        "begins": network.reset_id,
        "programs": [program_json(*form) for form in layers.evaluation_forms()[:2]],  # the others are as the second
        "layers": [_parameters(layers, layer, weights) for layer in range(layers.num_layers)],
        "embedding": None if embedding is None or tied else _matrix(embedding.weight, weights),
        "tied": tied,
        "projection": None if network.projection is None else _matrix(network.projection.weight, weights),
        "output": _matrix(network.decoder.weight, weights),
        "outputBias": packed(network.decoder.bias.detach().numpy()),
        "kernel": base64.b64encode(KERNEL.read_bytes()).decode("ascii"),
    }
    first, *_ = prompt_ids(network, trained.vocabulary, "")
    vocabulary = trained.vocabulary.to_json() | {
        "records": trained.config.data.records,
        "begins": network.reset_id,
        "firstRead": first,
        "substitutes": trained.vocabulary.substitutes,
    }
    return {"model": model, "vocabulary": vocabulary}


def _parameters(layers: RecurrentLayers, layer: int, weights: Weights) -> dict[str, Any]:
    """A layer's parameters by name: matrices, lists of them, or flat vectors."""
    parameters: dict[str, Any] = {}
    tensors = layers.layer_parameters(layer)
    for declared in layers.forms[layer].program.parameters:
        tensor = tensors[declared.name]
        if declared.columns == "":
            parameters[declared.name] = packed(tensor.detach().numpy())
        elif declared.stack:
            parameters[declared.name] = [_matrix(each, weights) for each in tensor]
        else:
            parameters[declared.name] = _matrix(tensor, weights)
    return parameters


def _matrix(weight: Tensor, weights: Weights) -> dict[str, Any]:
    """A matrix, which is rounded to what the page has."""
    rows, columns = weight.shape
    values, scales = stored_matrix(weight, weights)
    return {
        "rows": rows,
        "columns": columns,
        "values": packed(values),
        "scales": None if scales is None else packed(scales),
    }


def program_json(program: Program, hidden: int, inputs: int) -> dict[str, Any]:
    """The program of a layer with H hidden units and I inputs, for charlm/web/model/layer.js.

    Each node has the `length` of its value, its `stage` (STATIC, WINDOW or LOOP), and for `vector` and `part` the
    `start` in the parameter or in args[0]. Only vectors, products and their parts have several vectors side by side. A
    state has as `start` its row of the parameter START, or null.
    """
    program = scalarized(program)
    nodes, stages = program.nodes, when(program.nodes)
    named = dict(program.shown)
    named |= {f"gate {name}": place for name, place in program.gates}
    places = needed(nodes, (*program.results, *named.values()))
    new = {place: number for number, place in enumerate(places)}
    sizes = [units(node.size, hidden, inputs) if node.size != "" else 0 for node in nodes]
    longest = max(node.count * size for node, size in zip(nodes, sizes, strict=True))
    listed = [
        {
            "op": nodes[place].op,
            "args": [new[arg] for arg in nodes[place].args],
            "length": nodes[place].count * sizes[place] or longest,  # a constant is as long as any value
            "stage": stages[place],
            "name": nodes[place].name,
            "index": nodes[place].index,
            "start": nodes[place].index * sizes[place],
            "number": nodes[place].number,
            "transposed": nodes[place].transposed,
        }
        for place in places
    ]
    rows = rows_of_start(program)
    states = [
        {"name": name, "result": new[place], "internal": name in program.internal, "start": rows.get(name)}
        for name, place in zip(program.states, program.results, strict=True)
    ]
    return {"nodes": listed, "states": states, "shown": {name: new[place] for name, place in named.items()}}
