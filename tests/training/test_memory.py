"""What a run needs at least is known before any of it is taken."""

import re

import pytest
import torch

from charlm.cells import CELLS
from charlm.config import parse_config
from charlm.errors import DeviceError
from charlm.model import build_model, count_parameters
from charlm.system.host import free_bytes
from charlm.training.machine import check_memory, choose_machine, least_bytes
from charlm.training.step import Trainer
from tests.corpora import load_corpus

GB = 2**30


def config_with(*overrides):
    return parse_config({"device": "cpu", "threads": 1, "precision": "fp32"}, "test", list(overrides))


@pytest.fixture(scope="module")
def machine():
    return choose_machine(config_with())


@pytest.mark.parametrize("kind", CELLS)
def test_parameters_are_counted_as_they_will_be(kind):
    for layers in (1, 2, 5):
        cell = f"model.cell={{kind: {kind}, hidden: 6}}"
        for inputs in ("embedding: 0", "embedding: 6, tie_embeddings: true", "embedding: 4, tie_embeddings: true"):
            model = config_with(f"model={{{inputs}}}", cell, f"model.layers={layers}").model
            assert count_parameters(model, 11) == sum(p.numel() for p in build_model(model, 11).parameters())
            several = model.model_copy(update={"members": 3})
            assert count_parameters(several, 11) == sum(p.numel() for p in build_model(several, 11).parameters())


@pytest.mark.parametrize(
    "override",
    [
        "model.cell.hidden=1000000",
        "model={layers: 100, members: 100, cell: {hidden: 2000}}",
        "train.batch_size=1000000000",
        "train.bptt=1000000000",
    ],
)
def test_too_much_is_refused_at_once_with_the_figures(machine, override):
    with pytest.raises(DeviceError) as caught:
        check_memory(config_with(override), 65, machine)
    assert re.fullmatch(
        r"memory: the model and a window need at least \S+ [TPEG]B; \S+ [GM]B are available \(cpu\); "
        r"lower model\.cell\.hidden, model\.layers, train\.batch_size or train\.bptt",
        str(caught.value),
    )


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("kind", CELLS)
def test_the_bound_is_between_the_weights_and_what_a_run_takes(tmp_path, machine, kind):
    (tmp_path / "text").write_text("eta in " * 2000)
    corpus = load_corpus(str(tmp_path / "text"), level="char", split=(1.0, 0.0, 0.0))
    config = config_with(f"model.cell={{kind: {kind}, hidden: 64}}", "train.batch_size=16")
    trainer = Trainer(config, corpus, machine)
    trainer.update()
    averages = [t for state in trainer.optimizer.state.values() for t in state.values() if t.dim()]
    weights = sum(tensor.nbytes for tensor in (*trainer.parameters, *trainer.parameters, *averages))
    logits = 4 * 16 * 64 * len(corpus.vocabulary)  # their gradient, which autograd makes on the way
    taken = weights + logits + _saved_bytes(trainer)
    assert weights < least_bytes(config, len(corpus.vocabulary), machine) <= taken


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_the_estimate_draws_no_random_numbers(machine, optimizer):
    before = torch.get_rng_state()
    check_memory(config_with(f"optimizer={{name: {optimizer}, lr: 0.01}}"), 65, machine)
    assert torch.equal(torch.get_rng_state(), before)


UNLIMITED = 2**63 - 4096
"""What groups of version 1 have without a limit."""


def _v1(group, limit, used, inactive=0):
    """The files of a control group of version 1."""
    files = {
        "limit_in_bytes": f"{limit}\n",
        "usage_in_bytes": f"{used}\n",
        "stat": f"cache 5\ninactive_file 1\ntotal_inactive_file {inactive}\n",
    }
    return {f"memory/{group}/memory.{name}": value for name, value in files.items()}


@pytest.mark.parametrize(
    ("files", "bytes_"),
    [
        ({}, 8 * GB),
        ({"job/memory.max": "max\n"}, 8 * GB),
        ({"memory.max": 3 * GB, "memory.current": 2 * GB, "memory.stat": "anon 5\ninactive_file 7\n"}, GB + 7),
        ({"memory.max": GB, "memory.current": 2 * GB, "memory.stat": "inactive_file 0\n"}, 0),
        ({"memory.max": "none"}, 8 * GB),
        ({"job/memory.max": "max", "memory.max": 2 * GB, "memory.current": GB, "memory.stat": "inactive_file 0"}, GB),
    ],
)
def test_a_container_has_what_its_group_leaves_it(tmp_path, files, bytes_):
    within = {
        "proc/meminfo": f"MemTotal: 9 kB\nMemAvailable:  {8 * GB // 1024} kB\n",
        "proc/self/cgroup": "9:name=systemd:/job/a\n4:cpuacct,memory:/job/a\n0::/job\n",
    }
    for name, value in (within | {f"sys/fs/cgroup/{name}": value for name, value in files.items()}).items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(str(value))
    assert free_bytes(tmp_path) == bytes_


def _saved_bytes(trainer: Trainer) -> int:
    """Bytes that autograd saves in the forward pass of one window, without weights."""
    storages: dict[int, int] = {}
    weights = {p.untyped_storage().data_ptr() for p in trainer.parameters}

    def count(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    train = trainer.config.train
    x_TB, y_TB = trainer.streams.read(0, train.bptt, trainer.device)
    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        trainer.model.window_loss(x_TB, y_TB, None)
    return sum(storages.values())
