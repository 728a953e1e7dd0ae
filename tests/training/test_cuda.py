"""Training on a GPU."""

import math

import pytest
import torch

from charlm.cells import CELLS
from charlm.checkpoint import read_checkpoint, save_checkpoint
from charlm.errors import DivergenceError
from charlm.inference.options import SamplingOptions
from charlm.inference.sampling import read_ids, sample_ids
from charlm.system.process_group import ONE_PROCESS
from charlm.training import step
from charlm.training.snapshot import restore_snapshot, take_snapshot
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
@pairwise(kind=list(CELLS), name=["adamw", "sgd", "rmsprop", "muon"], graphs=["", "update"])
def test_cuda_updates_do_not_wait_for_the_device(trainer_of, kind, name, graphs, monkeypatch):
    monkeypatch.setenv("CHARLM_GRAPHS", graphs)
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


@pairwise(
    kind=list(CELLS),
    name=["adamw", "muon", "sgd", "rmsprop"],
    model=[{"dropout": 0.1, "zoneout": 0.1, "layers": 2}, {}, {"members": 2}],
    train=[{"ema": 0.9, "reset_state": 0.3}, {}],
    unit=["text", "line"],
    precision=["fp32", "bf16"],
)
def test_cuda_replayed_updates_have_the_bits_of_launched_ones(
    trainer_of, kind, name, model, train, unit, precision, monkeypatch, capsys
):
    """Over the end of an epoch, a divergence and a restart, with a learning rate that changes."""
    monkeypatch.setenv("CHARLM_GRAPHS", "update")

    def updated(*, replays):
        trainer = trainer_of(
            device="cuda",
            precision=precision,
            model={"cell": {"kind": kind, "hidden": 16}, **model},
            optimizer={"name": name, "lr": 0.01, "schedule": {"name": "linear", "final_fraction": 0.1}},
            train=train,
            unit=unit,
            train_share=0.1,
        )
        trainer._graph.graphs.enabled = replays
        update(trainer, 10)
        trainer.check_finite()
        assert trainer.state.epoch == 1
        kept = take_snapshot(trainer)
        with torch.no_grad():
            trainer.parameters[-1].fill_(math.inf)
        update(trainer, 2)
        with pytest.raises(DivergenceError, match=r"^update 11: "):
            trainer.check_finite()
        restore_snapshot(trainer, kept)
        update(trainer, 6)
        trainer.check_finite()
        return trainer

    launched, replayed = updated(replays=False), updated(replays=True)
    assert "not used" not in capsys.readouterr().err
    assert replayed._graph.graphs.replays >= 7 + 2 + 4
    assert replayed.state.lr == launched.state.lr
    both = ([*t._learned_tensors(), *t.state.tensors(ONE_PROCESS).values()] for t in (replayed, launched))
    for ours, theirs in zip(*both, strict=True):
        assert torch.equal(ours, theirs) if isinstance(ours, torch.Tensor) else ours == theirs


def test_cuda_goes_on_where_an_update_cannot_be_recorded(trainer_of, monkeypatch, capsys):
    """Also with the random numbers that it would have drawn, and with the graphs of evaluation and samples."""

    def updated(times):
        trainer = trainer_of(device="cuda", model={"dropout": 0.1, "zoneout": 0.1}, train={"reset_state": 0.1})
        return update(trainer, times)

    monkeypatch.setenv("CHARLM_GRAPHS", "update")
    whole = updated(8)
    clip = step.clip_gradients

    def waits(*arguments):
        norm = clip(*arguments)
        if torch.cuda.is_current_stream_capturing():
            norm.item()
        return norm

    monkeypatch.setattr(step, "clip_gradients", waits)
    refused = updated(8)
    assert "graph    not used from now on: " in capsys.readouterr().err
    for ours, theirs in zip(refused.parameters, whole.parameters, strict=True):
        assert torch.equal(ours, theirs)
    assert torch.rand(3, device="cuda").isfinite().all()
    assert len(_drawn(refused.model.eval(), 40)) == 40


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


def _drawn(model, length):
    options = SamplingOptions(length=length, temperature=1.0)
    return torch.stack([*sample_ids(model, *read_ids(model, [1, 2]), options, [3, 4])])


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
