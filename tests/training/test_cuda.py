"""Training on a GPU."""

import pytest
import torch

from charlm.cells import CELLS
from charlm.checkpoint import read_checkpoint, save_checkpoint


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", CELLS)
def test_cuda_trains_like_the_cpu(trainer_of, kind, precision):
    cuda = trainer_of(device="cuda", precision=precision, model={"cell": {"kind": kind, "hidden": 16}})
    cpu = trainer_of(device="cpu", model={"cell": {"kind": kind, "hidden": 16}})
    for _ in range(30):
        cuda.update()
        cpu.update()
    cuda.check_finite()
    assert cuda.row().nats == pytest.approx(cpu.row().nats, rel=0.05 if precision == "bf16" else 0.005)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("kind", CELLS)
@pytest.mark.parametrize("name", ["adamw", "sgd", "rmsprop"])
def test_cuda_updates_do_not_wait_for_the_device(trainer_of, kind, name):
    places = {"embedding": 0.1, "input": 0.1, "between_layers": 0.1, "output": 0.1}
    trainer = trainer_of(
        device="cuda",
        model={"cell": {"kind": kind, "hidden": 16}, "layers": 2, "dropout": places},
        optimizer={"name": name, "lr": 0.01},
        train={"ema": 0.9, "reset_state": 0.1},
    )
    trainer.update()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(5):
            trainer.update()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    trainer.check_finite()


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_checkpoint_goes_on_on_the_cpu_and_back(trainer_of, tmp_path):
    cuda = trainer_of(device="cuda", train={"ema": 0.9}, optimizer={"name": "adamw", "lr": 0.01})
    for _ in range(5):
        cuda.update()
    save_checkpoint(cuda.to_checkpoint(), tmp_path / "a.safetensors")
    cpu = trainer_of(device="cpu", train={"ema": 0.9}, optimizer={"name": "adamw", "lr": 0.01})
    cpu.restore(read_checkpoint(tmp_path / "a.safetensors"))
    assert torch.equal(cpu.model.decoder.weight, cuda.model.decoder.weight.cpu())
    cpu.update()
    save_checkpoint(cpu.to_checkpoint(), tmp_path / "b.safetensors")
    cuda.restore(read_checkpoint(tmp_path / "b.safetensors"))
    cuda.update()
    cuda.check_finite()
    assert cuda.state.step == 7
