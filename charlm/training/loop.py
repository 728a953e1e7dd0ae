"""A trainer in its folder: the loop, and what is logged, evaluated, sampled and saved on the way."""

import contextlib
import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from charlm.checkpoint import BEST, FOLDER, LAST, newest_whole, save_checkpoint
from charlm.config import dump_config, flatten
from charlm.data.corpus import Corpus
from charlm.data.vocabulary import readable
from charlm.errors import DivergenceError, RunError
from charlm.inference.evaluation import Evaluation, evaluate
from charlm.inference.sampling import Choice, sample_text
from charlm.model import parameters_by_part
from charlm.system.console import say
from charlm.system.device import describe_device
from charlm.system.files import replace_file
from charlm.system.formatting import format_duration, nats_to_bits
from charlm.training.metrics import Row, Tracker
from charlm.training.progress import Progress
from charlm.training.step import Trainer, divergence

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


class Run:
    """`fit` trains until a limit is reached or a signal comes."""

    def __init__(self, trainer: Trainer, corpus: Corpus, folder: Path, tracker: Tracker) -> None:
        self.trainer = trainer
        self.config = trainer.config
        self.corpus = corpus
        self.folder = folder
        self.tracker = tracker
        self.progress = Progress()
        self._received: list[str] = []
        self._back_to = -1  # the step that the last rollback went to
        self._clock_s = time.perf_counter()

    def fit(self) -> Outcome:
        """The loop: step → log → evaluate → sample → save → stop."""
        self._introduce()
        try:
            with self._signals(), _held_open(self.folder) as self._place:
                if not (self.folder / FOLDER / LAST).exists():
                    self._save(best=False)  # from now on there is something to resume
                replace_file(self.folder / CONFIG, dump_config(self.config).encode())
                while True:
                    try:
                        reason = self._train()
                        self._end(reason)
                        return self._outcome(reason)
                    except DivergenceError as error:
                        self._roll_back(error)
        except OSError as error:
            fault = error.strerror or error
            raise RunError(f"{self.folder}: cannot be written ({fault}); {self._last_good()}") from None
        finally:
            self.progress.close()
            self.tracker.close()

    def _train(self) -> str:
        """Step after step, until there is a reason to stop."""
        every = self.config.train
        while not (reason := self._reason_to_stop()):
            self.trainer.update()
            self._tick()
            if self._due(every.log_every):
                self._log()
            improved = self._due(every.eval_every) and self._evaluate()
            if self._due(every.sample_every):
                self._sample()
            if improved or self._due(every.save_every):
                self._save(best=improved)
        return reason

    def _roll_back(self, error: DivergenceError) -> None:
        """Go back to the last checkpoint with half the learning rate; raise the error where that is not to be done.

        To an older one where the run has come no further since it was there: before an update the rate is of no use.
        """
        train, diverged = self.config.train, self.trainer.state
        may = train.on_divergence == "rollback" and diverged.rollbacks < train.max_rollbacks
        before_step = diverged.step + (diverged.step != self._back_to)
        found = newest_whole(self.folder, before_step) if may else None
        if not found:
            times = f"; rolled back {diverged.rollbacks} times before" if diverged.rollbacks else ""
            none = f"; there is no checkpoint before step {before_step}" if may else ""
            raise DivergenceError(f"{error}{times}{none}; {self._last_good()}") from None
        self.trainer.restore(found[1])
        state = self.trainer.state
        self._back_to = state.step
        state.rollbacks = diverged.rollbacks + 1
        state.elapsed_s = diverged.elapsed_s
        self.tracker.rewind(state.rows, state.step)
        lr_factor = 0.5**state.rollbacks
        self.tracker.note("rollback", state.step, diverged_step=diverged.step, fault=str(error), lr_factor=lr_factor)
        state.rows += 1
        say("rollback", f"{error}; back to step {state.step}, learning rate × {lr_factor:g} from now on")
        self._save(best=False)
        for path in (self.folder / FOLDER).glob("step-*.safetensors"):
            if path.name > self._numbered(state.step):
                path.unlink(missing_ok=True)

    def _introduce(self) -> None:
        trainer, model = self.trainer, self.config.model
        count = sum(parameters_by_part(trainer.model).values())
        precision = "bf16" if self.config.precision == "bf16" else "fp32"
        say("model", f"{model.cell.kind}, {model.layers} × {model.cell.hidden} units: {count:,} parameters")
        say("device", f"{describe_device(trainer.device)}, {precision}; {trainer.backend}")
        say("run", f"{self.folder}")
        if rollbacks := trainer.state.rollbacks:
            say("rollback", f"{rollbacks} so far: learning rate × {0.5**rollbacks:g}")
        if reason := self._reason_to_stop():
            limit = f"train.{reason}={getattr(self.config.train, reason)}"
            say("limit", f"{limit} was reached before; to train on, raise it: --set train.{reason}=…")

    def _tick(self) -> None:
        """Bring `elapsed_s` up to date."""
        now_s = time.perf_counter()
        self.trainer.state.elapsed_s += now_s - self._clock_s
        self._clock_s = now_s
        self.progress.show(self.trainer.state.step, self.trainer.share_done(), self.trainer.state.elapsed_s)

    def _reason_to_stop(self) -> str:
        train, state = self.config.train, self.trainer.state
        if self._received:
            return self._received[0]
        if train.max_steps and state.step >= train.max_steps:
            return "max_steps"
        if train.max_epochs and self.trainer.epochs() >= train.max_epochs:
            return "max_epochs"
        if train.max_minutes and state.elapsed_s >= 60 * train.max_minutes:
            return "max_minutes"
        if train.patience and state.evaluations_since_best >= train.patience:
            return "patience"
        return ""

    def _due(self, every: int) -> bool:
        step = self.trainer.state.step
        return every > 0 and step > 0 and step % every == 0

    def _check_folder(self) -> None:
        """RunError where the folder is no longer there, or is another one: what is written would be half a run."""
        try:
            there = os.path.samestat(self.folder.stat(), self._place)
        except (FileNotFoundError, NotADirectoryError):
            there = False
        if not there:
            raise RunError(
                f"{self.folder}: removed or renamed during the run; allowed: a folder that stays until the run ends; "
                "start anew, or --resume where it is now"
            )

    def _log(self) -> None:
        self._check_folder()
        row = self.trainer.row()
        self.trainer.begin_interval()
        self._record(row)
        self.trainer.state.rows += 1

    def _record(self, row: Row) -> None:
        self.tracker.record(row)
        if row.split == "train":
            self.progress.note(row)

    def _evaluate(self) -> bool:
        """Score the validation split and count patience; whether it is the best score so far."""
        if "valid" not in self.corpus.splits:
            return False
        improved = self._score()
        state = self.trainer.state
        state.rows += 1
        state.evaluated_step = state.step
        state.evaluations_since_best = 0 if improved else state.evaluations_since_best + 1
        return improved

    def _score(self) -> bool:
        """Evaluate and record; whether it is the best score so far. DivergenceError where it is not finite."""
        trainer, state = self.trainer, self.trainer.state
        trainer.check_finite()
        with trainer.autocast:
            score = evaluate(trainer.evaluated_model, self.corpus.splits["valid"], trainer.device)
        self._tick()
        nats = score.nats_per_char
        if not math.isfinite(nats):
            raise divergence(state.step, f"a validation score of {nats} nats")
        self._record(self._validation_row(score))
        improved = state.best_nats is None or nats < state.best_nats
        if improved:
            state.best_nats, state.best_step = nats, state.step
        state.valid_nats = nats
        say(
            "valid",
            f"step {state.step:>6}  {nats:.4f} nats  {nats_to_bits(nats):.4f} bits/char  "
            f"{format_duration(state.elapsed_s)}{'  best' if improved else ''}",
        )
        return improved

    def _validation_row(self, score: Evaluation) -> Row:
        state = self.trainer.state
        return Row(
            step=state.step,
            chars=state.chars,
            split="valid",
            loss=score.nats_per_char * self.trainer.scored_steps,
            nats=score.nats_per_char,
            lr=state.lr,
            grad_norm=None,
            chars_per_s=score.chars_per_s,
            elapsed_s=state.elapsed_s,
        )

    def _sample(self) -> None:
        """Write a sample to TensorBoard, and its beginning to the terminal."""
        train, trainer = self.config.train, self.trainer
        step = trainer.state.step
        pieces = sample_text(
            trainer.evaluated_model.eval(),
            trainer.vocabulary,
            prompt="",
            length=train.sample_length,
            choice=Choice(temperature=train.sample_temperature),
            seeds=[self.config.seed + step],
            device=trainer.device,
        )
        text = readable("".join(piece for [piece] in pieces))
        trainer.model.train()
        self.tracker.sample(text, step)
        say("sample", f"step {step:>6}  {text[:80]!r}")

    def _save(self, best: bool) -> None:
        """Write the `last` checkpoint; when due under its number too, and as `best` where it is that."""
        self._check_folder()
        self.trainer.check_finite(weights=True)
        self._tick()
        folder = self.folder / FOLDER
        also = [folder / BEST] if best else []
        if self._due(self.config.train.save_every):
            also.append(folder / self._numbered(self.trainer.state.step))
        save_checkpoint(self.trainer.to_checkpoint(), folder / LAST, also)
        for old in sorted(folder.glob("step-*.safetensors"))[: -self.config.train.keep_checkpoints]:
            old.unlink(missing_ok=True)

    @staticmethod
    def _numbered(step: int) -> str:
        return f"step-{step:08}.safetensors"

    def _end(self, reason: str) -> None:
        """Save, and then, but after a signal, close the metrics and score once more.

        Saved first, so that nothing that goes wrong in the closing evaluation costs the run. The closing rows are not
        counted in `rows` and the interval goes on: a longer run resumed from here drops them, and its metrics are
        those of one that never stopped.
        """
        state = self.trainer.state
        self._save(best=False)
        if reason not in SIGNALS:
            if state.interval_steps:
                self._record(self.trainer.row())
            if "valid" in self.corpus.splits and state.evaluated_step != state.step:
                self._save(best=self._score())
            self.tracker.finish(flatten(self.config), self._final_scores())
        self._tick()

    def _final_scores(self) -> dict[str, float]:
        state = self.trainer.state
        if state.best_nats is None:  # no validation split
            return {"final/steps": state.step}
        return {
            "final/best_nats_per_char": state.best_nats,
            "final/best_bits_per_char": nats_to_bits(state.best_nats),
        }

    def _last_good(self) -> str:
        last = self.folder / FOLDER / LAST
        with contextlib.suppress(OSError):
            if last.exists():
                return f"last good checkpoint: {last}"
        return "no checkpoint was written before"

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
    def _signals(self) -> Iterator[None]:
        """Ctrl-C and SIGTERM end the run after the step under way; a second one leaves at once."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        handlers = {number: signal.getsignal(number) for number in map(signal.Signals.__getitem__, SIGNALS)}
        # What a shell has its background jobs ignore stays ignored; None: a handler that is not Python's to set again.
        before = {number: handler for number, handler in handlers.items() if handler not in (signal.SIG_IGN, None)}

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


@contextlib.contextmanager
def _held_open(folder: Path) -> Iterator[os.stat_result]:
    """What the folder is known by, which no other gets while it is open, not even one made in its place."""
    if os.name == "nt":
        yield folder.stat()
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        yield os.fstat(descriptor)
    finally:
        os.close(descriptor)
