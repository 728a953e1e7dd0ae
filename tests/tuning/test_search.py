"""Whole searches: what they find, how they end, and how they go on."""

import contextlib
import itertools
import re
import time

import pytest

from charlm.config import flatten, load_config, override_config, parse_config
from charlm.errors import ConfigError, DataError, DeviceError, DivergenceError, RunError, StudyError
from charlm.runs import describe_run
from charlm.training.loop import Outcome
from charlm.training.step import Trainer
from charlm.tuning import search as search_module
from charlm.tuning.plan import Plan, make_plan
from charlm.tuning.report import draw, ranked, size_bytes, write_best
from charlm.tuning.search import Search
from charlm.tuning.study import Study, best
from tests.runs import interrupted_after, rows
from tests.tuning.conftest import OVER

BAD = {"lr": 1e-5, "weight_decay": 0.0}


def no_plan():
    raise AssertionError("the study is there")


@pytest.fixture
def updates(monkeypatch):
    """The steps of all updates."""
    made = []
    update = Trainer.update

    def counted(trainer):
        update(trainer)
        made.append(trainer.state.step)

    monkeypatch.setattr(Trainer, "update", counted)
    return made


def test_a_search_finds_better_than_a_bad_learning_rate(study_of, search, suggestion, config_of, capsys):
    config = config_of(optimizer=BAD)
    asked = []

    class Found:
        def __init__(self, request):
            asked.append(request)
            self.config = request.config({"optimizer": {"lr": 0.03, "weight_decay": 0.0}})

    suggestion(Found)
    study = study_of(over=(*OVER, "defaults=plain"), optimizer=BAD)
    assert search(study, 6) == ""
    assert not {text for text in asked[0].overrides if text.startswith(("optimizer.lr=", "train.max_steps="))}
    assert {"train.bptt=32", "seed=1", "model.cell.kind=lstm"} <= set(asked[0].overrides)
    records = study.records()
    assert [record.number for record in records] == [1, 2, 3, 4, 5, 6]
    own = {key: (flatten(config) | {"defaults": "plain"})[key] for key in study.plan.space}
    assert records[0].options == own
    assert records[1].options == own | {"optimizer.lr": 0.03}
    assert len({record.options["optimizer.lr"] for record in records}) == 6
    found = best(records)
    assert found.nats == min(record.nats for record in records)
    assert found.nats < records[0].nats - 0.1
    assert ranked(records)[0] == found
    for record in records:
        run = describe_run(study.folder / f"trial-{record.number:04}")
        assert (run.step, run.best_nats) == (record.steps, record.nats)
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("trial ")]
    assert re.fullmatch(
        r"trial       1  (\d\.\d{4}) nats in \S+ s  best \1 \(trial 1\)  lr 1e-05 · .* · defaults plain  \S+ s left",
        told[0],
    )
    assert len(told) == 6


def test_charlm_s_own_choice_keeps_what_is_not_searched(config_of, suggestion, kernels):
    from charlm.choice.suggest import suggest

    suggestion(suggest)
    config = config_of(train={"reset_state": 0.25}, optimizer={"lr": 1e-5, "clip_norm": 3.0})
    plan, (ours, theirs) = make_plan(config, ["model.cell.hidden=8,16"], hours=0.01, minutes=None)
    assert ours["optimizer.lr"] == 1e-5
    assert 1e-3 < theirs["optimizer.lr"] < 0.1
    assert theirs["model.cell.hidden"] == 16
    assert theirs["optimizer.schedule.name"] in ("linear", "cosine")
    trial = plan.trial_config(theirs, 1.0)
    assert (trial.train.reset_state, trial.optimizer.clip_norm, trial.model.embedding) == (0.25, 3.0, 4)
    assert (ours["defaults"], theirs["defaults"]) == ("plain", "suggested")
    assert {"train.ema", "model.cell.layer_norm"} <= plan.suggested.keys()
    assert trial.train.ema == plan.suggested["train.ema"] != plan.trial_config(ours, 1.0).train.ema == 0
    assert not plan.suggested.keys() & {
        "train.reset_state",
        "optimizer.clip_norm",
        "model.embedding",
        "train.log_every",
    }
    assert Plan.from_json(plan.as_json(), "test") == plan
    fixed, (ours, theirs) = make_plan(config, ["defaults=plain"], hours=0.01, minutes=None)
    assert (theirs["defaults"], fixed.tuned(theirs).train.ema) == ("plain", 0)


@pytest.fixture
def free_choice(suggestion):
    """charlm's own choice is a GRU with Adagrad, unless the request says otherwise."""
    asked = []

    class Found:
        def __init__(self, request):
            asked.append(request)
            model = {"cell": {"kind": "gru", "hidden": 12}, "embedding": 6}
            kept = request.gives("model.cell.kind")
            self.config = request.config(
                {"model": {"embedding": 6}, "optimizer": {"lr": 0.03, "schedule": {"name": "cosine"}}}
                if kept
                else {"model": model, "train": {"bptt": 32}, "optimizer": {"name": "adagrad", "lr": 0.04}}
            )

    suggestion(Found)
    return asked


def test_charlm_s_own_choice_is_a_trial_although_it_lies_outside_of_the_space(study_of, search, free_choice, config_of):
    study = study_of(over=OVER[1:], train={"max_steps": 12}, optimizer={"name": "sgd", "lr": 1e-6})
    given = [text for text in free_choice[1].overrides if text.startswith(("model.", "train.", "optimizer."))]
    assert sorted(given) == sorted(OVER[1:])
    assert search(study, 6) == ""
    records = study.records()
    assert [record.state for record in records[:3]] == ["complete"] * 3
    third = records[2]
    assert third.options["defaults"] == "chosen"
    assert third.options["optimizer.lr"] == 0.04
    assert third.options["model.cell.hidden"] == 8  # --over allows no other
    trained = load_config(study.folder / "trial-0003/config.yaml")
    assert (trained.model.cell.kind, trained.optimizer.name, trained.model.embedding) == ("gru", "adagrad", 6)
    assert (trained.train.max_steps, trained.train.batch_size, trained.data) == (12, 4, config_of().data)
    assert all(record.options["defaults"] in ("plain", "suggested") for record in records if record != third)
    assert best(records) == third
    written = load_config(write_best(study))
    assert (written.model, written.optimizer) == (trained.model, trained.optimizer)
    assert draw(study)
    assert Plan.from_json(study.plan.as_json(), "test") == study.plan


@pytest.mark.parametrize(
    "over",
    [
        ["optimizer.name=sgd"],
        ["optimizer.name=sgd,adamw"],
        ["optimizer.schedule.name=constant"],
        ["optimizer.schedule.name=constant,cosine"],
        ["model.cell.kind=lstm,gru", "optimizer.name=adagrad"],
        ["model.cell.kind=slstm,rhn", "optimizer.name=rmsprop"],
        ["model.cell.kind=rnn", "optimizer.schedule.name=linear"],
    ],
    ids=" ".join,
)
def test_suggested_values_fit_every_kind_that_is_searched(config_of, suggestion, over):
    class Found:
        def __init__(self, request):
            schedule = {"name": "cosine", "final_fraction": 0.02}
            optimizer = {"name": "adamw", "lr": 0.03, "betas": [0.9, 0.98], "schedule": schedule}
            cell = {"kind": "lstm", "hidden": 24, "layer_norm": True}
            found = override_config(parse_config({"data": {"source": "x"}}, "x"), "x", [])
            for raw in ({"model": {"cell": cell}, "optimizer": optimizer}, {"optimizer": {"lr": 0.03}}, {}):
                with contextlib.suppress(ConfigError):
                    found = request.config(raw)
                    break
            self.config = found

    suggestion(Found)
    config = config_of(optimizer={"schedule": {"name": "cosine"}})
    plan, first = make_plan(config, over, hours=0.1, minutes=None)
    for values in first:
        plan.trial_config(values, 1.0)
    every = {key: option.ends() for key, option in plan.space.items() if key.endswith((".name", ".kind"))}
    for values in itertools.product(*every.values()):
        plan.trial_config(first[-1] | dict(zip(every, values, strict=True)), 1.0)


@pytest.mark.parametrize(
    ("over", "kept"),
    [
        (["optimizer.momentum=0..0.9"], {"optimizer.name=sgd"}),
        (["optimizer.lr=0.01..1:log"], {"optimizer.name=sgd"}),
        (["optimizer.schedule.warmup_steps=1,5"], {"optimizer.name=sgd", "optimizer.schedule.name=constant"}),
        (["model.cell.forget_bias=0,1"], {"model.cell.kind=lstm"}),
        (["model.cell.kind=rhn"], {"model.cell.kind=rhn"}),
        (["model.cell.hidden=8..32", "model.layers=1,2"], set()),
    ],
    ids=lambda value: " ".join(sorted(value)),
)
def test_options_that_are_asked_for_keep_their_kind(config_of, free_choice, over, kept):
    make_plan(config_of(optimizer={"name": "sgd"}), over, hours=0.1, minutes=None)
    kinds = ("model.cell.kind=", "optimizer.name=", "optimizer.schedule.name=")
    assert {text for text in free_choice[1].overrides if text.startswith(kinds)} == kept


def test_charlm_s_own_choice_goes_on_where_it_was_interrupted(study_of, search, free_choice, tmp_path):
    study = study_of(train={"save_every": 2}, optimizer={"name": "sgd"})
    search(study, 2)
    with interrupted_after(7):
        assert search(study, 3) == "SIGINT"
    again = Study(study.folder, no_plan)
    assert search(again, 3) == ""
    third = again.records()[2]
    assert (third.state, third.steps, third.options["defaults"]) == ("complete", 20, "chosen")


def test_a_choice_of_charlm_s_own_that_fails_is_a_failed_trial(study_of, search, free_choice, monkeypatch):
    train = search_module.start_run

    def no_gru(config, *args, **more):
        if config.model.cell.kind == "gru":
            raise DivergenceError("diverged")
        return train(config, *args, **more)

    monkeypatch.setattr(search_module, "start_run", no_gru)
    study = study_of(optimizer={"name": "sgd"})
    assert search(study, 4) == ""
    assert [record.state for record in study.records()][:3] == ["complete", "complete", "failed"]
    assert study.records()[2].fault == "diverged"


def test_charlm_s_own_choice_is_no_trial_with_plain_defaults(config_of, free_choice):
    plan, _ = make_plan(config_of(optimizer={"name": "sgd"}), ["defaults=plain"], hours=0.1, minutes=None)
    assert plan.chosen is None


@pytest.mark.parametrize(("embedding", "is_tried"), [(64, False), (8, True)])
def test_charlm_s_own_choice_is_no_trial_if_only_searched_options_differ(config_of, suggestion, embedding, is_tried):
    class Found:
        def __init__(self, request):
            self.config = request.config({"optimizer": {"lr": 0.03}})

    suggestion(Found)
    config = override_config(config_of(), "test", ["train.bptt=64", f"model.embedding={embedding}"])
    plan, (_, second) = make_plan(config, [], hours=0.1, minutes=None)
    assert second["optimizer.lr"] == 0.03
    assert (plan.chosen is not None) == is_tried


def test_the_best_config_is_that_of_the_best_trial_with_the_study_s_limits(study_of, search, config_of):
    train = {"max_steps": None, "max_minutes": 50.0, "eval_every": 7, "patience": 9, "keep_checkpoints": 2}
    study = study_of(train=train, optimizer=BAD)
    assert study.plan.minutes == 6
    for end in (2.0, 1.5):
        record_trial(study, end)
    found = study.records()[1]
    path = write_best(study)
    written = flatten(load_config(path))
    assert found.options.items() <= written.items()
    for key, value in flatten(config_of(train=train, optimizer=BAD)).items():
        assert key in found.options or written[key] == value
    text = path.read_text()
    assert f"lr: {found.options['optimizer.lr']}" in text
    assert "# searched 1e-05..0.1:log" in text
    assert text.startswith("# The best of 2 trials of `charlm tune`: 1.5000 nats per character after 0.5")
    assert f"charlm train --config {path}\n" in text


def record_trial(study, end, reason="max_steps"):
    """A trial of another process, which has this score at 30 percent and at its end."""
    with study.claimed(None, lambda _: True) as trial:
        trial.handle.report(end, 30)
        study.end(trial, Outcome(str(trial.folder), reason, 20, 800, 30.0, end, end, 20, 100))
        return trial


def test_a_hopeless_trial_is_pruned(study_of, search, capsys):
    study = study_of(optimizer=BAD)
    for _ in range(3):
        record_trial(study, end=0.5)
    assert search(study, 4) == ""
    record = study.records()[-1]
    assert (record.state, record.steps) == ("pruned", 6)  # 30 percent
    assert [row["step"] for row in rows(study.folder / "trial-0004") if row["split"] == "valid"] == [6]
    assert " nats pruned after " in capsys.readouterr().err
    assert best(study.records()).number != 4
    assert ranked(study.records())[-1] == record


def test_trials_keep_two_checkpoints_and_are_evaluated_by_shares(study_of, search):
    study = study_of(train={"eval_every": 1, "save_every": 1, "sample_every": 1})
    search(study, 1)
    names = {path.name for path in (study.folder / "trial-0001/checkpoints").iterdir()}
    assert names == {"last.safetensors", "best.safetensors"}
    evaluated = [row["step"] for row in rows(study.folder / "trial-0001") if row["split"] == "valid"]
    assert evaluated == [6, 8, 10, 12, 14, 16, 18, 20]
    assert 0 < size_bytes(study.folder) < 10_000_000


def test_an_interrupted_trial_goes_on_where_it_stopped(study_of, search, updates, tmp_path):
    with interrupted_after(steps=13):
        assert search(study_of(), 2) == "SIGINT"
    assert updates == list(range(1, 14))
    study = Study(tmp_path / "study", no_plan)
    assert [record.state for record in study.records()] == ["unfinished"]
    assert search(study, 2) == ""
    assert updates == [*range(1, 21), *range(1, 21)]
    assert [record.state for record in study.records()] == ["complete", "complete"]
    evaluated = [row["step"] for row in rows(study.folder / "trial-0001") if row["split"] == "valid"]
    assert evaluated == [6, 8, 10, 12, 14, 16, 18, 20]
    reported = study._study.get_trials()[0].intermediate_values
    assert list(reported) == [30, 40, 50, 60, 70, 80, 90]


def test_a_trial_killed_before_its_first_checkpoint_begins_again(study_of, search, updates):
    study = study_of()
    with study.claimed(None, lambda _: True) as trial:
        assert trial.elapsed_s is None
    assert search(study, 1) == ""
    assert [(record.state, record.options) for record in study.records()] == [("complete", trial.values)]
    assert updates == list(range(1, 21))


def test_a_trial_of_another_process_is_left_to_it(study_of, search, tmp_path):
    study = study_of()
    with study.claimed(None, lambda _: True) as theirs:
        other = Study(tmp_path / "study", no_plan)
        assert other.plan == study.plan
        assert search(other, 2) == ""
        assert [record.state for record in other.records()] == ["unfinished", "complete"]
        assert [record.number for record in study.records()] == [1, 2]
    assert theirs.number == 1
    assert search(other, 2) == ""
    assert [record.state for record in study.records()] == ["complete", "complete"]


def test_a_process_killed_while_it_claims_a_trial(study_of, search, monkeypatch):
    study = study_of()
    with monkeypatch.context() as patch:
        patch.setattr(Study, "_hold", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        assert search(study, 2) == "SIGINT"
    assert [(record.state, record.options) for record in study.records()] == [("unfinished", {})]
    assert (ranked(study.records()), draw(study)) == (study.records(), None)
    assert search(study, 1) == ""
    assert [record.state for record in study.records()] == ["complete"]


def test_a_journal_that_cannot_be_written(study_of, search, monkeypatch):
    study = study_of()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(StudyError, match=r"study: No space left on device; allowed: a folder that can be written"):
        search(study, 1)


def test_two_keyboard_interrupts_and_one_between_trials(study_of, search, monkeypatch):
    def interrupted(*_, **options):
        raise KeyboardInterrupt

    study = study_of()
    monkeypatch.setattr(search_module, "start_run", interrupted)
    assert search(study, 2) == "SIGINT"
    assert [record.state for record in study.records()] == ["unfinished"]


@pytest.mark.parametrize(
    "error",
    [
        DivergenceError("step 3: found loss nan; lower it"),
        DeviceError("memory: too little"),
        DataError("train split: 5 characters"),
        MemoryError(),
        RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    ],
)
def test_a_failed_trial_does_not_end_the_search(study_of, search, monkeypatch, error, capsys):
    start_run = search_module.start_run
    calls = []

    def fails_once(*arguments, **options):
        calls.append(1)
        if len(calls) == 1:
            raise error
        return start_run(*arguments, **options)

    monkeypatch.setattr(search_module, "start_run", fails_once)
    study = study_of()
    assert search(study, 2) == ""
    failed, other = study.records()
    fault = str(error) if "out of memory" not in str(error) and str(error) else "out of memory"
    assert (failed.state, failed.fault, failed.nats) == ("failed", fault, None)
    assert other.state == "complete"
    assert f"trial       1  failed: {fault}  lr 0.02 · " in capsys.readouterr().err


def test_picture_of_trials_of_all_kinds(study_of):
    study = study_of(over=["optimizer.schedule.name=constant,cosine", "model.layers=1..3"])
    for end, reason in ((1.0, "max_steps"), (1.1, "max_steps"), (9.0, "max_steps"), (1.2, "pruned")):
        record_trial(study, end, reason)
    with study.claimed(None, lambda _: True) as trial:
        study.fail(trial, "step 1: found nan")
        path = draw(study)
    assert path.name == "trials.png"
    assert path.read_bytes().startswith(b"\x89PNG")


def test_options_that_exclude_one_another_fail(study_of, search):
    study = study_of(over=[*OVER, "optimizer.name=sgd", "optimizer.eps=1e-8"])
    assert search(study, 1) == ""
    (record,) = study.records()
    assert record.state == "failed"
    assert ": optimizer.eps: unknown key; allowed: name, lr, " in record.fault


def test_kinds_are_searched_with_what_all_of_them_have(study_of, search, suggestion, config_of):
    class Found:
        def __init__(self, request):
            assert not [text for text in request.overrides if text.startswith("model.cell.kind=")]
            rhn = {"kind": "rhn", "hidden": 12, "gate_bias": -3.0}
            self.config = request.config({"model": {"cell": rhn}, "train": {"ema": 0.5}})

    suggestion(Found)
    over = ["optimizer.lr=0.01..0.1", "train.batch_size=4", "model.cell.kind=lstm,rhn", "model.layers=1"]
    study = study_of(over=over, model={"cell": {"kind": "rhn", "hidden": 8, "depth": 2}, "embedding": 4})
    assert "model.cell.depth" not in study.plan.space
    assert study.plan.suggested == {"train.ema": 0.5}
    assert search(study, 6) == ""
    assert {record.options["model.cell.kind"] for record in study.records()} == {"lstm", "rhn"}
    assert not [record.fault for record in study.records() if record.fault]


def test_a_search_in_which_all_fails_ends(study_of, search, monkeypatch):
    def fails(*_, **options):
        raise DivergenceError("step 1: found nan")

    monkeypatch.setattr(search_module, "start_run", fails)
    monkeypatch.setattr(search_module, "_MOST_FAULTS", 3)
    study = study_of()
    with pytest.raises(StudyError) as caught:
        search(study, 50)
    assert str(caught.value) == (
        f"{study.folder}: 3 trials in a row failed, the last with: step 1: found nan; allowed: a space in which some "
        "succeed; start another study with --over"
    )
    assert len(study.records()) == 3
    assert (best(study.records()), write_best(study), draw(study)) == (None, None, None)


def test_a_full_disk_ends_the_search_and_its_trial_goes_on_later(study_of, search, monkeypatch):
    def fails(*_, **options):
        raise RunError("disk full")

    study = study_of()
    with monkeypatch.context() as patch:
        patch.setattr(search_module, "start_run", fails)
        with pytest.raises(RunError):
            search(study, 1)
    assert search(study, 1) == ""
    assert [record.state for record in study.records()] == ["complete"]


# Time


@pytest.mark.parametrize(("seconds", "minutes"), [(29, None), (40, 0.65), (100, 1.0)])
def test_a_trial_begins_if_there_is_time_for_half_of_it(study_of, monkeypatch, seconds, minutes):
    study = study_of(minutes=1.0)
    configs = []

    def noted(config, folder, callbacks):
        configs.append(config)
        return Outcome(str(folder), "SIGTERM", 1, 1, 1.0, None, None, 0, 1)

    monkeypatch.setattr(search_module, "start_run", noted)
    ended = Search(study, time.perf_counter() + seconds, 1).run()
    assert ended == ("SIGTERM" if minutes else "")
    assert [config.train.max_minutes for config in configs] == ([pytest.approx(minutes, rel=0.02)] if minutes else [])
    for config in configs:
        assert (config.train.max_steps, config.train.max_epochs) == (None, None)


def test_the_time_of_trials_limited_by_steps_is_that_of_the_others(study_of):
    study = study_of()
    record_trial(study, end=1.0)  # in 30 seconds
    assert not Search(study, time.perf_counter() + 14, None)._fits(0)
    assert Search(study, time.perf_counter() + 14, None)._fits(4)
    assert Search(study, time.perf_counter() + 20, None)._fits(0)


def test_a_time_of_day_that_is_set_changes_nothing(study_of, search, monkeypatch):
    study, calls, real = study_of(), itertools.count(), time.time
    monkeypatch.setattr("time.time", lambda: real() + 1e6 * (next(calls) > 10))
    assert search(study, 2) == ""
    assert [record.state for record in study.records()] == ["complete"] * 2


def test_a_trial_limited_by_steps_ends_in_time(study_of, search):
    study = study_of(train={"max_steps": 10**6})
    start_s = time.perf_counter()
    assert search(study, None, seconds=1) == ""
    assert time.perf_counter() - start_s < 2
    assert [record.state for record in study.records()] == ["complete"]


# The folder


def test_a_study_needs_a_validation_split(study_of, tmp_path):
    with pytest.raises(Exception, match=r"^data\.split: found no validation share; trials are compared by "):
        study_of(data={"source": str(tmp_path / "text.txt"), "split": [1, 0, 0]})
    assert not (tmp_path / "study").exists()


@pytest.mark.parametrize(
    "end", [b'{"op_code":4,"worker', b'{"op_code":4,"worker\n', b'{"op', b"\n", b" \r\n\n", b"\0\0\0"]
)
def test_an_end_of_the_journal_that_was_cut_short_or_is_empty_is_dropped(study_of, search, tmp_path, end):
    study = study_of()
    journal = tmp_path / "study/journal.log"
    whole = journal.read_bytes()
    journal.write_bytes(whole + end)
    again = Study(tmp_path / "study", no_plan)
    assert journal.read_bytes().startswith(whole + b'{"op_code":0,')
    assert again.plan == study.plan
    assert search(again, 1) == ""
    assert [record.state for record in study.records()] == ["complete"]


def test_an_empty_line_within_the_journal_is_dropped(study_of, tmp_path):
    study = study_of()
    journal = tmp_path / "study/journal.log"
    journal.write_bytes(journal.read_bytes().replace(b"\n", b"\n\n", 1))
    assert Study(tmp_path / "study", no_plan).plan == study.plan


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda journal: b"what\n" + journal, "line 1 was not written by Optuna"),
        (lambda journal: b"notes of mine", "line 1 was not written by Optuna"),
        (lambda journal: journal + b"[" * 100_000 + b"\n", r"line \d+ was not written by Optuna"),
        (lambda journal: journal + b'{"op_code":77}\n', "an unknown operation"),
        (lambda journal: journal + b'{"op_code":4}\n', "'study_id'"),
        (lambda journal: journal.replace(b'"space":{', b'"spaces":{'), "'space'"),
        (lambda journal: journal.replace(b'{"plan":', b'{"plan":7,"other":'), "an unknown operation"),
    ],
)
def test_a_damaged_journal_stays_as_it_is(study_of, tmp_path, change, found):
    study_of()
    journal = tmp_path / "study/journal.log"
    damaged = change(journal.read_bytes())
    journal.write_bytes(damaged)
    with pytest.raises(
        StudyError, match=rf"journal\.log: damaged \({found}\); allowed: the journal of a study; take another --study$"
    ):
        Study(tmp_path / "study", no_plan)
    assert journal.read_bytes().startswith(damaged)


def test_a_journal_that_another_process_damages_ends_the_search_with_one_line(study_of, search, tmp_path):
    study = study_of()
    with (tmp_path / "study/journal.log").open("ab") as journal:
        journal.write(b'{"op_code":77}\n')
    with pytest.raises(StudyError, match=r"journal\.log: damaged \(an unknown operation\); "):
        search(study, 1)


@pytest.mark.parametrize("name", ["journal.log", ".lock", "trial-0001", "trial-0001/.tune", "best.yaml", "trials.png"])
def test_a_study_from_somebody_else_writes_nothing_outside(study_of, search, tmp_path, name):
    study_of()
    planted, target = tmp_path / "study" / name, tmp_path / "target"
    if name == "trial-0001":
        target.mkdir()
    else:
        planted.parent.mkdir(exist_ok=True)
        target.write_bytes(planted.read_bytes() if planted.exists() else b"mine")
        planted.unlink(missing_ok=True)
    before = target.is_file() and target.read_bytes()
    planted.symlink_to(target)

    def go_on():
        again = Study(tmp_path / "study", no_plan)
        search(again, 1)
        draw(again)

    if name in ("best.yaml", "trials.png"):  # replaced
        go_on()
        assert not planted.is_symlink()
    else:
        with pytest.raises(StudyError, match=rf"^{planted}: found a link, .*; remove the link$"):
            go_on()
    assert (target.read_bytes() == before) if before else not [*target.iterdir()]


def test_a_study_killed_while_it_was_made_is_made_again(study_of, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("optuna.Study.set_user_attr", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            study_of()
    study = study_of()
    assert len(study._study.get_trials()) == 1
    assert study.plan.space["optimizer.lr"]


def test_the_folder_of_a_run_is_refused(study_of, search, tmp_path):
    study = study_of()
    search(study, 1)
    with pytest.raises(StudyError, match="trial-0001: holds a run; allowed: the folder of a study, or a new one"):
        study_of(name="study/trial-0001")


def test_a_folder_that_cannot_be_made(study_of, tmp_path):
    with pytest.raises(StudyError, match=r"text\.txt/study: Not a directory; allowed: a folder that can be written"):
        study_of(name="text.txt/study")


def test_the_space_of_a_study_is_what_was_asked_for_and_the_default_for_the_rest(study_of):
    space = study_of().plan.space
    given = {text.partition("=")[0]: text.partition("=")[2] for text in OVER}
    assert {key: str(option) for key, option in space.items() if key in given} == given | {
        "optimizer.lr": "1e-05..0.1:log"
    }
    assert "model.dropout.weights" in space
