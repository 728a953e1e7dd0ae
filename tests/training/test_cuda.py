"""Training on a GPU."""

import pytest
import torch

from charlm.cells import CELLS
from charlm.checkpoint import read_checkpoint, save_checkpoint
from charlm.training.snapshot import restore_snapshot, take_snapshot
from tests.runs import row_of

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


def updated(trainer, times):
    for _ in range(times):
        trainer.update()
    trainer.check_finite()
    return trainer


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", CELLS)
def test_cuda_trains_like_the_cpu(trainer_of, kind, precision, capsys):
    cuda = trainer_of(device="cuda", precision=precision, model={"cell": {"kind": kind, "hidden": 16}})
    cpu = trainer_of(device="cpu", model={"cell": {"kind": kind, "hidden": 16}})
    found, wanted = (row_of(updated(trainer, 30))["nats"] for trainer in (cuda, cpu))
    assert found == pytest.approx(wanted, rel=0.05 if precision == "bf16" else 0.005)
    assert "graph " not in capsys.readouterr().err


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", CELLS)
def test_cuda_resumes_bit_for_bit_and_the_cpu_goes_on_too(trainer_of, kind, precision, tmp_path):
    def build(device):
        model = {"cell": {"kind": kind, "hidden": 16}, "layers": 2, "dropout": 0.1, "zoneout": 0.1}
        train, optimizer = {"ema": 0.9, "reset_state": 0.1}, {"name": "adamw", "lr": 0.01}
        return trainer_of(device=device, precision=precision, model=model, train=train, optimizer=optimizer)

    whole = updated(build("cuda"), 10)
    first = updated(build("cuda"), 5)
    save_checkpoint(take_snapshot(first), tmp_path / "a.safetensors")
    second = build("cuda")
    restore_snapshot(second, read_checkpoint(tmp_path / "a.safetensors"))
    updated(second, 5)
    for name, parameter in second.model.named_parameters():
        assert torch.equal(parameter, whole.model.get_parameter(name)), name

    cpu = build("cpu")
    restore_snapshot(cpu, read_checkpoint(tmp_path / "a.safetensors"))
    assert updated(cpu, 5).state.step == 10
