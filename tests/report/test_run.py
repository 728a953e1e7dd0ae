"""What is read of runs, whole, damaged or empty."""

import json
import math
import shutil

import numpy as np
import pytest

from charlm.errors import RunError
from charlm.report.run import read_run, runs_in, short_names
from charlm.system.lock import locked
from tests.report.conftest import train_row, valid_row
from tests.runs import contents, rows


def test_a_whole_run(trained_run):
    before = contents(trained_run)
    record = read_run(trained_run)
    assert contents(trained_run) == before
    assert record.faults == []
    for split in ("train", "valid"):
        own = [row for row in rows(trained_run) if row["split"] == split]
        for name, column in record.splits[split].items():
            assert column.tolist() == [row[name] for row in own], name
    assert record.options["model.cell.hidden"] == 16
    assert record.options["train.patience"] == 0
    assert [sample["step"] for sample in record.samples] == [0, 3, 6]
    assert all(len(sample["bits"]) == len(sample["text"]) == 20 for sample in record.samples)


def test_damaged_lines_are_counted_and_the_others_kept(run_of):
    lines = [
        train_row(1), "no json\n", "[1]\n", '{"step": "x"}\n', "[" * 100_000 + "\n", train_row(2, chars=None),
        {**train_row(3), "nats": None}, train_row(4, lr="x"), train_row(5, elapsed_s=10**400),
        {"step": 6, "split": "other"}, '{"step": 7, "spl',
    ]  # fmt: skip
    samples = ["x\n", {"step": 1, "text": "ab", "bits": [1]}, {"step": 2, "text": "ab", "bits": [None, 2]}]
    record = read_run(run_of("damaged", lines, samples))
    train = record.splits["train"]
    assert train["step"].tolist() == [1, 3]
    assert np.isnan(train["nats"]).tolist() == [False, True]
    [sample] = record.samples
    assert (sample["step"], sample["text"], sample["bits"][1]) == (2, "ab", 2)
    assert math.isnan(sample["bits"][0])
    assert record.faults == [
        "metrics.jsonl: 8 of 10 lines cannot be read and are left out.",
        "samples.jsonl: 2 of 3 lines cannot be read and are left out.",
    ]


def test_rows_come_in_the_order_of_steps(run_of):
    rollback = {"step": 4, "split": "rollback", "diverged_step": 9, "fault": "loss inf", "lr_factor": 0.5}
    record = read_run(run_of("events", [train_row(4), rollback, train_row(1), valid_row(2, 1.0)]))
    assert record.splits["train"]["step"].tolist() == [1, 4]
    assert record.rollbacks == [(4, "rolled back from update 9: loss inf; learning rate × 0.5 from here")]


def test_what_cannot_be_read_is_said(run_of):
    run = run_of("now", [train_row(1), valid_row(1, 2.0)])
    with locked(run):
        assert read_run(run).about.state == "in use"
    for file in (run / "checkpoints").iterdir():
        file.write_bytes(b"x")
    record = read_run(run)
    assert record.faults == ["checkpoints: damaged."]
    run = run_of("empty", [], [])
    assert read_run(run).faults == []
    (run / "metrics.jsonl").unlink()
    (run / "samples.jsonl").unlink()
    (run / "config.yaml").write_text("model: {cell: {kind: lstm, hiden: 3}}\n")
    shutil.rmtree(run / "checkpoints")
    record = read_run(run)
    assert not any(len(columns["step"]) for columns in record.splits.values())
    assert record.options == {}
    assert [fault.split(":")[0] for fault in record.faults] == [
        "checkpoints", "metrics.jsonl cannot be read (No such file or directory).", "config.yaml cannot be read",
        "samples.jsonl cannot be read (No such file or directory).",
    ]  # fmt: skip
    assert "did you mean 'hidden'?" in record.faults[2]


def test_runs_are_named_by_folder_checkpoint_or_the_folder_above(run_of, tmp_path):
    b, a = run_of("some/b"), run_of("some/a")
    assert runs_in(a) == [a]
    assert runs_in(a / "checkpoints") == runs_in(a / "checkpoints/last.safetensors") == [a]
    assert runs_in(tmp_path / "some") == [a, b]
    (tmp_path / "early").mkdir()
    (tmp_path / "early/metrics.jsonl").write_text(json.dumps(train_row(1)) + "\n")
    assert runs_in(tmp_path / "early") == [tmp_path / "early"]
    (tmp_path / "none").mkdir()
    for path, found in ((tmp_path / "none", "holds no run"), (tmp_path / "no", "no such file or folder"),
                        (a / "config.yaml", "is no checkpoint in the folder of a run")):  # fmt: skip
        with pytest.raises(RunError, match=f"{found}; allowed: the folder of a run"):
            runs_in(path)
    paths = [tmp_path / name for name in ("x/one", "x/two", "y/one", "z/y/one")]
    assert short_names(paths) == [str(paths[0]), "two", str(paths[2]), str(paths[3])]
    assert short_names(paths[:1]) == ["one"]
