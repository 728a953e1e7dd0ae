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
    """Updates in which the learning rate rises linearly from 0."""


class ConstantSchedule(Schedule):
    name: str = "constant"
    """`lr` all the time."""


class Decay(Schedule):
    final_fraction: Fraction = 0.02
    """Final learning rate, as a fraction of `lr`."""


class CosineSchedule(Decay):
    name: str = "cosine"
    """Half a cosine down to `final_fraction` · `lr`."""


class LinearSchedule(Decay):
    name: str = "linear"
    """A straight line down to `final_fraction` · `lr`."""


class StepSchedule(Schedule):
    name: str = "step"
    """`lr` for `after_epochs`, then times `factor` at every epoch."""
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
    """L2 penalty on matrices, not on biases, gains or peepholes."""
    clip_norm: NonNegative = 1.0
    """Scale the gradient down to this L2 norm if it is larger; 0: off. The norm grows with `bptt`."""
    clip_value: NonNegative = 0.0
    """Clip each element of the gradient to ±x; 0: off."""
    schedule: Annotated[Schedule, SCHEDULES] = ConstantSchedule()
    """The learning rate during the run."""

    def options(self) -> dict[str, Any]:
        """The options that only this optimizer has: keyword arguments of its class in `torch.optim`."""
        return self.model_dump(exclude={"name", "clip_norm", "clip_value", "schedule", "weight_decay"})


class AdamConfig(Optimizer):
    name: str = "adam"
    """Adam with an L2 penalty."""
    betas: Betas = (0.9, 0.999)
    """Decay rates of the averages of the gradient and of its square."""
    eps: Positive = 1e-8
    """Added to the denominator."""


class AdamWConfig(AdamConfig):
    name: str = "adamw"
    """Adam with decoupled weight decay."""
    weight_decay: NonNegative = 0.01
    """Each update shrinks matrices, not biases, gains or peepholes, by this times the learning rate."""


class MuonConfig(AdamWConfig):
    name: str = "muon"
    """Muon (Jordan et al. 2024) for matrices that multiply states, gate by gate, and AdamW for the rest."""
    momentum: Probability = 0.95
    """Momentum of Muon."""


class SGDConfig(Optimizer):
    name: str = "sgd"
    """Stochastic gradient descent."""
    momentum: Probability = 0.0
    """Share of the last update added to the next."""


class RMSpropConfig(Optimizer):
    name: str = "rmsprop"
    """Divide by the root of the average squared gradient."""
    alpha: Probability = 0.99
    """Decay rate of the average squared gradient."""
    eps: Positive = 1e-8
    """Added to the denominator."""
    momentum: Probability = 0.0
    """Share of the last update added to the next."""


class AdagradConfig(Optimizer):
    name: str = "adagrad"
    """Divide by the root of the summed squared gradients."""
    eps: Positive = 1e-10
    """Added to the denominator."""


OPTIMIZERS = Kinds("name", AdamWConfig, AdamConfig, MuonConfig, SGDConfig, RMSpropConfig, AdagradConfig)
