"""A model as one C file: charlm/export/model.c, with the layers of the model and its weights filled in.

Matrices stand column by column. The file has a scale for each row of a matrix, which is 1 unless the weights are int8.
In charlm's code all names of the file begin with lm_ or LM_; the file has its own prefix there.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.resources import files

import numpy as np
import numpy.typing as npt
from torch import Tensor

from charlm.data.records import LINE_END
from charlm.data.vocabulary import Vocabulary, is_mark
from charlm.export import Weights
from charlm.export.c_step import LayerCode, commented, helpers, identifier
from charlm.export.rounding import at_a_cost, stored_matrix
from charlm.inference.sampling import prompt_ids
from charlm.inference.trained import TrainedModel
from charlm.layers import RecurrentLayers
from charlm.model import CharLM
from charlm.system.arrays import Array

_ALPHABET = "".join(chr(code) for code in range(35, 126) if chr(code) not in "?\\")[:85]
"""The digits of the base of 85: none begins an escape or a trigraph, or ends a string."""
_WORDS = 20
"""Words of 32 bits in a row of the file."""
_WEIGHT: dict[Weights, tuple[str, str]] = {
    "float32": ("float", "lm_read_floats(out, count, rows);"),
    "int8": (
        "int8_t",
        "for (long n = 0; n < count; n++) out[n] = (lm_weight)(lm_word(rows, n / 4) >> n % 4 * 8 & 0xff);",
    ),
}
"""The C type of a weight, and the statement that reads `count` of them from `rows`."""


def exported(trained: TrainedModel, weights: Weights, name: str) -> tuple[bytes, str]:
    """The file, and the nats that its rounding costs, see `at_a_cost`. name: that of the file, without `.c`."""
    trained = trained.on_cpu_in_float32()
    prefix = identifier(name)
    if not prefix[0].isalpha():
        prefix = f"model_{prefix}"
    content, _, cost = at_a_cost(trained, weights, lambda: _filled(trained, weights, prefix))
    return content.encode(), cost


def _filled(trained: TrainedModel, weights: Weights, prefix: str) -> str:
    """Fill in model.c."""
    network, vocabulary, separator = trained.single_network, trained.vocabulary, trained.config.data.records or LINE_END
    layers, forms = network.layers, network.layers.evaluation_forms()
    codes = [LayerCode(form, name) for form, name in zip(forms, ["lm_first_layer", "lm_upper_layer"], strict=False)]
    others = {"output": network.decoder.weight, "output_bias": network.decoder.bias}
    if network.projection is not None:
        others["projection"] = network.projection.weight
    if network.embedding is not None and not trained.config.model.tie_embeddings:
        others["embedding"] = network.embedding.weight
    begins = ["    lm_first_layer_begin(&m->first);"]
    if upper := layers.num_layers - 1:
        begins.append(f"    for (int n = 0; n < {upper}; n++) lm_upper_layer_begin(&m->upper[n]);")
    data, reads = _stored([*_layer_tensors(layers, codes), *others.items()], weights, prefix)
    output, *_ = codes[0].states.values()
    structs = "\n\n".join(code.text for code in codes)
    weight, unpacked = _WEIGHT[weights]
    first, *_ = prompt_ids(network, vocabulary, "")
    words = {
        "name": re.sub(r"[^\w .,+-]", "_", trained.name, flags=re.ASCII)[:80],
        "weights": ", ".join(filter(None, [trained.weights, weights])),
        "input": "its row of a table" if network.embedding is not None else "a 1 at the place of the id",
        "layers": f"{1 + upper} recurrent layers" if upper else "one recurrent layer",
        "equations": commented(forms[0].program),
        "V": len(vocabulary),
        "E": forms[0].inputs,
        "H": layers.hidden_size,
        "bytes": int(vocabulary.level == "byte"),
        "record_end": -1 if network.reset_id is None else network.reset_id,
        "first": first,
        "other": vocabulary.characters.index(vocabulary.other) if vocabulary.other else -1,
        "separator_bytes": len(separator.encode()),
        "separator": ", ".join(map(str, separator.encode())),
        "weight": weight,
        "data": "\n\n".join(data),
        "alphabet": _ALPHABET,
    }
    code = {
        "helpers": helpers(structs),
        "structs": structs,
        "fields": "\n".join(f"    {field}" for field in _fields(upper, others)),
        "begins": "\n".join(begins),
        "steps": "\n".join(f"    {line}" for line in _steps(network, output, "embedding" in others)),
        "characters": _characters(vocabulary.symbols),
        "forms": "\n".join(f"    {{{', '.join(map(str, row))}}}," for row in _forms(vocabulary) or [(0, 0, 0)]),
        "unpacked": unpacked,
        "reads": "\n".join(reads),
    }
    # Names begin with the file's prefix, so that they clash with no others.
    prefixes = {"lm_": f"{prefix}_", "LM_": f"{prefix.upper()}_"}

    def renamed(code: str) -> str:
        return re.sub(r"\b(lm_|LM_)", lambda match: prefixes[match[1]], code)

    filled = words | {name: renamed(text) for name, text in code.items()}
    template = renamed((files("charlm.export") / "model.c").read_text(encoding="utf-8"))
    return re.sub(r"\{\{(\w+)\}\}", lambda match: str(filled[match[1]]), template)


def _fields(upper: int, others: Mapping[str, Tensor]) -> list[str]:
    """The fields of a model. upper: the number of layers above the first. others: the parameters that no layer has."""
    fields = ["lm_first_layer_t first;"]
    if upper:
        fields.append(f"lm_upper_layer_t upper[{upper}];")
    for name, tensor in others.items():
        if tensor.dim() == 2:
            rows, columns = tensor.shape
            fields += [f"lm_weight {name}[{rows} * {columns}];", f"float {name}_scale[{rows}];"]
        else:
            fields.append(f"float {name}[{len(tensor)}];")
    if "projection" in others:
        fields.append(f"float projected[{len(others['projection'])}];")
    return fields


def _layer_tensors(layers: RecurrentLayers, codes: Sequence[LayerCode]) -> Iterator[tuple[str, Tensor]]:
    """The fields of the layers and what they hold, matrices [rows, columns] and flat vectors."""
    for n in range(layers.num_layers):
        where, code = (f"upper[{n - 1}]", codes[1]) if n else ("first", codes[0])
        parameters = layers.layer_parameters(n)
        for field, name, place in code.matrices:
            tensor = parameters[name]
            yield f"{where}.{field}", tensor if tensor.dim() == 2 else tensor[place]
        for field, name in code.vectors:
            yield f"{where}.{field}", parameters[name].flatten()


def _stored(tensors: Iterable[tuple[str, Tensor]], weights: Weights, prefix: str) -> tuple[list[str], list[str]]:
    """The data of fields, matrices column by column, and the statements that read it."""
    arrays: list[tuple[str, str, Array]] = []
    for field, tensor in tensors:
        if tensor.dim() == 2:
            values, scales = stored_matrix(tensor, weights)
            arrays.append(("lm_read_weights", field, values.T))
            arrays.append(
                ("lm_read_floats", f"{field}_scale", np.ones(len(values), np.float32) if scales is None else scales)
            )
        else:
            arrays.append(("lm_read_floats", field, tensor.detach().numpy()))
    data, reads = [], []
    for number, (function, field, values) in enumerate(arrays):
        rows = encoded(values)
        lines = "\n".join(f'    "{row}",' for row in rows)
        data.append(f"static const char {prefix}_data_{number}[{len(rows)}][101] = {{ /* {field} */\n{lines}\n}};")
        reads.append(f"    {function}(m->{field}, {values.size}, lm_data_{number});")
    return data, reads


def _steps(network: CharLM, output: str, has_table: bool) -> list[str]:
    """The statements of lm_step.

    output: the state that is the output of a layer. has_table: whether the embedding has weights of its own.
    """
    if network.embedding is None:
        lines = ["for (int v = 0; v < LM_E; v++) m->x[v] = v == id;"]
    else:
        table = "embedding" if has_table else "output"
        lines = [f"for (int e = 0; e < LM_E; e++) m->x[e] = m->{table}[e * LM_V + id] * m->{table}_scale[id];"]
    lines += ["lm_first_layer(&m->first, m->x);", f"memcpy(m->y, m->first.{output}, sizeof m->y);"]
    if network.layers.num_layers > 1:
        change = "+=" if network.layers.residual else "="
        lines += [
            f"for (int n = 0; n < {network.layers.num_layers - 1}; n++) {{",
            "    lm_upper_layer(&m->upper[n], m->y);",
            f"    for (int u = 0; u < LM_H; u++) m->y[u] {change} m->upper[n].{output}[u];",
            "}",
        ]
    read, size = "m->y", "LM_H"
    if network.projection is not None:
        rows, columns = network.projection.weight.shape
        lines.append(f"lm_multiply(m->projected, m->projection, m->projection_scale, {rows}, {columns}, m->y);")
        read, size = "m->projected", str(rows)
    return [*lines, f"lm_multiply(m->logits, m->output, m->output_scale, LM_V, {size}, {read});"]


def encoded(values: Array) -> list[str]:
    """The bytes of an array in little-endian order, as rows of up to 100 characters."""
    content = values.astype(values.dtype.newbyteorder("<")).tobytes()
    words = np.frombuffer(content + bytes(-len(content) % 4), "<u4")
    digits = np.array([words // 85**k % 85 for k in range(5)]).T
    text = np.array([*_ALPHABET.encode()], np.uint8)[digits].tobytes().decode()
    width = 5 * _WORDS
    return [text[start : start + width] for start in range(0, len(text), width)]


def _characters(symbols: npt.NDArray[np.uint32]) -> str:
    """The table of code points, which no character of the vocabulary can break out of."""
    rows = [", ".join(map(str, symbols[start : start + 16])) for start in range(0, len(symbols), 16)]
    lines = ",\n".join(f"    {row}" for row in rows)
    return f"static const uint32_t lm_characters[LM_V] = {{\n{lines}\n}};"


def _forms(vocabulary: Vocabulary) -> list[tuple[int, int, int]]:
    """The rows of `lm_forms`: letters that the vocabulary knows and their parts, and those whose parts it knows."""
    marks = [*filter(is_mark, vocabulary.characters)]
    found: dict[str, tuple[str, str]] = {}
    letters, waiting = set(vocabulary.characters), [*vocabulary.characters]
    while waiting:
        letter = waiting.pop()
        others = [unicodedata.normalize("NFC", letter + mark) for mark in marks]
        if parts := _parts(letter):
            found[letter] = parts
            others.append(parts[0])
        new = {other for other in others if len(other) == 1} - letters
        letters |= new
        waiting += new
    # A letter has more parts than its own first part.
    order = sorted(found, key=lambda letter: (-len(unicodedata.normalize("NFD", letter)), letter))
    return [(ord(letter), ord(found[letter][0]), ord(found[letter][1] or "\0")) for letter in order]


def _parts(letter: str) -> tuple[str, str] | None:
    """The one or two characters that mean the same as a letter, the second a mark or ""; None if none do."""
    decomposed = unicodedata.normalize("NFD", letter)
    if decomposed == letter:
        return None
    if len(decomposed) == 1:
        return decomposed, ""
    first = unicodedata.normalize("NFC", decomposed[:-1])
    return (first, decomposed[-1]) if len(first) == 1 else None
