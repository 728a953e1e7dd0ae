"""The scores of single characters as a CSV file."""

import contextlib
import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import numpy.typing as npt

from charlm.data.vocabulary import Vocabulary
from charlm.errors import DataError
from charlm.system.formatting import nats_to_bits


def write_per_char(
    file: Path, vocabulary: Vocabulary, ids: npt.NDArray[np.integer[Any]], nats: npt.NDArray[np.float32]
) -> None:
    """Write one line per scored character of `ids` [N]: position in the text, character (or byte), nats, bits.

    nats: [N − 1], of all characters but the one that the model reads first, in the order of the text. DataError if the
    file cannot be written.
    """
    with _opened(file) as out:
        write_rows(out, vocabulary, ids, nats)


def write_rows(
    out: TextIO, vocabulary: Vocabulary, ids: npt.NDArray[np.integer[Any]], nats: npt.NDArray[np.float32]
) -> None:
    """The same to an open file."""
    text, first = vocabulary.turned(ids), 0 if vocabulary.backward else 1
    writer = csv.writer(out)
    writer.writerow(("position", "byte" if vocabulary.level == "byte" else "character", "nats", "bits"))
    for position, loss in enumerate(nats.tolist(), start=first):
        index = int(text[position])
        symbol = index if vocabulary.level == "byte" else vocabulary.characters[index]
        writer.writerow((position, symbol, f"{loss:.6f}", f"{nats_to_bits(loss):.6f}"))


@contextlib.contextmanager
def _opened(file: Path) -> Iterator[TextIO]:
    try:
        with file.open("w", encoding="utf-8", newline="") as out:
            yield out
    except OSError as error:
        raise DataError(f"--per-char {file}: {error.strerror}; allowed: a file that can be written") from None
