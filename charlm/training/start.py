"""How a run starts: new, from another run's weights, or resumed. Every check comes before anything is written."""

import contextlib
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from charlm.cells.cell import same_file
from charlm.cells.stored import is_edited
from charlm.checkpoint import Checkpoint
from charlm.config import Config, differences, ignored_options
from charlm.data.corpus import Corpus, CountedSources, load_unchanged_corpus
from charlm.data.sources import with_absolute_paths
from charlm.data.streams import check_length
from charlm.errors import ConfigError, RunError
from charlm.inference.seen import NOTED, SEARCHED, earlier_texts, listed_texts, seen_places
from charlm.native.loading import preferring
from charlm.runs import FOLDER, LAST, has_checkpoint
from charlm.system.console import say
from charlm.system.formatting import counted, format_bytes, format_share
from charlm.system.process_group import ONE_PROCESS, ProcessGroup
from charlm.training.budget import Budget
from charlm.training.fine_tuning import check_same_model, fine_tuned_vocabulary, grown_weights, say_if_other_step
from charlm.training.folder import claim_if_there, claim_run, keep_config, make_folder, refusing_os_errors
from charlm.training.loop import OnRow, TrainingLoop
from charlm.training.machine import Machine, choose_machine
from charlm.training.metrics import Tracker
from charlm.training.run import Run
from charlm.training.snapshot import restore_snapshot
from charlm.training.step import Trainer


def start_run(
    config: Config,
    run_dir: Path | None,
    init_from: Checkpoint | None = None,
    *,
    name: str = "run",
    group: ProcessGroup = ONE_PROCESS,
    opened: tuple[Machine, CountedSources] | None = None,
    budget: Budget | None = None,
    on_row: OnRow | None = None,
) -> Run:
    """Train a new model, or one that starts from the weights and vocabulary of `init_from`.

    run_dir: None: runs/<name>-<time>. opened: the machine and the text for which settings were chosen. budget: the
    run's minutes, if they have begun. Any CharlmError comes before the run's folder is written.
    """
    if init_from:
        group.on_each(check_same_model, config, init_from)

    def load() -> Corpus:
        text = opened[1] if opened else CountedSources(config.data)
        vocabulary = fine_tuned_vocabulary(config, init_from, text) if init_from else None
        return text.corpus(vocabulary, split=config.data.split)

    with contextlib.ExitStack() as locks:
        is_new = group.on_first(claim_if_there, run_dir, config.data, locks)
        trainer = prepare(config, group, load, opened[0] if opened else None, budget)
        trainer.broadcast_weights()
        if init_from:
            say_if_other_step(config, init_from)
            trainer.start_from_weights(grown_weights(trainer.model, init_from))
            trainer.state.earlier_symbols = init_from.trained_symbols
            trainer.state.earlier_texts = listed_texts(init_from.config, init_from.progress)
            if "valid" in trainer.corpus.splits:
                trainer.state.scored["seen"] = group.on_first(_share_seen, trainer)
        if is_new:
            run_dir = group.on_first(make_folder, run_dir, name, locks)
        assert run_dir is not None
        group.on_first(keep_config, run_dir)
        return _fit(trainer, run_dir, on_row)


def resume_run(
    run_dir: Path,
    change: Callable[[Config], Config] = lambda config: config,
    group: ProcessGroup = ONE_PROCESS,
    on_row: OnRow | None = None,
) -> Run:
    """Continue a run from its last checkpoint, on the CPU bit for bit as if it had never stopped.

    `change` maps the saved config to the new one. ConfigError if it changes an option that determines the weights, the
    text or the streams.
    """
    with contextlib.ExitStack() as locks:
        path, checkpoint = group.on_first(claim_run, run_dir, locks)
        config, before = group.on_first(_changed_config, checkpoint.config, change), checkpoint.progress
        if is_edited(config.model.cell):
            say("cell", f"{config.model.cell.kind}: the file has changed; the run continues with its own step")
        load = functools.partial(load_unchanged_corpus, config.data, checkpoint.vocabulary, before, run_dir)
        locks.enter_context(preferring(before.get("kernels", "")))
        trainer = prepare(config, group, load)
        group.on_each(restore_snapshot, trainer, checkpoint)
        _say_if_other_machine(trainer, before)
        del checkpoint  # as large as the model and its optimizer state
        if path.name != LAST:  # damaged: the loop writes a new one as it starts
            last = run_dir / FOLDER / LAST
            group.on_first(refusing_os_errors(run_dir)(last.unlink), missing_ok=True)
        say("resume", f"{path}, update {trainer.state.step}")
        return _fit(trainer, run_dir, on_row, resumed=True)


def prepare(
    config: Config,
    group: ProcessGroup,
    load: Callable[[], Corpus],
    machine: Machine | None = None,
    budget: Budget | None = None,
) -> Trainer:
    """Choose the machine, load the text, and make the trainer; print what was read, and options without effect."""
    B, W = config.train.batch_size, group.size
    if B % W:
        fault = ConfigError(f"train.batch_size: found {B} for {W} processes; allowed: multiples of {W}")
        raise group.shared_error(fault)
    machine = machine or choose_machine(config, group)
    corpus = group.local_first(load)
    group.check_equal("text", lambda: (corpus.sha256, corpus.vocabulary.to_json()))
    for name, streams in (("train", config.train.batch_size), ("valid", 1)):
        if name in corpus.splits:
            group.on_each(check_length, len(corpus.splits[name]), streams, config.train.bptt, f"{name} split")
    _say_text(config, corpus)
    for line in ignored_options(config):
        say("ignored", line)
    if machine.precision_reason:
        label = "auto" if config.precision == "auto" else "slow"
        say(label, f"precision {machine.precision}: {machine.precision_reason}")
    return group.on_each(Trainer, with_absolute_paths(config), corpus, machine, budget)


def _say_text(config: Config, corpus: Corpus) -> None:
    size = f"{format_bytes(corpus.size_bytes)} in {counted(corpus.files, 'file')}"
    splits = ", ".join(f"{name} {len(ids):,}" for name, ids in corpus.splits.items())
    records = ""
    if corpus.starts:
        records = f" in {counted(sum(len(starts) - 1 for starts in corpus.starts.values()), 'record')}"
    cut = f", {corpus.cut}" if corpus.cut else ""
    vocabulary = f"vocabulary {len(corpus.vocabulary):,}"
    unit = f"{corpus.vocabulary.unit}s"
    if corpus.vocabulary.level == "byte":
        unit += f" ({corpus.symbols_per_char:.2f} a character)"
    say("data", f"{config.data.source}: {size}; {splits} {unit}{records}{cut}; {vocabulary}")


def _share_seen(trainer: Trainer) -> float | None:
    """The share of the validation text that the weights were trained on in earlier runs, or None; says what it is."""
    corpus, data = trainer.corpus, trainer.config.data
    seen, unread = earlier_texts(trainer.state.earlier_texts, corpus.vocabulary, data, corpus.sha256)
    valid = corpus.texts["valid"].first(SEARCHED)
    share = float(seen_places(valid, seen, data.records).mean())
    for fault in unread:
        say("note", f"the weights may have been trained on the validation text: {fault}")
    if share < NOTED:
        return None if unread else 0.0
    what = f"the weights were trained on {format_share(share)} of the validation text"
    say("note", f"{what}, so its scores are too good; see data.split and data.valid_source")
    return share


def _fit(trainer: Trainer, run_dir: Path, on_row: OnRow | None, resumed: bool = False) -> Run:
    group, state, tracker = trainer.group, trainer.state, Tracker(run_dir)
    group.on_first(refusing_os_errors(run_dir)(tracker.begin), state if resumed else None)
    group.remember(str(run_dir.resolve()))
    loop = TrainingLoop(trainer, run_dir, tracker, on_row)
    if not resumed:
        state.due = loop.actions_due()
    return loop.fit()


def run_of_this_launch(group: ProcessGroup) -> Path | None:
    """The run that this launch of torchrun has started before, if it has a checkpoint."""
    if not (noted := group.recall()):
        return None
    run_dir = Path(noted)
    if not run_dir.is_dir():
        raise RunError(
            f"{run_dir}: found no run to resume on this machine, which is now the first; allowed: a folder on a disk "
            "that all machines share"
        )
    return run_dir if has_checkpoint(run_dir) else None


def _say_if_other_machine(trainer: Trainer, before: Mapping[str, Any]) -> None:
    """Say whether results will differ from those of the sessions before. before: their progress."""
    state, differ = trainer.state, "results differ in the last bits"
    if before.get("threads") != state.threads:
        say("threads", f"found {state.threads}, the run had {before.get('threads')}: {differ}; see threads")
    found, had = state.kernels or "none", before.get("kernels") or "none"
    if found == had:
        found, had = state.backend, before.get("backend")
    if found != had and trainer.device.type == "cpu":
        say("kernels", f"found {found}, the run had {had}: {differ}; see CHARLM_KERNELS")


_FIXED = (
    "data.",
    "model.",
    "seed",
    "train.batch_size",
    "train.bptt",
    "train.loss",
    "train.read_share",
    "optimizer.name",
)
_FREE = ("data.grow_vocabulary", "data.source", "data.valid_source", "data.test_source")


def _changed_config(saved: Config, change: Callable[[Config], Config]) -> Config:
    """The config to continue with; ConfigError if it changes an option that would make it another run."""
    config = with_absolute_paths(change(saved))
    if config.precision == "auto":
        config = config.model_copy(update={"precision": saved.precision})
    changed = differences(saved, config)
    faults = [
        f"{key}: found {after!r}, the run has {before!r}; allowed on --resume: the same; start a new run"
        for key, (before, after) in changed.items()
        if key.startswith(_FIXED) and key not in _FREE and not (key == "model.cell.kind" and same_file(before, after))
    ]
    if faults:
        raise ConfigError(*faults)
    for key, (before, after) in changed.items():
        say("change", f"{key}: {before!r} → {after!r}")
    return config
