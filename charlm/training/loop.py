"""The training loop: evaluate → sample → save → stop → update → log."""

import contextlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from charlm.checkpoint import best_score, newest_whole
from charlm.errors import DivergenceError
from charlm.inference.evaluation import evaluate
from charlm.inference.options import SamplingOptions
from charlm.inference.sampling import draw_sample
from charlm.model import count_parameters
from charlm.runs import BEST, FOLDER, LAST
from charlm.scored import ScoredText
from charlm.system.console import say
from charlm.system.device import describe_device
from charlm.system.formatting import counted, format_duration, nats_to_bits
from charlm.training.folder import check_ours, drop_after, write_checkpoint, write_config
from charlm.training.metrics import Tracker, metrics_row, progress_bar, show_progress, train_row
from charlm.training.optimizer import describe_treatment
from charlm.training.run import Run
from charlm.training.signals import catch_signals
from charlm.training.snapshot import fingerprint, restore_snapshot, take_snapshot
from charlm.training.step import Trainer, divergence

OnRow = Callable[[dict[str, Any]], object]
"""Called with each row of metrics.jsonl after it is written, in the process that writes. An exception ends the run."""


class _Stopped(Exception):
    """A signal has come: the run saves and ends."""


class TrainingLoop:
    """`fit` trains until a limit is reached or a signal arrives."""

    def __init__(self, trainer: Trainer, run_dir: Path, tracker: Tracker, on_row: OnRow | None) -> None:
        self.trainer = trainer
        self.config = trainer.config
        self.group = trainer.group
        self.budget = trainer.budget
        self.corpus = trainer.corpus
        self.run_dir = run_dir
        self._last = run_dir / FOLDER / LAST
        self.tracker = tracker
        self._on_row = on_row
        self._bar = progress_bar(self.group.is_first)
        self._received: list[str] = []
        self._signals: list[str] = []  # as all processes know them
        self._rolled_back_to = -1  # step
        self._train_row: dict[str, Any] = {}
        self._train_nats_of_best = math.nan  # of the last such row before the best score
        window = self.config.train.batch_size * self.config.train.bptt
        self.budget.begin(trainer.state, len(self.corpus.splits.get("valid", ())) / window)

    def fit(self) -> Run:
        """Train until a limit or a signal, or a divergence without a way back; RunError if a file cannot be written."""
        self._print_header()
        try:
            with catch_signals(patient=self.group.is_distributed) as (self._received, self._let_signals_go):
                self._take_best()
                if not self.group.on_first(self._last.exists):
                    self._save(is_begun=False)  # from here on the run can be resumed
                self.group.on_first(write_config, self.run_dir, self.config)
                while True:
                    try:
                        return self._outcome(self._train_and_close())
                    except DivergenceError as error:
                        self._roll_back(error)
        finally:
            with contextlib.suppress(OSError):
                self._bar.close()
            self.tracker.close()

    def _train_and_close(self) -> str:
        """The limit that ended the run, or the signal that stopped it."""
        try:
            limit = self._train()
            self._close(limit)
        except _Stopped:
            self._let_signals_go()
            self._save()
            return self._signals[0]
        return limit

    def _train(self) -> str:
        """Train until a limit is reached, and return its name.

        `state.due` lists what is not finished at this step. Checkpoints keep it, so a resumed run continues there.
        """
        state = self.trainer.state
        self._tick()
        while True:
            if "evaluate" in state.due:
                self._evaluate()
            if "sample" in state.due:
                self._sample()
                state.due.remove("sample")
                state.sampled_step = state.step
            if "save" in state.due:
                state.due.remove("save")  # before it is written
                self._save()
            if self._signals:
                raise _Stopped
            if limit := self._limit_reached():
                return limit
            self._update()
            state.due = self.actions_due()
            if "log" in state.due:
                self._record_train()
                state.count_row()
                state.due.remove("log")

    def actions_due(self) -> list[str]:
        """What is due at this step. A sample also is at 0, 10, 30, 100, 300, …, where noise becomes words."""
        train, state = self.config.train, self.trainer.state
        step, sample_every = state.step, train.sample_every
        evaluates = self._is_due(train.eval_every) and self.budget.has_time_to_evaluate(state)
        if step == 0:
            evaluates = state.earlier_symbols > 0
        samples_early = 10 <= step < sample_every and str(step).rstrip("0") in ("1", "3")
        actions = {
            "log": self._is_due(train.log_every),
            "evaluate": evaluates and "valid" in self.corpus.splits,
            "sample": sample_every > 0 and (step % sample_every == 0 or samples_early),
            "save": self._is_due(train.save_every),
        }
        return [action for action, is_due in actions.items() if is_due]

    def _is_due(self, every: int) -> bool:
        step = self.trainer.state.step
        return every > 0 and step > 0 and step % every == 0

    def _limit_reached(self) -> str:
        """The option whose limit is reached; "" if none is."""
        for limit, share in self.trainer.shares_done().items():
            if share >= 1:
                return limit
        patience = self.config.train.patience
        return "patience" if 0 < patience <= self.trainer.state.evaluations_since_best else ""

    def _close(self, limit: str) -> None:
        """Write the last rows of metrics, evaluate and sample unless that is done for this step, and save.

        A longer run that resumes from here drops these rows and this sample.
        """
        state = self.trainer.state
        if state.best_nats is not None and not self.group.on_first((self.run_dir / FOLDER / BEST).exists):
            self._take_best()
        evaluates = "valid" in self.corpus.splits and (state.evaluated_step != state.step or state.best_nats is None)
        samples = self.config.train.sample_every > 0 and state.sampled_step != state.step
        if evaluates or samples:
            self._save()  # a fault in what follows then costs nothing
        if state.interval_steps:
            self._record_train()
        if evaluates:
            self._score()
        if samples:
            with contextlib.suppress(_Stopped):  # the run is finished all the same
                self._sample()
        state.stop_reason = limit
        self._save()

    def _outcome(self, reason: str) -> Run:
        state, per_line = self.trainer.state, None
        scored = ScoredText.from_json(state.scored)
        if self.corpus.starts is not None and state.best_nats is not None and scored:
            per_line = state.best_nats * scored.chars / (len(self.corpus.starts["valid"]) - 1)
        return Run(
            run_dir=str(self.run_dir),
            reason=reason,
            step=state.step,
            chars=round(state.symbols / self.corpus.symbols_per_char),
            elapsed_s=state.elapsed_s,
            valid_nats=state.valid_nats,
            best_nats=state.best_nats,
            best_step=state.best_step,
            parameters=count_parameters(self.trainer.config.model, len(self.corpus.vocabulary)),
            best_nats_per_record=per_line,
            scored=scored,
            is_overfit=self.trainer.epochs() >= 1 and self._train_row.get("nats", math.nan) < self._train_nats_of_best,
        )

    def _tick(self) -> None:
        """Bring the time, the signals and the progress bar up to date."""
        state = self.trainer.state
        self._signals = self.budget.tick(state, self.group, self._received)
        if state.step:  # before the first update nothing is done, whatever time has passed
            show_progress(self._bar, state, self.trainer.share_done(), self._train_row)

    def _stop_if_signaled(self) -> None:
        """_Stopped if a process has received a signal."""
        self._tick()
        if self._signals:
            raise _Stopped

    def _update(self) -> None:
        start_s = self.trainer.state.elapsed_s
        self.trainer.update()
        self._tick()
        self.budget.count_update(self.trainer.state.elapsed_s - start_s)

    def _evaluate(self) -> None:
        state = self.trainer.state
        self._tick()
        start_s = state.elapsed_s
        self._score()
        if self.budget.update_s:
            self.budget.evaluation_updates = (state.elapsed_s - start_s) / self.budget.update_s
        state.rows += 1
        state.evaluated_step = state.step
        state.evaluations_since_best = 0 if state.is_best else state.evaluations_since_best + 1
        state.due.remove("evaluate")
        if state.is_best and "save" not in state.due:
            state.due.append("save")

    def _score(self) -> None:
        """Evaluate and log the score. DivergenceError if it is not finite."""
        trainer, state = self.trainer, self.trainer.state
        trainer.check_finite()
        valid = self.corpus.texts["valid"]
        score = evaluate(trainer.evaluated_model, valid, group=self.group, check=self._stop_if_signaled)
        self._tick()
        nats = score.nats_per_char
        if not nats < 2**63:  # no checkpoint may hold more
            raise divergence(state.step, f"a validation score of {nats:.3g} nats, which stands for infinity")
        loss = score.nats_sum / (len(valid.ids) - valid.given) * self.config.train.scored_steps
        self._record(metrics_row(state, self.corpus.symbols_per_char, "valid", loss, nats, score.chars_per_s))
        state.valid_nats = nats
        # A run that was killed after it wrote `best` comes to this score again.
        is_again = (nats, state.step) == (state.best_nats, state.best_step)
        state.is_best = is_again or state.best_nats is None or nats < state.best_nats
        if state.is_best:
            state.best_nats, state.best_step = nats, state.step
            self._train_nats_of_best = self._train_row.get("nats", math.nan)
        per_record = "" if score.nats_per_record is None else f"  {score.nats_per_record:.2f} nats/record"
        has_bytes = self.corpus.vocabulary.level == "byte" and score.bits_per_byte is not None
        per_byte = f"  {score.bits_per_byte:.4f} bits/byte" if has_bytes else ""
        scores = f"{nats:.4f} nats  {nats_to_bits(nats):.4f} bits/char{per_byte}{per_record}"
        best = "  best" if state.is_best else ""
        say("valid", f"update {state.step:>6}  {scores}  {format_duration(state.elapsed_s)}{best}")

    def _sample(self) -> None:
        """Log a sample, and its first characters on stderr; _Stopped if a signal comes first."""
        train, trainer, step = self.config.train, self.trainer, self.trainer.state.step
        self._tick()
        start_s = trainer.state.elapsed_s
        sample = self.group.on_first(
            draw_sample,
            trainer.evaluated_model.eval(),
            self.corpus.vocabulary,
            options=SamplingOptions(length=train.sample_length, temperature=train.sample_temperature),
            seed=self.config.seed + step,
            stops=lambda: self._received or self._signals,
        )
        trainer.model.train()
        if sample is None:
            self._stop_if_signaled()
        else:
            self.group.on_first(check_ours, self.run_dir)
            self.group.on_first(self.tracker.sample, sample, step)
            say("sample", f"update {step:>6}  {sample['text'][:80]!r}")
            self._tick()
            self.budget.sampling_s = trainer.state.elapsed_s - start_s

    def _save(self, *, is_begun: bool = True) -> None:
        """Write the `last` checkpoint, `best` if these weights have the best score, and the numbered one if due.

        is_begun: whether the run has written a checkpoint before.
        """
        self._tick()
        state = self.trainer.state
        start_s = state.elapsed_s
        snapshot = take_snapshot(self.trainer)
        self.group.check_equal("weights", lambda: fingerprint(snapshot))
        self.trainer.check_finite(weights=True)
        self.group.on_first(check_ours, self.run_dir, is_begun=is_begun)
        numbered, keep = self._is_due(self.config.train.save_every), self.config.train.keep_checkpoints
        self.group.on_first(write_checkpoint, self.run_dir, snapshot, best=state.is_best, numbered=numbered, keep=keep)
        self._tick()
        self.budget.saving_s = state.elapsed_s - start_s

    def _print_header(self) -> None:
        trainer, model = self.trainer, self.config.model
        say("model", f"{model.description}: {count_parameters(model, len(self.corpus.vocabulary)):,} parameters")
        say("device", f"{describe_device(trainer.device)}, {self.config.precision}; {trainer.backend}")
        say("update", describe_treatment(trainer.optimizer, self.config.optimizer.name))
        say("run", str(self.run_dir))
        if limit := self._limit_reached():
            value = getattr(self.config.train, limit)
            option = "--minutes …" if limit == "max_minutes" else f"--set train.{limit}=…"
            say("limit", f"train.{limit}={value} is already reached; to train on, raise it: {option}")

    def _record_train(self) -> None:
        """Log the metrics since the last row; DivergenceError if an update was not finite."""
        self.trainer.check_finite()
        row = train_row(self.trainer.state, self.config.train, self.corpus.symbols_per_char)
        self._record(row)
        self._train_row = row

    def _record(self, row: dict[str, Any]) -> None:
        self.group.on_first(self._write, row)

    def _write(self, row: dict[str, Any]) -> None:
        check_ours(self.run_dir)
        self.tracker.record(row)
        if self._on_row:
            with contextlib.chdir("."):  # the function may change the working folder, but the run's may be relative
                self._on_row(row)

    def _roll_back(self, error: DivergenceError) -> None:
        """Go back to the last checkpoint and halve the learning rate, or raise `error`.

        If no update has succeeded since the last rollback, go back further: halving the rate cannot help.
        """
        train, trainer, diverged = self.config.train, self.trainer, self.trainer.state
        allowed = train.on_divergence == "rollback" and diverged.rollbacks < train.max_rollbacks
        before_step = diverged.step
        if diverged.step != self._rolled_back_to:
            before_step += 1  # a checkpoint of this very step will do
        earlier = self.group.on_first(newest_whole, self.run_dir, before_step) if allowed else None
        if not earlier:
            times = f"; rolled back {counted(diverged.rollbacks, 'time')} before" if diverged.rollbacks else ""
            none = f"; there is no checkpoint before update {before_step}" if allowed else ""
            fault = DivergenceError(f"{error}{times}{none}; last good checkpoint: {self._last}")
            raise self.group.shared_error(fault) from None
        self.group.on_first(check_ours, self.run_dir)
        restore_snapshot(trainer, earlier[1])
        state = trainer.state
        self._rolled_back_to = state.step
        self.group.on_first(self.tracker.rewind, state)
        self._take_best()
        state.rollbacks = diverged.rollbacks + 1
        state.rows += 1
        row = {"step": state.step, "split": "rollback", "diverged_step": diverged.step, "fault": str(error)}
        best = {"best_nats": state.best_nats, "best_step": state.best_step}
        self._record(row | {"lr_factor": state.lr_factor} | best)
        say("rollback", f"{error}; back to update {state.step}, learning rate × {state.lr_factor:g} from now on")
        self._save()
        self.group.on_first(drop_after, self.run_dir, state.step)

    def _take_best(self) -> None:
        """After a restore: take score and step of `best` from its file, which may hold weights of a later step."""
        state, best = self.trainer.state, self.group.on_first(best_score, self.run_dir)
        if state.best_nats is not None and best[0] is None:
            say("best", f"{self.run_dir / FOLDER / BEST} is gone or damaged; its score does not count any more")
        state.is_best = state.is_best and best == (state.best_nats, state.best_step)
        state.best_nats, state.best_step = best
