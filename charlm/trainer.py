"""One run's moving parts: model, optimiser, place in the corpus; one update at a time."""

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.optim.swa_utils import AveragedModel

from charlm.cells import StackState
from charlm.checkpoint import Checkpoint, load_weights
from charlm.config import Config
from charlm.data.corpus import Corpus
from charlm.data.streams import Streams
from charlm.device import autocast, resolve_device, set_threads
from charlm.errors import CheckpointError, DivergenceError
from charlm.model import CharLM, build_model, map_state, window_loss
from charlm.optim import build_optimizer, clip_gradients, learning_rate
from charlm.tracking import Row


@dataclass
class TrainState:
    """All that resuming needs beside weights, optimiser, hidden and random state."""

    corpus_sha256: str
    step: int = 0
    """Updates made."""
    epoch: int = 0
    """Whole passes over the train split."""
    position: int = 0
    """Characters of each stream read in this epoch."""
    chars: int = 0
    """Characters read in all."""
    elapsed_s: float = 0.0
    """Wall time of all sessions of the run, evaluation and checkpoints included."""
    best_nats: float | None = None
    """Lowest validation score so far, nats per character."""
    best_step: int = 0
    valid_nats: float | None = None
    """Score of the last evaluation, and the step it was made at."""
    evaluated_step: int = 0
    evaluations_since_best: int = 0
    interval_steps: int = 0
    """Updates since the last row of metrics, and the characters scored and seconds spent in them."""
    interval_scored: int = 0
    interval_s: float = 0.0


class Trainer:
    """Owns everything that an update changes; reads and writes no files but the mapped corpus.

    `state` and the tensors `recurrent` (carried hidden state) and `sums` are what a checkpoint keeps beside
    weights and optimiser state. Randomness comes from torch's global generator, seeded here.
    """

    def __init__(self, config: Config, corpus: Corpus) -> None:
        set_threads(config.threads)
        torch.manual_seed(config.seed)
        self.config = config
        self.device = resolve_device(config.device)
        self.autocast = autocast(self.device, config.precision)
        self.model = build_model(config.model, len(corpus.vocabulary)).to(self.device).train()
        self.parameters = list(self.model.parameters())
        self.averaged = _averaged(self.model, config.train.ema) if config.train.ema else None
        self.optimizer = build_optimizer(self.model, config.optimizer)
        self.streams = Streams(corpus.splits["train"], config.train.batch_size, config.train.bptt)
        self.vocabulary = corpus.vocabulary
        self.state = TrainState(corpus.sha256)
        self.recurrent: StackState | None = None
        self.sums = torch.zeros(2, dtype=torch.float64, device=self.device)
        """Since the last row of metrics: the objective, and nats of all scored characters."""
        self._norm = torch.zeros((), device=self.device)
        self._diverged_step = torch.full((), -1, device=self.device)
        self._guard = self._raise_unless_finite if self.device.type == "cpu" else self._blank_unless_finite

    @property
    def evaluated_model(self) -> CharLM:
        """The weights to score and sample with: the running average where there is one."""
        return cast(CharLM, self.averaged.module) if self.averaged is not None else self.model

    def share_done(self) -> float:
        """How much of the run is done, 0 to 1: of its limits, the one that will be reached first."""
        train, state = self.config.train, self.state
        epochs = state.epoch + state.position / self.streams.length
        return max(
            state.step / train.max_steps if train.max_steps else 0.0,
            epochs / train.max_epochs if train.max_epochs else 0.0,
            state.elapsed_s / (60 * train.max_minutes) if train.max_minutes else 0.0,
        )

    def update(self) -> None:
        """Read one window of every stream and make one step of the optimiser.

        DivergenceError, before the weights change, where loss or gradient is not finite.
        """
        start_s = time.perf_counter()
        config, state = self.config, self.state
        x_TB, y_TB = self.streams.read(state.position, config.train.bptt, self.device)
        with self.autocast:
            loss = window_loss(self.model, x_TB, y_TB, self._carried_state(), config.train.loss)
        loss.objective.backward()
        self._norm = clip_gradients(self.parameters, config.optimizer)
        self._guard(loss.objective.detach())
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate()
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.averaged is not None:
            self.averaged.update_parameters(self.model)

        objective = loss.objective.detach().double()
        self.sums += torch.stack([objective, objective * config.train.batch_size])
        self.recurrent = loss.state
        state.step += 1
        state.chars += x_TB.numel()
        state.interval_steps += 1
        state.interval_scored += loss.scored
        self._advance()
        state.interval_s += time.perf_counter() - start_s

    def _carried_state(self) -> StackState | None:
        """The state that the window before left, zero in a few streams drawn at random.

        Without those a model sees the zero state once an epoch, and what it writes from there is noise.
        """
        p = self.config.train.reset_state
        if self.recurrent is None or p == 0:
            return self.recurrent
        kept_B1 = torch.rand(self.config.train.batch_size, 1, device=self.device) >= p
        return map_state(lambda state_LBH: state_LBH * kept_B1, self.recurrent)

    def learning_rate(self) -> float:
        """The rate of the next update."""
        state = self.state
        return learning_rate(self.config.optimizer, step=state.step, epochs=state.epoch, progress=self.share_done())

    def _advance(self) -> None:
        """Go to the next window; behind the last whole one begins an epoch, with a fresh hidden state."""
        self.state.position += self.config.train.bptt
        if self.state.position + self.config.train.bptt > self.streams.length:
            self.state.epoch += 1
            self.state.position = 0
            self.recurrent = None

    def _raise_unless_finite(self, objective: Tensor) -> None:
        if not (torch.isfinite(self._norm) and torch.isfinite(objective)):
            raise _divergence(self.state.step, f"loss {objective:.6g}, gradient norm {self._norm:.6g}")

    def _blank_unless_finite(self, objective: Tensor) -> None:
        """The check for a GPU, where to look at the number at every step would make each wait for it.

        A gradient that is not finite is blanked, so that the weights stay finite; `check_finite` reports it.
        """
        finite = torch.isfinite(self._norm) & torch.isfinite(objective)
        for parameter in self.parameters:
            if parameter.grad is not None:
                parameter.grad.masked_fill_(~finite, 0.0)
        first = ~finite & (self._diverged_step < 0)
        self._diverged_step = torch.where(first, self.state.step, self._diverged_step)

    def check_finite(self) -> None:
        """DivergenceError where an update since the last look had no finite gradient (waits for the GPU)."""
        step = int(self._diverged_step)
        if step >= 0:
            raise _divergence(step, "a loss or gradient that is not finite")

    def take_row(self) -> Row:
        """The metrics since the last row, which this ends."""
        start_s = time.perf_counter()
        objective, nats = self.sums.tolist()  # waits for the GPU
        grad_norm = float(self._norm)
        self.sums.zero_()
        state = self.state
        interval_s = state.interval_s + time.perf_counter() - start_s
        row = Row(
            step=state.step,
            chars=state.chars,
            split="train",
            loss=objective / state.interval_steps,
            nats=nats / state.interval_scored,
            lr=self.optimizer.param_groups[0]["lr"],
            grad_norm=grad_norm,
            chars_per_s=state.interval_steps * self.config.train.batch_size * self.config.train.bptt / interval_s,
            elapsed_s=state.elapsed_s,
        )
        state.interval_steps, state.interval_scored, state.interval_s = 0, 0, 0.0
        return row

    def to_checkpoint(self) -> Checkpoint:
        """Everything that `restore` needs to go on as if nothing had happened."""
        state = {"sums": self.sums, "rng.cpu": torch.get_rng_state()}
        if self.device.type == "cuda":
            state["rng.cuda"] = torch.cuda.get_rng_state(self.device)
        if self.recurrent is not None:
            parts = (self.recurrent,) if isinstance(self.recurrent, Tensor) else self.recurrent
            state |= {f"recurrent.{index}": part for index, part in enumerate(parts)}
        averaged: dict[str, Tensor] = {}
        if self.averaged is not None:
            averaged = dict(self.averaged.module.named_parameters())
            state["averaged_updates"] = self.averaged.n_averaged
        return Checkpoint(
            config=self.config,
            vocabulary=self.vocabulary,
            weights=dict(self.model.named_parameters()),
            averaged=averaged,
            optimizer={
                f"{key}/{name}": value
                for name, parameter in self.model.named_parameters()
                for key, value in self.optimizer.state.get(parameter, {}).items()
                if isinstance(value, Tensor)
            },
            state=state,
            progress=asdict(self.state),
        )

    def restore(self, checkpoint: Checkpoint) -> None:
        """Take over weights, optimiser, place and random state of a checkpoint of the same model and data."""
        load_weights(self.model, checkpoint.weights)
        try:
            self._restore_optimizer(checkpoint.optimizer)
            self.state = TrainState(**checkpoint.progress)
            state = {name: tensor.clone() for name, tensor in checkpoint.state.items()}
            self.sums.copy_(state["sums"])
            torch.set_rng_state(state["rng.cpu"])
            if self.device.type == "cuda" and "rng.cuda" in state:
                torch.cuda.set_rng_state(state["rng.cuda"], self.device)
            parts = tuple(state[name].to(self.device) for name in sorted(state) if name.startswith("recurrent."))
            self.recurrent = None if not parts else parts[0] if len(parts) == 1 else parts
            if self.averaged is not None:
                load_weights(self.averaged.module, checkpoint.averaged or checkpoint.weights)
                if checkpoint.averaged:
                    self.averaged.n_averaged.copy_(state["averaged_updates"])
        except (KeyError, TypeError, RuntimeError) as error:
            raise CheckpointError(f"checkpoint: its training state does not fit ({error}); use another one") from None

    def _restore_optimizer(self, tensors: Mapping[str, Tensor]) -> None:
        names = {id(parameter): name for name, parameter in self.model.named_parameters()}
        ordered = [names[id(p)] for group in self.optimizer.param_groups for p in group["params"]]
        state: dict[int, dict[str, Any]] = {}
        for key_and_name, tensor in tensors.items():
            key, _, name = key_and_name.partition("/")
            state.setdefault(ordered.index(name), {})[key] = tensor.clone()
        self.optimizer.load_state_dict({"state": state, "param_groups": self.optimizer.state_dict()["param_groups"]})


def _averaged(model: CharLM, decay: float) -> AveragedModel:
    """A running average of the weights; its decay rises to `decay`, so that the first ones are soon forgotten."""

    def average(averages: Any, weights: Any, updates: Any) -> None:
        keep = torch.clamp((1 + updates) / (10 + updates), max=decay)
        for mean, weight in zip(averages, weights, strict=True):
            mean.lerp_(weight, (1 - keep).to(mean.dtype))

    return AveragedModel(model, multi_avg_fn=average)


def _divergence(step: int, found: str) -> DivergenceError:
    return DivergenceError(
        f"step {step}: found {found}; allowed: finite numbers; the weights are as before it; "
        "lower optimizer.lr or set optimizer.clip_norm"
    )
