"""metrics.jsonl and TensorBoard."""

import contextlib
import math
import resource

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from charlm.training.metrics import Tracker
from charlm.training.sample import Sample
from charlm.training.start import resume_run, start_run
from tests.runs import rows, with_max_steps


def row_at(step):
    return {"step": step, "split": "valid", "loss": 20.0, "nats": 2.0, "bpc": 2.9}


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


@pytest.fixture
def full_disk():
    """A context in which no file can grow."""

    @contextlib.contextmanager
    def full():
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1, limits[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    return full


def test_a_full_disk_costs_no_row_no_sample_and_no_event(tmp_path, capsys, full_disk):
    (folder := tmp_path / "run").mkdir()
    tracker = Tracker(folder)
    for step in (1, 2, 3, 4):
        with full_disk() if step in (2, 3) else contextlib.nullcontext():
            tracker.record(row_at(step))
            tracker.sample(Sample("a", [1.0]), step)
    tracker.close()
    assert [row["step"] for row in rows(folder)] == [1, 2, 3, 4]
    assert (folder / "samples.jsonl").read_text().count("\n") == 4
    fault = f"log      {folder}: cannot be written (File too large); training goes on\n"
    assert capsys.readouterr().err == fault
    events = EventAccumulator(str(folder / "valid")).Reload().Scalars("score/loss")
    assert [event.step for event in events] == [1, 2, 3, 4]


def test_a_rollback_while_the_disk_is_full_costs_nothing(tmp_path, capsys, full_disk):
    (folder := tmp_path / "run").mkdir()
    tracker = Tracker(folder)
    for step in (1, 2):
        tracker.record(row_at(step))
    with full_disk():
        tracker.rewind(1, 1)
    tracker.record(row_at(3))
    tracker.close()
    assert [row["step"] for row in rows(folder)] == [1, 2, 3]
    assert "cannot be written (File too large); training goes on" in capsys.readouterr().err


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
