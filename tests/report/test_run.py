"""What is read of runs, whole, damaged or empty, and what the page holds of them."""

import json
import shutil
import subprocess
from dataclasses import replace

import numpy as np
import pytest

from charlm.report.page import SAMPLE_LENGTH, SAMPLES, report_page, settings_data
from charlm.report.run import read_run
from charlm.scored import ScoredText
from charlm.web import page as web
from tests.browser import data_of, unpacked
from tests.report.conftest import train_row
from tests.runs import contents, rows


def test_a_whole_run_is_read_and_left_as_it_is(trained_run):
    before = contents(trained_run)
    record = read_run(trained_run)
    assert contents(trained_run) == before
    assert record.faults == []
    own = [row for row in rows(trained_run) if row["split"] == "valid"]
    for name, column in record.splits["valid"].items():
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


def test_settings_that_differ(learning):
    one, other = learning("one"), learning("other")
    config = other / "config.yaml"
    config.write_text(config.read_text().replace("hidden: 16", "hidden: 32"))
    settings = data_of(report_page([read_run(one), read_run(other)]))["settings"]
    assert [each for each in settings if each["differs"]] == [
        {"key": "model.cell.hidden", "values": ["16", "32"], "differs": True}
    ]
    runs = [read_run(one), read_run(other)]
    cells = {"model.cell.kind": "lstm"}, {"model.cell.kind": "rnn", "model.cell.nonlinearity": "tanh"}
    runs = [replace(run, options=cell | {"model.layers": 1}) for run, cell in zip(runs, cells, strict=True)]
    assert [each["key"] for each in settings_data(runs)] == [
        "model.cell.kind",
        "model.cell.nonlinearity",
        "model.layers",
    ]


def test_many_rows_and_samples_are_thinned(run_of):
    draws = np.random.default_rng(0).normal(size=20_000).tolist()
    rows = [train_row(step, 2 + draw / 10, grad_norm=abs(draw)) for step, draw in enumerate(draws, start=1)]
    long = "x" * (SAMPLE_LENGTH + 7)
    samples = [{"step": step, "text": long, "bits": [None, 0.26, 99.0] + [1.0] * (len(long) - 3)} for step in range(99)]
    page = report_page([read_run(run_of("many", rows, samples))])
    assert len(page) < 500_000
    [run] = data_of(page)["runs"]
    curve = run["curves"]["train"]
    assert unpacked(curve["at"]["step"])[-1] == 20_000
    nats = [row["nats"] for row in rows]
    assert unpacked(curve["nats"]["high"]).max() == np.float32(max(nats))
    assert unpacked(curve["nats"]["low"]).min() == np.float32(min(nats))
    steps = [sample["step"] for sample in run["samples"]]
    assert SAMPLES - 4 <= len(steps) <= SAMPLES
    assert (steps[0], steps[-1]) == (0, 98)
    first = run["samples"][0]
    assert (len(first["text"]), first["left_out"]) == (SAMPLE_LENGTH, 7)
    assert unpacked(first["bits"])[:4].tolist() == [255, 3, 254, 10]


@pytest.mark.skipif(shutil.which("node") is None, reason="no node to read JavaScript with")
def test_a_smoothed_curve_ignores_how_dense_its_points_lie():
    """A step from 0 to 1 in the middle of points that lie evenly, and of points that are dense behind it."""
    code = f"""
import {{ smoothed }} from 'file://{web.files("charlm.web")}/report/curve.js';
const even = Array.from({{ length: 101 }}, (_, place) => place / 100);
const dense = [...even.slice(0, 50), ...Array.from({{ length: 500 }}, (_, n) => 0.5 + n / 1e5), ...even.slice(51)];
const before = (shares) => smoothed(shares, shares.map((share) => (share < 0.5 ? 0 : 1)), 0.02)[47];
console.log(JSON.stringify([before(even), before(dense)]));
"""
    done = subprocess.run(["node", "--input-type=module", "-e", code], capture_output=True, text=True, timeout=60)
    assert json.loads(done.stdout) == pytest.approx([0.11, 0.11], abs=0.03)  # exp(−1.5) / 2


FORGED = [{"chars": "9"}, {"unknown": -1}, {"seen": 2.0}, {"seen": "no"}, {"more": 1}, {"name": None}]


@pytest.mark.parametrize("other", FORGED)
def test_a_forged_text_of_scores_is_refused(other):
    value = {"name": "a.txt", "sha256": "0" * 64, "chars": 9, "size_bytes": 9, "unknown": 0, "seen": 0.5}
    assert ScoredText.from_json(value) == ScoredText(**value)
    assert ScoredText.from_json({}) is None
    with pytest.raises(ValueError, match="scored: found "):
        ScoredText.from_json(value | other)
