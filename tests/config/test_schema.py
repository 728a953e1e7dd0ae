"""The JSON Schema, the table of options, and options that have no effect."""

import json
import re
from pathlib import Path

import pytest

from charlm.config import Config, ignored_options, read_config_file
from charlm.config.options import options_table
from charlm.config.shipped import shipped_configs
from charlm.config.yaml import load_yaml
from tests.config.test_config import REFUSED_BY_EDITORS_TOO, parse

SCHEMA = Config.model_json_schema()
TYPES = {"string": str, "boolean": bool, "object": dict, "array": list, "null": type(None)}
KEYWORDS = {
    "const": lambda value, rule: value == rule,
    "enum": lambda value, rule: value in rule,
    "anyOf": lambda value, rule: any(accepts(value, branch) for branch in rule),
    "oneOf": lambda value, rule: sum(accepts(value, branch) for branch in rule) == 1,
    "minimum": lambda value, rule: value >= rule,
    "exclusiveMinimum": lambda value, rule: value > rule,
    "maximum": lambda value, rule: value <= rule,
    "exclusiveMaximum": lambda value, rule: value < rule,
    "minLength": lambda value, rule: len(value) >= rule,
    "pattern": lambda value, rule: re.search(rule, value) is not None,
    "minItems": lambda value, rule: len(value) >= rule,
    "maxItems": lambda value, rule: len(value) <= rule,
    "prefixItems": lambda value, rule: all(map(accepts, value, rule)),
    "required": lambda value, rule: set(rule) <= set(value),
    "properties": lambda value, rule: all(accepts(value[key], rule[key]) for key in value if key in rule),
}
ANNOTATIONS = {"title", "examples", "description", "default", "discriminator", "$defs", "additionalProperties", "type"}


def accepts(value, node=SCHEMA) -> bool:
    """Whether a JSON Schema (draft 2020-12) admits a value, as far as Config's own needs it."""
    if "$ref" in node:
        return accepts(value, SCHEMA["$defs"][node["$ref"].removeprefix("#/$defs/")])
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    match node.get("type"):
        case "number" | "integer" as name if not is_number or (name == "integer" and value != int(value)):
            return False
        case str(name) if name in TYPES and not isinstance(value, TYPES[name]):
            return False
    if node.get("additionalProperties") is False and set(value) - set(node["properties"]):
        return False
    return all(KEYWORDS[key](value, rule) for key, rule in node.items() if key not in ANNOTATIONS)


def nodes(node):
    """Every schema within a schema."""
    yield node
    for key in ("properties", "$defs"):
        for child in node.get(key, {}).values():
            yield from nodes(child)
    for key in ("anyOf", "oneOf", "prefixItems"):
        for child in node.get(key, []):
            yield from nodes(child)


def test_editors_refuse_what_charlm_does_and_accept_the_rest():
    assert json.loads(json.dumps(SCHEMA, allow_nan=False)) == SCHEMA
    assert accepts(Config().model_dump(mode="json"))
    assert [file.name for file in shipped_configs().values() if not accepts(read_config_file(Path(file)))] == []
    for dropout in ("0.3", "{state: 0.2, variational: true}"):
        text = f"model: {{cell: {{kind: rhn, depth: 5}}, dropout: {dropout}}}\noptimizer: {{name: adam, lr: 2e-3}}"
        parse(text)
        assert accepts(load_yaml(text, "f"))
    assert [text for text, _ in REFUSED_BY_EDITORS_TOO if accepts(load_yaml(text, "f"))] == []


def test_schema_describes_every_option_and_accepts_its_default():
    options = [(name, child) for node in nodes(SCHEMA) for name, child in node.get("properties", {}).items()]
    assert len(options) > 60
    assert [name for name, child in options if len(child.get("description", "")) < 8] == []
    for node in nodes(SCHEMA):
        assert "default" not in node or accepts(node["default"], node), node


RESIDUAL = "model.residual: found true, which has no effect with one layer; set model.layers above 1"
BETWEEN = "model.dropout.between_layers: found 0.2, which has no effect with one layer; set model.layers above 1"
VARIATIONAL = (
    "model.dropout.variational: found true, which has no effect without dropout; set embedding, input, output, or "
    "between_layers with 2 layers or more"
)
MATRICES = [
    f"model.{option}, which has no effect with cell.kind: sru; it has no recurrent matrices"
    for option in ("dropout.state: found 0.1", "dropout.weights: found 0.2", "orthogonal: found true")
]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("model: {residual: true, layers: 2}", []),
        ("model: {dropout: 0.2}", []),
        ("model: {dropout: {between_layers: 0.2}, layers: 2}", []),
        ("model: {dropout: {variational: true, state: 0.1, weights: 0.1}}", [VARIATIONAL]),
        ("model: {dropout: {variational: true, between_layers: 0.2}, residual: true}",
         [RESIDUAL, BETWEEN, VARIATIONAL]),
        ("model: {dropout: {variational: true, between_layers: 0.2}, layers: 2}", []),
        *((f"model: {{dropout: {{variational: true, {p}: 0.2}}}}", []) for p in ("embedding", "input", "output")),
        ("model: {cell: {kind: sru}, dropout: {state: 0.1, weights: 0.2}, orthogonal: true}", MATRICES),
        ("model: {cell: {kind: mogrifier}, dropout: {state: 0.1, weights: 0.2}, orthogonal: true}", []),
        ("{data: {unit: text}, train: {read_share: 0.5}}", []),
        ("{data: {unit: line}, train: {read_share: 0.5}}",
         ["train.read_share: found 0.5, which has no effect with data.unit: line; lines come in random order"]),
    ],
)  # fmt: skip
def test_what_has_no_effect_is_named(text, lines):
    assert ignored_options(parse(text)) == lines


def leaves(node=SCHEMA, prefix=""):
    """Dotted path of every option of every branch of the schema."""
    if "$ref" in node:
        node = SCHEMA["$defs"][node["$ref"].removeprefix("#/$defs/")]
    branches = [leaves(branch, prefix) for key in ("anyOf", "oneOf") for branch in node.get(key, [])]
    branches += [leaves(child, f"{prefix}.{name}".strip(".")) for name, child in node.get("properties", {}).items()]
    return set().union(*branches) or {prefix}


def test_table_has_every_option_with_a_meaning_and_tells_the_kinds_apart():
    table = options_table()
    rows = [line.removeprefix("| ").removesuffix(" |").split(" | ") for line in table.splitlines()]
    assert rows[0] == ["option", "default", "allowed", "meaning"]
    assert {len(row) for row in rows[2:]} == {4}, "a | that is not escaped breaks the table"
    assert {key.strip("`") for key, *_ in rows[2:]} == leaves()
    assert [row for row in rows[2:] if not row[2] or not row[3]] == []
    assert "| `model.cell.depth` | `5` | an integer ≥ 1 and ≤ 1000 | (rhn) " in table
    assert "| `train.max_steps` | `null` | an integer ≥ 1 or null | " in table
    assert '| `data.level` | `"char"` | char \\| byte | ' in table
    meaning = "Added to the denominator, so that it is never 0."
    assert [line for line in table.splitlines() if line.startswith("| `optimizer.eps`")] == [
        f"| `optimizer.eps` | `1e-10` | a number > 0 | (adagrad) {meaning} |",
        f"| `optimizer.eps` | `1e-08` | a number > 0 | (adam, nadam, radam, adamw, muon, rmsprop) {meaning} |",
    ]
