"""Sampling: a model writes text, one character after another, for one or many samples at once."""

import codecs
import functools
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from charlm.data.vocabulary import Vocabulary
from charlm.gpu.graphs import Graphs
from charlm.layers import RecurrentState, as_tuple
from charlm.model import CharLM, map_state, overflow


@dataclass(frozen=True)
class Choice:
    """How to draw the next character from the model's probabilities; ValueError for values that are not allowed."""

    temperature: float = 1.0
    """Divides the logits: below 1 is safer, above 1 is wilder. 0 takes the likeliest character."""
    top_k: int = 0
    """Draw from the k likeliest characters only; 0 for all."""
    top_p: float = 1.0
    """Draw from the likeliest characters that together reach this probability."""
    min_p: float = 0.0
    """Draw from the characters that are at least this share as likely as the likeliest one, after the temperature; 0
    for all (Nguyen et al. 2024, arXiv:2407.01082). Of several limits the strictest holds."""

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < math.inf:
            raise ValueError(f"temperature: found {self.temperature}; allowed: a finite number ≥ 0")
        if self.top_k < 0:
            raise ValueError(f"top_k: found {self.top_k}; allowed: an integer ≥ 0")
        if not 0 <= self.top_p <= 1:
            raise ValueError(f"top_p: found {self.top_p}; allowed: 0 to 1")
        if not 0 <= self.min_p <= 1:
            raise ValueError(f"min_p: found {self.min_p}; allowed: 0 to 1")


@torch.inference_mode()
def sample_ids(
    model: CharLM, prompt: Sequence[int], length: int, choice: Choice, seeds: Sequence[int], device: torch.device
) -> Iterator[Tensor]:
    """Yield the next id of each sample, [N] on the CPU, `length` times; N = len(seeds).

    Each sample has its own stream of random numbers: it depends on its seed alone, not on the other samples. `prompt`
    must not be empty, and the model must be in evaluation mode. DivergenceError for logits that are not finite.
    """
    output, state = read_ids(model, torch.tensor(list(prompt), device=device).unsqueeze(1))
    yield from continued_ids(model, output, state, length, choice, seeds)


@torch.inference_mode()
def continued_ids(
    model: CharLM, output: Tensor, state: RecurrentState, length: int, choice: Choice, seeds: Sequence[int]
) -> Iterator[Tensor]:
    """`sample_ids` after a prompt that has been read: its last output [1, 1, H] and state [L, 1, H]."""
    N = len(seeds)
    output, state = output.expand(-1, N, -1), map_state(lambda part: part.repeat(1, N, 1), state)
    blocks = _draws(seeds, length)
    if generator := model.generator(state):
        yield from _generated(functools.partial(generator.draw, **asdict(choice)), blocks)
    else:
        yield from _generated(StepByStep(model, output, state, choice), blocks)


def _generated(draw: Callable[[Tensor], Tensor], blocks: Iterable[Tensor]) -> Iterator[Tensor]:
    """The ids that `draw` makes of blocks of uniform numbers [T, N]."""
    at_once = 16
    for draws_TN in blocks:
        while len(draws_TN):
            start_s = time.perf_counter()
            ids_TN = draw(draws_TN[:at_once])
            draws_TN = draws_TN[at_once:]
            # A call costs time besides its characters, so take more of them per call until one takes 50 ms.
            if time.perf_counter() - start_s < 0.05:
                at_once *= 2
            if bool((ids_TN < 0).any()):
                raise overflow()
            yield from ids_TN


class StepByStep:
    """Draws characters with the model's own operators, where no kernel generates them.

    All that a step reads and writes stays at one address on the device. On a GPU a step is therefore one CUDA graph,
    and the host waits once per call.

    output [1, N, H] and state: those after the prompt.
    """

    def __init__(self, model: CharLM, output: Tensor, state: RecurrentState, choice: Choice) -> None:
        self._model, self._choice = model, choice
        self._output, self._state = output.clone(), map_state(Tensor.clone, state)
        N, self._device = output.shape[1], output.device
        self._draws = torch.empty(_WINDOW, N, dtype=torch.float64, device=self._device)
        self._drawn = torch.empty(_WINDOW, N, dtype=torch.int64, device=self._device)
        self._row = torch.zeros(1, dtype=torch.int64, device=self._device)
        self.graphs = Graphs()
        self.graphs.enabled = self._device.type == "cuda"

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
        logits_NV = self._model.logits(self._output[-1]).double()
        draws_N = self._draws.index_select(0, self._row).squeeze(0)
        ids_1N = choose(logits_NV, self._choice, draws_N).unsqueeze(0)
        self._drawn.index_copy_(0, self._row, ids_1N.masked_fill(~logits_NV.isfinite().all(-1), -1))
        self._row += 1
        output, state = self._model.features(ids_1N, self._state)
        self._output.copy_(output)
        for target, part in zip(as_tuple(self._state), as_tuple(state), strict=True):
            target.copy_(part)


def read_ids(model: CharLM, prompt_T1: Tensor, state: RecurrentState | None = None) -> tuple[Tensor, RecurrentState]:
    """The last output [1, 1, H] and the state after a prompt of any length, read in windows from `state` on."""
    first, *rest = prompt_T1.split(_WINDOW)
    output, state = model.features(first, state)
    for window in rest:
        output, state = model.features(window, state)
    return output[-1:], state


def _draws(seeds: Sequence[int], length: int) -> Iterator[Tensor]:
    """`length` uniform numbers per sample, in blocks [≤ 256, N]; each column comes from the generator of its seed."""
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    for start in range(0, length, _WINDOW):
        block = torch.stack([torch.rand(_WINDOW, generator=g, dtype=torch.float64) for g in generators], dim=1)
        yield block[: length - start]


_WINDOW = 256


def choose(logits_NV: Tensor, choice: Choice, draws_N: Tensor) -> Tensor:
    """The ids [N] where the cumulative probabilities first exceed the uniform draws in [0, 1)."""
    if choice.temperature == 0:
        return logits_NV.argmax(-1)
    logits_NV, order_NV = logits_NV.sort(dim=-1, descending=True, stable=True)
    if choice.top_k:
        logits_NV = logits_NV[:, : choice.top_k]
    # Subtracting first: at temperatures below 1e-307 the quotients of logits are infinite.
    logits_NV = (logits_NV - logits_NV[:, :1]) / choice.temperature
    cumulative_NV = logits_NV.softmax(-1).cumsum(-1)
    # Top-p and min-p keep the first ids in the order. Scaling the draw to their mass draws among them alone.
    likely_NV = logits_NV.exp() >= choice.min_p
    most_N1 = (likely_NV.sum(-1, keepdim=True) - 1).clamp(min=0)
    kept_N1 = torch.minimum((cumulative_NV < choice.top_p).sum(-1, keepdim=True), most_N1)
    mass_N1 = cumulative_NV.gather(-1, kept_N1)
    rank_N1 = torch.searchsorted(cumulative_NV, draws_N.unsqueeze(-1) * mass_N1, right=True)
    return order_NV.gather(-1, torch.minimum(rank_N1, kept_N1)).squeeze(-1)


@torch.inference_mode()
def next_probabilities(model: CharLM, vocabulary: Vocabulary, prompt: str, device: torch.device) -> Tensor:
    """The probabilities [V] of the character after the prompt, or before it if the model reads backward, in float64.

    An empty prompt means the start of a line. VocabularyError if the model does not know a character of the prompt,
    DivergenceError for logits that are not finite. The model must be in evaluation mode.
    """
    output, _ = read_ids(model, torch.tensor(prompt_ids(model, vocabulary, prompt), device=device).unsqueeze(1))
    p_V = model.logits(output[0, 0]).double().softmax(-1).cpu()
    if p_V.isnan().any():
        raise overflow()
    return p_V


class SampleText:
    """A sample in progress: decodes its ids as they come, until it ends with `stop`, or at the end of its line.

    line_end: the id that ends it, if it is a line. A text that is written backward comes whole when it is done.
    """

    def __init__(self, vocabulary: Vocabulary, stop: str, line_end: int | None) -> None:
        self.done = False
        self._vocabulary, self._line_end = vocabulary, line_end
        self._stop = [] if vocabulary.unknown(stop) else vocabulary.encode(stop).tolist()
        self._tail: deque[int] = deque(maxlen=len(self._stop))
        self._held_back: list[int] = []
        self._bytes = codecs.getincrementaldecoder("utf-8")("surrogateescape")

    def append(self, index: int, last: bool) -> str:
        """The text that this id adds; nothing while the bytes of a character are incomplete."""
        if self.done:
            return ""
        self._tail.append(index)
        line_ends = index == self._line_end
        self.done = last or line_ends or (bool(self._stop) and [*self._tail] == self._stop)
        new = [] if line_ends else [index]
        if self._vocabulary.backward:
            self._held_back += new
            return self._vocabulary.decode(self._held_back, "surrogateescape") if self.done else ""
        if self._vocabulary.level == "byte":
            return self._bytes.decode(bytes(new), final=self.done)
        return self._vocabulary.decode(new)


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
    """Yield, step by step, what each sample gains after the prompt, until all samples are done.

    A sample is done after `length` ids, or as soon as it ends with `stop`. An empty prompt means the start of a line.
    A model of lines writes lines, without their newlines. A model that reads backward writes before the prompt, from
    the end of a line; its samples gain everything when they are done.

    VocabularyError if the model does not know a character of the prompt. Bytes that are not UTF-8 come as lone
    surrogates, as from Python's "surrogateescape"; see `readable`.
    """
    texts = [SampleText(vocabulary, stop, model.begins) for _ in seeds]
    ids = prompt_ids(model, vocabulary, prompt)
    for step, new in enumerate(sample_ids(model, ids, length, choice, seeds, device), start=1):
        yield [text.append(index, last=step == length) for text, index in zip(texts, new.tolist(), strict=True)]
        if all(text.done for text in texts):
            return


def prompt_ids(model: CharLM, vocabulary: Vocabulary, prompt: str) -> list[int]:
    """The ids that the model reads before it writes, at least one; VocabularyError for unknown characters."""
    if model.begins is not None:
        return [model.begins, *vocabulary.encode(prompt).tolist()]
    return vocabulary.encode(prompt or first_read(vocabulary)).tolist()


def first_read(vocabulary: Vocabulary) -> str:
    """What the model reads first when there is no prompt: a line end, a space, or any character that it knows."""
    return next((c for c in "\n " if not vocabulary.unknown(c)), vocabulary.characters[:1])
