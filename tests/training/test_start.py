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


@pytest.mark.usefixtures("needs_kernels")
@pytest.mark.parametrize("instructions", ["", "AMX"])
def test_auto_takes_the_faster_precision_and_a_run_stays_in_its_own(
    config_of, tmp_path, cli, instructions, monkeypatch, capsys
):
    """instructions: those of the CPU for bfloat16."""
    monkeypatch.setattr(precision, "bf16_instructions", lambda: instructions)
    fast, slow = bool(instructions), "slow     precision bf16"
    start_run(config_of(precision="auto"), tmp_path / "auto")
    assert load_config(tmp_path / "auto/config.yaml").precision == ("bf16" if fast else "fp32")

    run = tmp_path / "run"
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
