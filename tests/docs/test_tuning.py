"""The study of docs/tuning.md runs as it is written, on a small text with few trials and steps."""

import signal
from pathlib import Path

import pytest

import charlm
from tests.conftest import ROOT
from tests.docs.pages import blocks
from tests.text import words_text

optuna = pytest.importorskip("optuna", reason="no Optuna")

SMALL = {"model.cell.hidden": 8, "model.embedding": 4, "train.batch_size": 2, "train.eval_every": 1}
SMALL |= {"train.max_steps": 4, "threads": 1, "device": "cpu"}


@pytest.fixture
def run_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Runs the program with three trials and gives its study. It ends the third trial early."""
    monkeypatch.chdir(tmp_path)
    Path("my.txt").write_text(words_text(8000), encoding="utf-8")
    [program] = blocks(ROOT / "docs/tuning.md", "python")
    program = program.replace(", 5, 24\n", ", 5, 3\n")
    train = charlm.train
    monkeypatch.setattr(
        charlm, "train", lambda *words, overrides, **options: train(*words, overrides=overrides | SMALL, **options)
    )
    monkeypatch.setattr(optuna.Trial, "should_prune", lambda trial: trial.number == 2)

    def run():
        variables = {}
        exec(compile(program, "docs/tuning.md", "exec"), variables)
        return variables["study"]

    return run


def test_ctrl_c_ends_the_study_which_goes_on_and_a_trial_that_ended_early_can_be_resumed(run_study, monkeypatch, cli):
    with monkeypatch.context() as patch:
        patch.setattr(optuna.Trial, "report", lambda *_: signal.raise_signal(signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            run_study()
    study = run_study()
    assert [trial.state.name for trial in study.trials] == ["FAIL", "COMPLETE", "PRUNED", "COMPLETE"]
    assert study.trials[0].params["model.cell.hidden"] == 384
    assert all(trial.intermediate_values for trial in study.trials[1:])
    assert cli("train", "--resume", "--run-dir", "tuning/trial-2").code == 0
    assert charlm.load("tuning/trial-2", "cpu").progress["stop_reason"] == "max_steps"
