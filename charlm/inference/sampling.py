"""Text from a model, character by character, for one or many samples at once."""

import codecs
import itertools
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from charlm.cells import Generator, RecurrentState
from charlm.data.vocabulary import Vocabulary
from charlm.model import CharLM, map_state


@dataclass(frozen=True)
class Choice:
    """How the next character is drawn from the model's probabilities."""

    temperature: float = 1.0
    """Logits are divided by it; 0 takes the likeliest character."""
    top_k: int = 0
    """Only the k likeliest characters; 0: all."""
    top_p: float = 1.0
    """Only the likeliest characters that together reach this probability."""


@torch.inference_mode()
def sample_ids(
    model: CharLM, prompt: Sequence[int], length: int, choice: Choice, seeds: Sequence[int], device: torch.device
) -> Iterator[Tensor]:
    """Yield `length` times the next id of each sample, [N] on the CPU, N = len(seeds).

    Each sample has its own stream of random numbers, so that it depends on its seed alone, not on its
    neighbours. `prompt` must not be empty; the model must be in evaluation mode.
    """
    N = len(seeds)
    output, state = _read(model, torch.tensor(list(prompt), device=device).unsqueeze(1))
    output, state = output.expand(-1, N, -1), map_state(lambda part: part.expand(-1, N, -1).contiguous(), state)
    if generator := model.generator(state):
        yield from _generated(generator, _draws(seeds, length), choice)
        return
    for draws_N in itertools.chain.from_iterable(_draws(seeds, length)):
        logits = model.logits(output[-1]).double().cpu()  # [N, V]
        ids = choose(logits, choice, draws_N)
        yield ids
        output, state = model.features(ids.to(device).unsqueeze(0), state)


def _generated(generator: Generator, blocks: Iterable[Tensor], choice: Choice) -> Iterator[Tensor]:
    """The ids that a generator draws by blocks of uniform numbers."""
    at_once = 16
    for draws_TN in blocks:
        while len(draws_TN):
            start_s = time.perf_counter()
            ids_TN = generator.draw(
                draws_TN[:at_once], temperature=choice.temperature, top_k=choice.top_k, top_p=choice.top_p
            )
            draws_TN = draws_TN[at_once:]
            # A call lays out the weights anew: the more characters in it the better, but the reader shall not wait.
            if time.perf_counter() - start_s < 0.05:
                at_once *= 2
            yield from ids_TN


def _read(model: CharLM, prompt_T1: Tensor) -> tuple[Tensor, RecurrentState]:
    """The last output [1, 1, H] and state after a prompt of any length, read a window at a time."""
    first, *rest = prompt_T1.split(_WINDOW)
    output, state = model.features(first)
    for window in rest:
        output, state = model.features(window, state)
    return output[-1:], state


def _draws(seeds: Sequence[int], length: int) -> Iterator[Tensor]:
    """`length` uniform numbers in blocks [≤ 256, N], each column from the generator of its seed."""
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    for start in range(0, length, _WINDOW):
        block = torch.stack([torch.rand(_WINDOW, generator=g, dtype=torch.float64) for g in generators], dim=1)
        yield block[: length - start]


_WINDOW = 256


def choose(logits_NV: Tensor, choice: Choice, draws_N: Tensor) -> Tensor:
    """The ids [N] at which the cumulated probabilities pass the uniform draws in [0, 1)."""
    if choice.temperature == 0:
        return logits_NV.argmax(-1)
    logits_NV, order_NV = (logits_NV / choice.temperature).sort(dim=-1, descending=True, stable=True)
    if choice.top_k:
        logits_NV = logits_NV[:, : choice.top_k]
    cumulated_NV = logits_NV.softmax(-1).cumsum(-1)
    # The ids kept by top-p come first in the order: to draw among them is to scale the draw down to their mass.
    kept_N1 = (cumulated_NV < choice.top_p).sum(-1, keepdim=True).clamp(max=cumulated_NV.shape[-1] - 1)
    mass_N1 = cumulated_NV.gather(-1, kept_N1)
    rank_N1 = torch.searchsorted(cumulated_NV, draws_N.unsqueeze(-1) * mass_N1, right=True)
    return order_NV.gather(-1, torch.minimum(rank_N1, kept_N1)).squeeze(-1)


@dataclass
class _Text:
    """One growing sample: its ids decoded as they come, until it ends with `stop`."""

    vocabulary: Vocabulary
    stop: str
    done: bool = False
    _tail: str = ""
    _bytes: codecs.IncrementalDecoder = field(
        default_factory=lambda: codecs.getincrementaldecoder("utf-8")("surrogateescape")
    )

    def append(self, index: int, last: bool) -> str:
        """The text that this id adds: of bytes, none until a character is whole."""
        if self.done:
            return ""
        if self.vocabulary.level == "byte":
            piece = self._bytes.decode(bytes([index]), final=last)
        else:
            piece = self.vocabulary.characters[index]
        if self.stop:
            self._tail = (self._tail + piece)[-len(self.stop) :]
            self.done = self._tail == self.stop
        return piece


def sample_text(
    model: CharLM,
    vocabulary: Vocabulary,
    *,
    prompt: str,
    length: int,
    choice: Choice,
    seeds: Sequence[int],
    device: torch.device,
    stop: str = "",
) -> Iterator[list[str]]:
    """Yield, step by step, what is added to each sample behind the prompt, until all are done.

    A sample is done after `length` ids or with the first `stop`, which is its end. VocabularyError for
    characters of the prompt that the model does not know. An empty prompt means the start of a line.
    Bytes that are no UTF-8 come as lone surrogates, as from Python's "surrogateescape"; see `readable`.
    """
    texts = [_Text(vocabulary, stop) for _ in seeds]
    ids = vocabulary.encode(prompt or _line_end(vocabulary)).tolist()
    for step, new in enumerate(sample_ids(model, ids, length, choice, seeds, device), start=1):
        yield [text.append(index, last=step == length) for text, index in zip(texts, new.tolist(), strict=True)]
        if all(text.done for text in texts):
            return


def _line_end(vocabulary: Vocabulary) -> str:
    """What stands before the first character of a text without a prompt."""
    return next((c for c in "\n " if not vocabulary.unknown(c)), vocabulary.characters[:1])
