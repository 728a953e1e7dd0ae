"""What a run needs at least is known before any of it is taken."""

import pytest
import torch

from charlm.cells import CELLS
from charlm.config import parse_config
from charlm.model import build_model, count_parameters
from charlm.system.host import free_bytes
from charlm.training.machine import choose_machine, least_bytes


@pytest.mark.parametrize("kind", CELLS)
def test_parameters_are_counted_as_they_will_be(kind):
    for more in ({"embedding": 0}, {"layers": 3, "embedding": 4, "tie_embeddings": True, "members": 2}):
        model = parse_config({"model": {"cell": {"kind": kind, "hidden": 6}, **more}}, "test").model
        assert count_parameters(model, 11) == sum(p.numel() for p in build_model(model, 11).parameters())


@pytest.mark.parametrize("kind", ["lstm", "rhn", "mingru"])
def test_the_bound_is_between_the_weights_and_what_a_run_takes(trainer_of, kind):
    trainer = trainer_of(model={"cell": {"kind": kind, "hidden": 64}}, optimizer={"name": "adamw"})
    trainer.update()
    averages = [t for state in trainer.optimizer.state.values() for t in state.values() if t.dim()]
    weights = {parameter.untyped_storage().data_ptr() for parameter in trainer.parameters}
    of_weights = sum(tensor.nbytes for tensor in (*trainer.parameters, *trainer.parameters, *averages))
    saved = {}

    def count(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        trainer.model.window_loss(*trainer.streams.read(0, 10), None)
    logits = 4 * 4 * 10 * len(trainer.vocabulary)  # their gradient, which autograd makes on the way
    least = least_bytes(trainer.config, len(trainer.vocabulary), choose_machine(trainer.config))
    assert of_weights < least <= of_weights + logits + sum(saved.values())


def test_a_container_has_what_its_group_leaves_it(write, tmp_path):
    write("proc/meminfo", "MemTotal: 9 kB\nMemAvailable:  8000 kB\n")
    write("proc/self/cgroup", "0::/job\n")
    write("sys/fs/cgroup/job/memory.max", "max")
    assert free_bytes(tmp_path) == 8000 * 1024
    for name, value in (("max", "3000"), ("current", "2000"), ("stat", "anon 5\ninactive_file 7\n")):
        write(f"sys/fs/cgroup/memory.{name}", value)
    assert free_bytes(tmp_path) == 1007
