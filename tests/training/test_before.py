"""Runs of earlier versions (format version 1, stored in before/) still open, sample, evaluate and resume.

lstm and rhn were written before the modules moved, the others when each kind had hand-written kernels.

Scores are compared to 1e-4: kernels compiled for another CPU may round differently.
"""

import json
import shutil
from pathlib import Path

import pytest

from tests.runs import rows
from tests.text import words_text

BEFORE = Path(__file__).parent / "before"


# When it was written: steps, nats per character of the test split, steps after resumption, nats per character of the
# validation split then, and a sample.
RUNS = {
    "lstm": (60, 2.3642822, 90, 2.2794137, "ln le istmm sn re mir\nuuu l..\nmis\na nel lnnnn snn ulmis utu \n"),
    "rhn": (60, 2.4383638, 90, 2.3300569, " l lm  rmmesin ts ma\n\nroe t.inmmiro atnt  on lett ottei uor \n"),
    "rnn": (2, 2.6242084, 6, 2.5812643, " tttisnirsiuluttulnesetnnms.\nnnn.eaouo\nrlmrrosa..oul.\nlmaetl\n"),
    "lstm-layer_norm": (2, 2.6081212, 6, 2.5705327, " unui lres.tit  luo.m\n.mmunaessuem\nuatstuussuuosnt.tsmosoro \n"),
    "gru": (2, 2.6754093, 6, 2.6098345, "nnsmri l...s.ioo is.me\n  inr\nsnn \n.t.linniiiinaiin on\nmimumt\n"),
    "rhn-uncoupled": (2, 2.6209572, 6, 2.593351, " muunlmtnssutrllnost.eaaalle\nmumt.eoermrooumur\nrurnouatr\ni. \n"),
    "slstm": (2, 2.6196173, 6, 2.5843436, "ltmmi uaiiatra mnmnase\n\n\nmmeruntos.m.nunmntnntoitunul\nolrts \n"),
}  # fmt: skip


@pytest.mark.parametrize("name", RUNS)
def test_a_run_of_an_earlier_charlm_goes_on(cli, tmp_path, monkeypatch, name):
    steps, nats, later_steps, later_nats, sample = RUNS[name]
    monkeypatch.chdir(tmp_path)
    Path("before.txt").write_text(words_text(4000, seed=7))
    shutil.copytree(BEFORE / name, "run")
    sampled = cli("sample", "run", "--seed", 1, "--length", 60, "--temperature", 0.8)
    assert (sampled.code, sampled.out) == (0, sample)
    scored = json.loads(cli("eval", "run", "--json").out)
    assert (scored["step"], scored["targets"]) == (steps, 399)
    assert scored["nats_per_char"] == pytest.approx(nats, rel=1e-4)

    Path("before.txt").rename("moved.txt")
    words = ["--set", f"train.max_steps={later_steps}", "--set", "data.source=moved.txt", "--json"]
    resumed = json.loads(cli("train", "--resume", "--run-dir", "run", *words).out)
    assert (resumed["step"], resumed["chars"]) == (later_steps, later_steps * 4 * 8)
    assert resumed["valid_nats"] == pytest.approx(later_nats, rel=1e-4)
    assert rows(Path("run"))[:3] == rows(BEFORE / name)[:3]
