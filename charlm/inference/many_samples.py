"""Many samples, some at a time; of a model of lines, if wanted, only new ones."""

from collections import Counter
from collections.abc import Iterator

from charlm.data.lines import text_lines
from charlm.inference.options import SamplingOptions
from charlm.inference.sampling import sample_text
from charlm.inference.trained import TrainedModel

_TOGETHER = 64
"""Samples that are written side by side."""
_TRIES = 20
"""Lines that are written for each new one wanted, at most."""


def sample_many(
    trained: TrainedModel,
    prompt: str,
    options: SamplingOptions,
    seed: int,
    count: int,
    dropped: Counter[str] | None = None,
) -> Iterator[tuple[int, str]]:
    """Yield the seed of each sample, from `seed` on, and the sample without its prompt.

    dropped: None yields every sample. A counter yields only new lines, and counts each "repeat" of a line and each
    "copy" of one in the training text; then there are fewer if 20 times as many lines do not hold them. DataError if
    that text has changed or is gone.
    """
    known = set[int]() if dropped is None else _known_lines(trained)
    earlier = set[str]()
    tries = count if dropped is None else count * _TRIES
    for first in range(0, tries, _TOGETHER):
        seeds = range(seed + first, seed + min(first + _TOGETHER, tries))
        steps = sample_text(trained.network, trained.vocabulary, prompt, options, seeds)
        for own_seed, pieces in zip(seeds, zip(*steps, strict=True), strict=True):
            text = "".join(pieces)
            line = prompt + text
            if dropped is not None and hash(line) in known:
                dropped["copy"] += 1
            elif dropped is not None and line in earlier:
                dropped["repeat"] += 1
            else:
                yield own_seed, text
                earlier.add(line)
                count -= 1
                if not count:
                    return


def _known_lines(trained: TrainedModel) -> set[int]:
    """The hashes of the lines of the train split."""
    known = set[int]()
    for lines in text_lines(trained.training_splits("--new")["train"][1:], trained.vocabulary):
        known.update(map(hash, lines))
    return known
