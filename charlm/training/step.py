"""One run's moving parts: model, optimiser, place in the corpus; one update at a time."""

import copy
import itertools
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, get_type_hints

import torch
from torch import Tensor

from charlm.cells import RecurrentState
from charlm.checkpoint import Checkpoint, load_weights
from charlm.config import Config
from charlm.data.corpus import Corpus
from charlm.data.streams import Streams
from charlm.errors import CheckpointError, DivergenceError
from charlm.model import CharLM, build_model, map_state, window_loss
from charlm.system.device import autocast, resolve_device, set_threads
from charlm.training.memory import check_memory
from charlm.training.metrics import Row
from charlm.training.optimizer import (
    build_optimizer,
    clip_gradients,
    kept_copies,
    kept_tensors,
    learning_rate,
    skip_step_unless,
)


@dataclass
class TrainState:
    """All that resuming needs beside weights, optimiser and random state."""

    corpus_sha256: str
    step: int = 0
    """Updates made."""
    epoch: int = 0
    """Whole passes over the train split."""
    position: int = 0
    """Where in each stream the next window begins."""
    chars: int = 0
    """Characters read in all."""
    lr: float = 0.0
    """Learning rate of the last update."""
    elapsed_s: float = 0.0
    """Wall time of all sessions of the run, evaluation and checkpoints included."""
    threads: int = 0
    """CPU threads of the last session: with another number, sums are rounded otherwise."""
    rows: int = 0
    """Rows of metrics that belong to the steps so far."""
    best_nats: float | None = None
    """Lowest validation score so far, nats per character."""
    best_step: int = 0
    valid_nats: float | None = None
    """Score of the last evaluation."""
    evaluated_step: int = 0
    """When `eval_every` last called for one: the closing evaluation does not count, as a resumed run makes it anew."""
    evaluations_since_best: int = 0
    rollbacks: int = 0
    """Returns to an earlier checkpoint after numbers that were not finite; each halved the learning rate."""
    averaged_updates: int = 0
    """Updates that the running average of the weights has taken in."""
    interval_steps: int = 0
    """Updates since the last row of metrics, the time steps of their windows, and the seconds spent in them."""
    interval_bptt: int = 0
    interval_s: float = 0.0

    objective_sum: Tensor = field(default_factory=lambda: torch.zeros(()))
    """Cross-entropy, without penalties, of the updates since the last row of metrics, 0-d float64."""
    grad_norm: Tensor = field(default_factory=lambda: torch.zeros(()))
    """Of the last update, before clipping, 0-d."""
    recurrent: RecurrentState | None = None
    """The hidden state that the last window left; none where an epoch begins."""

    def progress(self) -> dict[str, Any]:
        """The numbers, as JSON."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in _TENSORS}

    def tensors(self) -> dict[str, Tensor]:
        """The tensors, by name."""
        parts = () if self.recurrent is None else _as_tuple(self.recurrent)
        numbered = {f"recurrent.{index}": part for index, part in enumerate(parts)}
        return {"objective_sum": self.objective_sum, "grad_norm": self.grad_norm, **numbered}

    @classmethod
    def restored(cls, progress: Mapping[str, Any], tensors: Mapping[str, Tensor], device: torch.device) -> "TrainState":
        """The inverse of `progress` and `tensors`."""
        moved = {name: tensor.to(device, copy=True) for name, tensor in tensors.items()}
        parts = tuple(moved[name] for name in sorted(moved) if name.startswith("recurrent."))
        _check_progress(progress)
        recurrent = None if not parts else parts[0] if len(parts) == 1 else parts
        return cls(**progress, objective_sum=moved["objective_sum"], grad_norm=moved["grad_norm"], recurrent=recurrent)


_TENSORS = ("objective_sum", "grad_norm", "recurrent")


def _check_progress(progress: Mapping[str, Any]) -> None:
    """ValueError for a value of another type, or a number that none can be."""
    for name, kind in get_type_hints(TrainState).items():
        value = progress.get(name)
        if name in progress and not (isinstance(value, kind) and (value is None or kind is str or 0 <= value < 2**63)):
            raise ValueError(f"{name}: found {value!r}")


def _as_tuple(state: RecurrentState) -> tuple[Tensor, ...]:
    return (state,) if isinstance(state, Tensor) else state


class Trainer:
    """Owns everything that an update changes; reads and writes no files but the mapped corpus.

    Randomness comes from torch's global generator, seeded here.
    """

    def __init__(self, config: Config, corpus: Corpus) -> None:
        set_threads(config.threads)
        torch.manual_seed(config.seed)
        self.config = config
        self.device = resolve_device(config.device)
        check_memory(config, len(corpus.vocabulary), self.device)
        self.autocast = autocast(self.device, config.precision)
        self.vocabulary = corpus.vocabulary
        self.streams = Streams(corpus.splits["train"], config.train.batch_size, config.train.bptt)
        self.model = build_model(config.model, len(corpus.vocabulary)).to(self.device).train()
        with self.autocast:  # Compiles kernels: now, before a run's folder and clock.
            self.backend = self.model.layers.select_backend(self.device).description
        self.parameters = list(self.model.parameters())
        self.averaged = copy.deepcopy(self.model).requires_grad_(False) if config.train.ema else None
        self.optimizer = build_optimizer(self.model, config.optimizer)
        self.state = TrainState(
            corpus.sha256,
            threads=torch.get_num_threads(),
            objective_sum=torch.zeros((), dtype=torch.float64, device=self.device),
            grad_norm=torch.zeros((), device=self.device),
        )
        # To look at a number on a GPU at every step would make each step wait for it: there the check is deferred.
        self._defers_checks = self.device.type != "cpu"
        self._diverged_step = torch.full((), -1, device=self.device)

    @property
    def evaluated_model(self) -> CharLM:
        """The weights to score and sample with: the running average where there is one."""
        return self.averaged if self.averaged is not None else self.model

    def epochs(self) -> float:
        """Passes over the train split so far, the current one in part."""
        read = self.state.position - self._epoch_start()
        return self.state.epoch + read / (self.streams.windows_per_epoch * self.config.train.bptt)

    def share_done(self) -> float:
        """How much of the run is done, 0 to 1: of its limits, the one that will be reached first."""
        train, state = self.config.train, self.state
        share = max(
            state.step / train.max_steps if train.max_steps else 0.0,
            self.epochs() / train.max_epochs if train.max_epochs else 0.0,
            state.elapsed_s / (60 * train.max_minutes) if train.max_minutes else 0.0,
        )
        return min(share, 1.0)

    def learning_rate(self) -> float:
        """The rate of the next update."""
        state = self.state
        planned = learning_rate(self.config.optimizer, step=state.step, epochs=state.epoch, progress=self.share_done())
        return planned * 0.5**state.rollbacks

    def update(self) -> None:
        """Read one window of every stream and make one step of the optimiser.

        On the CPU raises DivergenceError, before the weights change, where loss or gradient is not finite; on a
        GPU `check_finite` does so later.
        """
        start_s = time.perf_counter()
        config, state = self.config, self.state
        x_TB, y_TB = self.streams.read(state.position, self._window(), self.device)
        with self.autocast:
            loss = window_loss(self.model, x_TB, y_TB, self._carried_state(), config.train)
        loss.objective.backward()
        state.grad_norm = clip_gradients(self.parameters, config.optimizer)
        self._stop_unless_finite(loss.objective.detach())
        state.lr = self.learning_rate()
        for group in self.optimizer.param_groups:
            group["lr"] = state.lr
        self.optimizer.step()
        self.optimizer.zero_grad()
        self._average()

        state.objective_sum += loss.cross_entropy
        state.recurrent = loss.state
        state.step += 1
        state.chars += x_TB.numel()
        state.interval_steps += 1
        state.interval_bptt += len(x_TB)
        self._advance(len(x_TB))
        state.interval_s += time.perf_counter() - start_s

    def _window(self) -> int:
        """The steps of the next window."""
        train = self.config.train
        length = float(train.bptt)
        if train.bptt_start is not None:
            length = train.bptt_start + (train.bptt - train.bptt_start) * self.share_done()
        if train.vary_bptt:
            length *= 1 + train.vary_bptt * (2 * torch.rand(()).item() - 1)
        return min(max(1, round(length)), self.streams.length - self.state.position)

    def _carried_state(self) -> RecurrentState | None:
        """The state that the window before left, zero in a few streams drawn at random.

        Without those a model sees the zero state once an epoch, and is lost for the first characters it writes from it.
        """
        p = self.config.train.reset_state
        if self.state.recurrent is None or p == 0:
            return self.state.recurrent
        kept_B1 = torch.rand(self.config.train.batch_size, 1, device=self.device) >= p
        return map_state(lambda state_LBH: state_LBH * kept_B1, self.state.recurrent)

    def _advance(self, steps: int) -> None:
        """Go to the next window; behind the last whole one begins an epoch, with a fresh hidden state."""
        self.state.position += steps
        if self.state.position + self.config.train.bptt > self.streams.length:
            self.state.epoch += 1
            self.state.position = self._epoch_start()
            self.state.recurrent = None

    def _epoch_start(self) -> int:
        """Where in each stream this epoch begins.

        A stream is seldom a whole number of windows: the first epoch leaves out the rest at its end, the second
        as much at its beginning, and so on, so that every character is trained on.
        """
        return self.streams.length % self.config.train.bptt if self.state.epoch % 2 else 0

    def _average(self) -> None:
        """Take the weights into their running average; its decay rises to `ema`: the first are soon forgotten."""
        if self.averaged is None:
            return
        taken = self.state.averaged_updates
        decay = min((1 + taken) / (10 + taken), self.config.train.ema) if taken else 0.0
        with torch.no_grad():
            for mean, weight in zip(self.averaged.parameters(), self.parameters, strict=True):
                mean.lerp_(weight, 1 - decay)
        self.state.averaged_updates += 1

    def _stop_unless_finite(self, objective: Tensor) -> None:
        finite = torch.isfinite(self.state.grad_norm) & torch.isfinite(objective)
        step = self.state.step + 1
        if self._defers_checks:
            skip_step_unless(finite, self.optimizer)
            first = ~finite & (self._diverged_step < 0)
            self._diverged_step = torch.where(first, step, self._diverged_step)
        elif not finite:
            raise divergence(step, f"loss {objective:.6g}, gradient norm {self.state.grad_norm:.6g}")

    def check_finite(self, weights: bool = False) -> None:
        """DivergenceError where an update had no finite loss or gradient, or where `weights` are not finite now.

        On a GPU this waits for it; the time belongs to the updates.
        """
        start_s = time.perf_counter()
        step = int(self._diverged_step)
        self.state.interval_s += time.perf_counter() - start_s
        if step >= 0:
            raise divergence(step, "a loss or gradient that is not finite")
        if weights and not all(bool(torch.isfinite(parameter).all()) for parameter in self.parameters):
            raise divergence(self.state.step, "weights that are not finite")

    def row(self) -> Row:
        """The metrics since the last row; `begin_interval` begins anew."""
        self.check_finite()
        state, train = self.state, self.config.train
        nats = state.objective_sum.item() / (state.interval_bptt if train.loss == "sum" else state.interval_steps)
        return Row(
            step=state.step,
            chars=state.chars,
            split="train",
            loss=nats * self.scored_steps,
            nats=nats,
            lr=state.lr,
            grad_norm=state.grad_norm.item(),
            chars_per_s=state.interval_bptt * train.batch_size / state.interval_s,
            elapsed_s=state.elapsed_s,
        )

    def begin_interval(self) -> None:
        """Begin to sum up for the next row."""
        self.state.objective_sum.zero_()
        self.state.interval_steps, self.state.interval_bptt, self.state.interval_s = 0, 0, 0.0

    @property
    def scored_steps(self) -> int:
        """Steps of a window of `bptt` that the loss sums over: loss / scored_steps is nats per character."""
        return self.config.train.bptt if self.config.train.loss == "sum" else 1

    def checkpoint_bytes(self) -> int:
        """What a checkpoint takes at most."""
        layers = self.model.layers
        states = 4 * len(layers.state_names) * layers.num_layers * self.config.train.batch_size * layers.hidden_size
        weights = 0
        for group in self.optimizer.param_groups:
            copies = 1 + (self.averaged is not None) + kept_copies(self.optimizer, group)
            weights += copies * sum(parameter.nbytes for parameter in group["params"])
        return weights + states + 2**20

    def to_checkpoint(self) -> Checkpoint:
        """Everything that `restore` needs to go on as if nothing had happened."""
        carried = {**self.state.tensors(), "rng.cpu": torch.get_rng_state()}
        if self.device.type == "cuda":
            carried["rng.cuda"] = torch.cuda.get_rng_state(self.device)
        return Checkpoint(
            config=self.config,
            vocabulary=self.vocabulary,
            weights=dict(self.model.named_parameters()),
            averaged={} if self.averaged is None else dict(self.averaged.named_parameters()),
            optimizer={
                f"{key}/{name}": value
                for name, parameter in self.model.named_parameters()
                for key, value in self.optimizer.state.get(parameter, {}).items()
                if isinstance(value, Tensor)
            },
            carried=carried,
            progress=self.state.progress(),
        )

    def restore(self, checkpoint: Checkpoint) -> None:
        """Take over weights, optimiser, place and random state of a checkpoint of the same model and data."""
        load_weights(self.model, checkpoint.weights)
        if self.averaged is not None:
            load_weights(self.averaged, checkpoint.averaged or checkpoint.weights)
        try:
            self._restore_optimizer(checkpoint.optimizer)
            carried = dict(checkpoint.carried)
            torch.set_rng_state(carried.pop("rng.cpu").clone())
            cuda_state = carried.pop("rng.cuda", None)
            if self.device.type == "cuda" and cuda_state is not None:
                torch.cuda.set_rng_state(cuda_state, self.device)
            # Checkpoints from before windows could vary in length do not say how long they were.
            steps = {"interval_bptt": checkpoint.progress["interval_steps"] * self.config.train.bptt}
            state = TrainState.restored(steps | dict(checkpoint.progress), carried, self.device)
            self._check_state(state)
            self.state = state
            self.state.threads = torch.get_num_threads()
            self._diverged_step.fill_(-1)
            self.optimizer.zero_grad()  # those of an update that was broken off
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise CheckpointError(f"checkpoint: its training state does not fit ({error}); use another one") from None

    def _check_state(self, state: TrainState) -> None:
        """ValueError for a state that does not fit the text or the model."""
        if state.position >= self.streams.length:
            raise ValueError(f"position: found {state.position}; a stream has {self.streams.length}")
        self.model.layers.split_state(state.recurrent, self.config.train.batch_size)
        for name, tensor in state.tensors().items():
            wanted = getattr(self.state, name, None)
            if wanted is None:  # a part of the recurrent state, whose shape is right by now
                wanted = tensor.float()
            if (tensor.dtype, tensor.shape) != (wanted.dtype, wanted.shape):
                raise ValueError(f"{name}: found {tensor.dtype} {list(tensor.shape)}")

    def _restore_optimizer(self, tensors: Mapping[str, Tensor]) -> None:
        names = {id(parameter): name for name, parameter in self.model.named_parameters()}
        ordered = [names[id(p)] for group in self.optimizer.param_groups for p in group["params"]]
        state: dict[int, dict[str, Tensor]] = {}
        for key_and_name, tensor in tensors.items():
            key, _, name = key_and_name.partition("/")
            state.setdefault(ordered.index(name), {})[key] = tensor.clone()
        self._check_optimizer(state)
        self.optimizer.load_state_dict({"state": state, "param_groups": self.optimizer.state_dict()["param_groups"]})

    def _check_optimizer(self, state: Mapping[int, dict[str, Tensor]]) -> None:
        """ValueError unless every parameter has all that a step keeps, or nothing: fused steps do not look.

        A momentum that is new on resumption starts from zero.
        """
        number = itertools.count()
        for group in self.optimizer.param_groups:
            kept = kept_tensors(self.optimizer, group)
            for parameter in group["params"]:
                found = state.get(next(number))
                if not found:
                    continue
                if "momentum_buffer" in kept:
                    found.setdefault("momentum_buffer", torch.zeros_like(parameter))
                for key, shaped in kept.items():
                    wanted = parameter.shape if shaped else torch.Size()
                    if key not in found or found[key].shape != wanted or not found[key].is_floating_point():
                        raise ValueError(f"optimizer {key}: none, or not {list(wanted)} numbers")


def divergence(step: int, found: str) -> DivergenceError:
    """The error for a number at `step` that is not finite."""
    return DivergenceError(
        f"step {step}: found {found}; allowed: finite numbers; lower optimizer.lr or set optimizer.clip_norm"
    )
