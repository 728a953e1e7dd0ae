"""What a study is to do: its space, its first trials, and charlm's own choice."""

import contextlib
import itertools

import pytest

from charlm.config import flatten, override_config
from charlm.errors import ConfigError
from charlm.tuning.settings import StudySettings, choose_settings
from charlm.tuning.space import ends
from tests.tuning.conftest import OVER

KINDS = ("model.cell.kind=", "optimizer.name=", "optimizer.schedule.name=")


def own_choice(request):
    """A GRU with Adagrad, unless the request says otherwise; else a learning rate and a schedule."""
    if request.gives("model.cell.kind"):
        return {"optimizer": {"lr": 0.03, "schedule": {"name": "cosine"}}}
    model = {"cell": {"kind": "gru", "hidden": 12}, "embedding": 6}
    return {"model": model, "train": {"bptt": 32}, "optimizer": {"name": "adagrad", "lr": 0.04}}


def test_what_is_asked_for_and_the_default_for_the_rest(config_of, suggestion, kernels, tmp_path):
    from charlm.choice.suggest import suggest

    asked = suggestion(lambda request: suggest(request).config.model_dump(mode="json"))
    config = config_of(train={"reset_state": 0.25}, optimizer={"lr": 1e-5, "clip_norm": 3.0})
    settings, [(ours, _), (theirs, _), (_, own)] = choose_settings(config, ["model.cell.hidden=8,16"], 0.01, None)
    assert settings.space["model.cell.hidden"].choices == (8, 16)
    assert {"optimizer.lr", "model.dropout.weights", "model.layers"} <= settings.space.keys()
    assert ours == {key: flatten(config)[key] for key in settings.space}
    assert 1e-3 < theirs["optimizer.lr"] < 0.1
    assert theirs["model.cell.hidden"] == 16
    assert theirs["optimizer.schedule.name"] in ("linear", "cosine")
    assert {"train.reset_state=0.25", "optimizer.clip_norm=3.0", "seed=1", "model.cell.kind=lstm"} <= set(asked[0])
    assert not [text for text in asked[0] if text.startswith(("optimizer.lr=", "train.max_steps="))]
    trial = settings.trial_config(theirs, 1.0)
    assert (trial.train.reset_state, trial.optimizer.clip_norm, trial.model.embedding) == (0.25, 3.0, 4)
    assert own["chosen"]["model"]["embedding"] != 4
    assert StudySettings.from_json(settings.as_json(), tmp_path) == settings


@pytest.mark.parametrize(
    "over",
    [
        ["optimizer.name=sgd,adamw", "optimizer.schedule.name=constant"],
        ["model.cell.kind=lstm,gru", "optimizer.name=adagrad", "optimizer.schedule.name=constant,cosine"],
        ["model.cell.kind=slstm,rhn", "optimizer.name=rmsprop"],
        ["model.cell.kind=rnn", "optimizer.schedule.name=linear"],
    ],
    ids=" ".join,
)
def test_the_space_fits_every_kind_that_is_searched(config_of, suggestion, over):
    schedule = {"name": "cosine", "final_fraction": 0.02}
    optimizer = {"lr": 0.03, "schedule": schedule, "betas": [0.9, 0.98]}
    lstm = {"model": {"cell": {"kind": "lstm", "hidden": 24, "layer_norm": True}}, "optimizer": optimizer}

    def fits(request, raw):
        with contextlib.suppress(ConfigError):
            return request.config(raw)

    def choose(request):
        return next(raw for raw in (lstm, {"optimizer": {"lr": 0.03}}, {}) if fits(request, raw))

    suggestion(choose)
    settings, first = choose_settings(config_of(optimizer={"schedule": {"name": "cosine"}}), over, 0.1, None)
    kinds = {key: ends(option) for key, option in settings.space.items() if key.endswith((".name", ".kind"))}
    for values in itertools.product(*kinds.values()):
        for trial, _ in first[:2]:
            settings.trial_config(trial | dict(zip(kinds, values, strict=True)), 1.0)


@pytest.mark.parametrize(
    ("over", "kept"),
    [
        (["optimizer.momentum=0..0.9"], {"optimizer.name=sgd"}),
        (["optimizer.schedule.warmup_steps=1,5"], {"optimizer.name=sgd", "optimizer.schedule.name=constant"}),
        (["model.cell.forget_bias=0,1"], {"model.cell.kind=lstm"}),
        (["model.cell.kind=rhn"], {"model.cell.kind=rhn"}),
        (["model.cell.hidden=8..32", "model.layers=1,2"], set()),
    ],
    ids=lambda value: " ".join(sorted(value)),
)
def test_charlm_s_own_choice_keeps_the_kind_of_options_that_are_asked_for(config_of, suggestion, over, kept):
    asked = suggestion(own_choice)
    choose_settings(config_of(optimizer={"name": "sgd"}), over, hours=0.1, minutes=None)
    assert {text for text in asked[1] if text.startswith(KINDS)} == kept


def test_charlm_s_own_choice_lies_within_what_is_asked_for(config_of, suggestion):
    asked = suggestion(own_choice)
    config = config_of(train={"max_steps": 12}, optimizer={"name": "sgd", "lr": 1e-6})
    settings, [*_, (_, own)] = choose_settings(config, [*OVER[1:], "train.bptt=8,16"], hours=0.1, minutes=None)
    assert [text for text in asked[1] if text.startswith(("model.", "train.", "optimizer."))] == sorted(OVER[1:])
    chosen = settings.tuned(own["values"], own["chosen"])
    assert (chosen.model.cell.kind, chosen.optimizer.name, chosen.model.embedding) == ("gru", "adagrad", 6)
    assert (chosen.model.cell.hidden, chosen.train.bptt, chosen.train.max_steps) == (8, 16, 12)
    assert chosen.data == config.data
    assert own["values"]["optimizer.name"] == "adagrad"


def test_a_line_says_what_charlm_s_own_choice_is(config_of, suggestion, capsys):
    suggestion(lambda request: {"model": {"cell": {"kind": "gru", "hidden": 8}, "members": 3}})
    choose_settings(config_of(), OVER, 0.01, None)
    line = "suggest  charlm's own choice, gru, 1 × 8 units, 3 members, adamw: a trial"
    assert line in capsys.readouterr().err.splitlines()


def test_charlm_s_own_choice_is_no_trial_if_only_searched_options_differ(config_of, suggestion):
    suggestion(lambda request: {"optimizer": {"lr": 0.03}})
    for embedding, is_tried in ((64, False), (8, True)):
        config = override_config(config_of(), "test", ["train.bptt=64", f"model.embedding={embedding}"])
        _, [_, (second, _), *own] = choose_settings(config, [], hours=0.1, minutes=None)
        assert second["optimizer.lr"] == 0.03
        assert bool(own) == is_tried


def test_trials_take_a_tenth_of_the_time_at_most_and_need_a_validation_split(config_of, tmp_path, capsys):
    settings, _ = choose_settings(config_of(train={"max_steps": None, "max_minutes": 50.0}), OVER, 1, None)
    assert settings.minutes == 6
    told = "limit    trials train for 6 min 0 s each, a tenth of --hours; --minutes M sets another"
    assert capsys.readouterr().err.splitlines()[2] == told
    assert choose_settings(config_of(), OVER, 1, 2.5)[0].minutes == 2.5
    config = config_of(data={"source": str(tmp_path / "text.txt"), "split": [1, 0, 0]})
    with pytest.raises(ConfigError, match=r"^data\.split: found no validation share; trials are compared by "):
        choose_settings(config, OVER, hours=1, minutes=None)
