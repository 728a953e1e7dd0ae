"""metrics.jsonl and TensorBoard."""

import contextlib
import math

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from charlm.training.metrics import Tracker
from charlm.training.start import resume_run, start_run
from tests.runs import rows, with_max_steps
from tests.training.conftest import full_disk

FIELDS = ["step", "chars", "split", "loss", "nats", "bpc", "lr", "grad_norm", "chars_per_s", "elapsed_s"]


def events_of(run, split, tag):
    return EventAccumulator(str(run / split)).Reload().Scalars(tag)


def logged_steps(run):
    """The updates of rows, of samples and of events."""
    samples = [row["step"] for row in rows(run, "samples.jsonl")]
    trained = [row["step"] for row in rows(run) if row["split"] == "train"]
    return trained, samples, [event.step for event in events_of(run, "train", "training/lr")]


def test_rows_and_events_of_a_run(finished_run):
    logged = rows(finished_run)
    train, valid = "train", "valid"
    steps = [(train, 3), (valid, 4), (train, 6), (valid, 8), (train, 9), (train, 12), (valid, 12)]
    assert [(row["split"], row["step"]) for row in logged] == steps
    for row in logged:
        assert list(row) == FIELDS
        assert row["loss"] == pytest.approx(10 * row["nats"])
        assert row["bpc"] == pytest.approx(row["nats"] / math.log(2))
        assert row["chars"] == 40 * row["step"]
        assert (row["grad_norm"] is None) == (row["split"] == "valid")
    assert [row["elapsed_s"] for row in logged] == sorted(row["elapsed_s"] for row in logged)

    for split, tag, name in ((train, "training/lr", "lr"), (valid, "loss/nats_per_char", "nats")):
        events = events_of(finished_run, split, tag)
        shown = [(event.step, pytest.approx(event.value, rel=1e-6)) for event in events]
        assert [(row["step"], row[name]) for row in logged if row["split"] == split] == shown


def test_a_full_disk_costs_no_row_sample_or_event(tmp_path, config_of, before_update, capsys):
    run, disk = tmp_path / "run", contextlib.ExitStack()
    before_update(2, lambda _: disk.enter_context(full_disk()))
    before_update(8, lambda _: disk.close())
    start_run(config_of({"log_every": 1, "sample_every": 2, "eval_every": 0, "save_every": 0}), run)
    assert logged_steps(run) == (list(range(1, 13)), [0, 2, 4, 6, 8, 10, 12], list(range(1, 13)))
    assert f"log      {run}: cannot be written (File too large); training goes on\n" in capsys.readouterr().err


def test_a_rollback_drops_later_rows_samples_and_events(tmp_path, config_of, before_update, windows):
    """It goes back to update 5."""
    before_update(8, lambda trainer: trainer.model.decoder.weight.data.fill_(math.nan))
    train = {"log_every": 2, "sample_every": 2, "eval_every": 0, "on_divergence": "rollback"}
    start_run(config_of(train), tmp_path / "run")
    assert logged_steps(tmp_path / "run") == ([2, 4, 6, 8, 10, 12], [0, 2, 4, 6, 8, 10, 12], [2, 4, 6, 8, 10, 12])


def test_rows_that_wait_for_a_full_disk_are_dropped_by_a_rollback(tmp_path, config_of, before_update, monkeypatch):
    """It goes back to update 5; the disk is full from update 6 until the logs are rewound."""
    disk = contextlib.ExitStack()
    before_update(6, lambda _: disk.enter_context(full_disk()))
    before_update(8, lambda trainer: trainer.model.decoder.weight.data.fill_(math.nan))
    rewind = Tracker.rewind

    def rewound(tracker, state):
        rewind(tracker, state)
        disk.close()

    monkeypatch.setattr(Tracker, "rewind", rewound)
    train = {"log_every": 2, "sample_every": 2, "eval_every": 0, "on_divergence": "rollback"}
    start_run(config_of(train), tmp_path / "run")
    assert logged_steps(tmp_path / "run") == ([2, 4, 6, 8, 10, 12], [0, 2, 4, 6, 8, 10, 12], [2, 4, 6, 8, 10, 12])


@pytest.mark.parametrize("damaged", [b"\xff\xfe\n", b'{"step": 6, "spl', b'{"step": "x"}\n', b'{"step": 13}\n'])
def test_resume_keeps_what_is_whole_of_a_damaged_log(run, damaged, capsys):
    log = run / "metrics.jsonl"
    before = rows(run)
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join([*lines[:2], damaged, *lines[3:]]))
    resume_run(run, with_max_steps(15))
    assert rows(run)[:2] == before[:2]
    assert [(row["step"], row["split"]) for row in rows(run)[2:]] == [(15, "train"), (15, "valid")]
    assert "found 2 of 7 rows" in capsys.readouterr().err
