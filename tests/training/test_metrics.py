"""metrics.jsonl and TensorBoard."""

import errno
import math
import time
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from charlm.training.metrics import Metrics, Row, Tracker
from charlm.training.start import resume_run, start_run
from tests.runs import assert_same_checkpoint, rows, untimed, with_max_steps


def row_at(step):
    return Row(step, 40 * step, "train", 20.0, 2.0, 3e-3, 1.0, 1e3, 1.0 * step)


def folder_with(path):
    path.mkdir()
    return path


def test_metrics(tmp_path, config_of):
    start_run(config_of(), tmp_path / "run")
    found = rows(tmp_path / "run")
    assert [(r["split"], r["step"]) for r in found] == [
        ("train", 3),
        ("valid", 4),
        ("train", 6),
        ("valid", 8),
        ("train", 9),
        ("train", 12),
        ("valid", 12),
    ]
    for row in found:
        assert list(row) == [
            "step", "chars", "split", "loss", "nats", "bpc", "lr", "grad_norm", "chars_per_s", "elapsed_s",
        ]  # fmt: skip
        assert row["loss"] == pytest.approx(10 * row["nats"])
        assert row["bpc"] == pytest.approx(row["nats"] / math.log(2))
        assert row["chars"] == 40 * row["step"]
        assert (row["grad_norm"] is None) == (row["split"] == "valid")
    assert [r["elapsed_s"] for r in found] == sorted(r["elapsed_s"] for r in found)


def test_tensorboard_events(tmp_path, config_of):
    start_run(config_of(), tmp_path / "run")
    found = rows(tmp_path / "run")
    for split in ("train", "valid"):
        events = EventAccumulator(str(tmp_path / "run" / split)).Reload()
        ours = [r for r in found if r["split"] == split]
        for tag, key in (("score/loss", "loss"), ("score/nats_per_char", "nats"), ("score/bits_per_char", "bpc")):
            assert [(e.step, e.value) for e in events.Scalars(tag)] == [
                (r["step"], pytest.approx(r[key], rel=1e-6)) for r in ours
            ]
    train = EventAccumulator(str(tmp_path / "run" / "train")).Reload()
    assert {"training/lr", "training/grad_norm", "training/chars_per_s"} <= set(train.Tags()["scalars"])
    assert [e.step for e in train.Tensors("sample/text_summary")] == [6, 12]
    top = EventAccumulator(str(tmp_path / "run")).Reload()
    assert "final/best_nats_per_char" in top.Tags()["scalars"]


def test_a_log_that_cannot_be_written_costs_nothing(tmp_path, config_of, monkeypatch, capsys):
    """What is missing in the metrics is written once it can be; charts go on."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    start_run(config_of(), whole)
    write, attempts = Metrics.flush, 0

    def fill(metrics):
        nonlocal attempts
        attempts += 1
        file = metrics._file
        if 2 <= attempts <= 4:
            metrics._file = full
        try:
            write(metrics)
        finally:
            metrics._file = file

    capsys.readouterr()
    with Path("/dev/full").open("wb", buffering=0) as full, monkeypatch.context() as patch:
        patch.setattr(Metrics, "flush", fill)
        start_run(config_of(), parts)
    assert untimed(parts) == untimed(whole)
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("log ")]
    assert said == [f"log      {parts}: cannot be written (No space left on device); training goes on"]
    assert_same_checkpoint(whole / "checkpoints/last.safetensors", parts / "checkpoints/last.safetensors")


def test_charts_that_cannot_be_written_cost_nothing(tmp_path, monkeypatch, capsys):
    """A file takes the place of the charts' folder during the run: TensorBoard's thread meets a real OSError."""
    monkeypatch.setattr("charlm.training.metrics._RETRY_S", 0.0)
    folder = tmp_path / "run"
    tracker = Tracker(folder_with(folder))
    tracker.record(row_at(1))
    writer = tracker._charts._writers["train"]._get_file_writer().event_writer
    writer.flush()
    with Path("/dev/full").open("wb", buffering=0) as full:
        writer._async_writer._writer._writer = full
        for step in (2, 3, 4):
            tracker.record(row_at(step))
            time.sleep(0.2)
        tracker.close()
    assert [row["step"] for row in rows(folder)] == [1, 2, 3, 4]
    err = capsys.readouterr().err
    assert err.count("cannot be written (No space left on device); training goes on") == 1
    assert "Traceback" not in err
    events = EventAccumulator(str(folder / "train")).Reload().Scalars("score/loss")
    assert {1, 4} <= {event.step for event in events}


def test_a_rollback_while_the_log_cannot_be_written_costs_nothing(tmp_path, monkeypatch, capsys):
    tracker = Tracker(folder_with(tmp_path / "run"))
    for step in (1, 2):
        tracker.record(row_at(step))

    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("charlm.training.metrics.replace_file", fail)
        tracker.rewind(1, 1)
    tracker.record(row_at(3))
    tracker.close()
    assert [row["step"] for row in rows(tmp_path / "run")] == [1, 2, 3]
    assert "cannot be written (No space left on device); training goes on" in capsys.readouterr().err


@pytest.mark.parametrize(
    "damage",
    [
        lambda lines: [*lines[:2], b"\xff\xfe\n", *lines[3:]],
        lambda lines: [*lines[:2], lines[2][:20]],
        lambda lines: [*lines[:2], b"[" * 100_000 + b"\n", *lines[3:]],
        lambda lines: [*lines[:2], lines[2].replace(b'"step": 6', b'"step": "x"'), *lines[3:]],
        lambda lines: [*lines[:2], lines[2].replace(b'"step": 6', b'"step": 13'), *lines[3:]],
    ],
    ids=["no text", "torn", "nested", "no step", "a later step"],
)
def test_resume_keeps_what_is_whole_of_a_damaged_log(tmp_path, config_of, damage, capsys):
    run = tmp_path / "run"
    start_run(config_of(), run)
    log = run / "metrics.jsonl"
    before = rows(run)
    log.write_bytes(b"".join(damage(log.read_bytes().splitlines(keepends=True))))
    resume_run(run, with_max_steps(15))
    steps = [(row["step"], row["split"]) for row in rows(run)]
    assert rows(run)[:2] == before[:2]
    assert steps[2:] == [(15, "train"), (15, "valid")]
    assert "found 2 of 7 rows" in capsys.readouterr().err
