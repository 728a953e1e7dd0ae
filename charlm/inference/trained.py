"""A trained model for use: it writes and scores text, and tells what it does with it."""

import copy
import functools
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from charlm.config import Config
from charlm.data.corpus import Corpus, encode_file, load_unchanged_corpus
from charlm.data.encoded import EncodedText
from charlm.data.reading import text_name
from charlm.data.records import LINE_END, as_records, end_id, end_of_record, holds_end, text_in_training
from charlm.data.vocabulary import Ids, Vocabulary, describe_characters
from charlm.errors import DataError, VocabularyError
from charlm.inference.dynamic import evaluate_dynamically
from charlm.inference.evaluation import Evaluation, evaluate
from charlm.inference.labels import likeliest_labels
from charlm.inference.options import SamplingOptions
from charlm.inference.reach import gradient_norms
from charlm.inference.reader import activations
from charlm.inference.sampling import next_probabilities, sample_text
from charlm.inference.seen import copied_stretches, earlier_texts, listed_texts, space_ids
from charlm.inference.texts import Pool, char_bits, each_text, one_text, prefix_length, surprise_of, text_features
from charlm.model import CharLM, Network, build_model, count_parameters
from charlm.runs import FOLDER
from charlm.system.arrays import Floats, Floats32
from charlm.system.console import say
from charlm.system.formatting import counted, printable, readable, source_name
from charlm.system.number import LARGEST, in_range

_SKIP = "; skip_unknown=True leaves others out"


@dataclass(frozen=True, repr=False)
class TrainedModel:
    """A model in evaluation mode, with its vocabulary and the config and progress of its training; see `charlm.load`.

    Several threads may use it at once, but not while `evaluate_dynamically` changes the weights. For a model of level
    "byte" a character is a byte. Methods raise VocabularyError for an unknown character of a text, unless it is skipped
    or counted, and ValueError for a number out of range.
    """

    path: Path
    """The checkpoint file."""
    network: Network
    vocabulary: Vocabulary
    config: Config
    progress: Mapping[str, Any]
    """What the checkpoint says about the training so far: `step`, `best_nats`, `elapsed_s` and more."""
    weights: str = ""
    """What the weights are, unless they are the checkpoint's: "the first of 3 networks", "int8"."""

    def __repr__(self) -> str:
        return f"<TrainedModel {self.path}: {self.kind}, {self.device}>"

    @property
    def name(self) -> str:
        """For people: that of the run's folder, or of the file if there is none."""
        folder = self.path.absolute().parent
        return printable(folder.parent.name if folder.name == FOLDER else self.path.name)

    @property
    def kind(self) -> str:
        """The cell and the sizes: "lstm, 1 × 16 units"."""
        return self.config.model.description

    @property
    def device(self) -> torch.device:
        """Where the model computes."""
        return self.network.device

    @property
    def parameters(self) -> int:
        """The number of parameters that training changes."""
        return count_parameters(self.config.model, len(self.vocabulary))

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
                self.config.model, len(self.vocabulary), self.network.precision, reset_id=self.network.reset_id
            )
            for own, fixed in zip(network.buffers(), self.network.buffers(), strict=True):
                own.copy_(fixed)
        progress = {**self.progress, "step": 0, "best_nats": None, "elapsed_s": 0.0}
        return replace(self, network=network.to(self.device).eval(), progress=progress)

    def first_member(self, wanted_by: str) -> "TrainedModel":
        """A model of the first member alone, for what explains or exports one network; says so if there are several.

        Its progress has no scores: those are of all members together.
        """
        if isinstance(self.network, CharLM):
            return self
        members = f"the first of {self.config.model.members} members; together they score better"
        say(wanted_by, f"{members}; model.members=1 trains one alone")
        network = self.network.members[0]
        model = self.config.model.model_copy(update={"members": 1})
        config = self.config.model_copy(update={"model": model})
        progress = {**self.progress, "best_nats": None, "valid_nats": None}
        weights = f"the first of {self.config.model.members} networks"
        return replace(self, network=network, config=config, progress=progress, weights=weights)

    @property
    def single_network(self) -> CharLM:
        """The network of a model that has no members, as `first_member` gives it."""
        assert isinstance(self.network, CharLM)
        return self.network

    def sample(self, prompt: str = "", *, seed: int | None = None, **options: Any) -> str:
        """Write text after the prompt, and return it without the prompt: `charlm sample` prints prompt + text.

        seed: the same seed gives the same text; None draws a new one. options: those of `SamplingOptions`: length,
        least, temperature, top_k, top_p, stop and ban. Bytes that are not UTF-8 become U+FFFD.
        """
        return "".join(self._written(prompt, seed, SamplingOptions.of_call("sample", options)))

    def stream(self, prompt: str = "", *, seed: int | None = None, **options: Any) -> Iterator[str]:
        """The same text in pieces, which come as they are written. The call reads the prompt."""
        return self._written(prompt, seed, SamplingOptions.of_call("stream", options))

    def _written(self, prompt: str, seed: int | None, chosen: SamplingOptions) -> Iterator[str]:
        chosen = replace(chosen, stop=[self.vocabulary.familiar(text) for text in chosen.stop])
        prompt = self.vocabulary.familiar(one_text(prompt, "prompt"))
        seeds = [secrets.randbelow(2**32) if seed is None else in_range("seed", seed, 0, 2**63 - 1)]
        pieces = sample_text(self.network, self.vocabulary, prompt, chosen, seeds)
        return (readable(piece) for [piece] in pieces if piece)

    def next(self, prompt: str = "", k: int = 5) -> list[tuple[str, float]]:
        """The k likeliest characters after the prompt, the likeliest first, with their probabilities, 0 to 1.

        Probabilities are at temperature 1; a smaller vocabulary gives fewer than k. An empty prompt means the start of
        a line. A byte model gives bytes, from 128 on as the lone surrogates of Python's "surrogateescape", so that
        prompt + character is a prompt again.
        """
        k = in_range("k", k, 1, LARGEST)
        prompt = self.vocabulary.familiar(one_text(prompt, "prompt"))
        probabilities = next_probabilities(self.network, self.vocabulary, prompt)
        values, ids = probabilities.sort(descending=True, stable=True)
        likeliest = zip(ids[:k].tolist(), values[:k].tolist(), strict=True)
        return [(self.vocabulary.decode([id], "surrogateescape"), p) for id, p in likeliest]

    def novelty(self, texts: Iterable[str]) -> list[tuple[float | None, list[tuple[int, int, str]]]]:
        """What of each text is copied from what the weights were trained on, see `seen`.

        For each text: the share of its windows of 20 characters that occur in one of these texts, None for a text
        shorter than a window; and (start, length, passage) of each stretch whose windows all occur, the longest first,
        in characters (bytes for a byte model). White space of any kind and length counts as one space. Unknown
        characters occur nowhere. DataError if the run's text has changed or is gone.
        """
        (seen, _), separator = self.seen, self.config.data.records
        all_ids = [self.vocabulary.ids_of(text)[0] for text in self._canonical(texts)]
        copied = copied_stretches(all_ids, seen, space_ids(self.vocabulary, separator))
        answers = []
        for ids, (stretches, share) in zip(all_ids, copied, strict=True):
            passages = []
            for start, length in sorted(stretches, key=lambda stretch: -stretch[1]):
                passage = self.vocabulary.decode(ids[start : start + length])
                if separator:
                    passage = passage.replace(end_of_record(separator), separator)
                passages.append((start, length, passage))
            answers.append((share, passages))
        return answers

    def evaluate(
        self,
        text: str | EncodedText,
        *,
        streams: int | None = None,
        per_symbol: bool = False,
        skip_unknown: bool = False,
    ) -> Evaluation:
        """Score a text, or one that `read`, `encode` or `split` gives: nats per character, lower is better.

        `per_symbol` adds the nats of single characters (bytes for a byte model), in the order of the text.
        `skip_unknown` leaves out unknown characters of a string; `of.unknown` of the score counts them. DataError for a
        text shorter than two.
        """
        if streams is not None:
            streams = in_range("streams", streams, 1, LARGEST)
        encoded = self._encoded(text, skip_unknown=skip_unknown)
        return evaluate(self.network, encoded, streams=streams, per_symbol=per_symbol)

    def evaluate_dynamically(
        self, text: str | EncodedText, *, skip_unknown: bool = False, **options: Any
    ) -> Evaluation:
        """Score a text while the model learns from what it has scored; afterwards the model is as it was.

        options: lr, decay, steps and per_symbol, see `charlm.inference.dynamic.evaluate_dynamically`. No other thread
        may use the model meanwhile. DataError if the training text has changed or is gone, and for a model of records.
        """
        encoded = self._encoded(text, skip_unknown=skip_unknown)
        return evaluate_dynamically(self.network, encoded, self.corpus.splits["train"], **options)

    def surprise(
        self,
        texts: Iterable[str],
        *,
        worst: int | None = None,
        after: str | re.Pattern[str] = "",
        unknown_as: float | None = None,
    ) -> Floats:
        """How surprising each text is by itself: bits per character, [N] for N texts.

        The mean of `char_surprise`; nan for a text without a scored character. worst: the mean of the most surprising
        `worst` neighboring characters instead; 1: of the worst character. after: a regular expression: only the
        characters after what it matches at the beginning of a text count.
        """
        if worst is not None:
            worst = in_range("worst", worst, 1, LARGEST)
        texts = self._records(texts)
        try:
            pattern, means = re.compile(after), []
            pattern.match("")
        except (re.error, TypeError) as error:
            raise ValueError(f"after: found {after!r:.80}: {error}; allowed: a regular expression for text") from None
        prefix = self.vocabulary.canonical_pattern(pattern)
        for text, bits in zip(texts, self.char_surprise(texts, unknown_as=unknown_as), strict=True):
            count = len(text) + self.network.reads_records - prefix_length(prefix, text)
            means.append(surprise_of(bits[max(len(bits) - count, 0) :], worst))
        return np.array(means, np.float64)

    def char_surprise(self, texts: Iterable[str], *, unknown_as: float | None = None) -> list[Floats]:
        """−log2 p of every character after the first, given the text before it: [length − 1] for each text.

        Each text is read by itself from the initial state. A model of records also scores the first character and the
        end of the record: [length + 1]; ValueError unless a text is one record, with or without its end. A model of
        bytes adds up the bits of a character's bytes.
        `length` is that of the Unicode form that the model knows best, composed or decomposed.

        unknown_as: bits for each unknown character, which the model skips; None: VocabularyError. If a text begins with
        such characters, the first known one has 0 bits: nothing known comes before it.
        """
        if unknown_as is not None:
            unknown_as = in_range("unknown_as", unknown_as, 0.0, LARGEST)
        texts = self._records(texts)
        all_ids = self._ids_of_all(
            texts, skip_unknown=unknown_as is not None, way_out="; unknown_as=20 counts 20 bits for each other one"
        )
        return char_bits(self.network, self.vocabulary, texts, all_ids, unknown_as or 0.0)

    def features(self, texts: Iterable[str], *, pool: Pool = "last", skip_unknown: bool = False) -> Floats32:
        """The outputs of the top layer for N texts, each read by itself from the initial state: [N, H].

        Several members stand side by side: [N, M·H]. pool: "last" takes the output after the last character, "mean" the
        mean over all; both are nan for an empty text. skip_unknown: leave out unknown characters.
        """
        if pool not in ("last", "mean"):
            raise ValueError(f"pool: found {pool!r}; allowed: 'last' or 'mean'")
        all_ids = self._ids_of_all(self._records(texts), skip_unknown=skip_unknown)
        ids = [as_records(ids, self.network.reset_id, ended=False) for ids in all_ids]
        return text_features(self.network, ids, pool)

    def activations(self, text: str | EncodedText, *, skip_unknown: bool = False) -> dict[str, Floats32]:
        """Every state and gate of every layer after each symbol of a text: {"h_l0": [N, H], …}.

        A name is that of the cell's equations (`charlm cells show`) and the layer's number. The text's symbols are
        `encode(text).ids`, [N]: a model of records also reads the end of a record before and after it. By the reference
        loop, in float32 on the CPU. With several members, of the first.
        """
        network = self.first_member("activations").on_cpu_in_float32().single_network
        parts = [*activations(network, self._encoded(text, skip_unknown=skip_unknown).ids)]
        found = {}
        for layer, name, is_gate in parts[0] if parts else ():
            if not (is_gate and (layer, name, False) in parts[0]):  # a state keeps its name
                found[f"{name}_l{layer}"] = np.concatenate([part[layer, name, is_gate] for part in parts])
        return found

    def gradient_norms(self, text: str | EncodedText, *, skip_unknown: bool = False) -> Floats:
        """How far gradients reach: the norm of ∂loss_t/∂x_{t−k} for each layer and k = 1 … K: [L, K].

        loss_t is the loss, in nats, of the character after step t. x_{t−k} is the layer's input at step t − k: for the
        first layer the vector of the embedding or the one-hot vector, for each other layer the output of the layer
        below. The mean over up to 256 positions t of the text. K is 100, or less for a short text. With several
        members, of the first. DataError for a text shorter than four.
        """
        ids = self._encoded(text, skip_unknown=skip_unknown).ids
        return gradient_norms(self.first_member("gradients").single_network, ids)

    def classify(
        self,
        lines: Iterable[str],
        labels: Iterable[str],
        separator: str = "\t",
        *,
        equal_priors: bool = False,
        none_below: float = 0.0,
        skip_unknown: bool = False,
    ) -> list[tuple[str | None, float]]:
        """The likeliest label of each line, and its probability among these labels, 0 to 1.

            p(label | line) = p(label, line) / Σ p(label′, line)
            p(label, line) = the probability of label + separator + line and its end, as in the training text

        equal_priors: divide each p(label, line) by p(label + separator), so that frequent labels have no advantage.
        none_below: labels with a lower probability become None. skip_unknown: leave out unknown characters of lines.
        ValueError for a line end, and for no labels or equal ones.
        """
        none_below = in_range("none_below", none_below, 0.0, 1.0)
        lines, labels = each_text(lines, "lines"), each_text(labels, "labels")
        if not all(labels) or not labels or len(set(labels)) < len(labels):
            raise ValueError(f"labels: found {labels}; allowed: one or more texts, all different")
        end = self.config.data.records or LINE_END
        if any(holds_end(text, end) for text in (*lines, *labels, separator)):
            raise ValueError("found the end of a record in a record, label or separator; allowed: records without it")
        label_ids = self._ids_of_all([label + separator for label in labels], "labels", way_out="")
        line_ids = self._ids_of_all(lines, "lines", skip_unknown=skip_unknown)
        end_of_each = end_id(self.vocabulary, end)
        likeliest = likeliest_labels(self.network, line_ids, label_ids, end_of_each, equal_priors=equal_priors)
        return [(labels[index] if p >= none_below else None, p) for index, p in likeliest]

    def read(self, file: str | Path, *, skip_unknown: bool = False) -> EncodedText:
        """A text from a file or another source, "-" for stdin; says what it skips. See `encode_file`."""
        separator = self.config.data.records
        ids, unknown = encode_file(file, self.vocabulary, skip_unknown=skip_unknown, separator=separator)
        name, skipped = source_name(text_name(str(file))), sum(unknown.values())
        if skipped:
            say("skipped", f"{file}: {counted(skipped, 'unknown character')}: {describe_characters(unknown)}")
        return EncodedText(self._as_records(ids), self.vocabulary, name, skipped)

    def encode(self, text: str, *, skip_unknown: bool = False) -> EncodedText:
        """A text, for methods that take one; VocabularyError for unknown characters unless they are skipped."""
        text = one_text(text, "text")
        if separator := self.config.data.records:
            chunk = text.encode("utf-8", "surrogateescape")
            text = text_in_training([chunk], self.vocabulary.level, separator, "text")
        text = self.vocabulary.canonical(text)
        ids = self._ids(text, skip_unknown=skip_unknown)
        skipped = int(self.vocabulary.sizes(text).sum()) - len(ids)
        return EncodedText(self._as_records(ids), self.vocabulary, skipped=skipped)

    def split(self, name: str) -> EncodedText:
        """A split of the run's text; DataError if the run has none of that name."""
        if name not in self.corpus.splits:
            allowed = f"{' | '.join(self.corpus.splits)}, or another text (--file FILE)"
            raise DataError(f"split {name}: the run has none; allowed: {allowed}")
        scored = self.progress.get("scored") or {}
        known = {"train": 1.0, "valid": scored.get("seen")}
        return replace(self.corpus.texts[name], seen=known.get(name))

    @functools.cached_property
    def corpus(self) -> Corpus:
        """The text that the run was trained on, in splits; DataError if it has changed or is gone."""
        return load_unchanged_corpus(self.config.data, self.vocabulary, self.progress, self.path.parent.parent)

    @functools.cached_property
    def seen(self) -> tuple[list[Ids], list[str]]:
        """The texts that the weights were trained on, in this run and those that it started from.

        And a line for each text that cannot be read, which is also said.
        """
        *before, _ = listed_texts(self.config, self.progress)
        texts, unread = earlier_texts(before, self.vocabulary, self.config.data, self.corpus.sha256)
        for fault in unread:
            say("skipped", f"not searched: {fault}")
        return [self.corpus.splits["train"], *texts], unread

    def _canonical(self, texts: Iterable[str]) -> list[str]:
        """Texts in the Unicode form that the model knows best."""
        return [self.vocabulary.canonical(text) for text in each_text(texts, "texts")]

    def _records(self, texts: Iterable[str]) -> list[str]:
        """The same; for a model of records without their ends. ValueError for an end within one."""
        found, separator = self._canonical(texts), self.config.data.records
        if not separator:
            return found
        records = []
        for place, text in enumerate(found):
            end = separator if text.endswith(separator) else end_of_record(separator)
            record = text.removesuffix(end)
            if holds_end(record, separator):
                raise ValueError(f"texts[{place}]: found the end of a record within a text; allowed: at its end")
            records.append(record)
        return records

    def _encoded(self, text: str | EncodedText, *, skip_unknown: bool = False) -> EncodedText:
        return text if isinstance(text, EncodedText) else self.encode(text, skip_unknown=skip_unknown)

    def _as_records(self, ids: Ids) -> Ids:
        """For a model of records the end of one, and then whole ones."""
        is_ended = len(ids) > 0 and ids[-1] == self.network.reset_id
        return as_records(ids, self.network.reset_id, ended=not is_ended)

    def _ids(self, text: str, *, skip_unknown: bool, way_out: str = _SKIP) -> Ids:
        """The ids of a text; VocabularyError for unknown characters unless they are skipped."""
        text = self.vocabulary.canonical(text)
        ids, is_known = self.vocabulary.ids_of(text)
        if not (skip_unknown or is_known.all()):
            raise self.vocabulary.unknown_error(self.vocabulary.unknown(text), ways_out=way_out)
        return ids[is_known].astype(self.vocabulary.dtype, copy=False)

    def _ids_of_all(
        self, texts: Iterable[str], name: str = "texts", *, skip_unknown: bool = False, way_out: str = _SKIP
    ) -> list[Ids]:
        """The ids of each text; VocabularyError as by `_ids`, with the text's position."""
        all_ids = []
        for position, text in enumerate(each_text(texts, name)):
            try:
                all_ids.append(self._ids(text, skip_unknown=skip_unknown, way_out=way_out))
            except VocabularyError as error:
                raise VocabularyError(f"{name}[{position}]: {error}") from None
        return all_ids
