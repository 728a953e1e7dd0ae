"""The config as a whole: strictness, faults, overrides, the schema and the table made from it."""

import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from charlm.config import (
    Config,
    differences,
    dump_config,
    flatten,
    ignored_options,
    load_config,
    override_config,
    parse_config,
    read_config_file,
)
from charlm.config.options import options_table
from charlm.config.yaml import load_yaml
from charlm.errors import ConfigError

CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("*.yaml"))
KEYS = "data, model, train, optimizer, seed, device, precision, threads"
INTEGER = "an integer ≥ 0 and < 9223372036854775808"
DROPOUT = "a number ≥ 0 and < 1 or a section"
SPLIT = "a list of 3: a number ≥ 0 and ≤ 1 each"
CELLS = "gru | lstm | rhn | rnn"
RHN = "kind, hidden, depth, couple_gates, gate_bias"
OPTIMIZERS = "adagrad | adam | adamw | muon | nadam | radam | rmsprop | sgd"


def parse(text: str, *overrides: str) -> Config:
    return parse_config(load_yaml(text, "f"), "f", overrides)


def faults(text: str, *overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as refusal:
        parse(text, *overrides)
    assert str(refusal.value) == "\n".join(refusal.value.faults)
    return list(refusal.value.faults)


def test_there_are_configs():
    assert len(CONFIGS) >= 8


@pytest.mark.parametrize("file", CONFIGS, ids=lambda file: file.name)
def test_shipped_config_is_valid_and_says_so_to_editors(file):
    parsed = load_config(file)
    assert accepts(read_config_file(file))
    assert parse(dump_config(parsed)) == parsed


def test_empty_file_is_all_defaults():
    assert parse("") == parse("# nothing") == Config()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("seed: true", f"seed: found true; allowed: {INTEGER}"),
        ("seed: '5'", f'seed: found "5"; allowed: {INTEGER}'),
        ("seed: 5.0", f"seed: found 5.0; allowed: {INTEGER}"),
        ("seed: 1:30", f'seed: found "1:30"; allowed: {INTEGER}'),
        ("seed: 1_000", f'seed: found "1_000"; allowed: {INTEGER}'),
        ("seed: -1", f"seed: found -1; allowed: {INTEGER}"),
        ("seed: 9223372036854775808", f"seed: found 9223372036854775808; allowed: {INTEGER}"),
        ("seed:", f"seed: found null; allowed: {INTEGER}"),
        ("seed: {a: 1}", f'seed: found {{"a": 1}}; allowed: {INTEGER}'),
        (f"seed: {'x' * 100}", f'seed: found "{"x" * 56}...; allowed: {INTEGER}'),
        ("threads: 1025", "threads: found 1025; allowed: an integer ≥ 0 and ≤ 1024"),
        ("device: gpu", "device: found \"gpu\"; allowed: auto | cpu | cuda; did you mean 'cpu'?"),
        ("device: 1", "device: found 1; allowed: auto | cpu | cuda"),
        ("data: {source: 5}", "data.source: found 5; allowed: text that is not empty"),
        ("data: {valid_source: ''}", 'data.valid_source: found ""; allowed: text that is not empty or null'),
        ("data: {grow_vocabulary: no}", 'data.grow_vocabulary: found "no"; allowed: true or false'),
        ("data: {grow_vocabulary: 1}", "data.grow_vocabulary: found 1; allowed: true or false"),
        ("data: {split: [1, 0, 0, 0]}", f"data.split: found [1, 0, 0, 0]; allowed: {SPLIT}"),
        ("data: {split: 1}", f"data.split: found 1; allowed: {SPLIT}"),
        ("data: {split: [1, '0', 0]}", 'data.split.1: found "0"; allowed: a number ≥ 0 and ≤ 1'),
        ("data: {split: [1, 0]}", "data.split.2: found nothing; allowed: a number ≥ 0 and ≤ 1"),
        ("train: {max_steps: 0}", "train.max_steps: found 0; allowed: an integer ≥ 1 or null"),
        ("optimizer: {name: adamw, lr: .nan}", "optimizer.lr: found NaN; allowed: a number > 0"),
        ("optimizer: {name: adamw, lr: 1e400}", "optimizer.lr: found Infinity; allowed: a number > 0"),
        ("optimizer: {name: adamw, lr: 3e-4x}", 'optimizer.lr: found "3e-4x"; allowed: a number > 0'),
        ("optimizer: {name: adam, betas: [0.9, true]}", "optimizer.betas.1: found true; allowed: a number ≥ 0 and < 1"),
        ("optimizer: {name: 5}", f"optimizer.name: found 5; allowed: {OPTIMIZERS}"),
        ("optimizer: adam", 'optimizer: found "adam"; allowed: a section with name'),
        ("model: [1]", "model: found [1]; allowed: a section"),
        ("model:", "model: found null; allowed: a section"),
        ("model: {dropout: 1.5}", f"model.dropout: found 1.5; allowed: {DROPOUT}"),
        ("model: {dropout: 1}", f"model.dropout: found 1; allowed: {DROPOUT}"),
        ("model: {dropout: true}", f"model.dropout: found true; allowed: {DROPOUT}"),
        ("model: {dropout: '0.3'}", f'model.dropout: found "0.3"; allowed: {DROPOUT}'),
        ("model: {dropout: {state: 1}}", "model.dropout.state: found 1; allowed: a number ≥ 0 and < 1"),
        (
            "model: {dropout: {outptu: 1}}",
            "model.dropout.outptu: unknown key; allowed: embedding, input, state, weights, between_layers, output, "
            "variational; did you mean 'output'?",
        ),
        ("model: {cell: {kind: rnh}}", f"model.cell.kind: found \"rnh\"; allowed: {CELLS}; did you mean 'rnn'?"),
        ("model: {cell: {depth: 5}}", "model.cell.depth: unknown key; allowed: kind, hidden, layer_norm, forget_bias"),
        ("model: {cell: {kind: [rhn]}}", f'model.cell.kind: found ["rhn"]; allowed: {CELLS}'),
        ("model: {cell: lstm}", 'model.cell: found "lstm"; allowed: a section with kind'),
        # The tag that pydantic puts behind `cell` is no part of the path, even where a key has the tag's name.
        ("model: {cell: {kind: rhn, hidden: x}}", 'model.cell.hidden: found "x"; allowed: an integer ≥ 1'),
        ("model: {cell: {kind: rhn, dept: 1}}", f"model.cell.dept: unknown key; allowed: {RHN}; did you mean 'depth'?"),
        ("model: {cell: {kind: gru, gru: {}}}", "model.cell.gru: unknown key; allowed: kind, hidden"),
        ("model: {cell: {kind: gru, depth: 5}}", "model.cell.depth: unknown key; allowed: kind, hidden"),
        ("zzz: 1", f"zzz: unknown key; allowed: {KEYS}"),
        ("trian: {}", f"trian: unknown key; allowed: {KEYS}; did you mean 'train'?"),
        ("data.source: x", f"data.source: unknown key; allowed: {KEYS}; did you mean 'data'?"),
        ("<<: {seed: 1}", f"<<: unknown key; allowed: {KEYS}"),
        # Validators of our own.
        ("data: {split: [0.9, 0.2, 0]}", "data.split: found [0.9, 0.2, 0.0], which sum to 1.1; allowed: a sum of 1"),
        ("data: {split: [0, 1, 0]}", "data.split: found a train share of 0; allowed: above 0"),
        (
            "model: {tie_embeddings: true}",
            "model.tie_embeddings: found embedding 64 and hidden 256; allowed: equal sizes; "
            "set embedding to the hidden size",
        ),
        (
            "train: {max_steps: null}",
            "train: found no limit; allowed: at least one of max_steps, max_epochs, max_minutes",
        ),
        (
            "train: {bptt: 8, bptt_start: 9}",
            "train.bptt_start: found 9; allowed: at most bptt, 8; lower it or raise bptt",
        ),
        (
            "optimizer: {name: sgd, nesterov: true}",
            "optimizer.nesterov: found true with momentum 0; allowed: momentum above 0",
        ),
        (
            "{data: {split: [1, 0, 0]}, train: {max_steps: 1, patience: 2}}",
            "train.patience: found early stopping without a validation split; allowed: 0, or a validation share in "
            "data.split, or data.valid_source",
        ),
    ],
)  # fmt: skip
def test_fault(text, line):
    assert faults(text) == [f"f: {line}"]


@pytest.mark.parametrize(
    "text",
    [
        "data: {split: [0.9, 0.1, 0]}",
        "data: {split: [1, 0, 0], valid_source: v.txt}\ntrain: {max_steps: 1, patience: 2}",
        "model: {tie_embeddings: true, embedding: 8, cell: {kind: gru, hidden: 8}}",
        "train: {max_minutes: 0.5}",
        "train: {max_epochs: 1}",
        "optimizer: {name: sgd, nesterov: true, momentum: 0.9}",
        "optimizer: {name: adamw, lr: 1}",
        "seed: 9223372036854775807",
        "data: {source: no}",
    ],
)
def test_valid_and_refused_by_no_editor(text):
    parse(text)
    assert accepts(load_yaml(text, "f"))


def test_integer_is_a_number_where_one_is_wanted():
    lr = parse("optimizer: {name: adamw, lr: 1}").optimizer.lr
    assert (type(lr), lr) == (float, 1.0)


@pytest.mark.parametrize(("text", "name"), [("[1, 2]", "list"), ("5", "int"), ("text", "str"), ("true", "bool")])
def test_top_level_is_a_section(text, name):
    assert faults(text) == [f"f: found {name}; allowed: sections such as data:, model:, train:"]


def test_all_faults_at_once(tmp_path):
    file = tmp_path / "bad.yaml"
    file.write_text(
        """\
data: {source: 7, level: chars, split: [0.5, 0.4, 0.3]}
model:
  cell: {kind: rhn, dept: 3, hidden: 0}
  dropout: {state: -0.1}
trian: {max_steps: 5}
train: {max_steps: 1.5, bptt: yes}
optimizer: {name: adamv}
seed: true
"""
    )
    with pytest.raises(ConfigError) as refusal:
        load_config(file, ["threads=two", "model.layers=0", "nonsense", "seed=["])
    assert str(refusal.value) == "\n".join(
        [
            "--set nonsense: found no KEY=VALUE; allowed: for example --set train.max_steps=500",
            "--set seed=[: line 1, column 2: expected the node content, but found '<stream end>'; allowed: plain YAML",
            f"{file}: data.source: found 7; allowed: text that is not empty",
            f"{file}: data.level: found \"chars\"; allowed: char | byte; did you mean 'char'?",
            f"{file}: data.split: found [0.5, 0.4, 0.3], which sum to 1.2; allowed: a sum of 1",
            f"{file}: model.cell.hidden: found 0; allowed: an integer ≥ 1",
            f"{file}: model.cell.dept: unknown key; allowed: {RHN}; did you mean 'depth'?",
            "--set model.layers=0: model.layers: found 0; allowed: an integer ≥ 1",
            f"{file}: model.dropout.state: found -0.1; allowed: a number ≥ 0 and < 1",
            f'{file}: train.bptt: found "yes"; allowed: an integer ≥ 1',
            f"{file}: train.max_steps: found 1.5; allowed: an integer ≥ 1 or null",
            f"{file}: optimizer.name: found \"adamv\"; allowed: {OPTIMIZERS}; did you mean 'adam'?",
            f"{file}: seed: found true; allowed: {INTEGER}",
            '--set threads=two: threads: found "two"; allowed: an integer ≥ 0 and ≤ 1024',
            f"{file}: trian: unknown key; allowed: {KEYS}; did you mean 'train'?",
        ]
    )


class TestOverrides:
    def test_values_go_through_the_same_yaml(self):
        config = parse(
            "optimizer: {name: adamw, lr: 1}",
            "optimizer.lr=3e-4",
            "seed=010",
            "data.source=no",
            "data.split=[0.8, 0.1, 0.1]",
            "model.cell={kind: rhn, depth: 3}",
            "model.init_uniform=",
        )
        assert (config.optimizer.lr, config.seed, config.data.source) == (3e-4, 10, "no")
        assert config.data.split == (0.8, 0.1, 0.1)
        assert config.model.cell.options() == {"depth": 3, "couple_gates": True, "gate_bias": -2.0}
        assert config.model.init_uniform is None

    def test_the_last_one_counts(self):
        assert parse("seed: 1", "seed=2", "seed=3").seed == 3

    def test_text_may_hold_an_equals_sign(self):
        assert parse("", "data.source=a=b").data.source == "a=b"

    def test_the_value_that_was_read_is_not_changed(self):
        raw = {"train": {"max_steps": 1}}
        parse_config(raw, "f", ["train.max_steps=5"])
        assert raw == {"train": {"max_steps": 1}}

    @pytest.mark.parametrize(
        ("text", "overrides", "lines"),
        [
            ("", ["seed=x"], [f'--set seed=x: seed: found "x"; allowed: {INTEGER}']),
            ("", ["sede=1"], [f"--set sede=1: sede: unknown key; allowed: {KEYS}; did you mean 'seed'?"]),
            ("", ["seed=1", "seed="], [f"--set seed=: seed: found null; allowed: {INTEGER}"]),
            ("seed: x", ["model.layers=0"], ["--set model.layers=0: model.layers: found 0; allowed: an integer ≥ 1",
                                             f'f: seed: found "x"; allowed: {INTEGER}']),
            ("", ["model.dropout=2"], [f"--set model.dropout=2: model.dropout: found 2; allowed: {DROPOUT}"]),
            # A validator's fault, and that of a union's tag, lie below the place that pydantic names.
            ("model: {embedding: 8}", ["model.tie_embeddings=true"],
             ["--set model.tie_embeddings=true: model.tie_embeddings: found embedding 8 and hidden 256; allowed: equal "
              "sizes; set embedding to the hidden size"]),
            ("", ["optimizer.name=zzz"],
             [f'--set optimizer.name=zzz: optimizer.name: found "zzz"; allowed: {OPTIMIZERS}']),
            ("data: {split: [1, 0, 0]}", ["train={max_steps: 1}", "train.patience=2"],
             ["--set train.patience=2: train.patience: found early stopping without a validation split; allowed: 0, or "
              "a validation share in data.split, or data.valid_source"]),
            # A section that only an override made.
            ("", ["train.max_steps="],
             ["--set train.max_steps=: train: found no limit; allowed: at least one of max_steps, max_epochs, "
              "max_minutes"]),
            ("train: {max_steps: null}", ["train.bptt=5"],
             ["f: train: found no limit; allowed: at least one of max_steps, max_epochs, max_minutes"]),
            ("", ["seed.a=3"], [f'--set seed.a=3: seed: found {{"a": 3}}; allowed: {INTEGER}']),
            # What is overwritten is not to blame.
            ("", ["train.max_steps=x", "train={max_steps: 0}"],
             ["--set train={max_steps: 0}: train.max_steps: found 0; allowed: an integer ≥ 1 or null"]),
        ],
    )  # fmt: skip
    def test_fault_names_the_override(self, text, overrides, lines):
        assert faults(text, *overrides) == lines

    @pytest.mark.parametrize("override", ["seed", "=3", "a..b=3", ".a=3", "a.=3", "", "=", "a.b.c.d.e.f.g.h.i=1"])
    def test_no_key_and_value(self, override):
        assert faults("", override) == [
            f"--set {override}: found no KEY=VALUE; allowed: for example --set train.max_steps=500"
        ]

    def test_key_of_thousands_of_parts(self):
        (line,) = faults("", "seed" + ".a" * 5000 + "=1")
        assert line.endswith(": found no KEY=VALUE; allowed: for example --set train.max_steps=500")

    def test_value_that_is_no_yaml(self):
        assert faults("", "seed=[1") == [
            "--set seed=[1: line 1, column 3: expected ',' or ']', but got '<stream end>'; allowed: plain YAML"
        ]

    @pytest.mark.parametrize(
        ("text", "override", "line"),
        [
            ("seed: 5", "seed.a=3", "found seed: 5, which has no keys; allowed: --set seed=VALUE"),
            ("model: {dropout: 0.3}", "model.dropout.state=0.1",
             "found model.dropout: 0.3, which has no keys; allowed: --set model.dropout=VALUE"),
            ("data: {split: [1, 0, 0]}", "data.split.0=1",
             "found data.split: [1, 0, 0], which has no keys; allowed: --set data.split=VALUE"),
        ],
    )  # fmt: skip
    def test_set_through_a_value_without_keys(self, text, override, line):
        assert faults(text, override) == [f"--set {override}: {line}"]


def test_config_is_frozen():
    config = parse("model: {dropout: 0.3}")
    for section, name, value in ((config, "seed", 2), (config.train, "bptt", 3), (config.model.cell, "hidden", 4)):
        with pytest.raises(ValidationError, match="frozen"):
            setattr(section, name, value)


def test_dropout_as_a_number_is_that_of_layers_and_output():
    section = parse("model: {dropout: {between_layers: 0.3, output: 0.3}}")
    assert parse("model: {dropout: 0.3}") == section
    assert flatten(section)["model.dropout.state"] == 0.0


NUMBERS = st.floats(1e-300, 1e300) | st.sampled_from([3e-4, 1e-07, 1e22, 5e-324, 1.0, 0.1])
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20) | st.sampled_from(
    [
        "3e-4",
        "010",
        "no",
        "null",
        "~",
        "1:30",
        "true",
        "0x10",
        "- a",
        "a: b",
        "#",
        "*a",
        "!a",
        "'",
        '"',
        " ",
        "\n",
        "\x85",
    ]
)


@settings(deadline=None, derandomize=True, max_examples=200)
@given(lr=NUMBERS, eps=NUMBERS, source=TEXTS, valid=st.none() | TEXTS, seed=st.integers(0, 2**63 - 1))
def test_dump_and_parse_give_the_same_config(lr, eps, source, valid, seed):
    raw = {
        "data": {"source": source, "valid_source": valid},
        "optimizer": {"name": "adam", "lr": lr, "eps": eps},
        "seed": seed,
    }
    config = parse_config(raw, "f")
    assert parse(dump_config(config)) == config


def test_flatten_and_differences():
    old = parse("model: {cell: {kind: rhn, depth: 3}}\ntrain: {max_steps: 5}")
    new = parse("model: {cell: {kind: gru}, dropout: 0.5}\ntrain: {max_steps: 6}")
    flat = flatten(old)
    assert flat["model.cell.depth"] == 3
    assert flat["data.split"] == [0.9, 0.05, 0.05]
    assert flat["optimizer.schedule.name"] == "constant"
    assert not any(isinstance(value, dict) for value in flat.values())
    assert differences(old, old) == {}
    assert differences(old, new) == {
        "model.cell.kind": ("rhn", "gru"),
        "model.cell.depth": (3, None),
        "model.cell.couple_gates": (True, None),
        "model.cell.gate_bias": (-2.0, None),
        "model.dropout.between_layers": (0.0, 0.5),
        "model.dropout.output": (0.0, 0.5),
        "train.max_steps": (5, 6),
    }


# --- The JSON Schema, read by a validator of the keywords that it uses and no others.

SCHEMA = Config.model_json_schema()
ANNOTATIONS = {"title", "description", "default", "discriminator", "$defs"}
TYPES = {"string": str, "boolean": bool, "object": dict, "array": list, "null": type(None)}


def nodes(node):
    """Every schema within a schema."""
    yield node
    for key in ("properties", "$defs"):
        for child in node.get(key, {}).values():
            yield from nodes(child)
    for key in ("anyOf", "oneOf", "prefixItems"):
        for child in node.get(key, []):
            yield from nodes(child)


def accepts(value, node=SCHEMA) -> bool:
    """Whether a JSON Schema (draft 2020-12) admits a value."""
    if "$ref" in node:
        return accepts(value, SCHEMA["$defs"][node["$ref"].removeprefix("#/$defs/")])
    number = isinstance(value, int | float) and not isinstance(value, bool)
    for key, rule in node.items():
        match key:
            case "anyOf":
                valid = any(accepts(value, branch) for branch in rule)
            case "oneOf":
                valid = sum(accepts(value, branch) for branch in rule) == 1
            case "type" if rule in ("number", "integer"):
                valid = number and (rule == "number" or value == int(value))
            case "type":
                valid = isinstance(value, TYPES[rule])
            case "const":
                valid = value == rule
            case "enum":
                valid = value in rule
            case "minimum":
                valid = not number or value >= rule
            case "exclusiveMinimum":
                valid = not number or value > rule
            case "maximum":
                valid = not number or value <= rule
            case "exclusiveMaximum":
                valid = not number or value < rule
            case "minLength":
                valid = not isinstance(value, str) or len(value) >= rule
            case "minItems":
                valid = not isinstance(value, list) or len(value) >= rule
            case "maxItems":
                valid = not isinstance(value, list) or len(value) <= rule
            case "prefixItems":
                valid = not isinstance(value, list) or all(map(accepts, value, rule))
            case "required":
                valid = not isinstance(value, dict) or set(rule) <= set(value)
            case "properties":
                valid = not isinstance(value, dict) or all(accepts(value[k], rule[k]) for k in value if k in rule)
            case "additionalProperties":
                assert rule is False
                valid = not isinstance(value, dict) or set(value) <= set(node["properties"])
            case _:
                assert key in ANNOTATIONS, f"{key}: a keyword that this test does not know"
                valid = True
        if not valid:
            return False
    return True


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


# --- What has no effect; a saved config with overrides.


@pytest.mark.parametrize("file", CONFIGS, ids=lambda file: file.stem)
def test_shipped_config_sets_nothing_in_vain(file):
    assert ignored_options(load_config(file)) == []


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


def test_a_saved_config_takes_another_kind():
    saved = parse("optimizer: {name: sgd, lr: 0.5, momentum: 0.9, schedule: {name: cosine, warmup_steps: 7}}")
    same = override_config(saved, "saved", ["optimizer.name=sgd", "model.cell.kind=lstm"])
    assert same == saved
    other = override_config(saved, "saved", ["optimizer.name=adam", "optimizer.schedule.name=constant"])
    assert (other.optimizer.name, other.optimizer.lr, other.optimizer.eps) == ("adam", 0.5, 1e-8)
    assert other.optimizer.schedule.model_dump() == {"name": "constant", "warmup_steps": 7}
    gru = override_config(saved, "saved", ["model.cell.kind=gru", "model.cell.hidden=9"]).model.cell
    assert gru.model_dump() == {"kind": "gru", "hidden": 9}
    with pytest.raises(ConfigError) as refusal:
        override_config(saved, "saved", ["optimizer.name=adamv", "seed", "optimizer.momentum=2"])
    assert [fault.split(":")[0] for fault in refusal.value.faults] == ["--set seed", "--set optimizer.name=adamv"]


# --- The table of options.


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
    assert "| `model.cell.depth` | `5` | an integer ≥ 1 | (rhn) " in table
    assert "| `train.max_steps` | `null` | an integer ≥ 1 or null | " in table
    assert '| `data.level` | `"char"` | char \\| byte | ' in table
    meaning = "Added to the denominator, so that it is never 0."
    assert [line for line in table.splitlines() if line.startswith("| `optimizer.eps`")] == [
        f"| `optimizer.eps` | `1e-10` | a number > 0 | (adagrad) {meaning} |",
        f"| `optimizer.eps` | `1e-08` | a number > 0 | (adam, nadam, radam, adamw, muon, rmsprop) {meaning} |",
    ]


def test_any_yaml_reader_understands_the_dump():
    """Other tools read the config of a run with PyYAML's own loader."""
    config = parse("data: {source: no, valid_source: '010'}\noptimizer: {name: adam, lr: 0.25}")
    assert yaml.safe_load(dump_config(config))["optimizer"]["lr"] == 0.25


def test_a_section_that_names_no_kind_is_of_the_default_one():
    config = parse("{model: {cell: {hidden: 7}}, optimizer: {lr: 0.1, schedule: {warmup_steps: 3}}, train: {bptt: 5}}")
    assert (config.model.cell.kind, config.model.cell.hidden) == ("lstm", 7)
    assert (config.optimizer.name, config.optimizer.clip_norm) == ("adamw", parse("").optimizer.clip_norm)
    assert (config.optimizer.schedule.name, config.optimizer.schedule.warmup_steps) == ("constant", 3)
    assert (config.train.max_steps, parse("").train.max_steps) == (2000, 2000)
    assert parse("train: {max_minutes: 3}").train.max_steps is None


def test_an_override_fills_an_empty_section():
    assert parse("train:", "train.max_steps=7").train.max_steps == 7
