"""Loading a corpus without a config."""

from typing import Any

from charlm.config.schema import DataConfig
from charlm.data import corpus


def load_corpus(source: str, *, vocabulary=None, **data: Any) -> corpus.Corpus:
    """The corpus of a source; the other options are those of a config's `data` section."""
    return corpus.CountedSources(DataConfig(source=source, **data)).corpus(vocabulary)
