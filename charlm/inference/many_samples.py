"""Many samples, some at a time; of a model of lines, if wanted, only new ones."""

from collections import Counter
from collections.abc import Iterator

from charlm.data.lines import text_lines
from charlm.inference.options import SamplingOptions
from charlm.inference.sampling import sample_texts
from charlm.inference.trained import TrainedModel

_TOGETHER = 64
"""Samples that are written side by side."""
_TRIES = 20
"""Lines that are written for each new one wanted, at most."""


def sample_many(
    trained: TrainedModel, prompt: str, options: SamplingOptions, seed: int, count: int
) -> Iterator[tuple[int, str]]:
    """Yield the seed of each sample, from `seed` on, and the sample without its prompt."""
    for first in range(seed, seed + count, _TOGETHER):
        seeds = range(first, min(first + _TOGETHER, seed + count))
        texts = sample_texts(trained.network, trained.vocabulary, prompt, options, seeds)
        yield from zip(seeds, texts, strict=True)


def sample_new_lines(
    trained: TrainedModel, prompt: str, options: SamplingOptions, seed: int, count: int, dropped: Counter[str]
) -> Iterator[tuple[int, str]]:
    """`sample_many` without repeats of a line and without those of the training text.

    Counts each "repeat" and each "copy" in `dropped`. There are fewer if 20 times as many lines do not hold them.
    DataError if the training text has changed or is gone.
    """
    known = _known_lines(trained)
    earlier = set[str]()
    for own_seed, text in sample_many(trained, prompt, options, seed, count * _TRIES):
        line = prompt + text
        if hash(line) in known:
            dropped["copy"] += 1
        elif line in earlier:
            dropped["repeat"] += 1
        else:
            yield own_seed, text
            earlier.add(line)
            if len(earlier) == count:
                return


def _known_lines(trained: TrainedModel) -> set[int]:
    """The hashes of the lines of the train split."""
    known = set[int]()
    for lines in text_lines(trained.training_splits("--new")["train"][1:], trained.vocabulary):
        known.update(map(hash, lines))
    return known
