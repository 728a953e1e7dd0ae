"""The JSON Schema, the table of options, and options that have no effect."""

import json

import pytest

from charlm.config import Config, ignored_options
from charlm.config.options import options_table
from charlm.config.yaml import load_yaml
from tests.config.reading import SCHEMA, accepts, nodes, parse


def test_schema_is_json_and_every_reference_leads_somewhere():
    assert json.loads(json.dumps(SCHEMA, allow_nan=False)) == SCHEMA
    references = {node["$ref"] for node in nodes(SCHEMA) if "$ref" in node}
    assert references
    assert references <= {f"#/$defs/{name}" for name in SCHEMA["$defs"]}


def test_schema_describes_every_option():
    options = [(name, child) for node in nodes(SCHEMA) for name, child in node.get("properties", {}).items()]
    assert len(options) > 60
    assert [name for name, child in options if len(child.get("description", "")) < 8] == []


def test_schema_accepts_all_defaults():
    assert accepts(Config().model_dump(mode="json"))
    for node in nodes(SCHEMA):
        assert "default" not in node or accepts(node["default"], node), node


def test_schema_accepts_the_short_form_of_dropout():
    for dropout in ("0.3", "{state: 0.2, variational: true}"):
        text = f"model: {{cell: {{kind: rhn, depth: 5}}, dropout: {dropout}}}\noptimizer: {{name: adam, lr: 2e-3}}"
        parse(text)
        assert accepts(load_yaml(text, "f"))


IGNORED = {
    "residual": "model.residual: found true, which has no effect with one layer; set model.layers above 1",
    "between": "model.dropout.between_layers: found 0.2, which has no effect with one layer; set model.layers above 1",
    "variational": "model.dropout.variational: found true, which has no effect without dropout; "
    "set embedding, input, output, or between_layers with 2 layers or more",
}


@pytest.mark.parametrize(
    ("model", "names"),
    [
        ("{residual: true}", ["residual"]),
        ("{residual: true, layers: 2}", []),
        ("{dropout: 0.2}", []),
        ("{dropout: {between_layers: 0.2}}", ["between"]),
        ("{dropout: {between_layers: 0.2}, layers: 2}", []),
        ("{dropout: {variational: true, state: 0.1, weights: 0.1}}", ["variational"]),
        ("{dropout: {variational: true, between_layers: 0.2}, residual: true}", ["residual", "between", "variational"]),
        ("{dropout: {variational: true, between_layers: 0.2}, layers: 2}", []),
        *((f"{{dropout: {{variational: true, {place}: 0.2}}}}", []) for place in ("embedding", "input", "output")),
    ],
)
def test_what_has_no_effect_is_named(model, names):
    assert ignored_options(parse(f"model: {model}")) == [IGNORED[name] for name in names]


@pytest.mark.parametrize("kind", ["mingru", "minlstm", "sru"])
def test_dropout_without_recurrent_matrices_has_no_effect(kind):
    model = "{cell: {kind: KIND}, dropout: {state: 0.1, weights: 0.2}, orthogonal: true}"
    because = f"which has no effect with cell.kind: {kind}; it has no recurrent matrices"
    assert ignored_options(parse(f"model: {model.replace('KIND', kind)}")) == [
        f"model.dropout.state: found 0.1, {because}",
        f"model.dropout.weights: found 0.2, {because}",
        f"model.orthogonal: found true, {because}",
    ]
    assert ignored_options(parse(f"model: {model.replace('KIND', 'mogrifier')}")) == []


def test_a_share_of_lines_has_no_effect():
    lines = "data: {unit: line}\ntrain: {read_share: 0.5}"
    assert ignored_options(parse(lines)) == [
        "train.read_share: found 0.5, which has no effect with data.unit: line; lines come in random order"
    ]
    assert ignored_options(parse(lines.replace("line}", "text}"))) == []


def leaves(node=SCHEMA, prefix=""):
    """Dotted path of every option of every branch of the schema."""
    if "$ref" in node:
        node = SCHEMA["$defs"][node["$ref"].removeprefix("#/$defs/")]
    branches = [leaves(branch, prefix) for key in ("anyOf", "oneOf") for branch in node.get(key, [])]
    found = {path for branch in branches for path in branch}
    for name, child in node.get("properties", {}).items():
        found |= leaves(child, f"{prefix}.{name}" if prefix else name)
    return found or {prefix}


def test_table_has_every_option_with_a_meaning():
    rows = [line.removeprefix("| ").removesuffix(" |").split(" | ") for line in options_table().splitlines()]
    assert rows[0] == ["option", "default", "allowed", "meaning"]
    assert {len(row) for row in rows[2:]} == {4}, "a | that is not escaped breaks the table"
    keys = {key.strip("`") for key, *_ in rows[2:]}
    assert keys == leaves()
    assert {"model.dropout", "model.dropout.state", "model.cell.kind", "optimizer.schedule.factor"} <= keys
    assert [row for row in rows[2:] if not row[2] or not row[3]] == []


def test_table_tells_the_kinds_apart():
    table = options_table()
    assert "| `model.cell.depth` | `5` | an integer ≥ 1 and ≤ 1000 | (rhn) " in table
    assert "| `train.max_steps` | `null` | an integer ≥ 1 or null | " in table
    assert '| `data.level` | `"char"` | char \\| byte | ' in table
    meaning = "Added to the denominator, so that it is never 0."
    assert [line for line in table.splitlines() if line.startswith("| `optimizer.eps`")] == [
        f"| `optimizer.eps` | `1e-10` | a number > 0 | (adagrad) {meaning} |",
        f"| `optimizer.eps` | `1e-08` | a number > 0 | (adam, nadam, radam, adamw, muon, rmsprop) {meaning} |",
    ]
