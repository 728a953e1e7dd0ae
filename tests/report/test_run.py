"""What is read of runs, whole, damaged or empty."""

import json
import shutil

import numpy as np
import pytest

from charlm.errors import RunError
from charlm.report.run import read_run, runs_in
from charlm.system.lock import locked
from tests.report.conftest import train_row
from tests.runs import contents, rows


def test_a_whole_run_is_read_and_left_as_it_is(trained_run):
    before = contents(trained_run)
    record = read_run(trained_run)
    assert contents(trained_run) == before
    assert record.faults == []
    for split in ("train", "valid"):
        own = [row for row in rows(trained_run) if row["split"] == split]
        for name, column in record.splits[split].items():
            assert column.tolist() == [row[name] for row in own], name
    assert record.options["model.cell.hidden"] == 16
    assert [len(sample["text"]) for sample in record.samples] == [20, 20, 20]


def test_damaged_lines_are_counted_and_the_others_kept(run_of):
    lines = [
        train_row(3, nats=None), train_row(1), "no json\n", "[1]\n", '{"step": "x"}\n', "[" * 100_000 + "\n",
        train_row(2, chars=None), train_row(5, elapsed_s=10**400), {"step": 6, "split": "other"}, '{"step": 7, "spl',
    ]  # fmt: skip
    samples = ["x\n", {"step": 1, "text": "ab", "bits": [1]}, {"step": 2, "text": "ab", "bits": [None, 2]}]
    record = read_run(run_of("damaged", lines, samples))
    train = record.splits["train"]
    assert train["step"].tolist() == [1, 3]
    assert np.isnan(train["nats"]).tolist() == [False, True]
    [sample] = record.samples
    assert (sample["step"], sample["text"], sample["bits"][1]) == (2, "ab", 2)
    assert record.faults == [
        "metrics.jsonl: 7 of 9 lines cannot be read and are left out.",
        "samples.jsonl: 2 of 3 lines cannot be read and are left out.",
    ]


def test_what_cannot_be_read_is_said(run_of):
    run = run_of("now")
    with locked(run):
        assert read_run(run).about.state == "in use"
    for file in (run / "checkpoints").iterdir():
        file.write_bytes(b"x")
    assert read_run(run).faults == ["checkpoints: damaged."]
    for file in ("metrics.jsonl", "samples.jsonl"):
        (run / file).unlink()
    (run / "config.yaml").write_text("model: {cell: {kind: lstm, hiden: 3}}\n")
    shutil.rmtree(run / "checkpoints")
    record = read_run(run)
    assert record.options == {}
    assert [fault.split()[0] for fault in record.faults] == [
        "checkpoints:", "metrics.jsonl", "config.yaml", "samples.jsonl",
    ]  # fmt: skip
    assert "did you mean 'hidden'?" in record.faults[2]


def test_runs_are_named_by_folder_checkpoint_or_the_folder_above(run_of, tmp_path):
    b, a = run_of("some/b"), run_of("some/a")
    for path in (a, a / "checkpoints", a / "checkpoints/last.safetensors"):
        assert runs_in(path) == [a]
    assert runs_in(tmp_path / "some") == [a, b]
    (tmp_path / "early").mkdir()
    (tmp_path / "early/metrics.jsonl").write_text(json.dumps(train_row(1)) + "\n")
    assert runs_in(tmp_path / "early") == [tmp_path / "early"]
    (tmp_path / "none").mkdir()
    for path in (tmp_path / "none", tmp_path / "no", a / "config.yaml"):
        with pytest.raises(RunError):
            runs_in(path)
