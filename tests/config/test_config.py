"""The config as a whole: strictness, faults, overrides, defaults, its schema, and what is written back."""

import json

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from charlm.config import Config, dump_config, ignored_options, parse_config, read_settings
from charlm.config.yaml import load_yaml
from charlm.errors import ConfigError
from charlm.system.faults import json_schema

KEYS = "data, model, train, optimizer, seed, device, precision, threads"
INTEGER = "an integer ≥ 0 and < 9,223,372,036,854,775,808"
NO_LIMIT = "train: found no limit; allowed: at least one of max_steps, max_epochs, max_minutes"
NO_FILE = "found 'mine:Mix'; allowed: a built-in kind, or FILE.py:CLASS"
NO_VALIDATION = "train.patience: found early stopping without a validation split; allowed: 0, or a validation share "


def parse(text: str, *overrides: str) -> Config:
    return parse_config(load_yaml(text, "f"), "f", read_settings(overrides))


FAULTS = [
    ("[1, 2]", "found list; allowed: sections such as data:, model:, train:"),
    (f"seed: {'x' * 100}", f'seed: found "{"x" * 56}...; allowed: {INTEGER}'),
    ("device: gpu", "device: found \"gpu\"; allowed: auto | cpu | cuda | cuda:1; did you mean 'cpu'?"),
    ("data: {split: [0.9, 0.2, 0]}", "data.split: found [0.9, 0.2, 0.0], which sum to 1.1; allowed: a sum of 1"),
    ("optimizer: {lr: 1e400}", "optimizer.lr: found Infinity; allowed: a number ≥ 1e-30 and ≤ 1,000,000,000"),
    ("model: {dropout: 1}", "model.dropout: found 1; allowed: a number ≥ 0 and ≤ 0.9999999 or a section"),
    ("{data: {split: [1, 0, 0]}, train: {max_steps: 1, patience: 2}}", NO_VALIDATION),
    ("model: {cell: {kind: 'mine:Mix'}}", f"model.cell.kind: {NO_FILE}; did you mean './mine.py:Mix'?"),
    # The tag that pydantic puts behind `cell` is no part of the path, even where a key has the tag's name.
    ("model: {cell: {kind: gru, gru: {}}}", "model.cell.gru: unknown key; allowed: kind, hidden"),
]  # fmt: skip
OVERRIDDEN = [
    ("", ["sede=1"], f"sede: unknown key; allowed: {KEYS}; did you mean 'seed'?"),
    # A validator's fault lies below the place that pydantic names.
    ("model: {embedding: 0}", ["model.tie_embeddings=true"], "model.tie_embeddings: found true with embedding 0, one-"),
    ("", ["lr=0.01"], f"lr: unknown key; allowed: {KEYS}; did you mean 'optimizer.lr'?"),
    ("", ["cell=gru"], f"cell: unknown key; allowed: {KEYS}; did you mean 'model.cell.kind'?"),
    ("", ["train.max_steps=null"], NO_LIMIT),
    ("", ["optimizer.momentum=1"], "optimizer.momentum: unknown key; allowed: name, lr, weight_decay, clip_norm, "),
    # What is overwritten is not to blame.
    ("", ["model.cell.hidden=x", "model.cell={kind: gru, hidden: 0}"], "model.cell.hidden: found 0; allowed: an inte"),
    ("seed: 5", ["seed.a=3"], "found seed: 5, which has no keys; allowed: --set seed=VALUE"),
    ("", ["seed"], "found no KEY=VALUE; allowed: "),
]


@pytest.mark.parametrize(("text", "overrides", "fault"), [*((text, (), fault) for text, fault in FAULTS), *OVERRIDDEN])
def test_a_fault_names_its_place_and_what_is_allowed(text, overrides, fault):
    with pytest.raises(ConfigError) as refusal:
        parse(text, *overrides)
    [line] = refusal.value.faults
    assert line.startswith(f"--set {overrides[-1]}: {fault}" if overrides else f"f: {fault}")


def test_overrides_go_through_the_same_yaml():
    overrides = ["optimizer.lr=3e-4", "seed=9", "seed=010", "data.source=a=b", "model.cell={kind: rhn, depth: 3}"]
    config = parse("{optimizer: {lr: 1}, train: null}", *overrides, "model.init_uniform=", "train.max_steps=7")
    assert (config.optimizer.lr, config.seed, config.data.source, config.train.max_steps) == (3e-4, 10, "a=b", 7)
    assert config.model.cell.options() == {"depth": 3, "couple_gates": True, "gate_bias": -2.0}
    assert config.model.init_uniform is None


def test_an_override_of_the_kind_keeps_the_options_that_all_kinds_have():
    text = "model: {cell: {hidden: 7, layer_norm: true}}"
    assert parse(text, "model.cell.kind=gru").model.cell.model_dump() == {"kind": "gru", "hidden": 7}
    assert parse(text, "model.cell.kind=lstm").model.cell.options()["layer_norm"] is True
    with pytest.raises(ConfigError):
        parse(text, "model.cell.kind=gru", "model.cell.layer_norm=true")


def test_a_section_that_is_set_keeps_its_other_options_unless_it_may_change_its_kind():
    text = "data: {source: my.txt}\ntrain: {max_steps: 7}\nmodel: {cell: {kind: lstm, layer_norm: true}, layers: 2}"
    dropout = "model.dropout={weights: 0.5, output: 0.2}"
    config = parse(text, dropout, "model={dropout: {output: 0.1}, cell: {kind: gru}}", "data={level: byte}")
    assert (config.data.source, config.data.level, config.train.max_steps) == ("my.txt", "byte", 7)
    assert (config.model.layers, config.model.cell.kind) == (2, "gru")
    assert (config.model.dropout.weights, config.model.dropout.output) == (0.5, 0.1)
    nested = parse("model: {cell: {kind: gru, hidden: 8}}\noptimizer: {name: sgd}", "model={cell: {hidden: 5}}")
    assert (nested.model.cell.kind, nested.model.cell.hidden, nested.optimizer.name) == ("gru", 5, "sgd")


def test_defaults_short_forms_and_valid_combinations():
    config = parse("{model: {cell: {hidden: 7}}, optimizer: {lr: 1, schedule: {warmup_steps: 3}}, train: {bptt: 5}}")
    assert (config.model.cell.kind, config.model.cell.hidden) == ("lstm", 7)
    assert (config.optimizer.name, type(config.optimizer.lr), config.optimizer.lr) == ("adamw", float, 1.0)
    assert yaml.safe_load(dump_config(config))["optimizer"]["lr"] == 1.0  # other tools use PyYAML's own loader
    assert (config.optimizer.schedule.name, config.optimizer.schedule.warmup_steps) == ("constant", 3)
    assert parse("") == parse("# nothing") == Config()
    assert config.train.max_steps == 2000
    assert parse("train: {max_minutes: 3}").train.max_steps is None
    assert parse("model: {dropout: 0.3}") == parse("model: {dropout: {between_layers: 0.3, output: 0.3}}")
    assert parse("{data: {split: [1, 0, 0], valid_source: v.txt}, train: {max_steps: 1, patience: 2}}").train.patience
    assert parse("seed: 9223372036854775807").seed == 2**63 - 1
    for section, name, value in ((config, "seed", 2), (config.train, "bptt", 3), (config.model.cell, "hidden", 4)):
        with pytest.raises(ValidationError):
            setattr(section, name, value)


def test_the_schema_describes_every_option(cli):
    schema = json.loads(cli("config", "schema").out)
    assert schema == Config.model_json_schema()
    number, dropout = schema["$defs"]["Dropout"]["anyOf"]
    assert number == {"type": "number", "minimum": 0, "maximum": 0.9999999}
    sections = [schema, dropout, *schema["$defs"].values()]
    options = [(name, node) for section in sections for name, node in section.get("properties", {}).items()]
    assert len(options) > 60
    assert [name for name, node in options if len(node.get("description", "")) < 8] == []


@st.composite
def some_config(draw, node):
    """Some options of a section, most with values of their type."""
    kinds = node.get("discriminator", {}).get("mapping", {})
    sections = [*kinds.values(), *(one for one in (node, *node.get("anyOf", ())) if "properties" in one)]
    if not sections or draw(st.integers(0, 9)) == 0:
        own = [node["default"]] if "default" in node else []
        return draw(st.sampled_from([*own * 5, None, True, -1, 0, 1, 0.5, 16.0, 1e12, "", "x", "gru", "adam", [], {}]))
    properties = draw(st.sampled_from(sections))["properties"]
    return {name: draw(some_config(properties[name])) for name in draw(st.sets(st.sampled_from(sorted(properties))))}


@given(some_config(json_schema(Config)).filter(lambda raw: isinstance(raw, dict)))
@settings(max_examples=100, deadline=None)
@example({"optimizer": {"lr": 1e-2}, "model": {"cell": {"hidden": 384}}})
@example({"optimizer": {"schedule": {"warmup_steps": 10.0}}, "train": {"batch_size": 16.0}})
@example({"optimizer": {"betas": [0.5, 0.9]}, "model": {"dropout": 0.1}})
@example({"optimizer": {"momentum": 0.5}})
@example({"model": {"cell": {"kind": "./own.py:Mix", "hidden": 8, "rate": 0.5}}})
@example({"model": {"cell": {"kind": "own:Mix"}}})
@example({"train": {"batch_size": 16.5}})
def test_an_editor_with_the_schema_takes_what_charlm_takes(raw):
    jsonschema = pytest.importorskip("jsonschema")
    try:
        parse_config(raw, "f")
        is_taken = True
    except ConfigError:
        try:
            Config.model_validate(raw)
            is_taken = False  # a kind that is not built in
        except ValidationError as error:  # no schema says which options fit together
            is_taken = all(fault["type"] == "value_error" for fault in error.errors())
    assert jsonschema.Draft202012Validator(Config.model_json_schema()).is_valid(raw) is is_taken


def test_what_has_no_effect_is_named():
    options = "dropout: {state: 0.1}, orthogonal: true"
    assert ignored_options(parse(f"model: {{cell: {{kind: sru}}, {options}}}")) == [
        "model.dropout.state: found 0.1, which has no effect with cell.kind: sru; it has no recurrent matrices",
        "model.orthogonal: found true, which has no effect with cell.kind: sru; it has no recurrent matrices",
    ]
    assert ignored_options(parse(f"model: {{cell: {{kind: mogrifier}}, {options}}}")) == []


def test_show_prints_all_options_and_says_what_has_no_effect(cli, tiny_config, tmp_path):
    words = ["--set", "model.residual=true", "--set", "train.max_steps=1"]
    shown = cli("config", "show", tiny_config, *words)
    residual = "model.residual: found true, which has no effect with one layer; set model.layers above 1"
    assert (shown.code, shown.err) == (0, f"ignored  {residual}\n")
    assert "  patience: 0\n" in shown.out  # all options, so that a run keeps them when defaults change
    assert parse(shown.out) == parse(tiny_config.read_text(), "model.residual=true", "train.max_steps=1")
    assert shown.err in cli("train", "--config", tiny_config, "--run-dir", tmp_path / "run", *words).err
