"""`import charlm`: what it gives does what the commands do."""

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

import charlm
from charlm.config import load_config
from charlm.errors import CheckpointError, ConfigError, DataError, RunError
from tests.conftest import ROOT
from tests.runs import assert_same_checkpoint, untimed

LAST = "checkpoints/last.safetensors"


@pytest.fixture
def quick(monkeypatch):
    """Speeds that nothing measures."""
    monkeypatch.setattr("charlm.choice.speed.measure", lambda config, *_: 1e-8 * config.model.cell.hidden**2)


pytestmark = pytest.mark.usefixtures("kernels")


def test_the_package_is_imported_without_torch():
    code = (
        "import sys, charlm; charlm.load; charlm.train; charlm.Run; "
        "print([name for name in ('torch', 'numpy', 'yaml', 'typer', 'pydantic') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_every_public_name_exists_and_types_are_shipped():
    assert all(hasattr(charlm, name) for name in charlm.__all__)
    assert (ROOT / "charlm/py.typed").is_file()


def test_a_run_from_a_config_is_that_of_the_command(cli, tiny_config, tmp_path, capsys):
    rows = []
    run = charlm.train(config=tiny_config, run_dir=tmp_path / "run", overrides={"seed": 2}, on_log=rows.append)
    assert "valid    update      6" in capsys.readouterr().err
    words = ["--config", tiny_config, "--run-dir", tmp_path / "other", "--set", "seed=2", "--json"]
    outcome = json.loads(cli("train", *words).out)
    assert run.path == tmp_path / "run"
    assert asdict(run.outcome) | {"run_dir": 0, "elapsed_s": 0} == outcome | {"run_dir": 0, "elapsed_s": 0}
    assert run.metrics == rows
    assert [(row["split"], row["step"]) for row in rows] == [
        ("train", 2), ("valid", 3), ("train", 4), ("train", 6), ("valid", 6),
    ]  # fmt: skip
    assert rows == [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    model = run.load("cpu")
    assert model.progress["step"] == run.outcome.best_step


@pytest.mark.usefixtures("quick")
def test_settings_are_chosen_for_a_text_and_minutes(text_file, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run = charlm.train(text_file, minutes=0.02, overrides=["seed=5"])
    config = load_config(run.path / "config.yaml")
    assert (config.train.max_minutes, config.seed, config.data.source) == (0.02, 5, str(text_file))
    assert run.path.parent == Path("runs")
    assert run.path.name.startswith(f"{text_file.stem}-")
    assert (run.outcome.reason, "\nchoice " in capsys.readouterr().err) == ("max_minutes", True)


def test_a_folder_with_a_config_minutes_and_overrides_of_every_type(tiny_config, tmp_path):
    folder = tmp_path / "other: texts"
    folder.mkdir()
    (folder / "a.txt").write_text("the quick brown fox\n" * 200)
    overrides = {
        "data.split": (0.8, 0.1, 0.1),
        "optimizer.lr": 3e-4,
        "train.save_every": np.int64(0),
        "model.tie_embeddings": False,
        "train.max_steps": 1,
        "train.max_epochs": None,
    }
    run_dir = str(tmp_path / "run")
    run = charlm.train(folder, config=str(tiny_config), minutes=0.5, run_dir=run_dir, overrides=overrides)
    config = load_config(run.path / "config.yaml")
    assert (config.data.source, config.data.split, config.optimizer.lr) == (str(folder), (0.8, 0.1, 0.1), 3e-4)
    assert (config.train.max_minutes, run.outcome.step) == (0.5, 1)


def test_from_the_weights_of_a_run(trained_run, tiny_config, text_file, tmp_path):
    first = charlm.load(trained_run, device="cpu")
    assert first.path == trained_run / "checkpoints" / "best.safetensors"
    overrides = {"data.source": text_file, "train.max_steps": 1}
    run = charlm.train(config=tiny_config, init_from=trained_run, run_dir=tmp_path / "run", overrides=overrides)
    assert run.load("cpu").vocabulary == first.vocabulary


def test_metrics_that_cannot_be_read(tmp_path):
    run = charlm.Run(tmp_path, None)
    with pytest.raises(RunError, match=r"metrics\.jsonl: cannot be read \(.*No such file.*\); allowed: that of a run"):
        run.metrics  # noqa: B018
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"st')
    assert run.metrics == [{"step": 1}]


@pytest.mark.parametrize("fault", [ValueError("mine"), OSError("no such host"), KeyboardInterrupt()])
def test_an_exception_of_on_log_is_raised_again(tiny_config, tmp_path, fault):
    def on_log(row):
        raise fault

    with pytest.raises(type(fault)) as raised:
        charlm.train(config=tiny_config, run_dir=tmp_path / "run", on_log=on_log)
    assert raised.value is fault
    assert charlm.load(tmp_path / "run" / "checkpoints" / "last.safetensors", "cpu").progress["step"] == 0


def test_a_run_that_on_log_has_ended_can_be_resumed(cli, tiny_config, tmp_path):
    def on_log(row):
        if (row["split"], row["step"]) == ("valid", 6):
            raise ValueError

    with pytest.raises(ValueError, match=r"^$"):
        charlm.train(config=tiny_config, run_dir=tmp_path / "run", on_log=on_log)
    assert charlm.load(tmp_path / "run" / LAST, "cpu").progress["step"] == 3
    resumed = cli("train", "--resume", "--run-dir", tmp_path / "run")
    assert resumed.code == 0, resumed.err
    charlm.train(config=tiny_config, run_dir=tmp_path / "whole")
    assert untimed(tmp_path / "run") == untimed(tmp_path / "whole")
    assert_same_checkpoint(tmp_path / "run" / LAST, tmp_path / "whole" / LAST)


def test_ctrl_c_saves_the_run_and_returns_it(tiny_config, tmp_path, capsys):
    import signal

    def on_log(row):
        signal.raise_signal(signal.SIGINT)

    run = charlm.train(config=tiny_config, run_dir=tmp_path / "run", on_log=on_log)
    assert (run.outcome.reason, run.outcome.step) == ("SIGINT", 2)
    assert f"resume with: charlm train --resume --run-dir {tmp_path}/run\n" in capsys.readouterr().err
    assert run.load("cpu").progress["step"] == 2


def test_a_rollback_is_seen(tiny_config, tmp_path, monkeypatch):
    from charlm.training.step import Trainer, divergence

    rows, update = [], Trainer.update

    def diverging(trainer):
        update(trainer)
        if trainer.state.step == 4 and not trainer.state.rollbacks:
            raise divergence(4, "a loss of nan")

    monkeypatch.setattr(Trainer, "update", diverging)
    overrides = {"train.on_divergence": "rollback", "train.save_every": 2}
    run = charlm.train(config=tiny_config, run_dir=tmp_path / "run", overrides=overrides, on_log=rows.append)
    assert [row["step"] for row in rows if row["split"] == "rollback"] == [3]
    assert run.outcome.step == 6


@pytest.mark.parametrize(
    ("arguments", "error", "fault"),
    [
        ({}, ConfigError, "train: found neither text nor config; allowed: either, or both"),
        ({"init_from": "r"}, ConfigError, "train: found neither text nor config; allowed: either, or both"),
        ({"text": "x", "init_from": "r"}, CheckpointError, "--init-from r: no such file or folder"),
        ({"text": "x", "minutes": 0}, ConfigError, "minutes: found 0; allowed: a number from 0.0001 to 525,600"),
        ({"text": "x", "minutes": float("nan")}, ConfigError, "minutes: found nan; allowed: a number from 0.0001 to"),
        ({"text": "x", "overrides": ["train.max_minutes=3"]}, ConfigError, "train.max_minutes: found beside minutes"),
        ({"text": "x", "overrides": "seed=3"}, TypeError, "overrides: found a string; allowed: a list of KEY=VALUE"),
        ({"text": "no such file"}, DataError, "no such file: "),
        ({"text": ["a.txt", "b.txt"]}, TypeError, "text: found list; allowed: one path, of a file or a folder, or a"),
        ({"text": "Once upon a time there was a king\n" * 9}, DataError,
         r"king\nOnce u…: no such file or folder; "),
        ({"config": "no-such-config"}, ConfigError, "no-such-config: found no such file; allowed: a YAML file, or"),
        ({"config": "lstm", "overrides": {"model.cell.hiden": 3}}, ConfigError, "hiden"),
        ({"config": "lstm", "overrides": {"optimizer.lr": float("nan")}}, ConfigError, 'lr: found "NaN"; allowed: '),
    ],
)  # fmt: skip
def test_mistakes(arguments, error, fault, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=fault):
        charlm.train(**arguments)
    assert not (tmp_path / "runs").exists()
