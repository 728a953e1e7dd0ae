"""What a run checks, writes and decides before its first step."""

import json

import pytest

from charlm.checkpoint import read_checkpoint
from charlm.config import load_config
from charlm.errors import DataError, RunError
from charlm.native import precision
from charlm.system.lock import is_locked, locked
from charlm.training.start import resume_run, start_run
from tests.runs import contents, interrupted_after, rows, with_max_steps


def test_a_split_smaller_than_a_window_is_refused_at_once(tmp_path, config_of):
    for shares in ([0.01, 0.99, 0], [0.998, 0.002, 0], [0.898, 0.1, 0.002]):
        with pytest.raises(DataError):
            start_run(config_of(data={"split": shares}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_second_process_is_refused_and_told_of_the_first(run):
    before = contents(run)
    with locked(run):
        assert is_locked(run)
        with pytest.raises(RunError, match="in use by another process"):
            resume_run(run, with_max_steps(20))
    assert contents(run) == before
    assert not is_locked(run)
    assert resume_run(run, with_max_steps(14)).step == 14


def test_a_run_goes_on_where_open_files_cannot_be_replaced(windows, config_of, tmp_path, capsys):
    with interrupted_after(7):
        start_run(config_of(), tmp_path / "run")
    last = read_checkpoint(tmp_path / "run/checkpoints/last.safetensors")
    assert resume_run(tmp_path / "run", with_max_steps(20)).step == 20
    assert last.progress["step"] == 7
    assert "cannot be" not in capsys.readouterr().err


@pytest.fixture(params=["", "AMX"])
def fast(request, monkeypatch):
    """The instructions of this CPU for bfloat16."""
    monkeypatch.setattr(precision, "bf16_instructions", lambda: request.param)
    return request.param


@pytest.mark.usefixtures("needs_kernels")
def test_auto_takes_what_this_cpu_computes_faster(config_of, tmp_path, fast, capsys):
    start_run(config_of(precision="auto"), tmp_path / "run")
    taken = "bf16" if fast else "fp32"
    assert f"auto     precision {taken}: " in capsys.readouterr().err
    assert load_config(tmp_path / "run/config.yaml").precision == taken


@pytest.mark.usefixtures("needs_kernels")
def test_resuming_and_use_are_in_the_precision_of_training(config_of, tmp_path, cli, fast, capsys):
    run, slow = tmp_path / "run", "slow     precision bf16"
    start_run(config_of(precision="bf16"), run)
    assert (slow in capsys.readouterr().err) == (not fast)
    resume_run(run, lambda _: config_of(precision="auto", train={"max_steps": 14}))
    assert "change   precision" not in capsys.readouterr().err
    assert load_config(run / "config.yaml").precision == "bf16"

    scored = cli("eval", run, "--json")
    assert (slow in scored.err) == (not fast)
    found = json.loads(scored.out)
    best = min(row["nats"] for row in rows(run) if row["split"] == "valid")
    assert (found["precision"], found["nats_per_char"]) == ("bf16", pytest.approx(best, abs=1e-12))
