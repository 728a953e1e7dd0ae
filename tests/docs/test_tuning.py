"""The study of docs/tuning.md runs as it is written, on a small text with few trials and steps."""

import signal
from pathlib import Path

import pytest

import charlm
from tests.conftest import ROOT
from tests.docs.pages import blocks
from tests.text import words_text

optuna = pytest.importorskip("optuna", reason="no Optuna")

SMALL = {
    "model.cell.hidden": 8, "model.embedding": 4, "train.batch_size": 2, "train.eval_every": 1, "train.max_steps": 4,
    "threads": 1, "device": "cpu",
}  # fmt: skip


@pytest.fixture
def run_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Runs the program with three trials and gives its study. It ends the third trial early."""
    monkeypatch.chdir(tmp_path)
    Path("my.txt").write_text(words_text(8000), encoding="utf-8")
    [program] = blocks(ROOT / "docs/tuning.md", "python")
    assert len(program.splitlines()) <= 40
    assert "MINUTES, TRIALS = " in program
    program = program.replace(", 5, 24\n", ", 5, 3\n")
    train = charlm.train

    def small(*words, overrides, **options):
        return train(*words, overrides=overrides | SMALL, **options)

    monkeypatch.setattr(charlm, "train", small)
    monkeypatch.setattr(optuna.Trial, "should_prune", lambda trial: trial.number == 2)

    def run():
        variables = {}
        exec(compile(program, "docs/tuning.md", "exec"), variables)
        return variables["study"]

    return run


def test_a_trial_ends_early_and_can_be_resumed(run_study, cli):
    study = run_study()
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "COMPLETE", "PRUNED"]
    for trial in study.trials:
        assert trial.intermediate_values
        assert charlm.load(f"tuning/trial-{trial.number}/checkpoints/last.safetensors", "cpu")
    assert study.trials[0].params["model.cell.hidden"] == 384
    resumed = cli("train", "--resume", "--run-dir", "tuning/trial-2")
    assert resumed.code == 0, resumed.err
    assert charlm.load("tuning/trial-2/checkpoints/last.safetensors", "cpu").progress["stop_reason"] == "max_steps"


def test_ctrl_c_ends_the_study_and_it_goes_on(run_study, monkeypatch):
    def interrupted(trial, nats, step):
        signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(optuna.Trial, "report", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run_study()
    states = [trial.state.name for trial in run_study().trials]
    assert states == ["FAIL", "COMPLETE", "PRUNED", "COMPLETE"]
