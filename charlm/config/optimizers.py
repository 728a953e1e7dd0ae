"""The options of each optimizer and each learning rate schedule."""

from typing import Annotated, Any

from charlm.system.section import (
    Betas,
    CountOrNever,
    Fraction,
    Kinds,
    NonNegative,
    Positive,
    Probability,
    Section,
    Share,
)


class Schedule(Section):
    name: str
    warmup_steps: CountOrNever = 0
    """Updates over which the learning rate rises linearly from 0."""


class ConstantSchedule(Schedule):
    name: str = "constant"
    """The learning rate stays at `lr`."""


class Decay(Schedule):
    final_fraction: Fraction = 0.02
    """Learning rate at the end of the run, as a fraction of `lr`."""


class CosineSchedule(Decay):
    name: str = "cosine"
    """Half a cosine from `lr` to `final_fraction` · `lr` over the whole run."""


class LinearSchedule(Decay):
    name: str = "linear"
    """A straight line from `lr` to `final_fraction` · `lr` over the whole run."""


class StepSchedule(Schedule):
    name: str = "step"
    """Multiply the learning rate by `factor` at every epoch after the first `after_epochs`."""
    factor: Share = 0.97
    """Factor of the learning rate per epoch."""
    after_epochs: CountOrNever = 10
    """Epochs at the full learning rate."""


SCHEDULES = Kinds("name", ConstantSchedule, CosineSchedule, LinearSchedule, StepSchedule)


class Optimizer(Section):
    name: str
    lr: Positive = 3e-3
    """Peak learning rate."""
    weight_decay: NonNegative = 0.0
    """L2 penalty on all matrices, but on no vectors: biases, gains, peepholes."""
    clip_norm: NonNegative = 1.0
    """Scale the gradient down to this L2 norm if it is larger; 0: off. The norm grows with `bptt`."""
    clip_value: NonNegative = 0.0
    """Clip every element of the gradient to ±x; 0: off."""
    schedule: Annotated[Schedule, SCHEDULES] = ConstantSchedule()
    """How the learning rate changes during the run."""

    def options(self) -> dict[str, Any]:
        """The options that only this optimizer has: keyword arguments of its class in `torch.optim`."""
        return self.model_dump(exclude={"name", "clip_norm", "clip_value", "schedule", "weight_decay"})


class AdamConfig(Optimizer):
    name: str = "adam"
    """Adam with an L2 penalty."""
    betas: Betas = (0.9, 0.999)
    """Shares that each update keeps of the averages of the gradient and of its square."""
    eps: Positive = 1e-8
    """Added to the denominator, so that it is never 0."""


class AdamWConfig(AdamConfig):
    name: str = "adamw"
    """Adam with decoupled weight decay."""
    weight_decay: NonNegative = 0.01
    """Each update shrinks all matrices, but no vectors (biases, gains, peepholes), by this share times the learning
    rate."""


class MuonConfig(AdamWConfig):
    name: str = "muon"
    """Muon (Jordan et al. 2024) for matrices that multiply states, gate by gate, and AdamW for all other parameters."""
    momentum: Probability = 0.95
    """Momentum of Muon, for matrices that multiply a state of their layer or of the layer below."""


class SGDConfig(Optimizer):
    name: str = "sgd"
    """Stochastic gradient descent."""
    momentum: Probability = 0.0
    """Share of the last update that is added to the next."""


class RMSpropConfig(Optimizer):
    name: str = "rmsprop"
    """Divide the gradient by a running average of its magnitude."""
    alpha: Probability = 0.99
    """Decay rate of the average of the squared gradient."""
    eps: Positive = 1e-8
    """Added to the denominator, so that it is never 0."""
    momentum: Probability = 0.0
    """Share of the last update that is added to the next."""


class AdagradConfig(Optimizer):
    name: str = "adagrad"
    """Divide the gradient by the root of the sum of its squares so far."""
    eps: Positive = 1e-10
    """Added to the denominator, so that it is never 0."""


OPTIMIZERS = Kinds("name", AdamWConfig, AdamConfig, MuonConfig, SGDConfig, RMSpropConfig, AdagradConfig)
