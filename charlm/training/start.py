"""How a run starts: new, from another run's weights, or resumed. Every check comes before anything is written."""

import contextlib
import functools
from collections.abc import Callable
from pathlib import Path

import torch

from charlm.checkpoint import Checkpoint, newest_whole, read_checkpoint
from charlm.config import Config, differences, flatten, ignored_options
from charlm.config.yaml import dump_flow
from charlm.data.corpus import Corpus, CountedSources, load_unchanged_corpus
from charlm.data.sources import check_texts_apart, with_absolute_paths
from charlm.data.streams import check_length
from charlm.data.vocabulary import Vocabulary, describe_characters
from charlm.errors import CheckpointError, ConfigError, DamagedCheckpointError, RunError, VocabularyError
from charlm.model import Network
from charlm.native.build import preferring
from charlm.runs import FOLDER, LAST, check_resumable
from charlm.system.console import say
from charlm.system.formatting import counted, format_bytes
from charlm.system.process_group import ONE_PROCESS, ProcessGroup
from charlm.training.budget import Budget
from charlm.training.folder import (
    RunFolder,
    check_space,
    claim,
    claim_new,
    new_folder,
    refusing_os_errors,
)
from charlm.training.loop import OnRow, Outcome, TrainingLoop
from charlm.training.machine import Machine, choose_machine
from charlm.training.metrics import Tracker
from charlm.training.snapshot import restore_snapshot
from charlm.training.step import Trainer


def start_run(
    config: Config,
    run_dir: Path | None = None,
    init_from: Checkpoint | None = None,
    *,
    name: str = "run",
    group: ProcessGroup = ONE_PROCESS,
    opened: tuple[Machine, CountedSources] | None = None,
    budget: Budget | None = None,
    on_row: OnRow | None = None,
) -> Outcome:
    """Train a new model, or one that starts from the weights and vocabulary of `init_from`.

    Without `run_dir` the run gets a new folder, runs/<name>-<time>. opened: the machine and the text for which the
    settings were chosen, if they were. budget: the run's minutes, if they have begun; None: they begin when everything
    is loaded.

    Raises ConfigError, DataError, DeviceError, RunError, VocabularyError, or CharlmError, before it writes to the run's
    folder.
    """

    def load() -> Corpus:
        if init_from:
            check_same_model(config, init_from)
        text = opened[1] if opened else CountedSources(config.data)
        vocabulary = fine_tuned_vocabulary(config, init_from, text) if init_from else None
        return text.corpus(vocabulary, split=config.data.split)

    with contextlib.ExitStack() as locks:
        place = run_dir or Path("runs")
        is_new = group.on_first(_check_folder, run_dir, config, locks)
        trainer, corpus = prepare(config, group, load, opened[0] if opened else None, budget)
        trainer.broadcast_weights()
        if init_from:
            trainer.start_from_weights(_grown_weights(trainer.model, init_from))
            trainer.state.earlier_chars = init_from.trained_chars
        # Twice: a new checkpoint is written before the old one is removed.
        group.on_first(check_space, place, 2 * trainer.checkpoint_bytes())
        if is_new:
            run_dir = group.on_first(_make_folder, run_dir, name, locks)
        assert run_dir is not None
        return _fit(trainer, corpus, run_dir, on_row)


def resume_run(
    run_dir: Path,
    change: Callable[[Config], Config] = lambda config: config,
    group: ProcessGroup = ONE_PROCESS,
    on_row: OnRow | None = None,
) -> Outcome:
    """Continue a run from its last checkpoint, on the CPU bit for bit as if it had never stopped.

    `change` maps the saved config to the one to continue with. ConfigError if it changes an option that determines
    the weights, the text or the streams.
    """
    with contextlib.ExitStack() as locks:
        path, checkpoint = group.on_first(_claim_run, run_dir, locks)
        config = group.on_first(_changed_config, checkpoint.config, change, run_dir)
        load = functools.partial(
            load_unchanged_corpus, config.data, checkpoint.vocabulary, checkpoint.progress, run_dir
        )
        kernels = checkpoint.progress.get("kernels", "")
        locks.enter_context(preferring(kernels))
        trainer, corpus = prepare(config, group, load)
        group.on_each(restore_snapshot, trainer, checkpoint)
        state = trainer.state
        threads, differ = checkpoint.progress.get("threads"), "results differ in the last bits"
        if threads != state.threads:
            say("threads", f"found {state.threads}, the run had {threads}: {differ}; see threads")
        found, had = state.kernels or "none", kernels or "none"
        if found == had:
            found, had = state.backend, checkpoint.progress.get("backend")
        if found != had and trainer.device.type == "cpu":
            say("kernels", f"found {found}, the run had {had}: {differ}; see CHARLM_KERNELS")
        del checkpoint  # as large as the model and its optimizer state
        group.on_first(check_space, run_dir, trainer.checkpoint_bytes())
        if path.name != LAST:  # damaged: the loop writes a new one as it starts
            last = run_dir / FOLDER / LAST
            group.on_first(refusing_os_errors(run_dir)(last.unlink), missing_ok=True)
        say("resume", f"{path}, update {state.step}")
        return _fit(trainer, corpus, run_dir, on_row, resumed=True)


def prepare(
    config: Config,
    group: ProcessGroup,
    load: Callable[[], Corpus],
    machine: Machine | None = None,
    budget: Budget | None = None,
) -> tuple[Trainer, Corpus]:
    """Choose the machine, load the text, and make the trainer; print what was read, and options without effect.

    DataError if a split is too short for one window; CharlmError unless all processes have read the same.
    """
    B, W = config.train.batch_size, group.size
    if B % W:
        fault = ConfigError(f"train.batch_size: found {B} for {W} processes; allowed: multiples of {W}")
        raise group.shared_error(fault)
    machine = machine or choose_machine(config, group)
    corpus = group.local_first(load)
    group.check_equal("text", lambda: (corpus.sha256, corpus.vocabulary.to_json()))
    group.on_each(_check_splits, config, corpus)
    _say_text(config, corpus)
    for line in ignored_options(config):
        say("ignored", line)
    if machine.precision_reason:
        label = "auto" if config.precision == "auto" else "slow"
        say(label, f"precision {machine.precision}: {machine.precision_reason}")
    return group.on_each(Trainer, with_absolute_paths(config), corpus, machine, budget), corpus


def _check_splits(config: Config, corpus: Corpus) -> None:
    for name, ids in corpus.splits.items():
        streams = config.train.batch_size if name == "train" else 1
        check_length(len(ids), streams, config.train.bptt, f"{name} split")


def _say_text(config: Config, corpus: Corpus) -> None:
    size = f"{format_bytes(corpus.size_bytes)} in {counted(corpus.files, 'file')}"
    splits = ", ".join(f"{name} {len(ids):,}" for name, ids in corpus.splits.items())
    lines = ""
    if corpus.starts:
        lines = f" in {counted(sum(len(starts) - 1 for starts in corpus.starts.values()), 'line')}"
    cut = f", {corpus.cut}" if corpus.cut else ""
    vocabulary = f"vocabulary {len(corpus.vocabulary):,}"
    say("data", f"{config.data.source}: {size}; {splits} {config.data.level}s{lines}{cut}; {vocabulary}")


def _fit(trainer: Trainer, corpus: Corpus, run_dir: Path, on_row: OnRow | None, resumed: bool = False) -> Outcome:
    group, state = trainer.group, trainer.state
    log = refusing_os_errors(run_dir)(Tracker)
    tracker = group.on_each(log, run_dir, state if resumed else None, writes=group.is_first)
    group.remember("run", str(run_dir.resolve()))
    loop = TrainingLoop(trainer, corpus, RunFolder(run_dir), tracker, on_row)
    if not resumed:
        state.due = loop.actions_due()
    return loop.fit()


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


# The folder


def _check_folder(run_dir: Path | None, config: Config, locks: contextlib.ExitStack) -> bool:
    """Claim the run's folder if it is there; whether it is new."""
    place = run_dir or Path("runs")
    with refusing_os_errors(place):
        is_new = run_dir is None or not run_dir.is_dir()
    if run_dir is not None and not is_new:
        check_texts_apart(config.data, run_dir)
        claim_new(run_dir, locks)
    return is_new


def _make_folder(run_dir: Path | None, name: str, locks: contextlib.ExitStack) -> Path:
    """Make the run's folder, and claim it."""
    with refusing_os_errors(run_dir or Path("runs")):
        if run_dir is None:
            run_dir = new_folder(name)
        else:
            run_dir.mkdir(parents=True, exist_ok=True)
    claim_new(run_dir, locks)
    return run_dir


# Resume


def _claim_run(run_dir: Path, locks: contextlib.ExitStack) -> tuple[Path, Checkpoint]:
    """Claim the folder of a run, and read its last checkpoint; if it is damaged or missing, the newest whole one."""
    last = run_dir / FOLDER / LAST
    with refusing_os_errors(run_dir):
        check_resumable(run_dir)
        claim(run_dir, locks)
        try:
            return last, read_checkpoint(last)
        except DamagedCheckpointError as error:
            if not (newest := newest_whole(run_dir)):
                raise CheckpointError(f"{error}; no other checkpoint in {run_dir / FOLDER} is whole") from None
            say("damaged", str(error))
            return newest


_FIXED = ("data.", "model.", "seed", "train.batch_size", "train.bptt", "train.read_share", "optimizer.name")
_FREE = ("data.grow_vocabulary", "data.source", "data.valid_source", "data.test_source")


def _changed_config(saved: Config, change: Callable[[Config], Config], run_dir: Path) -> Config:
    """The config to continue with; ConfigError if it changes an option that would make it another run."""
    config = with_absolute_paths(change(saved))
    if config.precision == "auto":
        config = config.model_copy(update={"precision": saved.precision})
    changed = differences(saved, config)
    faults = [
        f"{key}: found {after!r}, the run has {before!r}; allowed on --resume: the same; start a new run"
        for key, (before, after) in changed.items()
        if key.startswith(_FIXED) and key not in _FREE
    ]
    if faults:
        raise ConfigError(*faults)
    for key, (before, after) in changed.items():
        say("change", f"{key}: {before!r} → {after!r}")
    return config


# From another run's weights

_FREE_TO_DIFFER = ("model.dropout.", "model.zoneout", "model.init_uniform", "model.orthogonal")


def settings_of_run(config: Config) -> list[str]:
    """What a run takes over from one whose weights it starts from, as KEY=VALUE: how the text is read, and the model.

    Dropout is left to the new text.
    """
    taken = ("data.level", "data.unit", "model.")
    return [
        f"{key}={dump_flow(value)}"
        for key, value in flatten(config).items()
        if key.startswith(taken) and not key.startswith("model.dropout.")
    ]


def check_same_model(config: Config, init_from: Checkpoint) -> None:
    """ConfigError unless the config's model can take the checkpoint's weights."""
    changed = differences(init_from.config, config)
    free = (*_FREE_TO_DIFFER, *(f"model.cell.{name}" for name in config.model.cell.initial))
    faults = [
        f"{key}: found {found!r}; the checkpoint of --init-from has {wanted!r}; allowed: the same"
        for key, (wanted, found) in changed.items()
        if key.startswith(("model.", "data.level")) and not key.startswith(free)
    ]
    if faults:
        raise ConfigError(*faults)


def fine_tuned_vocabulary(config: Config, init_from: Checkpoint, text: CountedSources) -> Vocabulary:
    """The checkpoint's vocabulary, extended by the new text's characters if the config asks for it."""
    vocabulary = init_from.vocabulary
    if not (unknown := text.unknown(vocabulary)):
        return vocabulary
    listed = describe_characters(unknown, limit=20)
    if not config.data.grow_vocabulary:
        raise VocabularyError(
            f"data.source: the checkpoint of --init-from has never seen {listed}; allowed: its "
            f"{counted(len(vocabulary), 'character')}; --set data.grow_vocabulary=true adds the new ones"
        )
    say("grow", f"{counted(len(unknown), 'new character')}: {listed}")
    return vocabulary.extended(unknown)


def _grown_weights(model: Network, checkpoint: Checkpoint) -> dict[str, torch.Tensor]:
    """The checkpoint's weights in the model's shapes.

    New characters keep their random rows and columns; each gets the lowest output bias of the old characters.
    """
    weights = dict(checkpoint.averaged or checkpoint.weights)
    for name, parameter in model.named_parameters():
        old = weights.get(name)
        if old is None or old.shape == parameter.shape or old.dim() != parameter.dim():
            continue
        grown = parameter.detach().cpu().clone()
        if name.endswith("decoder.bias"):
            grown.fill_(old.min())
        grown[tuple(slice(size) for size in old.shape)] = old
        weights[name] = grown
    return weights
