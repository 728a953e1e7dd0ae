"""`charlm plan`: what a config will cost, measured on some updates."""

import math
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from charlm.config import Config
from charlm.config.schema import TrainConfig
from charlm.data.corpus import CountedSources
from charlm.model import parameters_by_part
from charlm.system.device import peak_bytes
from charlm.system.formatting import counted, format_bytes, format_duration
from charlm.system.process_group import ProcessGroup
from charlm.training.budget import Budget
from charlm.training.machine import Machine, choose_machine, least_bytes
from charlm.training.optimizer import describe_treatment
from charlm.training.start import prepare
from charlm.training.step import Trainer

_MEASURE_S = 3.0


def measure_cost(
    config: Config, group: ProcessGroup, opened: tuple[Machine, CountedSources] | None = None
) -> dict[str, Any]:
    """Sizes of data and model, memory, and the speed of some updates of a new trainer; refuses what `start_run` does.

    least_bytes: see there. peak_bytes: of this process, see `charlm.system.device.peak_bytes`. available_bytes: what
    was free before the trainer was made. steps: updates of the run; see `Budget.training_s` for a run with minutes.
    communication_s: the part of a step that processes spend on each other. opened: see `start_run`.
    """
    machine, text = opened or (choose_machine(config, group), CountedSources(config.data))
    trainer = prepare(config, group, lambda: text.corpus(split=config.data.split), machine)
    corpus, steps_per_epoch, train = trainer.corpus, trainer.streams.windows_per_epoch, config.train
    step_s = call_s(trainer.update, trainer, _MEASURE_S)
    communication_s = 0.0
    if group.is_distributed:
        communication_s = call_s(lambda: _communicate(trainer), trainer, _MEASURE_S)
    return {
        "splits": {name: len(ids) for name, ids in corpus.splits.items()},
        "unit": corpus.vocabulary.unit,
        "vocabulary": len(corpus.vocabulary),
        "parameters": parameters_by_part(trainer.config.model, len(corpus.vocabulary)),
        "least_bytes": least_bytes(trainer.config, len(corpus.vocabulary), machine),
        "peak_bytes": peak_bytes(trainer.device),
        "available_bytes": machine.free_bytes,
        "read_share": train.read_share,
        "steps_per_epoch": steps_per_epoch,
        "step_s": step_s,
        "chars_per_s": train.batch_size * train.bptt / step_s / corpus.symbols_per_char,
        "epoch_s": step_s * steps_per_epoch,
        "steps": _steps(train, steps_per_epoch, step_s),
        "backend": trainer.backend,
        "update": describe_treatment(trainer.optimizer, config.optimizer.name),
        "processes": group.size,
        "communication_s": communication_s,
    }


def cost_table(cost: Mapping[str, Any]) -> dict[str, str]:
    """What `measure_cost` has found, for people: label → text."""
    parts = ", ".join(f"{name} {count:,}" for name, count in cost["parameters"].items())
    memory = f"at least {format_bytes(cost['least_bytes'])} for the model and a window"
    if cost["peak_bytes"]:
        memory += f"; {format_bytes(cost['peak_bytes'])} at the peak of this process"
    if cost["available_bytes"]:
        memory += f"; available {format_bytes(cost['available_bytes'])}"
    speed = f"{cost['chars_per_s']:,.0f} characters/s, {1000 * cost['step_s']:.1f} ms an update"
    if cost["communication_s"]:
        share = cost["communication_s"] / cost["step_s"]
        speed += f"; {cost['processes']} processes, {share:.0%} communication"
    run_s, epochs = cost["steps"] * cost["step_s"], cost["steps"] / cost["steps_per_epoch"]
    epoch = counted(cost["steps_per_epoch"], "update")
    if cost["read_share"] < 1:
        epoch += f", which read {100 * cost['read_share']:.2g}% of the text"
    return {
        **{name: counted(count, cost["unit"]) for name, count in cost["splits"].items()},
        "vocabulary": f"{cost['vocabulary']:,}",
        "parameters": f"{sum(cost['parameters'].values()):,} ({parts})",
        "memory": memory,
        "layers": cost["backend"],
        "update": cost["update"],
        "speed": speed,
        "epoch": f"{epoch}, {format_duration(cost['epoch_s'])} without evaluation",
        "run": f"{counted(cost['steps'], 'update')}, {epochs:.2f} epochs, {format_duration(run_s)} without evaluation",
    }


def _steps(train: TrainConfig, steps_per_epoch: int, step_s: float) -> int:
    """Steps until the first of the run's limits."""
    epochs, training_s = train.max_epochs or math.inf, Budget(train.max_minutes).training_s()
    steps = min(train.max_steps or math.inf, epochs * steps_per_epoch, training_s / step_s)
    return max(1, math.ceil(steps))


def call_s(
    function: Callable[[], None], trainer: Trainer, enough_s: float, *, least: int = 3, warmup: int = 2
) -> float:
    """Seconds of a call: the median of `least` or more, until they take `enough_s` in all, after `warmup` calls."""
    times: list[float] = []
    spent_s = 0.0
    while len(times) < warmup + least or spent_s < enough_s:
        start_s = time.perf_counter()
        function()
        if trainer.device.type == "cuda":
            torch.cuda.synchronize(trainer.device)
        times.append(time.perf_counter() - start_s)
        spent_s, _ = trainer.group.agree(sum(times[warmup:]), [])
    return statistics.median(times[warmup:])


def _communicate(trainer: Trainer) -> None:
    """What an update spends on other processes: their gradients and the clock."""
    trainer.drop_gradients()
    zero = torch.zeros((), device=trainer.device)
    trainer.group.all_reduce_gradients(trainer.parameters, zero, zero)
    trainer.group.agree(0.0, [])
