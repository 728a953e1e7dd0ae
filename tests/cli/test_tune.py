"""`charlm tune`: exit code, stdout, stderr."""

import errno
import json
import re
import signal
import sys
import time

import pytest

from charlm.config import load_config
from charlm.errors import DataError
from tests.runs import interrupted_after

OVER = ["--over", "optimizer.lr=1e-3..0.1:log", "--over", "model.cell.hidden=16", "--over", "train.batch_size=4"]


@pytest.fixture
def tune(cli, tiny_config, tmp_path, monkeypatch):
    """Runs `charlm tune ARGS…` in a folder of its own, without charlm's own choice, which takes seconds."""
    from charlm.tuning import settings

    def nothing(request):
        raise DataError("switched off by CHARLM_KERNELS")

    monkeypatch.setattr(settings, "suggest", nothing)
    monkeypatch.setattr("charlm.cli.IMPORTED_S", time.perf_counter())  # when the hours begin
    monkeypatch.chdir(tmp_path)
    return lambda *words: cli("tune", *words)


def new(*words):
    return ["--config", "tiny.yaml", "--hours", 0.02, "--study", "study", *OVER, *words]


def test_a_study_and_its_continuation(tune, tmp_path):
    result = tune(*new("--trials", 2))
    assert result.code == 0
    told = result.err.splitlines()
    assert [line.split()[0] for line in told] == [
        *["data"] * 2, "suggest", "study", *["search"] * 9, "trial", "trial", "picture", "disk", "best", "train",
    ]  # fmt: skip
    assert told[2] == "suggest  nothing (switched off by CHARLM_KERNELS); the search begins with the config alone"
    assert told[3] == "study    study; see it with: tensorboard --logdir study"
    assert told[4] == "search   optimizer.lr: 0.001..0.1:log"
    assert re.fullmatch(
        r"disk     [\d.]+ [kM]B in study; the folders of trials that have ended may be deleted", told[-3]
    )
    assert re.fullmatch(r"best     \d\.\d{4} nats \(\d\.\d{4} bits\) per character: trial [12]", told[-2])
    assert told[-1] == "train    charlm train --config study/best.yaml"
    heading, *rows = result.out.splitlines()
    assert heading.split()[:5] == ["trial", "nats", "minutes", "state", "lr"]
    assert sorted(row.split()[0] for row in rows) == ["1", "2"]
    assert (tmp_path / "study/trials.png").is_file()
    assert load_config(tmp_path / "study/best.yaml").train.max_steps == 6

    more = tune("--study", "study", "--trials", 3, "--json")
    assert more.code == 0
    found = json.loads(more.out)
    assert list(found) == ["study", "best", "config", "trials", "bytes"]
    assert sorted(trial["number"] for trial in found["trials"]) == [1, 2, 3]
    assert found["best"] == found["trials"][0]
    assert found["config"] == "study/best.yaml"

    same = tune(*new("--trials", 3))
    assert (same.code, "\ntrial " in same.err) == (0, False)
    allowed = "allowed: the same; leave it out to continue, or take another --study"
    for words, fault in (
        (["--config", "tiny.yaml", "--set", "seed=3"], "seed: found 3, the study has 1"),
        (["--over", "optimizer.lr=1..2"], "--over optimizer.lr: found 1..2, the study has 0.001..0.1:log"),
        (["--over", "train.bptt=8"], "--over train.bptt: found 8, the study has 8, 64"),
        (["--over", "model.zoneout=0,0.1"], "--over model.zoneout: found 0, 0.1, the study has no such option"),
        (["--minutes", 1], "--minutes: found 1, the study has none"),
    ):
        assert tune("--study", "study", *words).error == f"{fault}; {allowed}"


def test_ctrl_c_and_how_to_go_on(tune):
    with interrupted_after(steps=4):
        result = tune(*new())
    assert result.code == 130
    last = result.err.splitlines()[-1]
    assert re.fullmatch(r"stopped  SIGINT; continue with: charlm tune --study study --hours 0\.0\d", last)
    assert "best     none: no trial is complete" in result.err
    again = tune(*last.split("charlm tune ")[1].split(), "--trials", 1)
    assert again.code == 0
    assert [row.split()[0] for row in again.out.splitlines()] == ["trial", "1"]


def test_a_terminal_that_is_closed_takes_no_result(tune, monkeypatch):
    def gone(*_, **options):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("charlm.cli._terminal_is_gone", lambda: True)
    monkeypatch.setattr("charlm.cli.tune.print_rows", gone)
    with interrupted_after(4, signal.SIGHUP), interrupted_after(4, signal.SIGHUP):
        result = tune(*new())
    assert result.code == 129
    assert result.err.splitlines()[-1].startswith("stopped  SIGHUP; continue with: charlm tune --study study --hours 0")


def test_what_is_not_installed(tune, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
        result = tune(*new("--trials", 1))
        assert result.code == 0
        assert "picture  none: matplotlib is not installed; pip install matplotlib\n" in result.err
    monkeypatch.setitem(sys.modules, "optuna", None)
    for name in [name for name in sys.modules if name.startswith("charlm.tuning")]:
        monkeypatch.delitem(sys.modules, name)
    assert tune(*new()).error == "tune: optuna is not installed; pip install optuna matplotlib"


def test_the_time_of_a_study(tune, monkeypatch):
    from charlm.tuning.search import Search

    ends_s: list[float] = []
    monkeypatch.setattr(Search, "run", lambda search: ends_s.append(search.ends_s) or "")
    monkeypatch.setattr("time.strftime", lambda *_: "20260102-030405")
    assert tune("--config", "tiny.yaml", "--hours", 0.02).code == 0
    study = "tunings/tiny-20260102-030405"  # the default: the config's name and the time
    over = tune("--study", study, "--hours", 1e-9).usage_error
    assert re.fullmatch(r"Invalid value: --hours: found 1e-09; allowed: more than the \d+ s to start", over)
    monkeypatch.setattr("time.time", lambda: 1e8)  # the clock was set back between sessions
    assert tune("--study", study).code == 0
    assert 60 < ends_s[1] - time.perf_counter() <= 72
    monkeypatch.setattr("time.time", lambda: 1e11)
    error = tune("--study", study).usage_error
    assert error == "Invalid value: --hours is needed, for example --hours 2: the time of the study is over"


def test_a_study_moves_with_its_text(tune, tmp_path, monkeypatch):
    place, moved = tmp_path / "place", tmp_path / "moved"
    place.mkdir()
    (tmp_path / "text.txt").rename(place / "text.txt")
    source = ["--set", "data.source=place/text.txt"]
    words = new("--trials", 1, *source, "--study", "place/study")
    assert tune(*words).code == 0
    assert "the study has" not in tune(*words).err
    place.rename(moved)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    again = tune("--study", moved / "study", "--hours", 1, "--trials", 2)
    assert again.err.splitlines()[0] == f"data     {place}/text.txt: not there; found {moved}/text.txt"
    assert sorted(row.split()[0] for row in again.out.splitlines()[1:]) == ["1", "2"]
    assert load_config(moved / "study/best.yaml").data.source == str(moved / "text.txt")

    (moved / "text.txt").rename(tmp_path / "kept")
    allowed = "a source is a file, a folder, a glob or builtin:NAME; check the path"
    fault = tune("--study", moved / "study", "--hours", 1, "--trials", 4).error
    assert fault == f"{place}/text.txt: no such file or folder; {allowed}"
    assert not (moved / "study/trial-0003").exists()
    done = tune("--study", moved / "study", "--hours", 1, "--trials", 2)
    assert (done.code, len(done.out.splitlines())) == (0, 3)
