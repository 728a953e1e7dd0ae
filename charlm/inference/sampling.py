"""Sampling: a model writes text, one character after another, by temperature, top-k and top-p, up to a stop text."""

import functools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from charlm.data.records import as_records
from charlm.data.vocabulary import Vocabulary, utf8_decoder
from charlm.gpu.graphs import Graphs, lacks_graphs
from charlm.inference.options import SamplingOptions
from charlm.inference.reader import START, Reader, windows_between
from charlm.inference.texts import score_texts
from charlm.layers import RecurrentState
from charlm.model import NEVER, Network, overflow
from charlm.system.formatting import nats_to_bits, readable

_WINDOW = 256
"""Characters of a prompt that are read at once, and random numbers that are drawn at once."""
_CALL_S = 0.05
"""A call costs time besides its characters: calls draw more and more of them, until one takes so long."""
_TOGETHER = 64
"""Samples that `sample_many` writes side by side."""


def sample_text(
    model: Network, vocabulary: Vocabulary, prompt: str, options: SamplingOptions, seeds: Sequence[int]
) -> Iterator[list[str]]:
    """Yield step by step the new text of each sample, until all are done; at first the empty text.

    A sample is done after `length` ids, or as soon as it ends with a stop text. An empty prompt means the start of a
    line. A model of records writes one record, without its end. Bytes that are not UTF-8 come as lone surrogates.

    The model must be in evaluation mode. The call reads the prompt: VocabularyError for an unknown character. The steps
    raise DivergenceError for logits that are not finite.
    """
    never = vocabulary.never_drawn(options.ban)
    output, state = read_ids(model, prompt_ids(model, vocabulary, prompt))
    texts = [SampleText(vocabulary, options, model.reset_id) for _ in seeds]
    return _pieces(texts, sample_ids(model, output, state, options, seeds, never), options.length)


def _pieces(texts: Sequence["SampleText"], drawn: Iterable[Tensor], length: int) -> Iterator[list[str]]:
    """What each drawn id adds to its text."""
    yield ["" for _ in texts]
    for step, ids in enumerate(drawn, start=1):
        yield [text.append(id, is_last=step == length) for text, id in zip(texts, ids.tolist(), strict=True)]
        if all(text.done for text in texts):
            return


def sample_many(
    model: Network, vocabulary: Vocabulary, prompt: str, options: SamplingOptions, seeds: range
) -> Iterator[tuple[int, str]]:
    """Yield each seed and its whole sample without the prompt; see `sample_text`."""
    for first in range(0, len(seeds), _TOGETHER):
        together = seeds[first : first + _TOGETHER]
        steps = sample_text(model, vocabulary, prompt, options, together)
        yield from zip(together, map("".join, zip(*steps, strict=True)), strict=True)


def draw_sample(
    model: Network,
    vocabulary: Vocabulary,
    *,
    options: SamplingOptions,
    seed: int,
    stops: Callable[[], object],
) -> dict[str, Any] | None:
    """Let a model in evaluation mode write from the start of a line, and then score what it wrote.

    Returns "text", with U+FFFD for each byte that is not UTF-8, and "bits": −log2 of each character's probability at
    temperature 1, to hundredths; None where infinite or nan. stops: called after every character; if it returns true,
    there is no sample.
    """
    text = ""
    for [piece] in sample_text(model, vocabulary, "", options, [seed]):
        text += piece
        if stops():
            return None
    before = prompt_ids(model, vocabulary, "")
    ids = np.array([*before, *vocabulary.encode(text).tolist()], np.int64)
    [nats] = score_texts(model, [ids])
    bits = nats_to_bits(1) * nats[len(before) - 1 :].astype(np.float64)
    bits = vocabulary.sums_of_characters(bits, text)
    shown = "".join(map(readable, text))
    rounded = [round(each, 2) if math.isfinite(each) else None for each in bits.tolist()]
    return {"text": shown, "bits": rounded}


@torch.inference_mode()
def sample_ids(
    model: Network,
    output: Tensor,
    state: RecurrentState,
    options: SamplingOptions,
    seeds: Sequence[int],
    never: Sequence[int] = (),
) -> Iterator[Tensor]:
    """Yield the next id of each sample, [N] on the CPU, `length` times; N = len(seeds).

    Each sample has its own stream of random numbers: it depends on its seed alone, not on the other samples.
    never: ids that are not drawn. −1: a logit was not finite, which is no fault of a sample that is done by then.
    """
    N = len(seeds)
    output, state = output.expand(-1, N, -1), tuple(layers.repeat(1, N, 1) for layers in state)
    if generator := model.generator(state, never):
        draw: Callable[[Tensor], Tensor] = functools.partial(
            generator.draw, temperature=options.temperature, top_k=options.top_k, top_p=options.top_p
        )
    else:
        draw = StepByStep(model, output, state, options, never)
    at_once = 16
    for draws_TN in _random_numbers(seeds, options.length):
        while len(draws_TN):
            start_s = time.perf_counter()
            ids_TN = draw(draws_TN[:at_once])
            draws_TN = draws_TN[at_once:]
            if time.perf_counter() - start_s < _CALL_S:
                at_once *= 2
            yield from ids_TN


def _random_numbers(seeds: Sequence[int], length: int) -> Iterator[Tensor]:
    """Uniform random numbers for `length` characters of each sample, [up to 256, N] at a time."""
    streams = [torch.Generator().manual_seed(seed) for seed in seeds]
    for start in range(0, length, _WINDOW):
        draws = [torch.rand(_WINDOW, generator=stream, dtype=torch.float64) for stream in streams]
        yield torch.stack(draws, dim=1)[: length - start]


class StepByStep:
    """Draws characters with the model's own operators, where no kernel generates them.

    All that a step reads and writes stays at one address on the device. On a GPU a step is therefore one CUDA graph,
    and the host waits once per call.

    output [1, N, H] and state: those after the prompt.
    """

    def __init__(
        self,
        model: Network,
        output: Tensor,
        state: RecurrentState,
        options: SamplingOptions,
        never: Sequence[int] = (),
    ) -> None:
        self._model, self._options = model, options
        self._output, self._state = output.clone(), tuple(layers.clone() for layers in state)
        N, self._device = output.shape[1], output.device
        self._draws = torch.empty(_WINDOW, N, dtype=torch.float64, device=self._device)
        self._drawn = torch.empty(_WINDOW, N, dtype=torch.int64, device=self._device)
        self._never = torch.tensor([*never], dtype=torch.int64, device=self._device)
        self._row = torch.zeros(1, dtype=torch.int64, device=self._device)
        self.graphs = Graphs()
        self.graphs.enabled = lacks_graphs(self._device) is None

    def __call__(self, draws_TN: Tensor) -> Tensor:
        """The next T ≤ 256 characters of every sample, [T, N] on the CPU; −1 where a logit is not finite."""
        T = len(draws_TN)
        self._draws[:T] = draws_TN.to(self._device)
        self._row.zero_()
        for _ in range(T):
            self.graphs.run("step", self.step, self._device)
        return self._drawn[:T].to("cpu", copy=True)

    def step(self) -> None:
        """Draw one character of every sample, and read it."""
        logits_NV = self._model.logits(self._output[-1]).double().index_fill(1, self._never, NEVER)
        draws_N = self._draws.index_select(0, self._row).squeeze(0)
        ids_1N = choose(logits_NV, self._options, draws_N).unsqueeze(0)
        self._drawn.index_copy_(0, self._row, ids_1N.masked_fill(~logits_NV.isfinite().all(-1), -1))
        self._row += 1
        output, state = self._model.features(ids_1N, self._state)
        self._output.copy_(output)
        for target, source in zip(self._state, state, strict=True):
            target.copy_(source)


def choose(logits_NV: Tensor, options: SamplingOptions, draws_N: Tensor) -> Tensor:
    """The ids [N] where the cumulative probabilities first exceed the uniform draws in [0, 1)."""
    if options.temperature == 0:
        return logits_NV.argmax(-1)
    logits_NV, order_NV = logits_NV.sort(dim=-1, descending=True, stable=True)
    if options.top_k:
        logits_NV = logits_NV[:, : options.top_k]
    # Subtracting first: at temperatures below 1e-307 the quotients of logits are infinite.
    logits_NV = (logits_NV - logits_NV[:, :1]) / options.temperature
    cumulative_NV = logits_NV.softmax(-1).cumsum(-1)
    # Top-p keeps the first ids in the order. Scaling the draw to their mass draws among them alone.
    last_N1 = (cumulative_NV < options.top_p).sum(-1, keepdim=True).clamp(max=cumulative_NV.shape[-1] - 1)
    mass_N1 = cumulative_NV.gather(-1, last_N1)
    rank_N1 = torch.searchsorted(cumulative_NV, draws_N.unsqueeze(-1) * mass_N1, right=True)
    return order_NV.gather(-1, torch.minimum(rank_N1, last_N1)).squeeze(-1)


class SampleText:
    """A sample in progress: decodes its ids as they come, until it ends with a stop text, or at its record's end.

    record_end: the id that ends it, if it is a record.
    """

    def __init__(self, vocabulary: Vocabulary, options: SamplingOptions, record_end: int | None) -> None:
        self.done = False
        self._vocabulary, self._record_end, self._ids = vocabulary, record_end, list[int]()
        self._least = options.least
        self._stops = [vocabulary.encode(stop).tolist() for stop in options.stop if not vocabulary.unknown(stop)]
        self._bytes = utf8_decoder()

    def append(self, id: int, is_last: bool) -> str:
        """The text that this id adds; nothing while the bytes of a character are incomplete.

        DivergenceError for −1, see `sample_ids`.
        """
        if self.done:
            return ""
        if id < 0:
            raise overflow()
        self._ids.append(id)
        record_ends = id == self._record_end
        may_stop = len(self._ids) >= self._least
        self.done = is_last or record_ends or any(may_stop and self._ids[-len(stop) :] == stop for stop in self._stops)
        new = [] if record_ends else [id]
        if self._vocabulary.level == "byte":
            return self._bytes.decode(bytes(new), final=self.done)
        return self._vocabulary.decode(new)


@torch.inference_mode()
def next_probabilities(model: Network, vocabulary: Vocabulary, prompt: str) -> Tensor:
    """The probabilities [V] of the character after the prompt, in float64; for errors see `sample_text`."""
    output, _ = read_ids(model, prompt_ids(model, vocabulary, prompt))
    p_V = model.logits(output[0, 0]).double().softmax(-1).cpu()
    if p_V.isnan().any():
        raise overflow()
    return p_V


@torch.inference_mode()
def read_ids(model: Network, ids: Sequence[int]) -> tuple[Tensor, RecurrentState]:
    """The last output [1, 1, H] and the state after reading one id or more, in windows."""
    reader, features_T1H = Reader(model, np.asarray(ids), START), torch.empty(0)
    for offset, steps in windows_between(0, len(ids), _WINDOW):
        features_T1H = reader.features(offset, steps)
    return features_T1H[-1:], reader.state


def prompt_ids(model: Network, vocabulary: Vocabulary, prompt: str) -> list[int]:
    """The ids that the model reads before it writes, at least one; VocabularyError for unknown characters.

    Without a prompt it reads a line end, a space, or any character that it knows.
    """
    if not prompt and not model.reads_records:
        prompt = next((c for c in "\n " if not vocabulary.unknown(c)), vocabulary.characters[:1])
    return as_records(vocabulary.encode(prompt), model.reset_id, ended=False).tolist()
