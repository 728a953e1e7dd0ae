"""What is searched: from text, and by default."""

import itertools

import pytest
from optuna.trial import FixedTrial

from charlm.cells import CELLS
from charlm.config import flatten, override_config, parse_config
from charlm.errors import ConfigError
from charlm.tuning.space import Floats, Integers, OneOf, as_text, default_space, ends, nearest, parse_space, trial_value

CONFIG = parse_config({"model": {"cell": {"kind": "lstm"}}}, "test")


@pytest.mark.parametrize(
    ("text", "option"),
    [
        ("optimizer.lr=1e-3..3e-2:log", Floats(1e-3, 3e-2, log=True)),
        ("optimizer.clip_norm=1..10", Floats(1, 10)),
        ("optimizer.clip_norm=1..10:0.5", Floats(1, 10, step=0.5)),
        ("model.cell.hidden=128..512", Integers(128, 512)),
        ("model.cell.hidden=128..512:64", Integers(128, 512, step=64)),
        ("model.cell.hidden = 128 .. 512 : log", Integers(128, 512, log=True)),
        ("train.bptt_start=8..32", Integers(8, 32)),
        ("model.cell.layer_norm=true,false", OneOf((True, False))),
        ("model.cell.forget_bias=null, 1.0", OneOf((None, 1.0))),
        ("optimizer.schedule.name=constant,cosine", OneOf(("constant", "cosine"))),
        ("train.batch_size=16", OneOf((16,))),
    ],
)
def test_text(text, option):
    key = text.partition("=")[0].strip()
    assert parse_space([text], CONFIG) == {key: option}
    assert parse_space([f"{key}={as_text(option)}"], CONFIG) == {key: option}


SHARED = "allowed: options of model, train and optimizer in this config, no limits"
KEYS = "found no KEY=VALUES; allowed: for example --over optimizer.lr=1e-3..3e-2:log"
NUMBER = "allowed: a number, as in 1e-3..3e-2:log"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("optimizer.lr", KEYS),
        ("optimizer.lrr=1..2", f"found optimizer.lrr; {SHARED}; did you mean 'optimizer.lr'?"),
        ("train.max_steps=1..2", f"found train.max_steps; {SHARED}"),
        ("optimizer.lr=a..2", f"found 'a'; {NUMBER}"),
        ("optimizer.lr=.nan..2", f"found '.nan'; {NUMBER}"),
        ("optimizer.lr=1..2:lin", f"found 'lin'; {NUMBER}"),
        ("optimizer.lr=2..1", "found 2 to 1; allowed: the lower number first"),
        ("optimizer.clip_norm=0..1:log", "found 0 with :log; allowed: numbers above 0"),
        ("optimizer.lr=1..2:3", "found a step of 3; allowed: log, or a step that fits into the range"),
        ("model.layers=1..4:0.5", "found a step of 0.5; allowed: log, or a step that fits into the range"),
        ("model.layers=1,[2]", "found '1,[2]'; allowed: single values, as in 8,16,32"),
        ("model.layers=#",
         "VALUES: line 1, column 4: expected the node content, but found '<stream end>'; allowed: plain YAML"),
        ("optimizer.lr=-1..1", "optimizer.lr: found -1; allowed: a number > 0"),
        ("model.cell.layer_norm=0..1", "model.cell.layer_norm: found 0; allowed: true or false"),
    ],
)  # fmt: skip
def test_faults(text, fault):
    with pytest.raises(ConfigError) as caught:
        parse_space([text, "optimizer.clip_norm=1..2", "optimizer.clip_norm=1..3"], CONFIG)
    twice = "--over optimizer.clip_norm=1..3: found optimizer.clip_norm twice; allowed: once"
    assert caught.value.faults == (f"--over {text}: {fault}", twice)  # all faults at once


def test_suggested_numbers_have_three_digits_and_stay_in_the_range():
    for option, drawn, value in (
        (Floats(1e-3, 3e-2, log=True), 0.0123456, 0.0123),
        (Floats(0.0123444, 1.0), 0.0123445, 0.0123444),
        (Floats(0, 1, step=0.05), 0.15000000000000002, 0.15),
        (Integers(100, 3000), 1234, 1234),
        (OneOf((1, 2)), 2, 2),
    ):
        assert trial_value(FixedTrial({"key": drawn}), "key", option) == value


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        (Floats(0.1, 0.5), 7, 0.5),
        (Floats(0.1, 0.5), None, 0.1),
        (Floats(0.0, 0.6, step=0.05), 0.13, 0.15),
        (Floats(0.0, 0.4, step=0.2), 0.5, 0.4),
        (Integers(8, 24, step=8), 99, 24),
        (Integers(8, 32), 9, 9),
        (OneOf((8, 16)), 14, 16),
        (OneOf(("a", "b")), 3, "a"),
    ],
)
def test_nearest(option, value, expected):
    found = nearest(option, value)
    assert (found, type(found)) == (expected, type(expected))


@pytest.mark.parametrize("kind", CELLS)
def test_defaults_are_valid_and_around_the_config(kind):
    config = parse_config({"model": {"cell": {"kind": kind}}}, "test")
    space = default_space(config)
    assert ("model.cell.depth" in space) == (kind == "rhn")
    assert ("model.layers" in space) == (kind != "rhn")
    for key, option in space.items():
        assert nearest(option, flatten(config)[key]) == flatten(config)[key]
        for value in ends(option):
            override_config(config, "test", [f"{key}={value}"])
    assert space["model.cell.hidden"] == Integers(128, 512, step=16)
    assert parse_space([f"{key}={as_text(option)}" for key, option in space.items()], config) == space


BAD = ["optimizer.lr=1e-6", "optimizer.lr=5.0", "model.cell.hidden=3", "model.dropout=0.9", "train.bptt=2",
       "train.batch_size=1000", "model.zoneout=0.8"]  # fmt: skip


@pytest.mark.parametrize(("kind", "bad"), [*zip(CELLS, itertools.cycle(BAD)), *(("rhn", bad) for bad in BAD)])
def test_defaults_lead_back_from_bad_values(kind, bad):
    good = parse_config({"model": {"cell": {"kind": kind}}}, "test", ["optimizer.lr=4e-3", "model.cell.hidden=300"])
    config = override_config(good, "test", [bad])
    for key, option in default_space(config, suggested=good).items():
        ours, wanted = flatten(config)[key], flatten(good)[key]
        assert nearest(option, ours) == ours
        found = nearest(option, wanted)
        assert found == wanted or abs(found - wanted) < 0.03 * wanted, key


def test_what_is_left_out():
    for name in ("adam", "muon", "sgd", "rmsprop", "adagrad"):
        optimizer = {"name": name, "schedule": {"name": "cosine"}}
        space = default_space(parse_config({"optimizer": optimizer}, "test"))
        assert ("optimizer.weight_decay" in space) == (name == "muon")  # where it is decoupled
        assert "optimizer.schedule.name" not in space
