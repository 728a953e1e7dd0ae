"""What `precision: auto` takes, and that everything else follows."""

import json
from pathlib import Path

import pytest
import torch

from charlm.checkpoint import read_checkpoint
from charlm.config import load_config
from charlm.inference import load
from charlm.native import precision
from charlm.training.start import resume_run, start_run

pytestmark = pytest.mark.usefixtures("needs_kernels")


@pytest.fixture(params=[False, True], ids=["no AMX", "AMX"])
def amx(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(precision, "multiplies_bf16_in_tiles", lambda: request.param)
    return request.param


def test_auto_takes_what_this_cpu_computes_faster(config_of, tmp_path: Path, amx: bool, capsys) -> None:
    start_run(config_of(precision="auto"), tmp_path / "run")
    taken = "bf16" if amx else "fp32"
    reason = "faster on this CPU (AMX)" if amx else "bf16 would be slower here (no AMX)"
    told = capsys.readouterr().err
    assert f"auto     precision {taken}: {reason}\n" in told
    assert f"cpu (1 thread), {taken}; lstm: fused CPU kernel\n" in told
    assert load_config(tmp_path / "run/config.yaml").precision == taken
    assert read_checkpoint(tmp_path / "run/checkpoints/last.safetensors").config.precision == taken
    assert load(tmp_path / "run").precision == taken


def test_a_resumed_run_keeps_its_precision(config_of, tmp_path: Path, amx: bool, capsys) -> None:
    start_run(config_of(precision="bf16"), tmp_path / "run")
    slow = "slow     precision bf16: fp32 would be faster here (no AMX)\n"
    assert (slow in capsys.readouterr().err) == (not amx)

    def change(config):
        return config.model_copy(
            update={"precision": "auto", "train": config.train.model_copy(update={"max_steps": 14})}
        )

    resume_run(tmp_path / "run", change)
    told = capsys.readouterr().err
    assert (slow in told) == (not amx)
    assert "change   precision" not in told
    assert load_config(tmp_path / "run/config.yaml").precision == "bf16"


def test_runs_from_before_auto_chose_stay_in_fp32(config_of, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("charlm.training.processes.with_precision", lambda config, device: config)
    start_run(config_of(precision="auto"), tmp_path / "run")
    monkeypatch.undo()
    monkeypatch.setattr(precision, "multiplies_bf16_in_tiles", lambda: True)
    resume_run(tmp_path / "run")
    assert load(tmp_path / "run").precision == "fp32"


def test_use_is_in_the_precision_of_training(config_of, tmp_path: Path, cli, amx: bool) -> None:
    start_run(config_of(precision="bf16"), tmp_path / "run")
    scored = cli("eval", tmp_path / "run", "--dynamic", "--json")
    line = "device   precision bf16, as in training\n"
    if not amx:
        line = "slow     precision bf16, as in training: fp32 would be faster here (no AMX)\n"
    assert scored.err == line
    assert cli("sample", tmp_path / "run", "--seed", 1).err == line
    found = json.loads(scored.out)
    assert found["precision"] == "bf16"
    rows = [json.loads(row) for row in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    best = min(row["nats"] for row in rows if row["split"] == "valid")
    assert found["nats_per_char"] == pytest.approx(best, abs=1e-12)

    trained = load(tmp_path / "run")
    x_TB = torch.zeros(3, 2, dtype=torch.int64)
    in_bf16, _ = trained.network(x_TB)
    trained.network.precision = "fp32"
    assert not torch.equal(trained.network(x_TB)[0], in_bf16)
