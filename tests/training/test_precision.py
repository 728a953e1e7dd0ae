"""What `precision: auto` takes, and that everything else follows."""

import json
import platform
from pathlib import Path

import pytest
import torch

from charlm.checkpoint import read_checkpoint
from charlm.config import load_config
from charlm.inference.trained import load
from charlm.native import precision
from charlm.training.start import resume_run, start_run
from tests.runs import rows

pytestmark = pytest.mark.usefixtures("needs_kernels")


@pytest.fixture(params=["", "AMX"], ids=["none", "AMX"])
def fast(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The instructions of this CPU for bfloat16."""
    monkeypatch.setattr(precision, "bf16_instructions", lambda: request.param)
    return request.param


@pytest.mark.skipif(not Path("/proc/cpuinfo").exists() or platform.machine() != "x86_64", reason="needs x86 Linux")
def test_the_instructions_for_bfloat16_are_those_of_this_cpu() -> None:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    facts = {key.strip(): value.split() for key, _, value in (line.partition(":") for line in lines)}
    flags, amd = facts["flags"], facts["vendor_id"] == ["AuthenticAMD"]
    if "amx_bf16" in flags:
        pytest.skip("/proc/cpuinfo does not say whether Linux grants AMX")
    assert precision.bf16_instructions() == ("AVX512_BF16" if amd and "avx512_bf16" in flags else "")


def test_auto_takes_what_this_cpu_computes_faster(config_of, tmp_path: Path, fast: str, capsys) -> None:
    start_run(config_of(precision="auto"), tmp_path / "run")
    taken = "bf16" if fast else "fp32"
    reason = f"faster on this CPU ({fast})" if fast else "bf16 would be slower here (no instructions for it)"
    told = capsys.readouterr().err
    assert f"auto     precision {taken}: {reason}\n" in told
    assert f"cpu (1 thread), {taken}; lstm: fused CPU kernel\n" in told
    assert load_config(tmp_path / "run/config.yaml").precision == taken
    assert read_checkpoint(tmp_path / "run/checkpoints/last.safetensors").config.precision == taken
    assert load(tmp_path / "run").network.precision == taken


def test_resuming_and_use_are_in_the_precision_of_training(config_of, tmp_path: Path, cli, fast: str, capsys) -> None:
    run = tmp_path / "run"
    start_run(config_of(precision="bf16"), run)
    slow = "slow     precision bf16: fp32 would be faster here (no instructions for it)\n"
    assert (slow in capsys.readouterr().err) == (not fast)
    resume_run(run, lambda _: config_of(precision="auto", train={"max_steps": 14}))
    told = capsys.readouterr().err
    assert (slow in told) == (not fast)
    assert "change   precision" not in told
    assert load_config(run / "config.yaml").precision == "bf16"

    scored = cli("eval", run, "--dynamic", "--json")
    line = ""
    if not fast:
        line = "slow     precision bf16, as in training: fp32 would be faster here (no instructions for it)\n"
    assert scored.err == line
    assert cli("sample", run, "--seed", 1).err == line
    found = json.loads(scored.out)
    assert found["precision"] == "bf16"
    best = min(row["nats"] for row in rows(run) if row["split"] == "valid")
    assert found["nats_per_char"] == pytest.approx(best, abs=1e-12)

    trained = load(run)
    x_TB = torch.zeros(3, 2, dtype=torch.int64)
    in_bf16, _ = trained.network(x_TB)
    trained.network.precision = "fp32"
    assert not torch.equal(trained.network(x_TB)[0], in_bf16)
