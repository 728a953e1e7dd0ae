"""`--set KEY=VALUE`."""

import pytest

from charlm.config import (
    parse_config,
)
from tests.config.reading import DROPOUT, INTEGER, KEYS, OPTIMIZERS, faults, parse


def test_values_go_through_the_same_yaml():
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


def test_the_last_one_counts():
    assert parse("seed: 1", "seed=2", "seed=3").seed == 3


def test_text_may_hold_an_equals_sign():
    assert parse("", "data.source=a=b").data.source == "a=b"


def test_the_value_that_was_read_is_not_changed():
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
def test_fault_names_the_override(text, overrides, lines):
    assert faults(text, *overrides) == lines


@pytest.mark.parametrize("override", ["seed", "=3", "a..b=3", ".a=3", "a.=3", "", "=", "a.b.c.d.e.f.g.h.i=1"])
def test_no_key_and_value(override):
    assert faults("", override) == [
        f"--set {override}: found no KEY=VALUE; allowed: for example --set train.max_steps=500"
    ]


def test_key_of_thousands_of_parts():
    (line,) = faults("", "seed" + ".a" * 5000 + "=1")
    assert line.endswith(": found no KEY=VALUE; allowed: for example --set train.max_steps=500")


def test_value_that_is_no_yaml():
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
def test_set_through_a_value_without_keys(text, override, line):
    assert faults(text, override) == [f"--set {override}: {line}"]


def test_an_override_fills_an_empty_section():
    assert parse("train:", "train.max_steps=7").train.max_steps == 7
