"""The options of a run: every key of the YAML file, its default, the values it allows and what it means."""

from typing import Annotated, Any, Literal

from pydantic import Field, Strict, field_validator, model_validator

from charlm.cells import CELLS, LSTM, Cell
from charlm.cells.cell import IN_FILE
from charlm.cells.program import MOST_SIZE
from charlm.config.optimizers import OPTIMIZERS, AdamWConfig, Optimizer
from charlm.system.formatting import model_in_words
from charlm.system.section import (
    Count,
    CountOrNever,
    Device,
    Few,
    Fraction,
    Kinds,
    NonEmpty,
    NonNegative,
    Positive,
    Probability,
    Section,
    Share,
    Whole,
)

MINUTES = (0.0001, 525_600.0)
"""The least and the most minutes of a run: the time of an update of the smallest models, and a year."""


class DataConfig(Section):
    source: NonEmpty = "builtin:python-stdlib"
    """The text: a file, folder, glob, or `builtin:NAME` (see `charlm data list`)."""
    level: Literal["char", "byte"] = "char"
    """Symbols: code points of UTF-8 text (char), or bytes of any file (byte)."""
    records: str = ""
    r"""Text between two records, such as "\n" or "\n~~~\n"; each record starts from the initial state. "": running
    text."""
    split: Annotated[tuple[Fraction, Fraction, Fraction], Strict(False)] = (0.9, 0.05, 0.05)
    """Shares for training, validation and test, in this order, with sum 1."""
    valid_source: NonEmpty | None = None
    """Separate validation text; the other shares of `split` are rescaled."""
    test_source: NonEmpty | None = None
    """Separate test text; the other shares of `split` are rescaled."""
    min_count: Count = 1
    """Rarer characters, and unknown ones of later texts, share a symbol that is never sampled."""
    grow_vocabulary: bool = False
    """With `--init-from`: add new characters to the vocabulary; false: refuse them."""

    @field_validator("split")
    @classmethod
    def _split_is_whole(cls, split: tuple[float, float, float]) -> tuple[float, float, float]:
        if abs(sum(split) - 1) > 1e-6:
            raise ValueError(f"found {list(split)}, which sum to {sum(split):g}; allowed: a sum of 1")
        if split[0] == 0:
            raise ValueError("found a train share of 0; allowed: above 0")
        return split


class Dropout(Section):
    """Dropout probabilities by place. A single number p means {between_layers: p, output: p}."""

    embedding: Probability = 0.0
    """Whole input vectors of characters (Gal & Ghahramani 2016)."""
    input: Probability = 0.0
    """Units of the first layer's input."""
    state: Probability = 0.0
    """Units of the recurrent state; one mask per window."""
    weights: Probability = 0.0
    """Recurrent weights (Merity et al. 2018); one mask per window."""
    between_layers: Probability = 0.0
    """Units between two layers."""
    output: Probability = 0.0
    """Units of the last layer's output."""
    variational: bool = False
    """Draw one mask per window, not one per step."""

    @model_validator(mode="before")
    @classmethod
    def _from_number(cls, value: Any) -> Any:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return {"between_layers": value, "output": value}
        return value

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: Any, handler: Any) -> dict[str, Any]:
        section = handler.resolve_ref_schema(handler(core_schema))
        number = {key: section["properties"]["output"][key] for key in ("type", "minimum", "maximum")}
        return {"anyOf": [number, section]}


_OWN_CELL = {
    "type": "object",
    "properties": {"kind": {"type": "string", "pattern": IN_FILE}},
    "required": ["kind"],
}
CELL_KINDS = Kinds("kind", LSTM, *CELLS.values(), other=_OWN_CELL)


class ModelConfig(Section):
    cell: Annotated[Cell, CELL_KINDS] = LSTM()
    """The recurrent cell and its options."""
    layers: Few = 1
    """Stacked recurrent layers, L."""
    residual: bool = False
    """Add a layer's input to its output, from layer 2 on (He et al. 2016)."""
    members: Few = 1
    """Networks trained together as an ensemble."""
    embedding: Annotated[int, Field(ge=0, le=MOST_SIZE), Whole] = 64
    """Size of the character embedding, E; 0: one-hot input."""
    tie_embeddings: bool = False
    """Share the weights of embedding and logits (Press & Wolf 2017), with a projection if the sizes differ."""
    dropout: Dropout = Dropout()
    """Probabilities by place. A number p means {between_layers: p, output: p}."""
    zoneout: Probability = 0.0
    """Probability that a unit keeps its state in a step (Krueger et al. 2017)."""
    learned_start: bool = False
    """Learn each layer's initial state, with `data.records` or `train.reset_state`; false: zeros."""
    init_uniform: Positive | None = None
    """Draw weights from U(−x, x) and set biases to 0, except those set for gates; null: each layer's default."""
    orthogonal: bool = False
    """Initialize recurrent matrices orthogonally, gate by gate (Saxe et al. 2014)."""

    @model_validator(mode="after")
    def _tied_embedding(self) -> "ModelConfig":
        if self.tie_embeddings and not self.embedding:
            allowed = "allowed: embedding above 0; set it or tie_embeddings to false"
            raise ValueError(f"tie_embeddings: found true with embedding 0, one-hot input; {allowed}")
        return self

    @property
    def description(self) -> str:
        """The cell and the sizes: "lstm, 2 × 256 units, 3 members"."""
        return model_in_words(self.cell.name, self.layers, self.cell.hidden, self.members)


class TrainConfig(Section):
    batch_size: Count = 32
    """Streams of text read in parallel, B."""
    bptt: Count = 64
    """Steps per window, T; gradients stop at its start, the state is carried over."""
    reset_state: Fraction = 0.0
    """Share of the streams that start a window from the initial state, as samples do."""
    read_share: Share = 1.0
    """Share of each stream that an epoch reads, in pieces of about 1,024 characters; the next reads others."""
    loss: Literal["sum", "last"] = "sum"
    """Loss of a window: the cross-entropy summed over its steps, or of the last step."""
    activation_penalty: NonNegative = 0.0
    """Weight of AR (Merity et al. 2017): mean square of the last layer's outputs, after dropout."""
    change_penalty: NonNegative = 0.0
    """Weight of TAR (Merity et al. 2017): mean square of the last layer's change per step, before dropout."""
    max_steps: Count | None = None
    """Stop after this many updates; 2000 if no limit is set. The first limit reached ends the run."""
    max_epochs: Positive | None = None
    """Stop after this many passes over the training split."""
    max_minutes: Annotated[float, Field(ge=MINUTES[0], le=MINUTES[1])] | None = None
    """Stop after this many minutes in all sessions, evaluation included."""
    log_every: Count = 50
    """Updates between two rows of metrics."""
    eval_every: CountOrNever = 250
    """Updates between two evaluations; 0: only at the end."""
    save_every: CountOrNever = 500
    """Updates between two numbered checkpoints; 0: only `last` and `best`."""
    sample_every: CountOrNever = 500
    """Updates between two text samples, also at 0, 10, 30, 100, 300, … and at the end; 0: none."""
    sample_length: Annotated[int, Field(ge=1, le=10_000), Whole] = 300
    """Characters per text sample."""
    sample_temperature: NonNegative = 0.8
    """Temperature of text samples."""
    on_divergence: Literal["stop", "rollback"] = "stop"
    """If loss, gradient or weights are not finite: stop, or return to the last checkpoint with half the learning
    rate."""
    max_rollbacks: Count = 3
    """Rollbacks before divergence stops the run."""
    patience: CountOrNever = 0
    """Stop after this many evaluations without improvement; 0: never."""
    keep_checkpoints: Count = 3
    """Numbered checkpoints to keep, besides `last` and `best`."""
    ema: Probability = 0.0
    """Decay of a running average of the weights (Polyak & Juditsky 1992), used for scores and samples; 0: off."""

    @model_validator(mode="before")
    @classmethod
    def _default_limit(cls, value: Any) -> Any:
        limits = {"max_steps", "max_epochs", "max_minutes"}
        return {**value, "max_steps": 2000} if isinstance(value, dict) and not limits & value.keys() else value

    @property
    def scored_steps(self) -> int:
        """Steps of a window that its loss scores."""
        return self.bptt if self.loss == "sum" else 1

    @model_validator(mode="after")
    def _has_an_end(self) -> "TrainConfig":
        if self.max_steps is None and self.max_epochs is None and self.max_minutes is None:
            raise ValueError("found no limit; allowed: at least one of max_steps, max_epochs, max_minutes")
        return self


class Config(Section):
    """A run of charlm."""

    data: DataConfig = DataConfig()
    """The text, and how it is split."""
    model: ModelConfig = ModelConfig()
    """The network."""
    train: TrainConfig = TrainConfig()
    """Windows, loss, limits, and what a run writes."""
    optimizer: Annotated[Optimizer, OPTIMIZERS] = AdamWConfig()
    """The update rule."""
    seed: Annotated[int, Field(ge=0, lt=2**63), Whole] = 1
    """Seed of initialization, dropout and samples."""
    device: Device = "auto"
    """auto: a GPU if there is one, else the CPU; cuda:1: the second GPU."""
    precision: Literal["auto", "fp32", "tf32", "bf16"] = "auto"
    """Precision of matrix products; weights and state stay in fp32. tf32: GPUs only. auto: bf16 on CPUs with AMX, AMD
    CPUs with AVX512_BF16 and GPUs with bfloat16, else fp32. The run keeps its precision."""
    threads: Annotated[int, Field(ge=0, le=1024), Whole] = 0
    """CPU threads; 0: one per core, fewer under a quota."""

    @model_validator(mode="after")
    def _patience_needs_validation(self) -> "Config":
        if self.train.patience and self.data.split[1] == 0 and self.data.valid_source is None:
            allowed = "allowed: 0, or a validation share in data.split, or data.valid_source"
            raise ValueError(f"train.patience: found early stopping without a validation split; {allowed}")
        return self
