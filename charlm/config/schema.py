"""The options of a run: every key of the YAML file, its default, the values it allows and what it means."""

from typing import Annotated, Any, Literal

from pydantic import Field, Strict, field_validator, model_validator

from charlm.cells import CELLS, LSTM, Cell
from charlm.cells.program import MOST_SIZE
from charlm.config.optimizers import OPTIMIZERS, AdamWConfig, Optimizer
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
)

MINUTES = (0.0001, 525_600.0)
"""The least and the most minutes of a run: the time of an update of the smallest models, and a year."""


class DataConfig(Section):
    source: NonEmpty = "builtin:python-stdlib"
    """The text: a file, a folder (all its files), a glob, or `builtin:NAME` (see `charlm data list`)."""
    level: Literal["char", "byte"] = "char"
    """char: symbols are the Unicode code points of UTF-8 text; byte: symbols are the bytes of any file."""
    records: str = ""
    r"""The separator of a text of records, such as "\n~~~\n"; "\n" for lines. Each record is a sample of its own, and
    the state starts anew with it. "": one running text."""
    split: Annotated[tuple[Fraction, Fraction, Fraction], Strict(False)] = (0.9, 0.05, 0.05)
    """Shares of each file for training, validation and test, cut in this order, or of the lines; they sum to 1."""
    valid_source: NonEmpty | None = None
    """Another text for validation; the other shares of `split` are then rescaled to sum to 1."""
    test_source: NonEmpty | None = None
    """Another text for testing; the other shares of `split` are then rescaled to sum to 1."""
    min_count: Count = 1
    """Characters that occur fewer times, and unknown ones of later texts, become one symbol, which is never sampled."""
    grow_vocabulary: bool = False
    """With `--init-from`: add the characters that the checkpoint does not know, instead of refusing the text."""

    @field_validator("records")
    @classmethod
    def _separator_can_be_read(cls, records: str) -> str:
        if "\r" in records:
            raise ValueError(f"found {records!r}; allowed: \\n for the end of a line, also where a text has CR LF")
        return records

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
    """Whole characters: sets the input vector of a character to 0 (Gal & Ghahramani 2016)."""
    input: Probability = 0.0
    """Units of the first layer's input."""
    state: Probability = 0.0
    """Units of the recurrent state, with one mask for all steps of a window."""
    weights: Probability = 0.0
    """Recurrent weights (Merity et al. 2018), with one mask for all steps of a window."""
    between_layers: Probability = 0.0
    """Units between one layer and the next."""
    output: Probability = 0.0
    """Units of the last layer's output, before the logits."""
    variational: bool = False
    """Keep each mask for all steps of a window, instead of drawing a new one at every step."""

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


CELL_KINDS = Kinds("kind", LSTM, *CELLS.values())


class ModelConfig(Section):
    cell: Annotated[Cell, CELL_KINDS] = LSTM()
    """The recurrent cell: `kind`, `hidden`, and the options of that kind."""
    layers: Few = 1
    """Recurrent layers, L; each reads the output of the one below."""
    residual: bool = False
    """Add each layer's input to its output, from the second layer on (He et al. 2016)."""
    members: Few = 1
    """Networks of this section that a run trains side by side, with different initial weights and dropout. They predict
    together, by the mean of their probabilities."""
    embedding: Annotated[CountOrNever, Field(le=MOST_SIZE)] = 64
    """Size of the character embedding, E; 0: one-hot input."""
    tie_embeddings: bool = False
    """Use the embedding as the weights of the logits too (Press & Wolf 2017). Where `embedding` differs from
    `cell.hidden`, a matrix projects the outputs to its size first, which saves parameters with a large vocabulary."""
    dropout: Dropout = Dropout()
    """One number, or a section by place; {}: no dropout."""
    zoneout: Probability = 0.0
    """Probability that a unit of the state keeps its previous value in a step (Krueger et al. 2017). Evaluation uses
    the expected value."""
    init_uniform: Positive | None = None
    """Draw all weights from U(−x, x) and set the layers' biases to 0, except those set for gates; null: each layer's
    own initialization."""
    orthogonal: bool = False
    """Initialize the recurrent matrices orthogonally, gate by gate (Saxe et al. 2014)."""

    @model_validator(mode="after")
    def _tied_embedding(self) -> "ModelConfig":
        if self.tie_embeddings and not self.embedding:
            raise ValueError(
                "tie_embeddings: found true with embedding 0, one-hot input; allowed: embedding above 0; set it or "
                "tie_embeddings to false"
            )
        return self

    @property
    def description(self) -> str:
        """The cell and the sizes: "lstm, 2 × 256 units, 3 members"."""
        members = f", {self.members} members" if self.members > 1 else ""
        return f"{self.cell.name}, {self.layers} × {self.cell.hidden} units{members}"


class TrainConfig(Section):
    batch_size: Count = 32
    """Streams of text that are read in parallel, B."""
    bptt: Count = 64
    """Time steps per window, T. Gradients flow back to the start of the window; the state is carried to the next."""
    reset_state: Fraction = 0.0
    """Share of the streams that start a window from the zero state, so that the model learns to start as samples do."""
    read_share: Share = 1.0
    """Share of each stream that a pass reads, in pieces of about 1,024 characters with gaps between them: a run of part
    of a pass then sees all parts of the text. The next pass reads other pieces."""
    activation_penalty: NonNegative = 0.0
    """Weight of AR (Merity et al. 2017): mean square of the last layer's outputs after dropout, per scored step."""
    change_penalty: NonNegative = 0.0
    """Weight of TAR (Merity et al. 2017): mean square of the last layer's change from one step to the next, before
    dropout, per scored step."""
    max_steps: Count | None = None
    """Stop after this many updates, the optimizer's steps; 2000 if no limit is given. The first limit reached ends the
    run."""
    max_epochs: Positive | None = None
    """Stop after this many passes over the train split."""
    max_minutes: Annotated[float, Field(ge=MINUTES[0], le=MINUTES[1])] | None = None
    """Stop after this many minutes, evaluation and checkpoints included, summed over all sessions."""
    log_every: Count = 50
    """Updates between two rows of training metrics."""
    eval_every: CountOrNever = 250
    """Updates between two evaluations of the whole validation split; 0: only at the end."""
    save_every: CountOrNever = 500
    """Updates between two numbered checkpoints; 0: none. `last` is also written at the start, at each best score and at
    the end."""
    sample_every: CountOrNever = 500
    """Updates between two text samples, the first ones at updates 0, 10, 30, 100, 300, …; 0: none."""
    sample_length: Annotated[Count, Field(le=10_000)] = 300
    """Characters of a text sample."""
    sample_temperature: NonNegative = 0.8
    """Temperature of a text sample."""
    on_divergence: Literal["stop", "rollback"] = "stop"
    """When the loss, the gradient or the weights are not finite: stop, or go back to the last checkpoint and halve
    the learning rate."""
    max_rollbacks: Count = 3
    """Rollbacks after which a run stops when numbers are not finite again."""
    patience: CountOrNever = 0
    """Stop after this many evaluations without improvement; 0: never."""
    keep_checkpoints: Count = 3
    """How many numbered checkpoints to keep, besides `last` and `best`."""
    ema: Probability = 0.0
    """Share that each update keeps of a running average of the weights (Polyak & Juditsky 1992), which is then scored
    and sampled; 0: no average."""

    @model_validator(mode="before")
    @classmethod
    def _default_limit(cls, value: Any) -> Any:
        limits = {"max_steps", "max_epochs", "max_minutes"}
        return {**value, "max_steps": 2000} if isinstance(value, dict) and not limits & value.keys() else value

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
    """How the weights are updated."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 1
    """Seed of initialization, dropout and samples."""
    device: Device = "auto"
    """auto: a GPU if there is one, else the CPU. cuda: the first GPU; cuda:1: the second, and so on."""
    precision: Literal["auto", "fp32", "tf32", "bf16"] = "auto"
    """bf16: matrix products in bfloat16, weights and state in fp32. tf32: products in TF32, on GPUs only. auto: bf16
    where it is faster: on CPUs with AMX, on AMD's with AVX512_BF16, and on GPUs that have it; else fp32. The run keeps
    what it took."""
    threads: Annotated[int, Field(ge=0, le=1024)] = 0
    """CPU threads; 0: one per core, fewer under a quota. Results are bit-identical for the same number of threads."""

    @model_validator(mode="after")
    def _patience_needs_validation(self) -> "Config":
        if self.train.patience and self.data.split[1] == 0 and self.data.valid_source is None:
            raise ValueError(
                "train.patience: found early stopping without a validation split; "
                "allowed: 0, or a validation share in data.split, or data.valid_source"
            )
        return self
