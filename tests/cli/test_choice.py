"""`charlm train TEXT --minutes M`, `charlm config suggest` and `charlm plan`."""

import json
import re

import pytest
import torch

from charlm.config import load_config

pytestmark = pytest.mark.usefixtures("quick")


def test_train_a_text(cli, text_file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = cli("train", text_file, "--minutes", 0.01, "--set", "seed=5")
    assert (result.code, len(result.out)) == (0, 401)
    [run] = (tmp_path / "runs").iterdir()
    assert run.name.startswith(f"{text_file.stem}-")
    config = load_config(run / "config.yaml")
    assert (config.train.max_minutes, config.seed, config.data.source) == (0.01, 5, str(text_file))
    resumed = cli("train", "--resume", "--run-dir", run, "--minutes", 0.015, "--json")
    assert json.loads(resumed.out)["reason"] == "max_minutes"
    assert "change   train.max_minutes: 0.01 → 0.015\n" in resumed.err


def test_suggest_prints_a_config(cli, text_file, tmp_path):
    result = cli("config", "suggest", text_file, "--minutes", 2, "--set", "model.cell.kind=rhn")
    assert result.code == 0
    (tmp_path / "mine.yaml").write_text(result.out)
    config = load_config(tmp_path / "mine.yaml")
    assert (config.model.cell.kind, config.train.max_minutes) == ("rhn", 2)
    assert re.search(r"    hidden: \d+ +# Hidden units of each layer, H\n", result.out)
    assert re.search(r"  activation_penalty: .* # Weight of AR \(Merity et al\. 2017\): mean square", result.out)
    assert "sample_length" not in result.out  # it keeps its default


def test_plan(cli, tiny_config, tmp_path):
    words = ["plan", "--config", tiny_config, "--set", "train.bptt=16"]
    rows = dict(re.split("  +", line, maxsplit=1) for line in cli(*words).out.splitlines())
    assert rows["train"] == "18,000 characters"
    assert rows["run"].startswith("6 updates, 0.02 epochs, ")
    # V·E; 4·H·(E + H) and torch's two biases of 4·H; H·V + V
    assert rows["parameters"] == "2,014 (embedding 112, layers 1,664, logits 238)"
    value = json.loads(cli(*words, tmp_path / "text.txt", "--minutes", 1, "--json").out)
    assert value["splits"] == {"train": 18_000, "valid": 1000, "test": 1000}
    assert value["steps_per_epoch"] == (17_999 // 4) // 16
    assert value["chars_per_s"] == pytest.approx(4 * 16 / value["step_s"])
    assert value["steps"] == pytest.approx(0.92 * (60 - 2.5) / value["step_s"], abs=1)  # not the config's limits
    assert value["least_bytes"] > 4 * 4 * sum(value["parameters"].values())
    assert value["least_bytes"] < value["peak_bytes"] < value["available_bytes"]
    assert (value["processes"], value["communication_s"]) == (1, 0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["text.txt", "tiny.yaml"]
    chosen = cli("plan", tmp_path / "text.txt", "--minutes", 0.5, "--json")
    assert f"{sum(json.loads(chosen.out)['parameters'].values()):,} parameters" in chosen.err
    assert not re.search("updates?|characters/s|passes|epochs", chosen.err)  # it tells these once, in its table


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_tells_what_a_plan_held(cli, tiny_config):
    value = json.loads(cli("plan", "--config", tiny_config, "--set", "device=cuda", "--json").out)
    assert value["least_bytes"] < value["peak_bytes"] < value["available_bytes"]
