"""The training loop: step → log → evaluate → sample → save → stop."""

import contextlib
import functools
import math
import time
from dataclasses import asdict, dataclass
from typing import Any

from charlm.checkpoint import newest_whole
from charlm.config import flatten
from charlm.data.corpus import Corpus
from charlm.errors import DivergenceError, RunError
from charlm.inference.evaluation import Evaluation, evaluate
from charlm.inference.line_quantiles import line_quantiles
from charlm.inference.sampling import Choice
from charlm.model import parameters_by_part
from charlm.system.console import say
from charlm.system.device import describe_device, used_precision
from charlm.system.formatting import counted, format_duration, nats_to_bits
from charlm.training.folder import RunFolder
from charlm.training.metrics import Row, Tracker, train_row, valid_row
from charlm.training.progress import Progress
from charlm.training.sample import draw_sample
from charlm.training.signals import SIGNALS, catch_signals
from charlm.training.snapshot import fingerprint, restore_snapshot, take_snapshot
from charlm.training.step import Trainer, divergence
from charlm.training.watch import Watch

_EVALUATION = 0.3
"""Time to evaluate a character relative to training on it: a guess on the safe side, until an evaluation was timed."""
_GUESS_STEPS = 3
"""Updates after which it is guessed how long an evaluation takes; again at every row of metrics."""


class _Stopped(Exception):
    """A signal came while the run was evaluated or sampled."""


@dataclass(frozen=True)
class Outcome:
    """How a run, or one session of it, ended."""

    run_dir: str
    reason: str
    """The limit that was reached (max_steps, max_epochs, max_minutes, patience), pruned, or the name of a signal."""
    step: int
    chars: int
    elapsed_s: float
    valid_nats: float | None
    """Score of the last evaluation, nats per character; None without a validation split."""
    best_nats: float | None
    best_step: int
    parameters: int
    best_nats_per_line: float | None = None
    """None unless lines are the unit."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class TrainingLoop:
    """`fit` trains until a limit is reached or a signal arrives."""

    def __init__(
        self,
        trainer: Trainer,
        corpus: Corpus,
        folder: RunFolder,
        tracker: Tracker,
        began_s: float | None = None,
        watch: Watch | None = None,
    ) -> None:
        """`began_s`: when the run's clock started, as time.perf_counter() tells it; None: now."""
        self.trainer = trainer
        self.config = trainer.config
        self.corpus = corpus
        self.folder = folder
        self.tracker = tracker
        self.watch = watch
        self.group = trainer.group
        self.progress = Progress(self.group.is_first)
        self._received: list[str] = []
        self._signals: list[str] = []  # as all processes know them
        self._rolled_back_to = -1  # step
        self._saving_s = 0.0
        self._timed = False  # whether an evaluation was
        self._pruned = False
        self._clock_s = time.perf_counter() if began_s is None else began_s

    def fit(self) -> Outcome:
        """Train until a limit or a signal; RunError if the folder cannot be written.

        After a divergence, return to an earlier checkpoint if the config allows it.
        """
        self._print_header()
        try:
            with catch_signals(patient=self.group.is_distributed) as self._received, self._held_folder():
                if not self.group.on_first(self.folder.last.exists):
                    self._save(best=False)
                    self.group.on_first(self.folder.wait)  # from here on the run can be resumed
                self.group.on_first(self.folder.write_config, self.config)
                while True:
                    try:
                        return self._outcome(self._finish(self._train()))
                    except DivergenceError as error:
                        self._roll_back(error)
        except OSError as error:
            fault = error.strerror or error
            raise RunError(f"{self.folder.path}: cannot be written ({fault}); {self.folder.last_good()}") from None
        finally:
            self.progress.close()
            self.tracker.close()

    def _held_folder(self) -> contextlib.AbstractContextManager[None]:
        return self.folder.held_open() if self.group.is_first else contextlib.nullcontext()

    def _train(self) -> str:
        """Make steps until there is a reason to stop, and return it."""
        if self.trainer.state.step == 0:
            self._tick()
            self.trainer.state.count_starting()
        try:
            if self.trainer.state.unfinished:
                self._finish_step()
            while not (reason := self._reason_to_stop()):
                self.trainer.update()
                self._tick()
                if self.trainer.state.step == _GUESS_STEPS:
                    self._guess_ending()
                if self._due(self.config.train.log_every):
                    self._log()
                self._finish_step()
            return reason
        except _Stopped:
            return self._signals[0]

    def _finish_step(self) -> None:
        """Evaluate, sample and save where that is due. _Stopped if a signal comes first: --resume does the rest."""
        every, state = self.config.train, self.trainer.state
        state.set_unfinished(True)
        share = self._watched_share()
        if (share or self._due(every.eval_every)) and state.evaluated_step != state.step:
            self._evaluate()
        if share:
            self._ask_watch(share)
        if self._due(every.sample_every) and not self.group.on_first(self._sample):
            self._stop_if_signaled()
        state.set_unfinished(False)
        if state.is_best or self._due(every.save_every):
            self._save(best=state.is_best)

    def _reason_to_stop(self) -> str:
        train, state = self.config.train, self.trainer.state
        if self._signals:
            return self._signals[0]
        if train.max_steps and state.step >= train.max_steps:
            return "max_steps"
        if train.max_epochs and self.trainer.epochs() >= train.max_epochs:
            return "max_epochs"
        if self.trainer.minutes_are_over():
            return "max_minutes"
        if train.patience and state.evaluations_since_best >= train.patience:
            return "patience"
        return "pruned" if self._pruned else ""

    def _due(self, every: int) -> bool:
        step = self.trainer.state.step
        return every > 0 and step > 0 and step % every == 0

    def _watched_share(self) -> float | None:
        """The share of the run after which the watch wants an evaluation, if the last update has reached one."""
        if self.watch is None:
            return None
        return self.watch.passed(self.trainer.state.watched_share, self.trainer.share_done())

    def _ask_watch(self, share: float) -> None:
        watch, nats = self.watch, self.trainer.state.valid_nats
        self.trainer.state.count_watched(share)
        if watch and nats is not None:
            self._pruned = self.group.on_first(watch.stops, share, nats)

    def _tick(self) -> None:
        """Bring `elapsed_s`, the signals and the progress bar up to date."""
        now_s = time.perf_counter()
        state = self.trainer.state
        elapsed_s, self._signals = self.group.agree(state.elapsed_s + now_s - self._clock_s, self._received)
        state.set_time(elapsed_s)
        self._clock_s = now_s
        if state.step:  # before the first update nothing is done, whatever time has passed
            self.progress.show(state.step, self.trainer.share_done(), state.elapsed_s - state.starting_s)

    def _stop_if_signaled(self) -> None:
        """_Stopped if a process has received a signal."""
        self._tick()
        if self._signals:
            raise _Stopped

    # Log, evaluate, sample, save

    def _print_header(self) -> None:
        trainer, model = self.trainer, self.config.model
        count = sum(parameters_by_part(trainer.model).values())
        say("model", f"{model.cell.name}, {model.layers} × {model.cell.hidden} units: {count:,} parameters")
        say("device", f"{describe_device(trainer.device)}, {used_precision(self.config.precision)}; {trainer.backend}")
        say("run", str(self.folder.path))
        if rollbacks := trainer.state.rollbacks:
            say("rollback", f"{rollbacks} so far: learning rate × {trainer.state.lr_factor:g}")
        if reason := self._reason_to_stop():
            limit = f"train.{reason}={getattr(self.config.train, reason)}"
            say("limit", f"{limit} is already reached; to train on, raise it: --set train.{reason}=…")

    def _log(self) -> None:
        self.group.on_first(self.folder.check)
        self._record(self._train_row())
        self._guess_ending()
        self.trainer.state.count_row()

    def _guess_ending(self) -> None:
        """Guess how long the last evaluation and checkpoint will take, unless an evaluation has been timed."""
        if self._timed or not self.config.train.max_minutes:
            return
        state, ids = self.trainer.state, self.corpus.splits.get("valid", ())
        interval_s, _ = self.group.agree(state.interval_s, [])
        chars = max(state.interval_bptt, 1) * self.config.train.batch_size
        state.expect_ending(_EVALUATION * len(ids) * interval_s / chars + 2 * self._saving_s)

    def _train_row(self) -> Row:
        """The metrics since the last row; DivergenceError if an update was not finite."""
        self.trainer.check_finite()
        return train_row(self.trainer.state, self.config.train)

    def _record(self, row: Row) -> None:
        self.tracker.record(row)
        self._show(row.as_json())
        if row.split == "train":
            self.progress.note(row)

    def _show(self, row: dict[str, Any]) -> None:
        if self.watch and self.watch.sees and self.group.is_first:
            self.watch.sees(row)

    def _evaluate(self) -> None:
        """Make a scheduled evaluation."""
        if "valid" not in self.corpus.splits:
            return
        state = self.trainer.state
        self._tick()
        start_s = state.elapsed_s
        improved = self._score()
        state.expect_ending(state.elapsed_s - start_s + 2 * self._saving_s)  # `_finish` saves twice
        self._timed = True
        state.count_evaluation(improved)

    def _score(self) -> bool:
        """Evaluate and note the score; True if it is the best so far. DivergenceError if it is not finite."""
        trainer, state = self.trainer, self.trainer.state
        trainer.check_finite()
        model, alone = trainer.evaluated_model, self.group.size == 1
        score = evaluate(
            model,
            self.corpus.splits["valid"],
            trainer.device,
            per_line=alone,
            group=self.group,
            check=self._stop_if_signaled,
        )
        self._tick()
        nats = score.nats_per_char
        if not math.isfinite(nats):
            raise divergence(state.step, f"a validation score of {nats} nats")
        return self._note_score(score)

    def _note_score(self, score: Evaluation) -> bool:
        state, nats = self.trainer.state, score.nats_per_char
        self._record(valid_row(state, score, self.config.train))
        quantiles = None if score.line_nats is None else line_quantiles(score.line_nats)
        improved = state.take_score(nats, quantiles)
        per_line = "" if score.nats_per_line is None else f"  {score.nats_per_line:.2f} nats/line"
        say(
            "valid",
            f"step {state.step:>6}  {nats:.4f} nats  {nats_to_bits(nats):.4f} bits/char{per_line}  "
            f"{format_duration(state.elapsed_s)}{'  best' if improved else ''}",
        )
        return improved

    def _sample(self) -> bool:
        """Write a sample to samples.jsonl and TensorBoard, and its first characters to stderr.

        False if a signal comes first.
        """
        train, trainer = self.config.train, self.trainer
        step = trainer.state.step
        sample = draw_sample(
            trainer.evaluated_model.eval(),
            trainer.vocabulary,
            length=train.sample_length,
            choice=Choice(temperature=train.sample_temperature),
            seed=self.config.seed + step,
            device=trainer.device,
            stops=lambda: self._received or self._signals,
        )
        trainer.model.train()
        if sample is None:
            return False
        self.tracker.sample(sample, step)
        say("sample", f"step {step:>6}  {sample.text[:80]!r}")
        return True

    def _save(self, best: bool) -> None:
        """Write the `last` checkpoint, the numbered one if it is due, and `best` on request."""
        self.group.on_first(self.folder.check)
        self._tick()
        start_s = self.trainer.state.elapsed_s
        train, step = self.config.train, self.trainer.state.step
        numbered = self._due(train.save_every)
        snapshot = take_snapshot(self.trainer, copied=self.folder.writes_behind)
        self.group.check_equal("weights", lambda: fingerprint(snapshot))
        self.trainer.check_finite(weights=True)
        save = functools.partial(self.folder.save, step=step, best=best, numbered=numbered, keep=train.keep_checkpoints)
        self.group.on_first(save, snapshot)
        self._tick()
        self._saving_s = self.trainer.state.elapsed_s - start_s

    # Stop, roll back

    def _finish(self, reason: str) -> str:
        """Save; then, unless a signal stopped the run, write the last rows of metrics and evaluate once more.

        Returns why the run ends: the reason given, or a signal that came during the evaluation.

        Saving comes first, so a fault in the final evaluation costs nothing. The final rows are not counted in
        `rows`: a longer run that resumes from here drops them and gets the metrics of a run that never stopped.
        """
        state = self.trainer.state
        self._save(best=state.is_best)
        if reason not in SIGNALS:
            if state.interval_steps:
                self._record(self._train_row())
            try:
                if "valid" in self.corpus.splits and state.evaluated_step != state.step:
                    self._save(best=self._score())
            except _Stopped:
                return self._signals[0]
            self.tracker.finish(flatten(self.config), self._final_scores())
        self._tick()
        return reason

    def _final_scores(self) -> dict[str, float]:
        state = self.trainer.state
        if state.best_nats is None:  # no validation split
            return {"final/steps": state.step}
        return {
            "final/best_nats_per_char": state.best_nats,
            "final/best_bits_per_char": nats_to_bits(state.best_nats),
        }

    def _roll_back(self, error: DivergenceError) -> None:
        """Go back to the last checkpoint and halve the learning rate, or raise `error`.

        Raises if the config says stop, the number of rollbacks is used up, or there is no earlier checkpoint.

        If no update has succeeded since the last rollback, restore an older checkpoint: halving the rate cannot help.
        """
        train, trainer, diverged = self.config.train, self.trainer, self.trainer.state
        allowed = train.on_divergence == "rollback" and diverged.rollbacks < train.max_rollbacks
        self.group.on_first(self.folder.wait)
        before_step = diverged.step + (diverged.step != self._rolled_back_to)
        found = self.group.on_first(newest_whole, self.folder.path, before_step) if allowed else None
        if not found:
            times = f"; rolled back {counted(diverged.rollbacks, 'time')} before" if diverged.rollbacks else ""
            none = f"; there is no checkpoint before step {before_step}" if allowed else ""
            fault = DivergenceError(f"{error}{times}{none}; {self.folder.last_good()}")
            raise self.group.shared_error(fault) from None
        restore_snapshot(trainer, found[1])
        state = trainer.state
        self._rolled_back_to = state.step
        self.tracker.rewind(state.rows, state.step)
        state.count_rollback(diverged)
        factor = state.lr_factor
        self._show(
            self.tracker.note("rollback", state.step, diverged_step=diverged.step, fault=str(error), lr_factor=factor)
        )
        say("rollback", f"{error}; back to step {state.step}, learning rate × {factor:g} from now on")
        self._save(best=False)
        self.group.on_first(self.folder.wait)
        self.group.on_first(self.folder.drop_after, state.step)

    def _outcome(self, reason: str) -> Outcome:
        state = self.trainer.state
        return Outcome(
            run_dir=str(self.folder.path),
            reason=reason,
            step=state.step,
            chars=state.chars,
            elapsed_s=state.elapsed_s,
            valid_nats=state.valid_nats,
            best_nats=state.best_nats,
            best_step=state.best_step,
            parameters=sum(parameters_by_part(self.trainer.model).values()),
            best_nats_per_line=None if state.best_nats is None else self._per_line(state.best_nats),
        )

    def _per_line(self, nats_per_char: float) -> float | None:
        """A validation score as nats per line; None unless lines are the unit."""
        if self.corpus.starts is None:
            return None
        ids, starts = self.corpus.splits["valid"], self.corpus.starts["valid"]
        return nats_per_char * (len(ids) - 1) / (len(starts) - 1)
