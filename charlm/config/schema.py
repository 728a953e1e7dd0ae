"""The options of a run: every key of the YAML file, its default, what it allows and what it means.

The text below an option is its help: it becomes the JSON Schema's description (`charlm config schema`) and
the README's table.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, Strict, field_validator, model_validator

Fraction = Annotated[float, Field(ge=0, le=1)]
Probability = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]
CountOrNever = Annotated[int, Field(ge=0)]
NonEmpty = Annotated[str, Field(min_length=1)]
Betas = Annotated[tuple[Probability, Probability], Strict(False)]


class Section(BaseModel):
    """A mapping of the YAML file: strict types, unknown keys refused, unchangeable once read."""

    model_config = ConfigDict(
        strict=True, frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True
    )


def _default_tag(tag: str, default: str) -> BeforeValidator:
    """A section that does not name its kind is of the default one."""
    return BeforeValidator(lambda value: {tag: default, **value} if isinstance(value, dict) else value)


class DataConfig(Section):
    source: NonEmpty = "builtin:python-stdlib"
    """The corpus: a file, a folder (all its files), a glob, or `builtin:NAME` (see `charlm data list`)."""
    level: Literal["char", "byte"] = "char"
    """What one symbol is: a Unicode code point of UTF-8 text, or a byte of any file."""
    split: Annotated[tuple[Fraction, Fraction, Fraction], Strict(False)] = (0.9, 0.05, 0.05)
    """Train, validation and test shares of the source: contiguous, in this order; they sum to 1."""
    valid_source: NonEmpty | None = None
    """A source of its own for validation; its share of `split` is then given to the other parts."""
    test_source: NonEmpty | None = None
    """A source of its own for the test; its share of `split` is then given to the other parts."""
    grow_vocabulary: bool = False
    """With `--init-from`: give characters that the checkpoint has never seen new ids, instead of refusing."""

    @field_validator("split")
    @classmethod
    def _split_is_whole(cls, split: tuple[float, float, float]) -> tuple[float, float, float]:
        if abs(sum(split) - 1) > 1e-6:
            raise ValueError(f"found {list(split)}, which sum to {sum(split):g}; allowed: a sum of 1")
        if split[0] == 0:
            raise ValueError("found a train share of 0; allowed: above 0")
        return split


class Cell(Section):
    kind: Any  # narrowed by each kind; declared here to stand first in what is printed
    hidden: Count = 256
    """Hidden units of each layer, H."""

    def options(self) -> dict[str, Any]:
        """The options of this kind alone: keyword arguments of its module in `charlm.cells`."""
        return self.model_dump(exclude={"kind", "hidden"})


class RNNConfig(Cell):
    kind: Literal["rnn"]
    """Elman network: one linear map and one nonlinearity a step."""
    nonlinearity: Literal["tanh", "relu"] = "tanh"
    """What the state passes through at every step."""


class LSTMConfig(Cell):
    kind: Literal["lstm"]
    """Long short-term memory."""
    layer_norm: bool = False
    """Layer normalisation of each gate and of the cell inside the last tanh (Ba et al. 2016)."""
    forget_bias: float | None = 1.0
    """Initial bias of the forget gate; null: drawn like the other biases."""


class GRUConfig(Cell):
    kind: Literal["gru"]
    """Gated recurrent unit."""


class RHNConfig(Cell):
    kind: Literal["rhn"]
    """Recurrent highway network (Zilly et al. 2017)."""
    depth: Count = 5
    """Highway micro-layers within one time step, D."""
    couple_gates: bool = True
    """Carry gate c = 1 − g; false: a carry gate with weights of its own."""
    gate_bias: float = -2.0
    """Initial bias of the transform gate g; the more negative, the more of the state is carried at first."""


class Dropout(Section):
    """Dropout by place. A single number p in place of the section means {between_layers: p, output: p}."""

    embedding: Probability = 0.0
    """Whole characters: the input vector of a character is zeroed (Gal & Ghahramani 2016)."""
    input: Probability = 0.0
    """Units of the input of the first layer."""
    state: Probability = 0.0
    """Units of the state inside the recurrence; always one mask for all steps of a window."""
    weights: Probability = 0.0
    """Weights of the recurrence (Merity et al. 2018); always one mask for all steps of a window."""
    between_layers: Probability = 0.0
    """Units between one layer and the next."""
    output: Probability = 0.0
    """Units of the last layer's output, before the logits."""
    variational: bool = False
    """One mask for all steps of a window, instead of a new one at every step."""

    @model_validator(mode="before")
    @classmethod
    def _from_number(cls, value: Any) -> Any:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return {"between_layers": value, "output": value}
        return value

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: Any, handler: Any) -> dict[str, Any]:
        section = handler.resolve_ref_schema(handler(core_schema))
        return {"anyOf": [{"type": "number", "minimum": 0, "exclusiveMaximum": 1}, section]}


class ModelConfig(Section):
    cell: Annotated[
        RNNConfig | LSTMConfig | GRUConfig | RHNConfig,
        Field(discriminator="kind"),
        _default_tag("kind", "lstm"),
    ] = LSTMConfig(kind="lstm")
    """The recurrent cell: `kind`, `hidden`, and the options of that kind."""
    layers: Count = 1
    """Recurrent layers, L; each reads the output of the one below."""
    residual: bool = False
    """Add the input of every layer above the first to its output (He et al. 2016)."""
    embedding: CountOrNever = 64
    """Size of the character embedding, E; 0: one-hot input."""
    tie_embeddings: bool = False
    """Use the embedding as the weights of the logits too (Press & Wolf 2017); needs `embedding` = `cell.hidden`."""
    dropout: Dropout = Dropout()
    """One number, or a section by place."""
    zoneout: Probability = 0.0
    """Units of the state that keep their former value in a step (Krueger et al. 2017); expected value in evaluation."""
    init_uniform: Positive | None = None
    """Draw all weights from U(−x, x), biases 0 but those of gates; null: each layer's own initialisation."""
    orthogonal: bool = False
    """Begin with orthogonal recurrent matrices, gate by gate (Saxe et al. 2014)."""

    @model_validator(mode="after")
    def _tied_sizes(self) -> "ModelConfig":
        if self.tie_embeddings and self.embedding != self.cell.hidden:
            raise ValueError(
                f"tie_embeddings: found embedding {self.embedding} and hidden {self.cell.hidden}; "
                "allowed: equal sizes; set embedding to the hidden size"
            )
        return self


class TrainConfig(Section):
    batch_size: Count = 32
    """Parallel streams of the corpus, B."""
    bptt: Count = 64
    """Time steps a window: gradients flow back this far, T; the state is carried on."""
    bptt_start: Count | None = None
    """Time steps of the first window, grown to `bptt` by the run's end: a batch that grows (Smith et al. 2018).

    It is B × T characters; T grows, not B, because the streams carry their state. null: `bptt` from the first.
    """
    vary_bptt: Probability = 0.0
    """Draw the steps of each window from `bptt` · (1 ± x): its ends do not fall on the same characters every epoch.

    After Merity et al. 2018, who also scale the learning rate by the window's steps; charlm does not.
    """
    reset_state: Fraction = 0.0
    """Share of the streams that at each window begin anew, from the zero state that samples begin from too."""
    loss: Literal["sum", "last"] = "sum"
    """sum: cross-entropy summed over the T steps, mean over the B streams; last: of the last step alone."""
    activation_penalty: NonNegative = 0.0
    """AR (Merity et al. 2017): this × the mean square of the last layer's outputs after dropout, per scored step."""
    change_penalty: NonNegative = 0.0
    """TAR (Merity et al. 2017): this × the mean square of their change from step to step, before dropout, likewise."""
    max_steps: Count | None = None
    """Stop after so many updates; 2000 where no limit is given. Of several limits the first that is reached counts."""
    max_epochs: Positive | None = None
    """Stop after so many passes over the train split."""
    max_minutes: Positive | None = None
    """Stop after so many minutes of training, evaluation and checkpoints included, resumed parts added up."""
    log_every: Count = 50
    """Steps between two lines of metrics."""
    eval_every: CountOrNever = 250
    """Steps between two evaluations of the whole validation split; 0: at the end only."""
    save_every: CountOrNever = 500
    """Steps between two checkpoints; 0: at the end only."""
    sample_every: CountOrNever = 500
    """Steps between two text samples; 0: none."""
    sample_length: Count = 300
    """Characters of such a sample."""
    sample_temperature: NonNegative = 0.8
    """Temperature of such a sample."""
    on_divergence: Literal["stop", "rollback"] = "stop"
    """Where loss, gradient or weights are not finite: stop, or go back to the last checkpoint with half the rate."""
    max_rollbacks: Count = 3
    """Rollbacks of a run; where numbers are not finite once more, it stops."""
    patience: CountOrNever = 0
    """Evaluations without improvement before stopping; 0: never."""
    keep_checkpoints: Count = 3
    """Numbered checkpoints kept beside `last` and `best`: the newest so many."""
    ema: Probability = 0.0
    """Decay per step of a running average of the weights (Polyak & Juditsky 1992), then scored and sampled; 0: none."""

    @model_validator(mode="before")
    @classmethod
    def _default_limit(cls, value: Any) -> Any:
        limits = {"max_steps", "max_epochs", "max_minutes"}
        return {**value, "max_steps": 2000} if isinstance(value, dict) and not limits & value.keys() else value

    @model_validator(mode="after")
    def _windows_grow(self) -> "TrainConfig":
        if self.bptt_start is not None and self.bptt_start > self.bptt:
            raise ValueError(
                f"bptt_start: found {self.bptt_start}; allowed: at most bptt, {self.bptt}; lower it or raise bptt"
            )
        return self

    @model_validator(mode="after")
    def _has_an_end(self) -> "TrainConfig":
        if self.max_steps is None and self.max_epochs is None and self.max_minutes is None:
            raise ValueError("found no limit; allowed: at least one of max_steps, max_epochs, max_minutes")
        return self


class Schedule(Section):
    name: Any  # narrowed by each schedule
    warmup_steps: CountOrNever = 0
    """Steps over which the rate rises linearly from 0."""


class ConstantSchedule(Schedule):
    name: Literal["constant"]
    """The rate stays as it is."""


class Decay(Schedule):
    final_fraction: Fraction = 0.02
    """What is left of the rate at the run's end, as a fraction of `lr`."""


class CosineSchedule(Decay):
    name: Literal["cosine"]
    """Half a cosine from `lr` down to `final_fraction` of it, over the run's limit."""


class LinearSchedule(Decay):
    name: Literal["linear"]
    """A straight line from `lr` down to `final_fraction` of it, over the run's limit."""


class ExponentialSchedule(Decay):
    name: Literal["exponential"]
    """Equal factors in equal times from `lr` down to `final_fraction` of it, over the run's limit."""

    final_fraction: Annotated[float, Field(gt=0, le=1)] = 0.02
    """What is left of the rate at the run's end, as a fraction of `lr`."""


class StepSchedule(Schedule):
    name: Literal["step"]
    """A staircase: after the first `after_epochs` epochs the rate is multiplied by `factor` at each epoch."""
    factor: Annotated[float, Field(gt=0, le=1)] = 0.97
    """What the rate is multiplied by."""
    after_epochs: CountOrNever = 10
    """Epochs at the full rate."""


class Optimizer(Section):
    name: Any  # narrowed by each optimiser
    lr: Positive = 3e-3
    """Learning rate at its highest."""
    weight_decay: NonNegative = 0.0
    """Decay of weights (not of biases and normalisation gains); an L2 penalty but in AdamW."""
    clip_norm: NonNegative = 1.0
    """Scale the gradient down to this L2 norm where it is longer; 0: no clipping. The loss is a sum over T."""
    clip_value: NonNegative = 0.0
    """Clip every element of the gradient to ±x; 0: no clipping."""
    schedule: Annotated[
        ConstantSchedule | CosineSchedule | LinearSchedule | ExponentialSchedule | StepSchedule,
        Field(discriminator="name"),
        _default_tag("name", "constant"),
    ] = ConstantSchedule(name="constant")
    """How the rate changes in the course of the run."""

    def options(self) -> dict[str, Any]:
        """The options of this optimiser alone: keyword arguments of its class in `torch.optim`."""
        return self.model_dump(exclude={"name", "clip_norm", "clip_value", "schedule", "weight_decay"})


class AdamConfig(Optimizer):
    name: Literal["adam", "nadam", "radam"]
    """Adam and its kin, with L2 penalty."""
    betas: Betas = (0.9, 0.999)
    """Decay of the averages of gradient and squared gradient."""
    eps: Positive = 1e-8
    """Added to the root of the squared gradient."""


class AdamWConfig(Optimizer):
    name: Literal["adamw"]
    """Adam with decoupled weight decay."""
    weight_decay: NonNegative = 0.01
    """Decay of weights (not of biases and normalisation gains), per step and unit of `lr`."""
    betas: Betas = (0.9, 0.999)
    """Decay of the averages of gradient and squared gradient."""
    eps: Positive = 1e-8
    """Added to the root of the squared gradient."""


class MuonConfig(AdamWConfig):
    name: Literal["muon"]  # type: ignore[assignment]
    """Muon (Jordan et al. 2024) for the matrices between states, gate by gate; AdamW for all else."""
    momentum: Probability = 0.95
    """Of the average of the gradients of these matrices."""


class SGDConfig(Optimizer):
    name: Literal["sgd"]
    """Stochastic gradient descent."""
    momentum: Probability = 0.0
    """Share of the last update that goes into the next."""
    nesterov: bool = False
    """Nesterov's momentum; needs `momentum` above 0."""

    @model_validator(mode="after")
    def _nesterov_needs_momentum(self) -> "SGDConfig":
        if self.nesterov and self.momentum == 0:
            raise ValueError("nesterov: found true with momentum 0; allowed: momentum above 0")
        return self


class RMSpropConfig(Optimizer):
    name: Literal["rmsprop"]
    """Gradient divided by a running average of its size."""
    alpha: Probability = 0.99
    """Decay of the average of the squared gradient."""
    eps: Positive = 1e-8
    """Added to the root of the squared gradient."""
    momentum: Probability = 0.0
    """Share of the last update that goes into the next."""


class AdagradConfig(Optimizer):
    name: Literal["adagrad"]
    """Gradient divided by the root of the sum of its squares so far."""
    eps: Positive = 1e-10
    """Added to the root of the squared gradient."""


class Config(Section):
    """A run of charlm."""

    data: DataConfig = DataConfig()
    """What to learn from."""
    model: ModelConfig = ModelConfig()
    """What learns."""
    train: TrainConfig = TrainConfig()
    """How long, in what windows, and what is written on the way."""
    optimizer: Annotated[
        AdamWConfig | AdamConfig | MuonConfig | SGDConfig | RMSpropConfig | AdagradConfig,
        Field(discriminator="name"),
        _default_tag("name", "adamw"),
    ] = AdamWConfig(name="adamw")
    """How the weights are updated."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 1
    """Seed of initialisation, dropout and samples."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: CUDA where there is one, else the CPU."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """auto: fp32; bf16: products in it, weights and state in fp32. Fast on CPUs with AMX; those without AVX512_BF16
    emulate it, slowly."""
    threads: Annotated[int, Field(ge=0, le=1024)] = 0
    """CPU threads; 0: one per core. Results are bit-identical for the same number."""

    @model_validator(mode="after")
    def _patience_needs_validation(self) -> "Config":
        if self.train.patience and self.data.split[1] == 0 and self.data.valid_source is None:
            raise ValueError(
                "train.patience: found an early stop without a validation split; "
                "allowed: 0, or a validation share in data.split, or data.valid_source"
            )
        return self
