"""A trained model for use: loaded from a run's folder or a checkpoint file, it writes and scores text."""

import copy
import functools
import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
import numpy.typing as npt
import torch

from charlm.config import Config
from charlm.data.corpus import load_unchanged_corpus
from charlm.data.lines import Labels
from charlm.data.reading import NEWLINE
from charlm.data.sources import with_found_paths
from charlm.data.vocabulary import Ids, Vocabulary, describe_characters
from charlm.errors import DataError, LabelError, VocabularyError
from charlm.inference.dynamic import Adaptation, evaluate_dynamically
from charlm.inference.evaluation import Evaluation, evaluate
from charlm.inference.gradients import LONGEST, gradient_norms
from charlm.inference.labels import Classification, label_nats
from charlm.inference.novelty import Verbatim, copied_share, longest_copy
from charlm.inference.options import SamplingOptions
from charlm.inference.sampling import next_probabilities, sample_text, valid_text
from charlm.inference.texts import Pool, char_features, each_text, one_text, score_texts, text_features
from charlm.model import Network, build_model
from charlm.system.console import say
from charlm.system.formatting import counted, html_table, nats_to_bits


@dataclass(frozen=True, repr=False)
class TrainedModel:
    """A model in evaluation mode, with its vocabulary and the config and progress of its training; see `load`.

    Several threads may use it at once, but not while `evaluate_dynamically` changes the weights. For a model of level
    "byte" a character is a byte.
    """

    path: Path
    """The checkpoint file."""
    network: Network
    vocabulary: Vocabulary
    device: torch.device
    config: Config
    progress: Mapping[str, Any]
    """What the checkpoint says about the training so far: `step`, `best_nats`, `elapsed_s` and more."""
    labels: Labels = field(default_factory=dict)
    """How many lines of the train split have each label, the most frequent first; empty for a model without labels."""

    def __repr__(self) -> str:
        return f"<TrainedModel {self.path}: {self.kind}, {self.device}>"

    def _repr_html_(self) -> str:
        """A table for notebooks."""
        best_nats = self.progress.get("best_nats")
        symbols = "bytes" if self.vocabulary.level == "byte" else counted(len(self.vocabulary), "character")
        return html_table(
            {
                "model": f"{self.kind}, {self.parameters:,} parameters",
                "vocabulary": symbols,
                "trained": f"{self.progress.get('step', 0):,} steps",
                "best score": "—" if best_nats is None else f"{best_nats:.4f} nats per character",
                "checkpoint": str(self.path),
                "device": f"{self.device}, {self.precision}",
            }
        )

    @property
    def kind(self) -> str:
        """The cell and the sizes: "lstm, 1 × 16 units"."""
        return self.config.model.description

    @property
    def parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.network.parameters())

    @property
    def precision(self) -> str:
        """The precision of matrix products: fp32, tf32 or bf16."""
        return self.network.precision

    def on_cpu_in_float32(self) -> "TrainedModel":
        """A copy on the CPU that multiplies in float32, with weights of its own."""
        cpu = torch.device("cpu")
        network = copy.deepcopy(self.network).to(cpu)
        network.precision = "fp32"
        return replace(self, network=network, device=cpu)

    def untrained(self) -> "TrainedModel":
        """A model of the same config with random weights, drawn from its seed, to compare this one with."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.config.seed)
            network = build_model(self.config.model, len(self.vocabulary), self.network.precision).eval()
        network.reset_id = self.network.reset_id
        progress = {**self.progress, "step": 0, "best_nats": None, "elapsed_s": 0.0}
        return replace(self, network=network.to(self.device), progress=progress)

    def first_member(self, wanted_by: str) -> "TrainedModel":
        """A model of the first member alone, for what explains or exports one network; says so if there are several.

        Its progress has no scores: those are of all members together.
        """
        network = self.network.first_member(wanted_by)
        if network is self.network:
            return self
        model = self.config.model.model_copy(update={"members": 1})
        return replace(
            self,
            network=network,
            config=self.config.model_copy(update={"model": model}),
            progress={**self.progress, "best_nats": None, "valid_nats": None, "line_quantiles": None},
        )

    # Writing

    def for_sampling(self) -> "TrainedModel":
        """The model where it writes fastest: on the CPU, in float32, if it is small and a kernel can generate there."""
        if self.device.type == "cpu" or self.parameters > _CPU_PARAMETERS:
            return self
        writer = self.on_cpu_in_float32()
        if not writer.network.select_backend(writer.device, training=False).backend.generates:
            return self
        say("device", "cpu, which writes faster with a model of this size; --device cuda takes the GPU all the same")
        return writer

    @overload
    def sample(self, prompt: str = "", *, stream: Literal[False] = False, **options: Any) -> str: ...

    @overload
    def sample(self, prompt: str = "", *, stream: Literal[True], **options: Any) -> Iterator[str]: ...

    def sample(
        self,
        prompt: str = "",
        *,
        seed: int | None = None,
        label: str | None = None,
        skip_unknown: bool = False,
        stream: bool = False,
        **options: Any,
    ) -> str | Iterator[str]:
        """Write text after the prompt, and return it without the prompt: `charlm sample` prints prompt + text.

        Args:
            seed: the same seed gives the same text; None draws a new one.
            label: the sample is a line with this label, which is not part of it.
            skip_unknown: leave out the characters of the prompt that the model does not know.
            stream: return an iterator of pieces of the text, which come as they are written.
            options: length, temperature, top_k, top_p, min_p and stop; see `SamplingOptions`.

        Bytes that are not UTF-8 become U+FFFD. LabelError for an unknown label; VocabularyError for an unknown
        character; ValueError for an option out of its range, or for a line end in the prompt beside a label.
        """
        chosen = SamplingOptions(**options)
        chosen = replace(chosen, stop=self.vocabulary.normalized(one_text(chosen.stop, "stop")))
        prompt = self.vocabulary.normalized(one_text(prompt, "prompt"))
        if skip_unknown:
            prompt, _ = self.without_unknown(prompt, "prompt", skip_unknown=True)
        if label is not None:
            if NEWLINE in prompt:
                raise ValueError("prompt: found a line end beside a label; allowed: the beginning of one line")
            prompt = self.label_prefix(label) + prompt
        seeds = [secrets.randbelow(2**32) if seed is None else seed]
        pieces = valid_text(piece for [piece] in sample_text(self.network, self.vocabulary, prompt, chosen, seeds))
        return pieces if stream else "".join(pieces)

    def next(self, prompt: str = "", k: int = 5) -> list[tuple[str, float]]:
        """The k likeliest characters after the prompt, the likeliest first, with their probabilities, 0 to 1.

        These are the probabilities at temperature 1; there are fewer than k if the vocabulary is smaller. An empty
        prompt means the start of a line. A byte model gives bytes; those from 128 on come as lone surrogates, as from
        Python's "surrogateescape", so prompt + character is a prompt again.

        VocabularyError for an unknown character of the prompt; ValueError for k < 1.
        """
        if k < 1:
            raise ValueError(f"k: found {k}; allowed: an integer ≥ 1")
        prompt = self.vocabulary.normalized(one_text(prompt, "prompt"))
        probabilities = next_probabilities(self.network, self.vocabulary, prompt)
        values, ids = probabilities.sort(descending=True, stable=True)
        return [(self.vocabulary.symbol(id), p) for id, p in zip(ids[:k].tolist(), values[:k].tolist(), strict=True)]

    def novelty(self, texts: Iterable[str]) -> list[Verbatim]:
        """Compare texts with the training text; DataError if that has changed or is gone."""
        train_ids, copies = self.training_splits("novelty")["train"], []
        for ids in self._ids_of_all(texts):
            start, length = longest_copy(ids, train_ids)
            stretch = self.vocabulary.decode(ids[start : start + length].tolist())
            copies.append(Verbatim(length, stretch, copied_share(ids, train_ids)))
        return copies

    # Scoring

    def evaluate(self, text: str | Ids, *, streams: int | None = None, per_char: bool = False) -> Evaluation:
        """Score a text, or its ids as `scored_ids` gives them: nats per character, lower is better.

        `per_char` adds the nats of single characters. VocabularyError for an unknown
        character; DataError for a text shorter than two.
        """
        return evaluate(self.network, self._ids(text), self.device, streams=streams, per_char=per_char)

    @overload
    def score(self, texts: Iterable[str], *, per_char: Literal[False] = False) -> npt.NDArray[np.float64]: ...

    @overload
    def score(self, texts: Iterable[str], *, per_char: Literal[True]) -> list[npt.NDArray[np.float64]]: ...

    def score(
        self, texts: Iterable[str], *, per_char: bool = False
    ) -> npt.NDArray[np.float64] | list[npt.NDArray[np.float64]]:
        """Score each text by itself: bits per character, [N] for N texts; lower is better.

        The score is the mean of −log2 p over every character after the first, given the text before it, from the zero
        state; nan for a text of one character or none. `per_char` gives −log2 p of each of these characters instead,
        [length − 1] for each text.

        A model of lines scores every character, and the newline that ends the line: [length + 1].
        VocabularyError for an unknown character.
        """
        nats = score_texts(self.network, [self._line(ids) for ids in self._ids_of_all(texts)], self.device)
        bits = [nats_to_bits(1) * each.astype(np.float64) for each in nats]
        return bits if per_char else np.array([each.mean() if len(each) else np.nan for each in bits], np.float64)

    @overload
    def features(self, texts: Iterable[str], *, pool: Pool = "last") -> npt.NDArray[np.float32]: ...

    @overload
    def features(self, texts: Iterable[str], *, pool: None) -> list[npt.NDArray[np.float32]]: ...

    def features(
        self, texts: Iterable[str], *, pool: Pool | None = "last"
    ) -> npt.NDArray[np.float32] | list[npt.NDArray[np.float32]]:
        """The outputs of the top layer for N texts, each read by itself from the zero state: [N, H].

        Those of several members stand side by side: [N, M·H].

        pool: "last" takes the output after the last character, "mean" the mean over all; both are nan for an empty
        text. None gives the outputs after every character, [length, H] for each text; [length + 1, H] from a model of
        lines, which reads a newline first. VocabularyError for an unknown character; ValueError for another pool.
        """
        if pool not in ("last", "mean", None):
            raise ValueError(f"pool: found {pool!r}; allowed: 'last', 'mean' or None")
        ids = [self._line(ids, end=False) for ids in self._ids_of_all(texts)]
        if pool is None:
            return char_features(self.network, ids, self.device)
        return text_features(self.network, ids, self.device, pool)

    def evaluate_dynamically(
        self, text: str | Ids, adaptation: Adaptation | None = None, *, streams: int = 1, per_char: bool = False
    ) -> Evaluation:
        """Score a text while the model learns from what it has scored; afterwards the model is as it was.

        No other thread may use the model meanwhile. Needs the training text: DataError if that has changed or is gone.
        """
        ids, train_ids = self._ids(text), self.training_splits("dynamic evaluation")["train"]
        options = {"streams": streams, "per_char": per_char}
        return evaluate_dynamically(self.network, ids, train_ids, self.device, adaptation or Adaptation(), **options)

    def gradient_norms(self, text: str | Ids, *, longest: int = LONGEST) -> npt.NDArray[np.float64]:
        """How far gradients reach: the norm of ∂loss_t/∂h_{t−k} for each layer and k = 1 … K: [L, K].

        loss_t is the loss, in nats, of the character after step t; h_{t−k} is what the layer carries from step t − k to
        the next. The mean over up to 256 positions t of the text. K is `longest`, or less for a short text.
        VocabularyError for an unknown character; DataError for a text shorter than three; ValueError for longest < 1.
        """
        if longest < 1:
            raise ValueError(f"longest: found {longest}; allowed: an integer ≥ 1")
        return gradient_norms(self.network.first_member("gradients"), self._ids(text), longest)

    def _ids(self, text: str | Ids) -> Ids:
        if isinstance(text, np.ndarray) and text.dtype.kind in "iu":
            return text
        return self.scored_ids(self.vocabulary.encode(one_text(text, "text")))

    def scored_ids(self, ids: Ids) -> Ids:
        """The ids of a text as `evaluate` takes them: for a model of lines a newline, and then whole lines."""
        return self._line(ids, end=not len(ids) or ids[-1] != self.network.reset_id)

    def _line(self, ids: Ids, *, end: bool = True) -> Ids:
        """For a model of lines, the ids with the newline that begins the line, and the one that ends it."""
        reset_id = self.network.reset_id
        if reset_id is None:
            return ids
        newline = [ids.dtype.type(reset_id)]
        return np.concatenate([newline, ids, newline] if end else [newline, ids]).astype(ids.dtype)

    def _ids_of_all(self, texts: Iterable[str], name: str = "texts") -> list[Ids]:
        """The ids of each text; VocabularyError, with the text's position, for unknown characters."""
        all_ids = []
        for position, text in enumerate(each_text(texts, name)):
            try:
                all_ids.append(self.vocabulary.encode(text))
            except VocabularyError as error:
                raise VocabularyError(f"{name}[{position}]: {error}") from None
        return all_ids

    # Labels

    def label_prefix(self, label: str) -> str:
        """What begins a line with this label: the label and the separator. LabelError if the model lacks the label."""
        self.check_labels()
        if label in self.labels:
            return f"{label}{self.config.data.label_separator}"
        known = list(map(repr, self.labels))
        more = f" and {len(known) - 30:,} more" if len(known) > 30 else ""
        raise LabelError(
            f"label: found {label!r}, which the model has never seen; allowed: {', '.join(known[:30])}{more}"
        )

    def check_labels(self) -> None:
        """LabelError for a model without labels."""
        if not self.labels:
            raise LabelError(
                f"{self.path}: the model knows no labels; allowed: one that was trained with data.label_separator"
            )

    def classify(self, lines: Iterable[str]) -> Classification:
        """The labels of lines: for each line and label, how likely the line has the label; see `Classification`.

        LabelError for a model without labels; VocabularyError for an unknown character; ValueError for a line end.
        """
        self.check_labels()
        lines = each_text(lines, "lines")
        if any(NEWLINE in line for line in lines):
            raise ValueError("lines: found a line end within a line; allowed: lines without their ends")
        ids = [self._line(ids)[1:] for ids in self._ids_of_all(lines, "lines")]
        prefixes = [*map(self.label_prefix, self.labels)]
        return Classification(tuple(self.labels), label_nats(self.network, self.vocabulary, prefixes, ids, self.device))

    # The training text

    def training_splits(self, wanted_by: str = "") -> Mapping[str, Ids]:
        """The ids of the text that the model was trained on, by split; DataError if that text has changed or is gone.

        wanted_by: the option or use that needs it, for the error.
        """
        try:
            return self._splits
        except DataError as error:
            if not wanted_by:
                raise
            raise DataError(
                f"{wanted_by} needs the text that the run was trained on: {error}; put it back or leave out {wanted_by}"
            ) from None

    def split(self, name: str) -> Ids:
        """One of these splits; DataError if the run has none of that name."""
        splits = self.training_splits()
        if name not in splits:
            raise DataError(f"--split {name}: the run has none; allowed: {' | '.join(splits)}, or --file FILE")
        return splits[name]

    @functools.cached_property
    def _splits(self) -> Mapping[str, Ids]:
        data = with_found_paths(self.config, self.path.parent).data
        return load_unchanged_corpus(data, self.vocabulary, self.progress).splits

    # Characters that the model does not know

    def without_unknown(self, text: str, where: str, *, skip_unknown: bool) -> tuple[str, str]:
        """`text` without the characters that the model does not know, and a list of those for people.

        VocabularyError, which begins with `where`, if there are some and `skip_unknown` is off.
        """
        unknown = self.vocabulary.unknown(text)
        if unknown and not skip_unknown:
            raise self.vocabulary.unknown_error(unknown, where, "; --skip-unknown leaves others out")
        return "".join(c for c in text if c not in unknown), describe_characters(unknown)


_CPU_PARAMETERS = 10_000_000
"""Up to so many, a few hundred microseconds per character, the CPU writes faster than a GPU: an estimate."""
