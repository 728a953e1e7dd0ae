"""Training on a GPU."""

import pytest
import torch

from charlm.cells import CELLS
from charlm.checkpoint import read_checkpoint, save_checkpoint
from charlm.inference.options import SamplingOptions
from charlm.inference.sampling import read_ids, sample_ids
from charlm.training.state import restore_snapshot, take_snapshot
from tests.pairwise import pairwise
from tests.runs import row_of

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


def update(trainer, times):
    for _ in range(times):
        trainer.update()
    return trainer


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", CELLS)
def test_cuda_trains_like_the_cpu(trainer_of, kind, precision):
    cuda = trainer_of(device="cuda", precision=precision, model={"cell": {"kind": kind, "hidden": 16}})
    cpu = trainer_of(device="cpu", model={"cell": {"kind": kind, "hidden": 16}})
    for _ in range(30):
        cuda.update()
        cpu.update()
    cuda.check_finite()
    assert row_of(cuda)["nats"] == pytest.approx(row_of(cpu)["nats"], rel=0.05 if precision == "bf16" else 0.005)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pairwise(kind=list(CELLS), name=["adamw", "sgd", "rmsprop", "muon"])
def test_cuda_updates_do_not_wait_for_the_device(trainer_of, kind, name):
    places = {"embedding": 0.1, "input": 0.1, "between_layers": 0.1, "output": 0.1}
    trainer = trainer_of(
        device="cuda",
        model={"cell": {"kind": kind, "hidden": 16}, "layers": 2, "dropout": places},
        optimizer={"name": name, "lr": 0.01},
        train={"ema": 0.9, "reset_state": 0.1},
    )
    for _ in range(5):  # some are recorded
        trainer.update()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(5):
            trainer.update()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    trainer.check_finite()


def test_cuda_checkpoint_goes_on_on_the_cpu_and_back(trainer_of, tmp_path):
    cuda = trainer_of(device="cuda", train={"ema": 0.9}, optimizer={"name": "adamw", "lr": 0.01})
    for _ in range(5):
        cuda.update()
    save_checkpoint(take_snapshot(cuda), tmp_path / "a.safetensors")
    cpu = trainer_of(device="cpu", train={"ema": 0.9}, optimizer={"name": "adamw", "lr": 0.01})
    restore_snapshot(cpu, read_checkpoint(tmp_path / "a.safetensors"))
    assert torch.equal(cpu.model.decoder.weight, cuda.model.decoder.weight.cpu())
    cpu.update()
    save_checkpoint(take_snapshot(cpu), tmp_path / "b.safetensors")
    restore_snapshot(cuda, read_checkpoint(tmp_path / "b.safetensors"))
    cuda.update()
    cuda.check_finite()
    assert cuda.state.step == 7


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", CELLS)
def test_cuda_resumes_bit_for_bit(trainer_of, kind, precision, tmp_path):
    def build():
        model = {"cell": {"kind": kind, "hidden": 16}, "layers": 2, "dropout": 0.1, "zoneout": 0.1}
        train = {"ema": 0.9, "reset_state": 0.1}
        optimizer = {"name": "adamw", "lr": 0.01}
        return trainer_of(device="cuda", precision=precision, model=model, train=train, optimizer=optimizer)

    whole = build()
    for _ in range(10):
        whole.update()
    first = build()
    for _ in range(5):
        first.update()
    save_checkpoint(take_snapshot(first), tmp_path / "a.safetensors")
    second = build()
    restore_snapshot(second, read_checkpoint(tmp_path / "a.safetensors"))
    for _ in range(5):
        second.update()
    for name, parameter in second.model.named_parameters():
        assert torch.equal(parameter, whole.model.get_parameter(name)), name


@pytest.mark.parametrize("kind", CELLS)
def test_cuda_samples_what_the_cpu_does_and_trains_on(trainer_of, kind, capsys):
    model = {"cell": {"kind": kind, "hidden": 16}, "dropout": 0.1}
    cpu, cuda = (trainer_of(device=device, model=model) for device in ("cpu", "cuda"))
    cuda.model.load_state_dict(cpu.model.state_dict())
    options, samples = SamplingOptions(length=40, temperature=1.0), []
    for trainer in (cpu, cuda, cuda):
        network = trainer.model.eval()
        samples.append(torch.stack([*sample_ids(network, *read_ids(network, [1, 2]), options, [3, 4])]))
        torch.rand(3, device=trainer.device)
    assert torch.equal(samples[0], samples[1])
    assert torch.equal(samples[1], samples[2])
    cuda.model.train()
    cuda.update()
    cuda.check_finite()
    assert "graph " not in capsys.readouterr().err
