"""What a run checks, writes and decides before its first step."""

import json

import pytest
import torch

from charlm.cells import CELLS
from charlm.checkpoint import read_checkpoint
from charlm.choice.families import Request
from charlm.choice.suggest import suggest
from charlm.config import load_config, parse_config
from charlm.errors import ConfigError, DataError, RunError
from charlm.model import build_model, count_parameters
from charlm.native import precision
from charlm.system.host import free_bytes, process_peak_bytes, raise_limit_or
from charlm.system.lock import is_locked, locked
from charlm.training.machine import choose_machine, least_bytes
from charlm.training.start import resume_run, start_run
from tests.export.odd import Deep
from tests.runs import contents, interrupted_after, rows, with_max_steps
from tests.text import words_text


def test_a_split_smaller_than_a_window_is_refused_at_once(tmp_path, config_of):
    for shares in ([0.01, 0.99, 0], [0.998, 0.002, 0]):
        with pytest.raises(DataError):
            start_run(config_of(data={"split": shares}), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    # Training never reads the test split.
    assert start_run(config_of(data={"split": [0.898, 0.1, 0.002]}), tmp_path / "run").step == 12


def test_a_second_process_is_refused_and_told_of_the_first(run):
    before = contents(run)
    with locked(run):
        assert is_locked(run)
        with pytest.raises(RunError, match="in use by another process"):
            resume_run(run, with_max_steps(20))
    assert contents(run) == before
    assert not is_locked(run)
    assert resume_run(run, with_max_steps(14)).step == 14


def test_a_run_goes_on_where_open_files_cannot_be_replaced(windows, config_of, tmp_path, capsys):
    with interrupted_after(7):
        start_run(config_of(), tmp_path / "run")
    last = read_checkpoint(tmp_path / "run/checkpoints/last.safetensors")
    assert resume_run(tmp_path / "run", with_max_steps(20)).step == 20
    assert last.progress["step"] == 7
    assert "cannot be" not in capsys.readouterr().err


@pytest.mark.usefixtures("needs_kernels")
@pytest.mark.parametrize("instructions", ["", "AMX"])
def test_auto_takes_the_faster_precision_and_a_run_stays_in_its_own(
    config_of, tmp_path, cli, instructions, monkeypatch, capsys
):
    """instructions: those of the CPU for bfloat16."""
    monkeypatch.setattr(precision, "bf16_instructions", lambda: instructions)
    fast, slow = bool(instructions), "slow     precision bf16"
    start_run(config_of(precision="auto"), tmp_path / "auto")
    taken = load_config(tmp_path / "auto/config.yaml").precision
    assert taken == ("bf16" if fast else "fp32")
    assert f"auto     precision {taken}: " in capsys.readouterr().err

    run = tmp_path / "run"
    start_run(config_of(precision="bf16"), run)
    assert (slow in capsys.readouterr().err) == (not fast)
    resume_run(run, lambda _: config_of(precision="auto", train={"max_steps": 14}))
    assert "change   precision" not in capsys.readouterr().err
    assert load_config(run / "config.yaml").precision == "bf16"

    scored = cli("eval", run, "--json")
    assert (slow in scored.err) == (not fast)
    found = json.loads(scored.out)
    best = min(row["nats"] for row in rows(run) if row["split"] == "valid")
    assert (found["precision"], found["nats_per_char"]) == ("bf16", pytest.approx(best, abs=1e-12))


# Runs that start from the weights of another

LAST = "checkpoints/last.safetensors"
STILL = {"train": {"max_steps": 1}, "optimizer": {"name": "sgd", "lr": 1e-30}}
"""Without an update worth the name."""


@pytest.fixture(scope="module")
def first(finished_run):
    return read_checkpoint(finished_run / LAST)


def test_weights_stay_and_every_member_gets_the_new_characters(tmp_path, config_of):
    """What is no part of the weights may change: dropout and the like, and the records of the text."""
    model = {"embedding": 5, "tie_embeddings": True, "members": 2}
    start_run(config_of(model=model), tmp_path / "first")
    first = read_checkpoint(tmp_path / "first" / LAST)
    other = tmp_path / "other.txt"
    other.write_text(words_text(4000, seed=3).replace("a", "ä").replace("e", "日"))
    data = {"source": str(other), "grow_vocabulary": True, "records": "\n"}
    model |= {"dropout": 0.1, "zoneout": 0.2, "orthogonal": True, "init_uniform": 0.1}
    start_run(config_of(data=data, model=model, **STILL), tmp_path / "second", first)
    second = read_checkpoint(tmp_path / "second" / LAST)
    assert second.vocabulary.characters == first.vocabulary.characters + "ä日"
    for name, old in first.weights.items():
        assert torch.equal(second.weights[name][: len(old)], old), name
    for member in ("members.0", "members.1"):
        old, new = (each.weights[f"{member}.decoder.bias"] for each in (first, second))
        assert torch.equal(new[-2:], old.min().expand(2))
        assert second.weights[f"{member}.embedding.weight"][-2:].abs().min() > 0


@pytest.mark.parametrize("more", [0, 2])
def test_new_characters_must_leave_the_step_of_the_first_layer_as_it_is(tmp_path, config_of, more):
    """A layer of SRU with as many inputs as units has another step; inputs are the characters, before or after."""
    model = {"cell": {"kind": "sru", "hidden": len({*words_text(4000)}) + more}, "embedding": 0}
    start_run(config_of(model=model, **STILL), tmp_path / "first")
    other = tmp_path / "other.txt"
    other.write_text(words_text(4000, seed=3).replace("a", "ä").replace("e", "日"))
    config = config_of(data={"source": str(other), "grow_vocabulary": True}, model=model, **STILL)
    with pytest.raises(ConfigError, match=r"^data.grow_vocabulary: found \d+ characters that grow to \d+, and "):
        start_run(config, tmp_path / "second", read_checkpoint(tmp_path / "first" / LAST))
    assert not (tmp_path / "second").exists()
    request = Request(str(other), 1, {"data.grow_vocabulary": True}, read_checkpoint(tmp_path / "first" / LAST))
    with pytest.raises(ConfigError, match=r"^data.grow_vocabulary: found \d+ characters that grow to \d+, and "):
        suggest(request)


def test_the_start_is_scored_and_kept_if_no_update_improves_on_it(tmp_path, config_of, first):
    harmful = config_of(optimizer={"name": "sgd", "lr": 100.0})
    outcome = start_run(harmful, tmp_path / "second", first)
    assert outcome.best_step == 0
    assert outcome.best_nats == pytest.approx(first.progress["valid_nats"], rel=1e-6)
    assert outcome.valid_nats > outcome.best_nats
    best = read_checkpoint(tmp_path / "second/checkpoints/best.safetensors")
    assert all(torch.equal(best.weights[name], weight) for name, weight in first.weights.items())
    assert best.trained_symbols == first.trained_symbols == 12 * 4 * 10


# What a run needs at least


@pytest.mark.parametrize("kind", CELLS)
def test_parameters_are_counted_as_they_will_be(kind):
    for more in ({"embedding": 0}, {"layers": 3, "embedding": 4, "tie_embeddings": True, "members": 2}):
        model = parse_config({"model": {"cell": {"kind": kind, "hidden": 6}, **more}}, "test").model
        assert count_parameters(model, 11) == sum(p.numel() for p in build_model(model, 11).parameters())


@pytest.mark.parametrize(
    ("kind", "loss", "scored_steps"), [("lstm", "sum", 10), ("rhn", "last", 1), ("mingru", "sum", 10)]
)
def test_the_bound_is_between_the_weights_and_what_a_run_takes(trainer_of, kind, loss, scored_steps):
    model = {"cell": {"kind": kind, "hidden": 64}}
    trainer = trainer_of(model=model, optimizer={"name": "adamw"}, train={"loss": loss})
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
        trainer.model.window_loss(*trainer.streams.read(0, 10), None, scored_steps=scored_steps)
    logits = 4 * 4 * scored_steps * len(trainer.corpus.vocabulary)  # their gradient, which autograd makes on the way
    least = least_bytes(trainer.config, len(trainer.corpus.vocabulary), choose_machine(trainer.config))
    assert of_weights < least <= of_weights + logits + sum(saved.values())


def test_a_step_too_long_for_a_kernel_has_none(config_of):
    assert choose_machine(config_of(), cells=[Deep(hidden=3)]).has_kernels is False


def test_a_container_has_what_its_group_leaves_it(write, tmp_path, monkeypatch):
    monkeypatch.setattr("charlm.system.host._ROOT", tmp_path)
    write("proc/meminfo", "MemTotal: 9 kB\nMemAvailable:  8000 kB\n")
    write("proc/self/cgroup", "0::/job\n")
    write("sys/fs/cgroup/job/memory.max", "max")
    assert free_bytes() == 8000 * 1024
    for name, value in (("max", "3000"), ("current", "2000"), ("stat", "anon 5\ninactive_file 7\n")):
        write(f"sys/fs/cgroup/memory.{name}", value)
    assert free_bytes() == 1007


def test_a_process_has_what_its_limit_of_address_space_leaves_it(write, tmp_path, monkeypatch):
    monkeypatch.setattr("charlm.system.host._ROOT", tmp_path)
    write("proc/meminfo", "MemAvailable:  8000 kB\n")
    write("proc/self/status", "Name:\tpython\nVmSize:\t    3000 kB\nVmHWM:\t    2000 kB\n")
    write("proc/self/limits", "Limit  Soft Limit  Hard Limit  Units\nMax address space  unlimited  unlimited  bytes\n")
    assert free_bytes() == 8000 * 1024
    for limit, free in ((7_168_000, 4_096_000), (1000, 0)):
        write("proc/self/limits", f"Max resident set  9  9  bytes\nMax address space  {limit}  unlimited  bytes\n")
        assert free_bytes() == free
        assert raise_limit_or("free some").endswith(" of address space (`ulimit -v`), or free some")
    write("proc/self/limits", "Max address space  7168000  unlimited  bytes\n")
    for free in (3, 0):
        write("proc/meminfo", f"MemAvailable:  {free} kB\n")
        assert raise_limit_or("free some") == "free some"
    assert process_peak_bytes() == 2000 * 1024
