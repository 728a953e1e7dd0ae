"""A run from start to end: its folder, the loop, evaluation, samples, checkpoints, stop and resume."""

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from charlm.checkpoint import BEST, FOLDER, LAST, Checkpoint, load_weights, read_checkpoint, save_checkpoint
from charlm.config import Config, differences, dump_config, flatten
from charlm.data.corpus import Corpus, load_configured_corpus, unknown_characters
from charlm.device import describe_device
from charlm.errors import CheckpointError, ConfigError, DivergenceError, RunError, VocabularyError
from charlm.evaluate import evaluate
from charlm.model import CharLM, parameters_by_part
from charlm.sample import Choice, sample_text
from charlm.tracking import Progress, Row, Tracker, say
from charlm.trainer import Trainer
from charlm.units import format_bytes, format_duration, nats_to_bits
from charlm.vocabulary import Vocabulary, describe_characters

CONFIG = "config.yaml"
SIGNALS = {"SIGINT": 130, "SIGTERM": 143}
"""Signals that end a run after the step under way, and the exit code that tells of each."""


@dataclass(frozen=True)
class Outcome:
    """How a run, or this part of it, ended."""

    run_dir: str
    reason: str
    """The limit that was reached: max_steps, max_epochs, max_minutes, patience; or a signal's name."""
    step: int
    chars: int
    elapsed_s: float
    valid_nats: float | None
    """Of the last evaluation, per character; none without a validation split."""
    best_nats: float | None
    best_step: int
    parameters: int

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def start_run(config: Config, run_dir: Path, init_from: Checkpoint | None = None) -> Outcome:
    """Train a new model, or go on from another run's weights, in a folder of its own."""
    if (run_dir / CONFIG).exists() or (run_dir / FOLDER).exists():
        raise RunError(f"{run_dir}: already holds a run; allowed: --resume to go on with it, or another --run-dir")
    vocabulary = _fine_tuned_vocabulary(config, init_from) if init_from else None
    corpus = _load_corpus(config, vocabulary)
    trainer = Trainer(config, corpus)
    if init_from:
        _load_grown_weights(trainer.model, init_from)
    return Run(trainer, corpus, run_dir, _open_folder(run_dir, config)).fit()


def resume_run(run_dir: Path, change: Callable[[Config], Config] = lambda config: config) -> Outcome:
    """Go on with a run exactly where its last checkpoint stands.

    `change` gives the config to go on with; what decides weights, data and the order of reading must stay.
    """
    path = run_dir / FOLDER / LAST
    if not path.is_file():
        raise CheckpointError(f"{run_dir}: no {FOLDER}/{LAST} to resume from; allowed: the folder of a run")
    checkpoint = read_checkpoint(path)
    config = change(checkpoint.config)
    _check_resumable(checkpoint.config, config)
    corpus = _load_corpus(config, checkpoint.vocabulary)
    if corpus.sha256 != checkpoint.progress.get("corpus_sha256"):
        raise RunError(
            f"{config.data.source}: its text has changed since {path} was written; resume needs the same text; "
            "to train on new text start a run with --init-from"
        )
    trainer = Trainer(config, corpus)
    trainer.restore(checkpoint)
    tracker = _open_folder(run_dir, config, resume_step=trainer.state.step)
    say(f"resume   {path}, step {trainer.state.step}")
    return Run(trainer, corpus, run_dir, tracker).fit()


def _open_folder(run_dir: Path, config: Config, resume_step: int | None = None) -> Tracker:
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        (run_dir / CONFIG).write_text(dump_config(config), encoding="utf-8")
        return Tracker(run_dir, resume_step)
    except OSError as error:
        raise RunError(f"{run_dir}: {error.strerror}; allowed: a folder that can be written; see --run-dir") from None


_FIXED = ("data.", "model.", "seed", "train.batch_size", "train.bptt", "train.loss", "optimizer.name")


def _check_resumable(old: Config, new: Config) -> None:
    """Report options that change with the resumption; refuse those that would make it another run."""
    changed = differences(old, new)
    faults = [
        f"{key}: found {after!r}, the run has {before!r}; allowed on --resume: the same; start a new run"
        for key, (before, after) in changed.items()
        if key.startswith(_FIXED) and key != "data.grow_vocabulary"
    ]
    if faults:
        raise ConfigError(*faults)
    for key, (before, after) in changed.items():
        say(f"change   {key}: {before!r} → {after!r}")


def _load_corpus(config: Config, vocabulary: Vocabulary | None) -> Corpus:
    data = config.data
    corpus = load_configured_corpus(data, vocabulary, report=lambda text: say(f"data     {text}"))
    parts = ", ".join(f"{name} {len(ids):,}" for name, ids in corpus.splits.items())
    say(
        f"data     {data.source}: {format_bytes(corpus.size_bytes)} in {corpus.files} file(s); {parts} {data.level}s; "
        f"vocabulary {len(corpus.vocabulary)}"
    )
    return corpus


_FREE_TO_DIFFER = ("model.dropout.", "model.init_uniform", "model.cell.forget_bias", "model.cell.gate_bias")


def _fine_tuned_vocabulary(config: Config, init_from: Checkpoint) -> Vocabulary:
    """The checkpoint's vocabulary, with the new text's characters behind it where the config asks for that."""
    changed = differences(init_from.config, config)
    if "model.cell.kind" in changed:  # then the options of the two kinds are not to be compared
        changed = {"model.cell.kind": changed["model.cell.kind"]}
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
    say(f"grow     {len(unknown)} new characters: {listed}")
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


class Run:
    """A trainer in its folder: the loop and what it writes."""

    def __init__(self, trainer: Trainer, corpus: Corpus, folder: Path, tracker: Tracker) -> None:
        self.trainer = trainer
        self.config = trainer.config
        self.corpus = corpus
        self.folder = folder
        self.tracker = tracker
        self.progress = Progress()
        self._received: list[str] = []

    def fit(self) -> Outcome:
        """Train until a limit is reached or a signal comes: log → evaluate → sample → save → stop → step."""
        trainer, state, every = self.trainer, self.trainer.state, self.config.train
        self._introduce()
        try:
            with self._signals(), self._clock() as tick:
                while not (reason := self._reason_to_stop()):
                    trainer.update()
                    tick()
                    if state.step % every.log_every == 0:
                        self._log()
                    improved = self._due(every.eval_every) and self._evaluate()
                    if self._due(every.sample_every):
                        self._sample()
                    if improved or self._due(every.save_every):
                        self._save(best=improved)
                    tick()
                self._end(reason)
                tick()
            return self._outcome(reason)
        except DivergenceError as error:
            last = self.folder / FOLDER / LAST
            good = f"last good checkpoint: {last}" if last.exists() else "no checkpoint was written before"
            raise DivergenceError(f"{error}; {good}") from None
        finally:
            self.progress.close()
            self.tracker.close()

    def _introduce(self) -> None:
        trainer, model = self.trainer, self.config.model
        count = sum(parameters_by_part(trainer.model).values())
        precision = "bf16" if self.config.precision == "bf16" else "fp32"
        say(f"model    {model.cell.kind}, {model.layers} × {model.cell.hidden} units: {count:,} parameters")
        with trainer.autocast:
            implementation = trainer.model.layers.implementation(trainer.device)
        say(f"device   {describe_device(trainer.device)}, {precision}; {implementation}")
        say(f"run      {self.folder}")

    def _reason_to_stop(self) -> str:
        train, state = self.config.train, self.trainer.state
        if self._received:
            return self._received[0]
        if train.max_steps and state.step >= train.max_steps:
            return "max_steps"
        if train.max_epochs and state.epoch + state.position / self.trainer.streams.length >= train.max_epochs:
            return "max_epochs"
        if train.max_minutes and state.elapsed_s >= 60 * train.max_minutes:
            return "max_minutes"
        if train.patience and state.evaluations_since_best >= train.patience:
            return "patience"
        return ""

    def _due(self, every: int) -> bool:
        return every > 0 and self.trainer.state.step % every == 0

    def _log(self) -> None:
        self.trainer.check_finite()
        row = self.trainer.take_row()
        self.tracker.record(row)
        self.progress.show(row, self.trainer.share_done())

    def _evaluate(self) -> bool:
        """Score the whole validation split; whether it is the best score so far. No split, no score: False."""
        if "valid" not in self.corpus.splits:
            return False
        self.trainer.check_finite()
        trainer, state = self.trainer, self.trainer.state
        with trainer.autocast:
            score = evaluate(trainer.evaluated_model, self.corpus.splits["valid"], trainer.device)
        nats = score.nats_per_char
        train = self.config.train
        row = Row(
            step=state.step,
            chars=state.chars,
            split="valid",
            loss=nats * (train.bptt if train.loss == "sum" else 1),
            nats=nats,
            lr=trainer.optimizer.param_groups[0]["lr"],
            grad_norm=None,
            chars_per_s=score.chars_per_s,
            elapsed_s=state.elapsed_s,
        )
        self.tracker.record(row)
        improved = state.best_nats is None or nats < state.best_nats
        if improved:
            state.best_nats, state.best_step = nats, state.step
        state.valid_nats, state.evaluated_step = nats, state.step
        state.evaluations_since_best = 0 if improved else state.evaluations_since_best + 1
        mark = "  best" if improved else ""
        say(
            f"valid    step {state.step:>6}  {nats:.4f} nats  {nats_to_bits(nats):.4f} bits/char  "
            f"{format_duration(state.elapsed_s)}{mark}"
        )
        return improved

    def _sample(self) -> None:
        train, trainer = self.config.train, self.trainer
        model = trainer.evaluated_model.eval()
        pieces = sample_text(
            model,
            trainer.vocabulary,
            prompt="",
            length=train.sample_length,
            choice=Choice(temperature=train.sample_temperature),
            seeds=[self.config.seed + trainer.state.step],
            device=trainer.device,
        )
        text = "".join(piece for [piece] in pieces)
        trainer.model.train()
        self.tracker.sample(text, trainer.state.step)
        say(f"sample   step {trainer.state.step:>6}  {text[:80]!r}")

    def _save(self, best: bool) -> None:
        """Write the `last` checkpoint; when due under its number too, and as `best` where it is that."""
        self.trainer.check_finite()
        folder = self.folder / FOLDER
        also = [folder / BEST] if best else []
        if self._due(self.config.train.save_every):
            also.append(folder / f"step-{self.trainer.state.step:08}.safetensors")
        save_checkpoint(self.trainer.to_checkpoint(), folder / LAST, also)
        for old in sorted(folder.glob("step-*.safetensors"))[: -self.config.train.keep_checkpoints]:
            old.unlink(missing_ok=True)

    def _end(self, reason: str) -> None:
        """Bring metrics and checkpoints up to date; after a signal only what a resumed run goes on from."""
        state = self.trainer.state
        if reason in SIGNALS:
            self._save(best=False)
            return
        best = False
        if state.interval_steps:
            self._log()
        if state.evaluated_step != state.step:
            best = self._evaluate()
        self._save(best)
        if state.best_nats is not None:
            scores = {
                "final/best_nats_per_char": state.best_nats,
                "final/best_bits_per_char": nats_to_bits(state.best_nats),
            }
            self.tracker.finish(flatten(self.config), scores)

    def _outcome(self, reason: str) -> Outcome:
        state = self.trainer.state
        return Outcome(
            run_dir=str(self.folder),
            reason=reason,
            step=state.step,
            chars=state.chars,
            elapsed_s=state.elapsed_s,
            valid_nats=state.valid_nats,
            best_nats=state.best_nats,
            best_step=state.best_step,
            parameters=sum(parameters_by_part(self.trainer.model).values()),
        )

    @contextlib.contextmanager
    def _clock(self) -> Iterator[Callable[[], None]]:
        """A function that brings `elapsed_s` up to date."""
        last_s = time.perf_counter()

        def tick() -> None:
            nonlocal last_s
            now_s = time.perf_counter()
            self.trainer.state.elapsed_s += now_s - last_s
            last_s = now_s

        yield tick

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Ctrl-C and SIGTERM end the run after the step under way; a second one leaves at once."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.getsignal(number) for number in map(signal.Signals.__getitem__, SIGNALS)}

        def receive(number: int, frame: FrameType | None) -> None:
            self._received.append(signal.Signals(number).name)
            for each, handler in before.items():
                signal.signal(each, handler)

        for number in before:
            signal.signal(number, receive)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
