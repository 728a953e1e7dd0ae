"""Runs written before the modules moved (format version 1, stored in before/) still open, sample, evaluate and resume.

Scores are compared to 1e-4: kernels compiled for another CPU may round differently.
"""

import json
import shutil
from pathlib import Path

import pytest

from tests.runs import rows
from tests.text import words_text

BEFORE = Path(__file__).parent / "before"
SAMPLES = {
    "lstm": "ln le istmm sn re mir\nuuu l..\nmis\na nel lnnnn snn ulmis utu \n",
    "rhn": " l lm  rmmesin ts ma\n\nroe t.inmmiro atnt  on lett ottei uor \n",
}
NATS_AT_60 = {"lstm": 2.3642822880493966, "rhn": 2.4383638230780313}
NATS_AT_90 = {"lstm": 2.2794137325950135, "rhn": 2.330056931309981}


@pytest.mark.parametrize("kind", SAMPLES)
def test_a_run_of_an_earlier_charlm_goes_on(cli, tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    Path("before.txt").write_text(words_text(4000, seed=7))
    shutil.copytree(BEFORE / kind, "run")
    sampled = cli("sample", "run", "--seed", 1, "--length", 60, "--temperature", 0.8)
    assert (sampled.code, sampled.out) == (0, SAMPLES[kind])
    scored = json.loads(cli("eval", "run", "--json").out)
    assert (scored["step"], scored["targets"]) == (60, 399)
    assert scored["nats_per_char"] == pytest.approx(NATS_AT_60[kind], rel=1e-4)

    Path("before.txt").rename("moved.txt")
    words = ["--set", "train.max_steps=90", "--set", "data.source=moved.txt", "--json"]
    resumed = json.loads(cli("train", "--resume", "--run-dir", "run", *words).out)
    assert (resumed["step"], resumed["chars"]) == (90, 90 * 4 * 8)
    assert resumed["valid_nats"] == pytest.approx(NATS_AT_90[kind], rel=1e-4)
    assert rows(Path("run"))[:3] == rows(BEFORE / kind)[:3]
