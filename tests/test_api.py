"""`import charlm`: what it gives does what the commands do."""

import functools
import inspect
import json
import signal
import types
from dataclasses import asdict

import numpy as np
import pytest
import torch

import charlm
from charlm import cells, errors, layers
from charlm.config import load_config
from charlm.data.encoded import EncodedText
from charlm.data.vocabulary import Vocabulary
from charlm.errors import ConfigError, DataError
from charlm.inference.evaluation import Evaluation
from charlm.inference.options import SamplingOptions
from charlm.inference.trained import TrainedModel
from charlm.scored import ScoredText
from tests.runs import assert_same_checkpoint, untimed

LAST = "checkpoints/last.safetensors"
pytestmark = pytest.mark.usefixtures("kernels")


def test_a_run_from_a_config_is_that_of_the_command(cli, tiny_config, tmp_path, capsys):
    rows = []
    run = charlm.train(config=tiny_config, run_dir=tmp_path / "run", overrides={"seed": 2}, on_log=rows.append)
    assert "valid    update      6" in capsys.readouterr().err
    words = ["--config", tiny_config, "--run-dir", tmp_path / "other", "--set", "seed=2", "--json"]
    outcome = json.loads(cli("train", *words).out)
    assert run.path == tmp_path / "run"
    assert asdict(run) | {"run_dir": 0, "elapsed_s": 0} == outcome | {"run_dir": 0, "elapsed_s": 0}
    assert run.metrics == rows == [json.loads(row) for row in (run.path / "metrics.jsonl").read_text().splitlines()]
    assert run.load("cpu").progress["step"] == run.best_step


def test_a_folder_with_a_config_minutes_weights_and_overrides_of_every_type(
    tiny_config, trained_run, text_file, tmp_path
):
    folder = tmp_path / "other: texts"
    folder.mkdir()
    text_file.rename(folder / "a.txt")
    overrides = {"data.split": (0.8, 0.1, 0.1), "optimizer.lr": 3e-4, "train.save_every": np.int64(0)}
    overrides |= {"model.tie_embeddings": False, "train": {"max_steps": 1, "max_epochs": None}}
    more = {"config": str(tiny_config), "init_from": trained_run, "run_dir": str(tmp_path / "run")}
    run = charlm.train(folder, minutes=0.5, overrides=overrides, **more)
    config = load_config(run.path / "config.yaml")
    assert (config.data.source, config.data.split, config.optimizer.lr) == (str(folder), (0.8, 0.1, 0.1), 3e-4)
    assert (config.train.max_minutes, run.step) == (0.5, 1)


def test_an_exception_of_on_log_is_raised_again_and_the_run_can_be_resumed(cli, tiny_config, tmp_path):
    fault = OSError("no such host")

    def on_log(row):
        if (row["split"], row["step"]) == ("valid", 6):
            raise fault

    with pytest.raises(OSError, match="no such host"):
        charlm.train(config=tiny_config, run_dir=tmp_path / "run", on_log=on_log)
    assert charlm.load(tmp_path / "run" / LAST, torch.device("cpu")).progress["step"] == 3
    assert cli("train", "--resume", "--run-dir", tmp_path / "run").code == 0
    charlm.train(config=tiny_config, run_dir=tmp_path / "whole")
    assert untimed(tmp_path / "run") == untimed(tmp_path / "whole")
    assert_same_checkpoint(tmp_path / "run" / LAST, tmp_path / "whole" / LAST)


def test_ctrl_c_saves_the_run_and_returns_it(tiny_config, tmp_path, capsys):
    def on_log(row):
        signal.raise_signal(signal.SIGINT)

    run = charlm.train(config=tiny_config, run_dir=tmp_path / "run", on_log=on_log)
    assert (run.reason, run.step) == ("SIGINT", 2)
    assert f"resume with: charlm train --resume --run-dir {tmp_path}/run\n" in capsys.readouterr().err
    assert run.load("cpu").progress["step"] == 2


DOCUMENTED = (types.FunctionType, property, functools.cached_property, classmethod)


def test_every_public_name_is_documented():
    """As `help` shows it, and under its own name."""
    named = {f"charlm.{name}": getattr(charlm, name) for name in charlm.__all__}
    for module in (cells, layers, errors):
        named |= {f"{module.__name__}.{name}": value for name, value in vars(module).items() if name[0] != "_"}
    classes = (TrainedModel, Evaluation, EncodedText, ScoredText, SamplingOptions, Vocabulary)
    named |= {f"{one.__module__}.{one.__name__}": one for one in classes}
    public = {}
    for name, value in named.items():
        if callable(value) and not isinstance(value, types.GenericAlias):
            public[name] = value
    for name, value in [*public.items()]:
        bases = value.__mro__ if isinstance(value, type) else ()
        for base in bases:
            for one, each in vars(base).items():
                is_own = base.__module__.startswith("charlm.") and one[0] != "_" and isinstance(each, DOCUMENTED)
                if is_own:
                    public[f"{name}.{one}"] = getattr(value, one) if callable(each) else each
    assert {"charlm.cells.sigmoid", "charlm.load", "charlm.inference.trained.TrainedModel.device"} <= public.keys()
    assert [name for name, value in public.items() if not inspect.getdoc(value)] == []
    functions = {name: value for name, value in public.items() if callable(value)}
    foreign = [name for name, value in functions.items() if not value.__module__.startswith("charlm")]
    assert foreign == []


def test_mistakes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TypeError):
        charlm.train("x", overrides=["seed=3"])
    with pytest.raises(DataError):
        charlm.train("Once upon a time there was a king\n" * 9)
    with pytest.raises(ConfigError):
        charlm.train(config="lstm", overrides={"optimizer.lr": float("nan")})
    assert not (tmp_path / "runs").exists()
