"""`charlm plan`."""

import json
import re

import pytest
import torch
import yaml


@pytest.fixture(autouse=True)
def measured_shortly(monkeypatch):
    monkeypatch.setattr("charlm.training.plan._MEASURE_S", 0.01)


def test_table_and_json(cli, tiny_config, tmp_path):
    words = ["plan", "--config", tiny_config, "--set", "train.bptt=16"]
    result = cli(*words)
    assert result.code == 0
    rows = dict(re.split("  +", line, maxsplit=1) for line in result.out.splitlines())
    assert list(rows) == [
        "train", "valid", "test", "vocabulary", "parameters", "memory", "layers", "update", "speed", "epoch", "run",
    ]  # fmt: skip
    assert rows["train"] == "18,000 characters"
    assert rows["run"].startswith("6 updates, ")
    # V·E; 4·H·(E + H) and torch's two biases of 4·H; H·V + V
    assert rows["parameters"] == "2,014 (embedding 112, layers 1,664, logits 238)"
    result = cli(*words, tmp_path / "text.txt", "--minutes", 1, "--json")
    assert (result.code, result.out.count("\n")) == (0, 1)
    value = json.loads(result.out)
    assert value["splits"] == {"train": 18_000, "valid": 1000, "test": 1000}
    assert value["steps_per_epoch"] == (17_999 // 4) // 16
    assert value["chars_per_s"] == pytest.approx(4 * 16 / value["step_s"])
    assert value["steps"] == pytest.approx(60 / value["step_s"], abs=1)  # --minutes replaces the other limits
    assert value["least_bytes"] > 4 * 4 * sum(value["parameters"].values())
    assert (value["peak_bytes"], value["processes"], value["communication_s"]) == (None, 1, 0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["text.txt", "tiny.yaml"]


@pytest.mark.usefixtures("quick")
def test_of_a_text_it_is_what_train_would_choose(cli, text_file):
    settings = ["--minutes", 0.5, "--set", "data.split=[0.8,0.1,0.1]"]
    planned = cli("plan", text_file, *settings, "--json")
    chosen = yaml.safe_load(cli("config", "suggest", text_file, *settings).out)
    value = json.loads(planned.out)
    assert value["splits"] == {"train": 16_000, "valid": 2000, "test": 2000}
    assert value["steps_per_epoch"] == 15_999 // chosen["train"]["batch_size"] // 64
    assert f"{sum(value['parameters'].values()):,} parameters" in planned.err


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_tells_what_it_held(cli, tiny_config):
    value = json.loads(cli("plan", "--config", tiny_config, "--set", "device=cuda", "--json").out)
    assert value["least_bytes"] < value["peak_bytes"] < value["available_bytes"]
