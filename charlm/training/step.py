"""One update: read a window, backpropagate, clip, step."""

import copy
import math
import time
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import partial

import torch
from torch import Tensor

from charlm.cells.stored import with_step_of_now
from charlm.checkpoint import all_finite
from charlm.config import Config
from charlm.data.corpus import Corpus
from charlm.data.records import reset_id_of
from charlm.data.streams import RecordStreams, Streams
from charlm.errors import DivergenceError, LoopError
from charlm.layers import RecurrentState
from charlm.model import Network, WindowLoss, build_model, load_weights, named_weights
from charlm.native.loading import used_kernels
from charlm.native.recording import Recorded, addresses
from charlm.native.recurrence import CpuDriver
from charlm.system.console import say
from charlm.system.device import random_state, set_random_state
from charlm.system.process_group import Shard
from charlm.training.budget import Budget
from charlm.training.machine import Machine, check_memory
from charlm.training.optimizer import (
    build_optimizer,
    can_skip_steps,
    clip_gradients,
    learning_rate,
    skip_step_unless,
    step_and_average,
)
from charlm.training.state import TrainState


class Trainer:
    """Model, optimizer, text and state of a run; `update` makes one step.

    Seeds torch's global generator. DataError for a train split shorter than a window, DeviceError for too little
    memory. Each process of the group has a trainer for its part of the streams; all make the same updates: with the
    whole batch's gradients and scores, and the random numbers of a single process.

    budget: of the run's minutes; None: they have not begun.
    """

    def __init__(self, config: Config, corpus: Corpus, machine: Machine, budget: Budget | None = None) -> None:
        torch.manual_seed(config.seed)
        self.device, self.group = machine.device, machine.group
        # Checkpoints hold the step that is trained, not what becomes of it during the training.
        model = config.model.model_copy(update={"cell": with_step_of_now(config.model.cell)})
        self.config = config.model_copy(update={"precision": machine.precision, "model": model})
        self.budget = budget or Budget(config.train.max_minutes)
        self.corpus = corpus
        self.streams = _open_streams(config, corpus, self.group.shard)
        check_memory(config, len(corpus.vocabulary), machine)
        self.model = _new_model(self.config, corpus, machine)
        selection = self.model.select_backend(self.device)
        self.backend = selection.description
        self.parameters: list[Tensor] = list(self.model.parameters())
        self.averaged = copy.deepcopy(self.model).requires_grad_(False) if config.train.ema else None
        averages = [] if self.averaged is None else self.averaged.parameters()
        self._averages = dict(zip(self.parameters, averages, strict=False))
        self.optimizer = build_optimizer(self.model, config.optimizer)
        # With other backends PyTorch's operators take most of the time.
        self._records = isinstance(selection.backend.driver, CpuDriver)
        refusal = "" if self._records else f"the backend is {self.backend}"
        clip = partial(clip_gradients, self.optimizer, config.optimizer, self.model.clipped_together())
        self._recorded_gradients = Recorded(self._backpropagate, refusal)
        self._recorded_clip = Recorded(clip, refusal)
        self._recorded_step = Recorded(partial(step_and_average, self.optimizer, self._averages), refusal)
        self.state = TrainState(
            corpus.sha256,
            scored=asdict(replace(corpus.texts["valid"].scored, seen=0.0)) if "valid" in corpus.splits else {},
            threads=machine.threads,
            kernels=used_kernels(),
            backend=selection.backend.name,
            objective_sum=torch.zeros((), dtype=torch.float64, device=self.device),
            grad_norm=torch.zeros((), device=self.device),
        )
        # Reading a number from a GPU makes the host wait for it, so the check for finite numbers is deferred there, if
        # the GPU itself can skip a step.
        self._reading_waits = self.device.type != "cpu"
        self._diverged_step = torch.full((), -1, device=self.device)

    @property
    def evaluated_model(self) -> Network:
        """The model to score and sample with: the running average of the weights if there is one."""
        return self.averaged if self.averaged is not None else self.model

    def epochs(self) -> float:
        """Passes over the train split so far, including the fraction of the current one."""
        read = self.state.position - self.streams.epoch_start(self.state.epoch)
        return self.state.epoch + read / (self.streams.windows_per_epoch * self.config.train.bptt)

    def shares_done(self) -> dict[str, float]:
        """How much of each limit of the run is used up: 1 or more where it is reached."""
        train = self.config.train
        return {
            "max_steps": self.state.step / (train.max_steps or math.inf),
            "max_epochs": self.epochs() / (train.max_epochs or math.inf),
            "max_minutes": self.budget.share_done(self.state),
        }

    def share_done(self) -> float:
        """Fraction of the run that is done, 0 to 1: the largest over all limits."""
        return min(max(self.shares_done().values()), 1.0)

    def update(self) -> None:
        """Read one window of every stream and make one optimizer step.

        DivergenceError, before the weights change, for a loss or gradient that is not finite; on a GPU some optimizers
        (`can_skip_steps`) skip the step, and `check_finite` raises later.
        """
        start_s = time.perf_counter()
        train, state = self.config.train, self.state
        x_TB, y_TB = self.streams.read(state.position, train.bptt, self.device, state.epoch)
        lr = learning_rate(self.config.optimizer, state.step, state.epoch, self.share_done()) * state.lr_factor
        loss = self._gradients(x_TB, y_TB)
        grad_norm, gradient_scale = self._recorded_clip(addresses(self._parameter_gradients()))
        self._stop_unless_finite(loss.objective, grad_norm)
        self._step(lr, gradient_scale)
        self.drop_gradients()
        state.grad_norm, state.recurrent = grad_norm, loss.state
        state.objective_sum += loss.cross_entropy
        state.step += 1
        state.symbols += train.bptt * train.batch_size
        state.is_best = False
        state.position += train.bptt
        state.lr = lr
        state.averaged_updates += self.averaged is not None
        state.interval_steps += 1
        state.interval_s += time.perf_counter() - start_s
        if state.position + train.bptt > self.streams.length:
            state.epoch += 1
            state.position = self.streams.epoch_start(state.epoch)
            state.recurrent = None

    def _gradients(self, x_TB: Tensor, y_TB: Tensor) -> WindowLoss:
        """Leave the gradients of the whole batch, the mean over all processes; return its loss, detached."""
        if self._records:
            form = addresses(self.parameters)
            loss, gradients = self._recorded_gradients(form, x_TB, y_TB, self.state.recurrent)
            for parameter, gradient in zip(self.parameters, gradients, strict=True):
                parameter.grad = gradient
            loss = loss._replace(state=tuple(tensor.clone() for tensor in loss.state))
        else:
            loss = self._gradients_or_retry(x_TB, y_TB)
        if self.group.is_distributed:
            scores = self.group.all_reduce_gradients(self.parameters, loss.objective, loss.cross_entropy)
            loss = loss._replace(objective=scores[0], cross_entropy=scores[1])
        return loss

    def _gradients_or_retry(self, x_TB: Tensor, y_TB: Tensor) -> WindowLoss:
        """`_backpropagate`; where a backward pass fails on a GPU, compute all again by a slower way."""
        random = random_state(self.device)
        while True:
            try:
                return self._backpropagate(x_TB, y_TB, self.state.recurrent)[0]
            except LoopError as error:
                say("gpu", str(error))
            self.drop_gradients()
            set_random_state(self.device, random)

    def _backpropagate(
        self, x_TB: Tensor, y_TB: Tensor, carried: RecurrentState | None
    ) -> tuple[WindowLoss, list[Tensor | None]]:
        """The share of this process in the loss, detached, and in the gradients, which it also leaves."""
        train, size = self.config.train, self.group.size
        loss = self.model.window_loss(
            x_TB,
            y_TB,
            self._initial_state(carried),
            scored_steps=train.scored_steps,
            activation_penalty=train.activation_penalty,
            change_penalty=train.change_penalty,
        )
        objective = loss.objective / size if size > 1 else loss.objective
        objective.backward()
        total = loss.cross_entropy / size if size > 1 else loss.cross_entropy
        loss = loss._replace(objective=objective.detach(), cross_entropy=total)
        return loss, self._parameter_gradients()

    def _parameter_gradients(self) -> list[Tensor | None]:
        return [parameter.grad for parameter in self.parameters]

    def _initial_state(self, carried: RecurrentState | None) -> RecurrentState | None:
        """The hidden state before a window: `carried`; in randomly chosen streams the initial one, as in samples.

        Streams of records keep theirs: every record starts from the initial state.
        """
        p = self.config.train.reset_state
        # A learned start has a gradient in each window, perhaps 0: one process makes the same updates as many.
        draws = p > 0 or self.config.model.learned_start
        if carried is None or not draws or self.model.reads_records:
            return carried
        drawn_B1 = torch.rand(self.config.train.batch_size, 1, device=self.device)  # for the streams of all processes
        continues_B1 = self.group.shard.of(drawn_B1, dim=0) >= p
        initial = self.model.initial_state(len(continues_B1))
        return tuple(torch.where(continues_B1, *pair) for pair in zip(carried, initial, strict=True))

    def _step(self, lr: float, gradient_scale: Tensor | None) -> None:
        """Make the optimizer's step, and add the weights to their running average."""
        # The decay of the average rises to `ema`, so that the first weights soon fade.
        updates = self.state.averaged_updates
        decay = min((1 + updates) / (10 + updates), self.config.train.ema) if updates else 0.0
        rates = torch.tensor([lr, decay], dtype=torch.float64)
        states = [tensor for state in self.optimizer.state.values() for tensor in state.values()]
        form = addresses([*self.parameters, *self._parameter_gradients(), *states])
        # Muon's products: as the model's on a GPU, float32 on a CPU, where bfloat16 is mostly slow.
        on_cpu = self.device.type == "cpu"
        with nullcontext() if on_cpu else self.model.autocast(self.device):
            self._recorded_step(form, rates, gradient_scale)

    def start_from_weights(self, weights: dict[str, Tensor]) -> None:
        """Replace the initial weights and their running average."""
        load_weights(self.model, weights)
        if self.averaged is not None:
            self.averaged.load_state_dict(self.model.state_dict())

    def broadcast_weights(self) -> None:
        """Take the first process's initial weights: their random numbers may depend on the kind of CPU."""
        weights = named_weights(self.model)
        for weight in weights.values():
            self.group.broadcast_(weight.data)
        self.start_from_weights(weights)

    def _stop_unless_finite(self, objective: Tensor, grad_norm: Tensor) -> None:
        step = self.state.step + 1
        if self._reading_waits and can_skip_steps(self.optimizer):
            finite = torch.isfinite(grad_norm) & torch.isfinite(objective)
            skip_step_unless(finite, self.optimizer)
            first = ~finite & (self._diverged_step < 0)
            self._diverged_step.copy_(torch.where(first, step, self._diverged_step))
        elif not (math.isfinite(grad_norm) and math.isfinite(objective)):
            raise divergence(step, f"loss {objective:.6g}, gradient norm {grad_norm:.6g}")

    def check_finite(self, weights: bool = False) -> None:
        """DivergenceError if an update was not finite, with `weights` also if weights or optimizer state are not.

        On a GPU this waits for pending updates, and counts the wait as update time.
        """
        start_s = time.perf_counter()
        step = int(self._diverged_step)
        self.state.interval_s += time.perf_counter() - start_s
        if step >= 0:
            raise divergence(step, "a loss or gradient that is not finite")
        if not weights:
            return
        if not all(map(all_finite, self.parameters)):
            raise divergence(self.state.step, "weights that are not finite")
        values = [value for state in self.optimizer.state.values() for value in state.values()]
        if not all(all_finite(value) for value in values if isinstance(value, Tensor)):
            raise divergence(self.state.step, "optimizer state that is not finite")

    def forget_divergence(self) -> None:
        """After a restore: drop the gradients and the deferred check of the updates that were undone."""
        self._diverged_step.fill_(-1)
        self.drop_gradients()

    def drop_gradients(self) -> None:
        """So that the next ones are not added to them."""
        for parameter in self.parameters:
            parameter.grad = None


def _new_model(config: Config, corpus: Corpus, machine: Machine) -> Network:
    """A model in training mode that knows how frequent each character is, and nothing else."""
    reset_id = reset_id_of(config.data.records, corpus.vocabulary)
    shard = machine.group.shard
    network = build_model(config.model, len(corpus.vocabulary), machine.precision, shard, reset_id=reset_id)
    network = network.to(machine.device).train()
    network.init_output_bias_(torch.from_numpy(corpus.frequencies()))
    return network


def _open_streams(config: Config, corpus: Corpus, shard: Shard) -> Streams:
    """The streams of the train split of which this process has a part."""
    ids, train = corpus.splits["train"], config.train
    if corpus.starts is None:
        return Streams(ids, train.batch_size, train.bptt, shard=shard, share=train.read_share)
    return RecordStreams(ids, corpus.starts["train"], train.batch_size, train.bptt, shard=shard, seed=config.seed)


def divergence(step: int, description: str) -> DivergenceError:
    """The error for a non-finite number at `step`."""
    return DivergenceError(
        f"update {step}: found {description}; allowed: finite numbers; lower optimizer.lr or set optimizer.clip_norm"
    )
