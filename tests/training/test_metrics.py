"""metrics.jsonl and TensorBoard."""

import contextlib
import math

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from charlm.training.metrics import Tracker
from charlm.training.start import resume_run
from charlm.training.state import TrainState
from tests.runs import rows, with_max_steps
from tests.training.conftest import full_disk

FIELDS = ["step", "chars", "split", "loss", "nats", "bpc", "lr", "grad_norm", "chars_per_s", "elapsed_s"]


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
        events = EventAccumulator(str(finished_run / split)).Reload().Scalars(tag)
        shown = [(event.step, pytest.approx(event.value, rel=1e-6)) for event in events]
        assert [(row["step"], row[name]) for row in logged if row["split"] == split] == shown


def row_at(step):
    return {"step": step, "split": "valid", "loss": 20.0, "nats": 2.0, "bpc": 2.9}


def test_a_full_disk_costs_no_row_and_no_sample(tmp_path, capsys):
    """Nor does a rollback meanwhile."""
    (folder := tmp_path / "run").mkdir()
    tracker = Tracker(folder)
    for step in (1, 2, 3, 4):
        with full_disk() if step in (2, 3) else contextlib.nullcontext():
            tracker.record(row_at(step))
            tracker.sample({"text": "a", "bits": [1.0]}, step)
            if step == 2:
                tracker.rewind(TrainState("", rows=2, step=2))
    tracker.close()
    assert [row["step"] for row in rows(folder)] == [1, 2, 3, 4]
    assert (folder / "samples.jsonl").read_text().count("\n") == 4
    assert capsys.readouterr().err == f"log      {folder}: cannot be written (File too large); training goes on\n"
    events = EventAccumulator(str(folder / "valid")).Reload().Scalars("loss/nats_per_char")
    assert [event.step for event in events] == [1, 2, 3, 4]


def test_a_rollback_drops_later_rows_samples_and_events(tmp_path, windows):
    tracker = Tracker(tmp_path)
    for step in (2, 4, 6):
        tracker.record(row_at(step))
        tracker.sample({"text": "a", "bits": [1.0]}, step)
    tracker.rewind(TrainState("", rows=2, step=4))
    tracker.record(row_at(5))
    tracker.sample({"text": "b", "bits": [None]}, 5)
    tracker.close()
    assert [row["step"] for row in rows(tmp_path)] == [2, 4, 5]
    first, second = '{"step": 2, "text": "a", "bits": [1.0]}\n', '{"step": 4, "text": "a", "bits": [1.0]}\n'
    assert (tmp_path / "samples.jsonl").read_text() == first + second + '{"step": 5, "text": "b", "bits": [null]}\n'
    events = EventAccumulator(str(tmp_path / "valid")).Reload().Scalars("loss/nats_per_char")
    assert [event.step for event in events] == [2, 4, 5]


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
