"""The page's data: thinned, packed, safe."""

import json
import subprocess
from shutil import which

import numpy as np
import pytest

from charlm.report.page import SAMPLE_LENGTH, SAMPLES, report_page, stretches, summary_of
from charlm.report.run import read_run
from charlm.web import page as web
from tests.browser import data_of, unpacked
from tests.report.conftest import train_row


def shown(*runs):
    return data_of(report_page([read_run(run) for run in runs]))


def test_a_thinned_curve_loses_no_extreme():
    values = np.random.default_rng(0).normal(size=10_000)
    values[7777], values[1234], values[5000] = 50.0, -50.0, np.nan
    starts = stretches(len(values))
    mean, low, high = summary_of(values, starts)
    assert (low.min(), high.max()) == (-50.0, 50.0)
    whole = ~np.isnan(values)
    counts = np.add.reduceat(whole.astype(int), starts)
    assert (mean * counts).sum() == pytest.approx(values[whole].sum())
    assert ((low <= mean + 1e-9) & (mean <= high + 1e-9)).all()


def test_settings_that_differ(learning):
    one, other = learning("one"), learning("other")
    config = other / "config.yaml"
    config.write_text(config.read_text().replace("hidden: 16", "hidden: 32"))
    settings = shown(one, other)["settings"]
    assert [each for each in settings if each["differs"]] == [
        {"key": "model.cell.hidden", "values": ["16", "32"], "differs": True}
    ]
    config.write_text("model: 3\n")  # a run without a config differs in nothing
    assert not any(each["differs"] for each in shown(one, other)["settings"])


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
    assert unpacked(curve["nats"]["high"]).max() == np.float32(max(row["nats"] for row in rows))
    steps = [sample["step"] for sample in run["samples"]]
    assert SAMPLES - 4 <= len(steps) <= SAMPLES
    assert (steps[:4], steps[-2:]) == ([0, 1, 2, 3], [77, 98])
    first = run["samples"][0]
    assert (len(first["text"]), first["left_out"]) == (SAMPLE_LENGTH, 7)
    assert unpacked(first["bits"])[:4].tolist() == [255, 3, 254, 10]


@pytest.mark.skipif(which("node") is None, reason="no node to read JavaScript with")
def test_smoothing_shifts_nothing_and_ignores_how_dense_points_lie():
    code = f"""
import {{ nearest, smoothed }} from 'file://{web.files("charlm.web")}/report/curve.js';
const even = Array.from({{ length: 101 }}, (_, place) => place / 100);
const more = Array.from({{ length: 500 }}, (_, place) => 0.5 + place / 1e5);
const dense = [...even.slice(0, 50), ...more, ...even.slice(51)];
const step = (shares) => smoothed(shares, shares.map((share) => (share < 0.5 ? 0 : 1)), 0.02);
const at = (shares, share) => step(shares)[nearest(shares, share)];
console.log(JSON.stringify({{
  flat: smoothed(even, even.map(() => 3), 0.05).every((value) => Math.abs(value - 3) < 1e-12),
  before: at(even, 0.47), beforeDense: at(dense, 0.47), far: at(even, 0.3),
  gap: smoothed([0, 0.5, 1], [1, NaN, 3], 0.1).map((value) => Number.isNaN(value)),
}}));
"""
    done = subprocess.run(["node", "--input-type=module", "-e", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["flat"]
    assert found["before"] == pytest.approx(0.11, abs=0.03)  # exp(−1.5) / 2
    assert found["beforeDense"] == pytest.approx(found["before"], abs=0.02)
    assert found["far"] < 1e-3
    assert found["gap"] == [False, True, False]
