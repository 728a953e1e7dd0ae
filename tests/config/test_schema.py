"""The JSON Schema, and options that have no effect."""

import json

from charlm.config import Config, ignored_options
from charlm.config.schema import Dropout
from tests.config.test_config import parse


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


def test_what_has_no_effect_is_named():
    assert ignored_options(parse("model: {residual: true, layers: 2}")) == []
    options = "dropout: {state: 0.1, weights: 0.2}, orthogonal: true"
    assert ignored_options(parse(f"model: {{cell: {{kind: sru}}, {options}}}")) == MATRICES
    assert ignored_options(parse(f"model: {{cell: {{kind: mogrifier}}, {options}}}")) == []


def test_show_prints_all_options_and_says_what_has_no_effect(cli, tiny_config, tmp_path):
    words = ["--set", "model.residual=true", "--set", "train.max_steps=1"]
    shown = cli("config", "show", tiny_config, *words)
    assert (shown.code, shown.err) == (0, f"ignored  {RESIDUAL}\n")
    assert "  patience: 0\n" in shown.out  # all options, so that a run keeps them when defaults change
    assert parse(shown.out) == parse(tiny_config.read_text(), "model.residual=true", "train.max_steps=1")
    assert shown.err in cli("train", "--config", tiny_config, "--run-dir", tmp_path / "run", *words).err
