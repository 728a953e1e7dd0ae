"""The beginnings of a run: a new one, one that is resumed, one that starts from another's weights."""

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from charlm.checkpoint import FOLDER, LAST, Checkpoint, discard_leftovers, load_weights, newest_whole, read_checkpoint
from charlm.config import Config, differences, ignored_options
from charlm.data.corpus import Corpus, load_configured_corpus, load_unchanged_corpus, unknown_characters
from charlm.data.streams import Streams
from charlm.data.vocabulary import Vocabulary, describe_characters
from charlm.errors import CheckpointError, ConfigError, DamagedCheckpointError, RunError, VocabularyError
from charlm.model import CharLM
from charlm.system.console import say
from charlm.system.device import resolve_device
from charlm.system.formatting import format_bytes
from charlm.system.lock import locked
from charlm.training.loop import CONFIG, Outcome, Run
from charlm.training.metrics import Tracker
from charlm.training.step import Trainer


def start_run(
    config: Config, run_dir: Path | None = None, init_from: Checkpoint | None = None, *, name: str = "run"
) -> Outcome:
    """Train a new model, or go on from another run's weights.

    Without a `run_dir` the run goes to a folder of its own, runs/<name>-<time>.
    """
    if run_dir is not None:
        with _writing(run_dir):
            if run_dir.is_dir():
                with locked(run_dir):
                    _refuse_run_in(run_dir)
    place = run_dir or Path("runs")
    _check_place(config, place)
    vocabulary = _fine_tuned_vocabulary(config, init_from) if init_from else None
    corpus = load_configured_corpus(config.data, vocabulary)
    _introduce(config, corpus)
    trainer = Trainer(config, corpus)
    if init_from:
        _load_grown_weights(trainer.model, init_from)
        if trainer.averaged is not None:
            trainer.averaged.load_state_dict(trainer.model.state_dict())
    # The next checkpoint is written before the last one goes.
    _check_space(place, 2 * trainer.checkpoint_bytes())
    with _writing(place):
        folder = _new_folder(name) if run_dir is None else run_dir
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder):
            _refuse_run_in(folder)  # once more: another may have come since
            discard_leftovers(folder)
            return Run(trainer, corpus, folder, Tracker(folder)).fit()


def _refuse_run_in(folder: Path) -> None:
    """RunError where there is a run to lose; one that was killed before its first checkpoint is none."""
    if (folder / CONFIG).exists() or any((folder / FOLDER).glob("*.safetensors")):
        raise RunError(f"{folder}: already holds a run; allowed: --resume to go on with it, or another --run-dir")


def _check_place(config: Config, run_dir: Path) -> None:
    """Refuse a device or folder that cannot be used before the corpus is read, which may take long."""
    resolve_device(config.device)
    with _writing(run_dir):
        nearest = _nearest(run_dir)
        if not nearest.is_dir():
            raise _unwritable(run_dir, f"{nearest} is a file")
        if not os.access(nearest, os.W_OK):
            raise _unwritable(run_dir, f"{nearest} is read-only")


def _nearest(folder: Path) -> Path:
    """The folder, or the nearest above it that is there."""
    return next(path for path in (folder, *folder.absolute().parents) if path.exists())


def _new_folder(name: str) -> Path:
    """A folder that no other run has, made here: two runs may start in the same second."""
    first = Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    path, number = first, 1
    while True:
        try:
            path.mkdir(parents=True)
            return path
        except FileExistsError:
            number += 1
            path = first.with_name(f"{first.name}-{number}")


@contextlib.contextmanager
def _writing(run_dir: Path) -> Iterator[None]:
    """An OSError of the block becomes a RunError."""
    try:
        yield
    except OSError as error:
        raise _unwritable(run_dir, error.strerror or str(error)) from None


def _unwritable(run_dir: Path, found: str) -> RunError:
    return RunError(f"{run_dir}: {found}; allowed: a folder that can be written; see --run-dir")


def resume_run(run_dir: Path, change: Callable[[Config], Config] = lambda config: config) -> Outcome:
    """Go on with a run exactly where its last checkpoint stands.

    `change` gives the config to go on with; what decides weights, text and streams must stay.
    """
    with _writing(run_dir):
        if not (run_dir / FOLDER).is_dir():
            raise CheckpointError(f"{run_dir}: no {FOLDER}/ to resume from; allowed: the folder of a run")
        with locked(run_dir):
            return _resume(run_dir, change)


def _resume(run_dir: Path, change: Callable[[Config], Config]) -> Outcome:
    path, checkpoint = _read_last(run_dir)
    config = change(checkpoint.config)
    _check_resumable(checkpoint.config, config)
    corpus = load_unchanged_corpus(config.data, checkpoint.vocabulary, checkpoint.progress.get("corpus_sha256"))
    _introduce(config, corpus)
    trainer = Trainer(config, corpus)
    trainer.restore(checkpoint)
    if (threads := checkpoint.progress.get("threads")) != trainer.state.threads:
        say(
            "threads", f"found {trainer.state.threads}, the run had {threads}: its last bits will differ; see `threads`"
        )
    del checkpoint  # as large as the model and its optimiser
    state = trainer.state
    discard_leftovers(run_dir)
    _check_space(run_dir, trainer.checkpoint_bytes())
    if path.name != LAST:
        (run_dir / FOLDER / LAST).unlink(missing_ok=True)  # the damaged one: the run writes it anew as it begins
    tracker = Tracker(run_dir, resume=(state.rows, state.step))
    say("resume", f"{path}, step {state.step}")
    return Run(trainer, corpus, run_dir, tracker).fit()


def _read_last(run_dir: Path) -> tuple[Path, Checkpoint]:
    """The last checkpoint of a run; where that is damaged or gone, which is said, the newest that is not."""
    last = run_dir / FOLDER / LAST
    try:
        return last, read_checkpoint(last)
    except DamagedCheckpointError as error:
        fault = error
    if not (found := newest_whole(run_dir)):
        raise CheckpointError(f"{fault}; no other in {run_dir / FOLDER} is whole")
    say("damaged", f"{fault}")
    return found


def _check_space(folder: Path, needed: int) -> None:
    """RunError unless the disk has room for so many bytes of checkpoints."""
    free = shutil.disk_usage(_nearest(folder)).free
    if free < needed:
        raise RunError(
            f"{folder}: {format_bytes(free)} free on its disk; checkpoints need {format_bytes(needed)}; "
            "free space or take another --run-dir"
        )


_FIXED_SECTIONS = ("data.", "model.")
_FIXED = ("seed", "train.batch_size", "train.bptt", "train.loss", "optimizer.name")
_FREE = ("data.grow_vocabulary", "data.source", "data.valid_source", "data.test_source")


def _check_resumable(old: Config, new: Config) -> None:
    """Report options that change with the resumption; refuse those that would make it another run."""
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
    """Options that differ; of cells of two kinds the kind alone."""
    changed = differences(old, new)
    if kinds := changed.get("model.cell.kind"):
        changed = {key: both for key, both in changed.items() if not key.startswith("model.cell.")}
        changed["model.cell.kind"] = kinds
    return changed


def _introduce(config: Config, corpus: Corpus) -> None:
    """Say what was read, and what the config sets in vain; DataError where a split is too small for a window."""
    for name, ids in corpus.splits.items():
        streams = config.train.batch_size if name == "train" else 1
        Streams(ids, streams, config.train.bptt, name=f"{name} split")
    parts = ", ".join(f"{name} {len(ids):,}" for name, ids in corpus.splits.items())
    files = f"{corpus.files:,} file{'s' * (corpus.files > 1)}"
    say(
        "data",
        f"{config.data.source}: {format_bytes(corpus.size_bytes)} in {files}; {parts} {config.data.level}s; "
        f"vocabulary {len(corpus.vocabulary):,}",
    )
    for line in ignored_options(config):
        say("ignored", f"{line}")


_INITIAL = ("model.init_uniform", "model.orthogonal", "model.cell.forget_bias", "model.cell.gate_bias")
_FREE_TO_DIFFER = ("model.dropout.", "model.zoneout", *_INITIAL)


def _fine_tuned_vocabulary(config: Config, init_from: Checkpoint) -> Vocabulary:
    """The checkpoint's vocabulary, with the new text's characters behind it where the config asks for that."""
    changed = _changed(init_from.config, config)
    faults = [
        f"{key}: found {found!r}; the checkpoint of --init-from has {wanted!r}; allowed: the same"
        for key, (wanted, found) in changed.items()
        if key.startswith(("model.", "data.level")) and not key.startswith(_FREE_TO_DIFFER)
    ]
    if faults:
        raise ConfigError(*faults)
    data, vocabulary = config.data, init_from.vocabulary
    sources = [source for source in (data.source, data.valid_source, data.test_source) if source]
    unknown = unknown_characters(sources, vocabulary)
    if not unknown:
        return vocabulary
    listed = describe_characters(unknown, limit=20)
    if not data.grow_vocabulary:
        raise VocabularyError(
            f"data.source: the checkpoint of --init-from has never seen {listed}; allowed: its {len(vocabulary)} "
            "characters; --set data.grow_vocabulary=true gives new ones an id"
        )
    say("grow", f"{len(unknown)} new characters: {listed}")
    return vocabulary.extended(unknown)


def _load_grown_weights(model: CharLM, checkpoint: Checkpoint) -> None:
    """Copy weights; rows and columns of new characters stay freshly drawn, their logits as rare as the rarest."""
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
    load_weights(model, weights)
