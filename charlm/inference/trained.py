"""A trained model for use: loaded from a run's folder or a checkpoint file, it writes and scores text."""

import copy
import functools
import math
import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from charlm.config import Config
from charlm.data.corpus import load_unchanged_corpus
from charlm.data.lines import as_records, newline_of
from charlm.data.reading import NEWLINE
from charlm.data.vocabulary import Ids, Vocabulary
from charlm.errors import DataError, VocabularyError
from charlm.inference.dynamic import Adaptation, check_running_text, evaluate_dynamically
from charlm.inference.evaluation import Evaluation, evaluate
from charlm.inference.gradients import LONGEST, gradient_norms
from charlm.inference.novelty import longest_copy
from charlm.inference.options import SamplingOptions
from charlm.inference.sampling import next_probabilities, sample_text, valid_text
from charlm.inference.texts import Pool, each_text, label_probabilities, one_text, score_texts, text_features
from charlm.model import CharLM, Network, build_model
from charlm.system.formatting import nats_to_bits
from charlm.system.number import LARGEST, in_range


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
    config: Config
    progress: Mapping[str, Any]
    """What the checkpoint says about the training so far: `step`, `best_nats`, `elapsed_s` and more."""

    def __repr__(self) -> str:
        return f"<TrainedModel {self.path}: {self.kind}, {self.device}>"

    @property
    def kind(self) -> str:
        """The cell and the sizes: "lstm, 1 × 16 units"."""
        return self.config.model.description

    @property
    def device(self) -> torch.device:
        return self.network.device

    @property
    def parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.network.parameters())

    @property
    def precision(self) -> str:
        """The precision of matrix products: fp32, tf32 or bf16."""
        return self.network.precision

    def on_cpu_in_float32(self) -> "TrainedModel":
        """A copy on the CPU that multiplies in float32, with weights of its own."""
        network = copy.deepcopy(self.network).to("cpu")
        network.precision = "fp32"
        return replace(self, network=network)

    def untrained(self) -> "TrainedModel":
        """A model of the same config with random weights, drawn from its seed, to compare this one with."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.config.seed)
            network = build_model(
                self.config.model, len(self.vocabulary), self.precision, reset_id=self.network.reset_id
            )
        progress = {**self.progress, "step": 0, "best_nats": None, "elapsed_s": 0.0}
        return replace(self, network=network.to(self.device).eval(), progress=progress)

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
            progress={**self.progress, "best_nats": None, "valid_nats": None},
        )

    @property
    def single_network(self) -> CharLM:
        """The network of a model that has no members, as `first_member` gives it."""
        assert isinstance(self.network, CharLM)
        return self.network

    # Writing

    def sample(self, prompt: str = "", *, seed: int | None = None, **options: Any) -> str:
        """Write text after the prompt, and return it without the prompt: `charlm sample` prints prompt + text.

        seed: the same seed gives the same text; None draws a new one. options: length, temperature, top_k, top_p and
        stop, a text or several; see `SamplingOptions`. A sample that one of these has ended ends with it.

        Bytes that are not UTF-8 become U+FFFD. VocabularyError for an unknown character; ValueError for an option out
        of its range.
        """
        return "".join(self.stream(prompt, seed=seed, **options))

    def stream(self, prompt: str = "", *, seed: int | None = None, **options: Any) -> Iterator[str]:
        """The same text in pieces, which come as they are written."""
        chosen = SamplingOptions(**options)
        chosen = replace(chosen, stop=[self.vocabulary.familiar(text) for text in chosen.stops])
        prompt = self.vocabulary.familiar(one_text(prompt, "prompt"))
        seeds = [secrets.randbelow(2**32) if seed is None else in_range("seed", seed, 0, 2**63 - 1)]
        return valid_text(piece for [piece] in sample_text(self.network, self.vocabulary, prompt, chosen, seeds))

    def next(self, prompt: str = "", k: int = 5) -> list[tuple[str, float]]:
        """The k likeliest characters after the prompt, the likeliest first, with their probabilities, 0 to 1.

        These are the probabilities at temperature 1; there are fewer than k if the vocabulary is smaller. An empty
        prompt means the start of a line. A byte model gives bytes; those from 128 on come as lone surrogates, as from
        Python's "surrogateescape", so prompt + character is a prompt again.

        VocabularyError for an unknown character of the prompt; ValueError for k < 1.
        """
        k = in_range("k", k, 1, LARGEST)
        prompt = self.vocabulary.familiar(one_text(prompt, "prompt"))
        probabilities = next_probabilities(self.network, self.vocabulary, prompt)
        values, ids = probabilities.sort(descending=True, stable=True)
        return [(self.vocabulary.symbol(id), p) for id, p in zip(ids[:k].tolist(), values[:k].tolist(), strict=True)]

    def novelty(self, texts: Iterable[str]) -> list[tuple[int, str, float | None]]:
        """How much of each text is copied from the training text; DataError if that has changed or is gone.

        A stretch is copied if all its windows of 20 characters occur in the training text. For each text: the length of
        the longest such stretch, in characters (bytes for a byte model), the stretch, and the share of the text's
        windows that occur, None without windows.
        """
        train_ids = self.training_splits("novelty")["train"]
        answers = []
        for ids in self._ids_of_all(texts):
            (start, length), share = longest_copy(ids, train_ids)
            stretch = self.vocabulary.decode(ids[start : start + length])
            answers.append((length, stretch, share))
        return answers

    # Scoring

    def evaluate(self, text: str | Ids, *, streams: int | None = None, per_char: bool = False) -> Evaluation:
        """Score a text, or its ids as `scored_ids` gives them: nats per character, lower is better.

        `per_char` adds the nats of single characters, in the order of the text. VocabularyError for an unknown
        character; DataError for a text shorter than two.
        """
        if streams is not None:
            streams = in_range("streams", streams, 1, LARGEST)
        return evaluate(self.network, self._ids(text), streams=streams, per_char=per_char)

    def score(self, texts: Iterable[str]) -> npt.NDArray[np.float64]:
        """Score each text by itself: bits per character, [N] for N texts; lower is better.

        The mean of `char_scores`; nan for a text without a scored character.
        """
        return np.array([bits.mean() if len(bits) else np.nan for bits in self.char_scores(texts)], np.float64)

    def char_scores(self, texts: Iterable[str]) -> list[npt.NDArray[np.float64]]:
        """−log2 p of every character after the first, given the text before it: [length − 1] for each text.

        Each text is read by itself from the zero state. A model of lines scores every character, and the newline that
        ends the line: [length + 1]. VocabularyError for an unknown character.
        """
        ids = [as_records(ids, self.network.reset_id) for ids in self._ids_of_all(texts)]
        return [nats_to_bits(1) * nats.astype(np.float64) for nats in score_texts(self.network, ids)]

    def features(self, texts: Iterable[str], *, pool: Pool = "last") -> npt.NDArray[np.float32]:
        """The outputs of the top layer for N texts, each read by itself from the zero state: [N, H].

        Those of several members stand side by side: [N, M·H].

        pool: "last" takes the output after the last character, "mean" the mean over all; both are nan for an empty
        text. VocabularyError for an unknown character; ValueError for another pool.
        """
        if pool not in ("last", "mean"):
            raise ValueError(f"pool: found {pool!r}; allowed: 'last' or 'mean'")
        ids = [as_records(ids, self.network.reset_id, ended=False) for ids in self._ids_of_all(texts)]
        return text_features(self.network, ids, pool)

    def evaluate_dynamically(
        self, text: str | Ids, adaptation: Adaptation | None = None, *, per_char: bool = False
    ) -> Evaluation:
        """Score a text while the model learns from what it has scored; afterwards the model is as it was.

        No other thread may use the model meanwhile. Needs the training text: DataError if that has changed or is gone.
        DataError too for a model of lines.
        """
        check_running_text(self.network)
        ids, train_ids = self._ids(text), self.training_splits("dynamic evaluation")["train"]
        adaptation = adaptation or Adaptation()
        return evaluate_dynamically(self.network, ids, train_ids, adaptation, per_char=per_char)

    def gradient_norms(self, text: str | Ids, *, longest: int = LONGEST) -> npt.NDArray[np.float64]:
        """How far gradients reach: the norm of ∂loss_t/∂h_{t−k} for each layer and k = 1 … K: [L, K].

        loss_t is the loss, in nats, of the character after step t; h_{t−k} is what the layer carries from step t − k to
        the next. The mean over up to 256 positions t of the text. K is `longest`, or less for a short text.
        VocabularyError for an unknown character; DataError for a text shorter than three; ValueError for longest < 1.
        """
        longest = in_range("longest", longest, 1, LARGEST)
        return gradient_norms(self.network.first_member("gradients"), self._ids(text), longest)

    def _ids(self, text: str | Ids) -> Ids:
        if isinstance(text, np.ndarray) and text.dtype.kind in "iu":
            return text
        return self.scored_ids(self.vocabulary.encode(one_text(text, "text")))

    def scored_ids(self, ids: Ids) -> Ids:
        """The ids of a text as `evaluate` takes them: for a model of lines a newline, and then whole lines."""
        is_ended = len(ids) > 0 and ids[-1] == self.network.reset_id
        return as_records(ids, self.network.reset_id, ended=not is_ended)

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

    def classify(
        self,
        lines: Iterable[str],
        labels: Iterable[str],
        separator: str = "\t",
        *,
        equal_priors: bool = False,
        none_below: float = 0.0,
    ) -> list[tuple[str | None, float]]:
        """The likeliest label of each line, and its probability among these labels, 0 to 1.

            p(label | line) = p(label, line) / Σ p(label′, line)
            p(label, line) = the probability of label + separator + line and its newline, as in the training text

        equal_priors: divide each p(label, line) by p(label + separator), so that frequent labels have no advantage.
        none_below: None in place of a label whose probability is lower.

        VocabularyError for an unknown character; ValueError for a line end, no labels or equal ones, or a number out
        of its range.
        """
        none_below = in_range("none_below", none_below, 0.0, 1.0)
        lines, labels = each_text(lines, "lines"), each_text(labels, "labels")
        if not all(labels) or not labels or len(set(labels)) < len(labels):
            raise ValueError(f"labels: found {labels}; allowed: one or more texts, all different")
        if any(NEWLINE in text for text in (*lines, *labels, separator)):
            raise ValueError("found a line end in a line, label or separator; allowed: lines without their ends")
        p_NK = label_probabilities(
            self.network,
            lines=self._ids_of_all(lines, "lines"),
            labels=self._ids_of_all([label + separator for label in labels], "labels"),
            newline=self.newline,
            equal_priors=equal_priors,
        )
        likeliest = zip(p_NK.argmax(1).tolist(), p_NK.max(1).tolist(), strict=True)
        return [(labels[index] if p >= none_below else None, p) for index, p in likeliest]

    def separator_probabilities(self, labels: Iterable[str], separator: str) -> list[float]:
        """The probability of the separator after each label at the start of a line, as `classify` reads it."""
        labels = each_text(labels, "labels")
        ids = self._ids_of_all([label + separator for label in labels], "labels")
        starts = [len(self.vocabulary.encode(label)) for label in labels]
        scored = score_texts(self.network, [as_records(each, self.newline) for each in ids])
        separators = [nats[start:-1] for nats, start in zip(scored, starts, strict=True)]
        return [math.exp(-float(nats.sum(dtype=np.float64))) for nats in separators]

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
                f"{wanted_by} needs the text that the run was trained on: {error}; or leave out {wanted_by}"
            ) from None

    def split(self, name: str) -> Ids:
        """One of these splits; DataError if the run has none of that name."""
        splits = self.training_splits()
        if name not in splits:
            raise DataError(f"--split {name}: the run has none; allowed: {' | '.join(splits)}, or --file FILE")
        return splits[name]

    @functools.cached_property
    def _splits(self) -> Mapping[str, Ids]:
        return load_unchanged_corpus(self.config.data, self.vocabulary, self.progress, self.path.parent.parent).splits

    # Characters

    @property
    def newline(self) -> int:
        """The id of a newline, which the model reads before a line; VocabularyError if it has never seen one."""
        try:
            return int(newline_of(self.vocabulary))
        except VocabularyError:
            raise VocabularyError(
                f"{self.path}: the model has never seen a newline, where a line begins; allowed: a model of a text of "
                "several lines"
            ) from None
