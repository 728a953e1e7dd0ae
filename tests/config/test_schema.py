"""The JSON Schema, the table of options, and options that have no effect."""

import json

import pytest

from charlm.config import Config, ignored_options
from charlm.config.schema import Dropout
from tests.config.test_config import parse
from tests.docs.options import options_table


def test_the_schema_describes_every_option(cli):
    result = cli("config", "schema")
    assert (result.code, result.err) == (0, "")
    schema = json.loads(result.out)
    assert schema == Config.model_json_schema()
    number, dropout = schema["$defs"]["Dropout"]["anyOf"]
    assert number == {"type": "number", "minimum": 0, "maximum": 0.9999999}
    assert set(dropout["properties"]) == set(Dropout.model_fields)
    sections = [schema, dropout, *schema["$defs"].values()]
    options = [(name, node) for section in sections for name, node in section.get("properties", {}).items()]
    assert len(options) > 60
    assert [name for name, node in options if len(node.get("description", "")) < 8] == []


MATRICES = [
    f"model.{option}, which has no effect with cell.kind: sru; it has no recurrent matrices"
    for option in ("dropout.state: found 0.1", "dropout.weights: found 0.2", "orthogonal: found true")
]
RESIDUAL = "model.residual: found true, which has no effect with one layer; set model.layers above 1"


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("model: {residual: true, layers: 2}", []),
        ("model: {residual: true}", [RESIDUAL]),
        ("model: {cell: {kind: sru}, dropout: {state: 0.1, weights: 0.2}, orthogonal: true}", MATRICES),
        ("model: {cell: {kind: mogrifier}, dropout: {state: 0.1, weights: 0.2}, orthogonal: true}", []),
    ],
)
def test_what_has_no_effect_is_named(text, lines):
    assert ignored_options(parse(text)) == lines


def test_commands_say_what_has_no_effect(cli, tiny_config, tmp_path):
    words = ["--set", "model.residual=true", "--set", "train.max_steps=1"]
    shown = cli("config", "show", tiny_config, *words)
    assert (shown.code, shown.err) == (0, f"ignored  {RESIDUAL}\n")
    assert parse(shown.out) == parse(tiny_config.read_text(), "model.residual=true", "train.max_steps=1")
    assert shown.err in cli("train", "--config", tiny_config, "--run-dir", tmp_path / "run", *words).err


def test_table_has_every_option_with_a_meaning_and_tells_the_kinds_apart():
    table = options_table()
    rows = [line.removeprefix("| ").removesuffix(" |").split(" | ") for line in table.splitlines()]
    assert rows[0] == ["option", "default", "allowed", "meaning"]
    assert {len(row) for row in rows[2:]} == {4}, "a | that is not escaped breaks the table"
    assert [row for row in rows[2:] if not row[2] or not row[3]] == []
    assert "| `model.cell.depth` | `5` | an integer ≥ 1 and ≤ 100 | (rhn) " in table
    assert '| `data.level` | `"char"` | char \\| byte | ' in table
    allowed, meaning = "a number ≥ 1e-30 and ≤ 1,000,000,000", "Added to the denominator, so that it is never 0."
    assert [line for line in table.splitlines() if line.startswith("| `optimizer.eps`")] == [
        f"| `optimizer.eps` | `1e-10` | {allowed} | (adagrad) {meaning} |",
        f"| `optimizer.eps` | `1e-08` | {allowed} | (adam, adamw, muon, rmsprop) {meaning} |",
    ]
