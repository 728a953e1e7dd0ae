"""The JSON Schema of the config."""

import json

import pytest

from charlm.config import (
    Config,
)
from charlm.config.yaml import load_yaml
from tests.config.json_schema import SCHEMA, accepts, nodes
from tests.config.reading import faults, parse


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


EXAMPLE = """\
data: {source: data/tinyshakespeare.txt, level: char, split: [0.9, 0.05, 0.05]}
model:
  cell: {kind: rhn, hidden: 512, depth: 5}
  layers: 2
  embedding: 64
  dropout: 0.3
train: {batch_size: 64, bptt: 100, max_epochs: 10}
optimizer: {name: adam, lr: 2e-3, clip_norm: 5}
seed: 42
"""


def test_schema_accepts_the_short_form_of_dropout():
    value = load_yaml(EXAMPLE, "f")
    parse(EXAMPLE)
    assert accepts(value)
    value["model"]["dropout"] = {"state": 0.2, "variational": True}
    assert accepts(value)


@pytest.mark.parametrize(
    "text",
    [
        "model: {dropout: 1.0}",
        "model: {dropout: -0.1}",
        "model: {dropout: true}",
        "model: {dropout: {stat: 0.1}}",
        "model: {cell: {kind: gru, depth: 5}}",
        "model: {cell: {kind: rhn, hidden: 0}}",
        "trian: {}",
        "train: {max_steps: 1.5}",
        "data: {split: [1, 0]}",
        "data: {split: [1, 0, 2]}",
        "data: {source: ''}",
        "optimizer: {name: adamv}",
        "seed: '5'",
        "device: gpu",
    ],
)
def test_schema_refuses_what_charlm_refuses(text):
    assert not accepts(load_yaml(text, "f"))
    assert faults(text)
