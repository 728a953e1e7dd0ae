"""A model as one C file: charlm/export/model.c, with the layers of the model and its weights filled in.

Matrices stand column by column. The file has a scale for each row of a matrix, which is 1 unless the weights are int8.
In charlm's code all names of the file begin with lm_ or LM_; `_renamed` puts its own prefix there.
"""

import re
import unicodedata
from importlib.resources import files
from typing import Any

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
from charlm.look.page import model_facts

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
    content, _, cost = at_a_cost(trained, weights, lambda: _CFile(trained, weights, prefix).text())
    return content.encode(), cost


class _CFile:
    """Collects the fields of the struct `lm_model`, what reads them, and the rows of weights."""

    def __init__(self, trained: TrainedModel, weights: Weights, prefix: str) -> None:
        self.trained = trained
        self.weights: Weights = weights
        self.prefix = prefix
        self.network = trained.single_network
        self.fields: list[str] = []
        self.data: list[str] = []
        self.reads: list[str] = []

    def text(self) -> str:
        """Fill in model.c."""
        network, layers, vocabulary = self.network, self.network.layers, self.trained.vocabulary
        V, H, E = len(vocabulary), layers.hidden_size, layers.forms[0].inputs
        codes = [
            LayerCode(form, name)
            for form, name in zip(layers.evaluation_forms(), ["lm_first_layer", "lm_upper_layer"], strict=False)
        ]
        tied = network.embedding is not None and network.embedding.weight is network.decoder.weight
        self.add_layers(layers, codes)
        self.add_others(tied=tied)
        first, *_ = prompt_ids(network, vocabulary, "")
        separator = (self.trained.config.data.records or LINE_END).encode()
        output, *_ = codes[0].states.values()
        steps = "\n".join(self.steps(output, tied=tied))
        structs = "\n\n".join(code.text for code in codes)
        weight, unpacked = _WEIGHT[self.weights]
        facts = model_facts(self.trained)
        count = layers.num_layers
        begins = ["    lm_first_layer_begin(&m->first);"]
        if count > 1:
            begins.append(f"    for (int n = 0; n < {count - 1}; n++) lm_upper_layer_begin(&m->upper[n]);")
        words = {
            "name": re.sub(r"[^\w .,+-]", "_", str(facts["name"]), flags=re.ASCII)[:80],
            "weights": ", ".join(filter(None, [self.trained.weights, self.weights])),
            "input": "its row of a table" if network.embedding is not None else "a 1 at the place of the id",
            "layers": "one recurrent layer" if count == 1 else f"{count} recurrent layers",
            "equations": commented(layers.evaluation_forms()[0].program),
            "V": V,
            "E": E,
            "H": H,
            "bytes": int(vocabulary.level == "byte"),
            "record_end": -1 if network.reset_id is None else network.reset_id,
            "first": first,
            "other": vocabulary.characters.index(vocabulary.other) if vocabulary.other else -1,
            "separator_bytes": len(separator),
            "separator": ", ".join(map(str, separator)),
            "weight": weight,
            "data": "\n\n".join(self.data),
            "alphabet": _ALPHABET,
        }
        code = {
            "helpers": helpers(structs),
            "structs": structs,
            "fields": "\n".join(self.fields),
            "begins": "\n".join(begins),
            "steps": steps,
            "characters": _characters(vocabulary.symbols),
            "forms": "\n".join(f"    {{{', '.join(map(str, row))}}}," for row in _forms(vocabulary) or [(0, 0, 0)]),
            "unpacked": unpacked,
            "reads": "\n".join(self.reads),
        }
        template = (files("charlm.export") / "model.c").read_text(encoding="utf-8")
        filled = words | {name: self._renamed(text) for name, text in code.items()}
        return re.sub(r"\{\{(\w+)\}\}", lambda match: str(filled[match[1]]), self._renamed(template))

    def _renamed(self, code: str) -> str:
        """Code whose names begin with the file's prefix, so that they clash with no others."""
        prefixes = {"lm_": f"{self.prefix}_", "LM_": f"{self.prefix.upper()}_"}
        return re.sub(r"\b(lm_|LM_)", lambda match: prefixes[match[1]], code)

    def add_layers(self, layers: RecurrentLayers, codes: list[LayerCode]) -> None:
        self.fields.append("    lm_first_layer_t first;")
        if layers.num_layers > 1:
            self.fields.append(f"    lm_upper_layer_t upper[{layers.num_layers - 1}];")
        for n in range(layers.num_layers):
            where = f"upper[{n - 1}]" if n else "first"
            code = codes[min(n, 1)]
            parameters = layers.layer_parameters(n)
            for field, name, place in code.matrices:
                tensor = parameters[name]
                self.put_matrix(f"{where}.{field}", tensor if tensor.dim() == 2 else tensor[place])
            for field, name in code.vectors:
                self.put_vector(f"{where}.{field}", parameters[name])

    def add_others(self, *, tied: bool) -> None:
        """The parameters of the model itself."""
        network = self.network
        self.add_matrix("output", network.decoder.weight)
        self.fields.append(f"    float output_bias[{len(network.decoder.bias)}];")
        self.put_vector("output_bias", network.decoder.bias)
        if network.projection is not None:
            self.add_matrix("projection", network.projection.weight)
        if network.embedding is not None and not tied:
            self.add_matrix("embedding", network.embedding.weight)

    def steps(self, output: str, *, tied: bool) -> list[str]:
        """The statements of lm_step. output: the state that is the output of a layer."""
        network = self.network
        if network.embedding is None:
            lines = ["for (int v = 0; v < LM_E; v++) m->x[v] = v == id;"]
        else:
            table = "output" if tied else "embedding"
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
            self.fields.append(f"    float projected[{rows}];")
            read, size = "m->projected", str(rows)
        lines.append(f"lm_multiply(m->logits, m->output, m->output_scale, LM_V, {size}, {read});")
        return [f"    {line}" for line in lines]

    def add_matrix(self, name: str, weight: Tensor) -> None:
        """A matrix, with its field."""
        rows, columns = weight.shape
        self.fields.append(f"    lm_weight {name}[{rows} * {columns}];\n    float {name}_scale[{rows}];")
        self.put_matrix(name, weight)

    def put_matrix(self, field: str, weight: Tensor) -> None:
        """Rows of data for a field, column by column, and what reads them."""
        values, scales = stored_matrix(weight, self.weights)
        self.put("lm_read_weights", field, values.T)
        self.put("lm_read_floats", f"{field}_scale", np.ones(len(values), np.float32) if scales is None else scales)

    def put_vector(self, field: str, values: Tensor) -> None:
        self.put("lm_read_floats", field, values.detach().numpy())

    def put(self, function: str, field: str, values: npt.NDArray[Any]) -> None:
        name = f"lm_data_{len(self.data)}"
        rows = encoded(values)
        lines = "\n".join(f'    "{row}",' for row in rows)
        begin = self._renamed(f"static const char {name}[{len(rows)}][101] = {{ /* {field} */")
        self.data.append(f"{begin}\n{lines}\n}};")
        self.reads.append(f"    {function}(m->{field}, {values.size}, {name});")


def encoded(values: npt.NDArray[Any]) -> list[str]:
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
