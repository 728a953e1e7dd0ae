"""Texts that tests train on, made here: no corpus is committed."""

from functools import cache

import numpy as np


@cache
def words_text(length: int, seed: int = 0) -> str:
    """`length` characters of sentences over a small made-up lexicon: quickly learned, never constant."""
    rng = np.random.default_rng(seed)
    letters = list("aeiounrstlm")
    lexicon = ["".join(rng.choice(letters, size=rng.integers(1, 7))) for _ in range(60)]
    text = ""
    while len(text) < length:
        text += " ".join(rng.choice(lexicon, size=rng.integers(3, 9))) + ".\n"
    return text[:length]


class MarkovSource:
    """A first-order Markov chain over `states` letters with every transition possible: its entropy is known."""

    def __init__(self, states: int = 6, seed: int = 1) -> None:
        rng = np.random.default_rng(seed)
        self.letters = "abcdefghijklmnop"[:states]
        self.transition = rng.dirichlet(np.full(states, 0.6), size=states)
        values, vectors = np.linalg.eig(self.transition.T)
        stationary = np.real(vectors[:, np.argmax(np.real(values))])
        self.stationary = stationary / stationary.sum()

    @property
    def entropy_nats(self) -> float:
        """Entropy rate: −Σ π_i Σ p_ij ln p_ij, nats per character."""
        return float(-(self.stationary[:, None] * self.transition * np.log(self.transition)).sum())

    def text(self, length: int, seed: int) -> str:
        rng = np.random.default_rng(seed)
        cumulated = self.transition.cumsum(1)
        state, states = 0, np.empty(length, np.int64)
        for n, draw in enumerate(rng.random(length)):
            state = min(int(np.searchsorted(cumulated[state], draw, side="right")), len(self.letters) - 1)
            states[n] = state
        return "".join(self.letters[s] for s in states)

    def nats_per_char(self, text: str) -> float:
        """What the source itself scores on `text` after its first character."""
        ids = np.array([self.letters.index(c) for c in text])
        return float(-np.log(self.transition[ids[:-1], ids[1:]]).mean())


ESC = "\x1bc"  # clears the screen
RTL = "\u202e"
BYTE = "\udcff"  # byte 0xff of an argument or file name, as Python keeps it
SEEN = f"its {len(set(words_text(20_000)))} characters"
