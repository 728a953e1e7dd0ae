"""How a run starts: new, from another run's weights, or resumed. Every check comes before anything is written."""

import contextlib
import functools
import math
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from charlm.checkpoint import Checkpoint, discard_leftovers, newest_whole, read_checkpoint
from charlm.config import Config, differences, flatten
from charlm.config.yaml import dump_flow
from charlm.data.corpus import load_configured_corpus, load_unchanged_corpus, unknown_characters
from charlm.data.places import with_absolute_paths, with_found_paths
from charlm.data.progress import to_be_done_by
from charlm.data.vocabulary import Vocabulary, describe_characters
from charlm.errors import CheckpointError, ConfigError, DamagedCheckpointError, RunError, VocabularyError
from charlm.model import CharLM
from charlm.native.build import compiling_s
from charlm.runs import FOLDER, LAST, check_resumable
from charlm.system.console import say
from charlm.system.formatting import counted
from charlm.system.process_group import ONE_PROCESS, ProcessGroup
from charlm.training.folder import (
    RunFolder,
    check_space,
    check_writable,
    claimed,
    new_folder,
    refuse_existing_run,
    refusing_os_errors,
)
from charlm.training.loop import Callbacks, Outcome, TrainingLoop
from charlm.training.metrics import Tracker
from charlm.training.precision import with_precision
from charlm.training.processes import choose_device, load_common_corpus, with_common_precision
from charlm.training.snapshot import restore_snapshot
from charlm.training.step import Trainer

LONGEST_START = 0.5
"""Share of a run's minutes at most that starting may take, so that the run learns something."""


def start_run(
    config: Config,
    run_dir: Path | None = None,
    init_from: Checkpoint | None = None,
    *,
    name: str = "run",
    group: ProcessGroup = ONE_PROCESS,
    began_s: float | None = None,
    callbacks: Callbacks | None = None,
) -> Outcome:
    """Train a new model, or one that starts from the weights and vocabulary of `init_from`.

    Without `run_dir` the run gets a new folder, runs/<name>-<time>. `began_s` is when the run's clock started, as
    time.perf_counter() tells it; None: when everything is loaded. Compiling does not count.

    Raises ConfigError, DataError, DeviceError, ProcessError, RunError or VocabularyError before it writes to the run's
    folder.

    Processes that torchrun starts again after a fault resume their run.
    """
    if again := group.on_first(run_of_this_launch, group):
        return resume_run(again, group=group, callbacks=callbacks)
    with contextlib.ExitStack() as held:
        place = run_dir or Path("runs")
        exists = group.on_first(_claim_existing, run_dir, held)
        group.on_first(check_writable, place)
        device = choose_device(config, group)
        with to_be_done_by(None if began_s is None else _ends_s(began_s, config.train.max_minutes)):
            vocabulary = group.on_first(fine_tuned_vocabulary, config, init_from) if init_from else None
            corpus = load_common_corpus(config, group, lambda: load_configured_corpus(config.data, vocabulary))
        config = with_common_precision(with_absolute_paths(config), device, group)
        trainer = group.on_each(Trainer, config, corpus, device, group)
        trainer.broadcast_weights()
        if init_from:
            trainer.start_from_weights(_grown_weights(trainer.model, init_from))
        # Twice: a new checkpoint is written before the old one is removed.
        group.on_first(check_space, place, 2 * trainer.checkpoint_bytes())
        if run_dir is None or not exists:
            run_dir = group.on_first(_claim_new, run_dir, name, held)
        group.remember("run", str(run_dir.resolve()))
        tracker = group.on_each(_tracker, run_dir, group, is_new=not exists)
        if began_s is not None:
            began_s = _clock_start(began_s, config.train.max_minutes)
        return TrainingLoop(trainer, corpus, _folder(run_dir, device), tracker, began_s, callbacks).fit()


def _ends_s(began_s: float, minutes: float | None) -> float:
    """When the minutes of a run are over; compiling does not count."""
    return began_s + compiling_s(began_s) + 60 * (minutes or math.inf)


def _clock_start(began_s: float, minutes: float | None) -> float:
    """When the run's clock started, without compiling; later if starting took most of its minutes."""
    began_s += compiling_s(began_s)
    latest_s = time.perf_counter() - 60 * (minutes or math.inf) * LONGEST_START
    if began_s < latest_s:
        say(
            "start",
            f"starting took most of {60 * (minutes or 0):.1f} s; training gets {1 - LONGEST_START:.0%} of them anyway",
        )
    return max(began_s, latest_s)


def run_of_this_launch(group: ProcessGroup) -> Path | None:
    """The run that this launch of torchrun has started before, if it has a checkpoint."""
    if not (noted := group.recall("run")):
        return None
    run_dir = Path(noted)
    if not run_dir.is_dir():
        raise RunError(
            f"{run_dir}: the run that is to go on is not on this machine, which is now the first; allowed: a folder on "
            "a disk that all machines share"
        )
    return run_dir if any((run_dir / FOLDER).glob("*.safetensors")) else None


def _claim_existing(run_dir: Path | None, held: contextlib.ExitStack) -> bool:
    """Claim the run's folder if it exists."""
    with refusing_os_errors(run_dir or Path("runs")):
        exists = run_dir is not None and run_dir.is_dir()
    if run_dir is not None and exists:
        _claim(run_dir, held)
    return exists


def _claim_new(run_dir: Path | None, name: str, held: contextlib.ExitStack) -> Path:
    """Make the run's folder, and claim it."""
    with refusing_os_errors(run_dir or Path("runs")):
        if run_dir is None:
            run_dir = new_folder(name)
        else:
            run_dir.mkdir(parents=True, exist_ok=True)
    _claim(run_dir, held)
    return run_dir


def _claim(folder: Path, held: contextlib.ExitStack) -> None:
    held.enter_context(claimed(folder))
    with refusing_os_errors(folder):
        refuse_existing_run(folder)
        discard_leftovers(folder)


def _tracker(
    run_dir: Path, group: ProcessGroup, resume: tuple[int, int] | None = None, *, is_new: bool = False
) -> Tracker:
    """The tracker of this process. If it fails, a folder that is new is removed again."""
    try:
        with refusing_os_errors(run_dir):
            return Tracker(run_dir, resume, writes=group.is_first)
    except Exception:
        if is_new:
            shutil.rmtree(run_dir, ignore_errors=True)
        raise


def _folder(run_dir: Path, device: torch.device) -> RunFolder:
    """A GPU trains on while a checkpoint is written. A CPU would only lose cores to it."""
    return RunFolder(run_dir, writes_behind=device.type == "cuda")


def resume_run(
    run_dir: Path,
    change: Callable[[Config], Config] = lambda config: config,
    group: ProcessGroup = ONE_PROCESS,
    callbacks: Callbacks | None = None,
) -> Outcome:
    """Continue a run from its last checkpoint, on the CPU bit for bit as if it had never stopped.

    `change` maps the saved config to the one to continue with. ConfigError if it changes an option that determines
    the weights, the text or the streams.
    """
    with contextlib.ExitStack() as held:
        path, checkpoint = group.on_first(_claim_run, run_dir, held)
        group.remember("run", str(run_dir.resolve()))
        config = group.on_first(_changed_config, checkpoint.config, change, run_dir)
        device = choose_device(config, group)
        if config.precision != "auto":  # Checkpoints of older versions say auto; they mean fp32.
            group.local_first(with_precision, config, device)
        load = functools.partial(load_unchanged_corpus, config.data, checkpoint.vocabulary, checkpoint.progress)
        corpus = load_common_corpus(config, group, load)
        trainer = group.on_each(Trainer, config, corpus, device, group)
        group.on_each(restore_snapshot, trainer, checkpoint)
        state = trainer.state
        if (threads := checkpoint.progress.get("threads")) != state.threads:
            say(
                "threads", f"found {state.threads}, the run had {threads}: results differ in the last bits; see threads"
            )
        del checkpoint  # as large as the model and its optimizer state
        group.on_first(_clean, run_dir, path, trainer.checkpoint_bytes())
        tracker = group.on_each(_tracker, run_dir, group, resume=(state.rows, state.step))
        say("resume", f"{path}, step {state.step}")
        return TrainingLoop(trainer, corpus, _folder(run_dir, device), tracker, callbacks=callbacks).fit()


def _claim_run(run_dir: Path, held: contextlib.ExitStack) -> tuple[Path, Checkpoint]:
    """Claim the folder of a run, and read its last checkpoint."""
    with refusing_os_errors(run_dir):
        check_resumable(run_dir)
    held.enter_context(claimed(run_dir))
    with refusing_os_errors(run_dir):
        return _read_last(run_dir)


def _changed_config(saved: Config, change: Callable[[Config], Config], run_dir: Path) -> Config:
    saved = with_found_paths(saved, run_dir)
    config = with_absolute_paths(change(saved))
    if config.precision == "auto":
        config = config.model_copy(update={"precision": saved.precision})
    _check_resumable(saved, config)
    return config


def _clean(run_dir: Path, path: Path, needed_bytes: int) -> None:
    """Check that there is space, and remove what a killed session left."""
    check_space(run_dir, needed_bytes)
    with refusing_os_errors(run_dir):
        discard_leftovers(run_dir)
        if path.name != LAST:
            (run_dir / FOLDER / LAST).unlink(missing_ok=True)  # damaged: the loop writes a new one as it starts


# Resume


def _read_last(run_dir: Path) -> tuple[Path, Checkpoint]:
    """The last checkpoint of a run; if it is damaged or missing, the newest whole one, and a line says so."""
    last = run_dir / FOLDER / LAST
    try:
        return last, read_checkpoint(last)
    except DamagedCheckpointError as error:
        fault = error
    if not (found := newest_whole(run_dir)):
        raise CheckpointError(f"{fault}; no other checkpoint in {run_dir / FOLDER} is whole")
    say("damaged", str(fault))
    return found


_FIXED_SECTIONS = ("data.", "model.")
_FIXED = ("seed", "train.batch_size", "train.bptt", "train.read_share", "train.loss", "optimizer.name")
_FREE = ("data.grow_vocabulary", "data.source", "data.valid_source", "data.test_source")


def _check_resumable(old: Config, new: Config) -> None:
    """Print the options that change; ConfigError for those that would make it another run."""
    changed = _changed(old, new)
    faults = [
        f"{key}: found {after!r}, the run has {before!r}; allowed on --resume: the same; start a new run"
        for key, (before, after) in changed.items()
        if (key in _FIXED or key.startswith(_FIXED_SECTIONS)) and key not in _FREE
    ]
    if faults:
        raise ConfigError(*faults)
    for key, (before, after) in changed.items():
        say("change", f"{key}: {before!r} → {after!r}")


def _changed(old: Config, new: Config) -> dict[str, tuple[Any, Any]]:
    """Options that differ. If the kind of cell differs, only the kind is listed."""
    changed = differences(old, new)
    if kinds := changed.get("model.cell.kind"):
        changed = {key: both for key, both in changed.items() if not key.startswith("model.cell.")}
        changed["model.cell.kind"] = kinds
    return changed


# From another run's weights

_FREE_TO_DIFFER = ("model.dropout.", "model.zoneout", "model.init_uniform", "model.orthogonal")


def settings_of_run(config: Config) -> list[str]:
    """What a run takes over from one whose weights it starts from, as KEY=VALUE: how the text is read, and the model.

    Dropout is left to the new text.
    """
    taken = ("data.level", "data.unit", "data.label_separator", "data.direction", "model.")
    return [
        f"{key}={dump_flow(value)}"
        for key, value in flatten(config).items()
        if key.startswith(taken) and not key.startswith("model.dropout.")
    ]


def fine_tuned_vocabulary(config: Config, init_from: Checkpoint) -> Vocabulary:
    """The checkpoint's vocabulary, extended by the new text's characters if the config asks for it."""
    changed = _changed(init_from.config, config)
    free = (*_FREE_TO_DIFFER, *(f"model.cell.{name}" for name in config.model.cell.initial))
    faults = [
        f"{key}: found {found!r}; the checkpoint of --init-from has {wanted!r}; allowed: the same"
        for key, (wanted, found) in changed.items()
        if key.startswith(("model.", "data.level", "data.direction")) and not key.startswith(free)
    ]
    if faults:
        raise ConfigError(*faults)
    data, vocabulary = config.data, init_from.vocabulary
    sources = [source for source in (data.source, data.valid_source, data.test_source) if source]
    unknown = unknown_characters(sources, vocabulary, data.unit)
    if not unknown:
        return vocabulary
    listed = describe_characters(unknown, limit=20)
    if not data.grow_vocabulary:
        raise VocabularyError(
            f"data.source: the checkpoint of --init-from has never seen {listed}; allowed: its "
            f"{counted(len(vocabulary), 'character')}; --set data.grow_vocabulary=true adds the new ones"
            f"{vocabulary.advice(unknown)}"
        )
    say("grow", f"{counted(len(unknown), 'new character')}: {listed}")
    return vocabulary.extended(unknown)


def _grown_weights(model: CharLM, checkpoint: Checkpoint) -> dict[str, torch.Tensor]:
    """The checkpoint's weights in the model's shapes.

    New characters keep their random rows and columns; each gets the lowest output bias of the old characters.
    """
    weights = dict(checkpoint.averaged or checkpoint.weights)
    for name, parameter in model.named_parameters():
        old = weights.get(name)
        if old is None or old.shape == parameter.shape or old.dim() != parameter.dim():
            continue
        grown = parameter.detach().cpu().clone()
        if name == "decoder.bias":
            grown.fill_(old.min())
        grown[tuple(slice(size) for size in old.shape)] = old
        weights[name] = grown
    return weights
