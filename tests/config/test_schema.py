"""The JSON Schema, the table of options, and options that have no effect."""

import json

import pytest

from charlm.config import Config, ignored_options
from charlm.config.schema import Dropout
from tests.config.test_config import parse
from tests.docs.options import options_table

SCHEMA = Config.model_json_schema()


def nodes(node):
    """Every schema within a schema."""
    yield node
    for key in ("properties", "$defs"):
        for child in node.get(key, {}).values():
            yield from nodes(child)
    for key in ("anyOf", "oneOf", "prefixItems"):
        for child in node.get(key, []):
            yield from nodes(child)


def test_schema_is_json_and_describes_every_option():
    assert json.loads(json.dumps(SCHEMA, allow_nan=False)) == SCHEMA
    references = {node["$ref"] for node in nodes(SCHEMA) if "$ref" in node}
    assert references
    assert references <= {f"#/$defs/{name}" for name in SCHEMA["$defs"]}
    options = [(name, child) for node in nodes(SCHEMA) for name, child in node.get("properties", {}).items()]
    assert len(options) > 60
    assert [name for name, child in options if len(child.get("description", "")) < 8] == []


def test_schema_allows_a_number_in_place_of_the_dropouts():
    number, section = SCHEMA["$defs"]["Dropout"]["anyOf"]
    assert number == {"type": "number", "minimum": 0, "maximum": 0.9999999}
    assert set(section["properties"]) == set(Dropout.model_fields)


RESIDUAL = "model.residual: found true, which has no effect with one layer; set model.layers above 1"
MATRICES = [
    f"model.{option}, which has no effect with cell.kind: sru; it has no recurrent matrices"
    for option in ("dropout.state: found 0.1", "dropout.weights: found 0.2", "orthogonal: found true")
]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("model: {residual: true, layers: 2}", []),
        ("model: {residual: true}", [RESIDUAL]),
        ("model: {cell: {kind: sru}, dropout: {state: 0.1, weights: 0.2}, orthogonal: true}", MATRICES),
        ("model: {cell: {kind: mogrifier}, dropout: {state: 0.1, weights: 0.2}, orthogonal: true}", []),
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
    assert "| `model.cell.depth` | `5` | an integer ≥ 1 and ≤ 100 | (rhn) " in table
    assert "| `train.max_steps` | `null` | an integer ≥ 1 and ≤ 1,000,000,000 or null | " in table
    assert '| `data.level` | `"char"` | char \\| byte | ' in table
    allowed, meaning = "a number ≥ 1e-30 and ≤ 1,000,000,000", "Added to the denominator, so that it is never 0."
    assert [line for line in table.splitlines() if line.startswith("| `optimizer.eps`")] == [
        f"| `optimizer.eps` | `1e-10` | {allowed} | (adagrad) {meaning} |",
        f"| `optimizer.eps` | `1e-08` | {allowed} | (adam, adamw, muon, rmsprop) {meaning} |",
    ]
