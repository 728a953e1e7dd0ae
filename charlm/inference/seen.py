"""The texts that weights have seen: that of their run, and those of the runs that they started from."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from charlm.config.schema import DataConfig
from charlm.data.corpus import Corpus, load_unchanged_corpus
from charlm.data.vocabulary import Ids
from charlm.errors import CharlmError
from charlm.system.formatting import source_name


class SeenTexts(NamedTuple):
    """What weights were trained on."""

    texts: list[Ids]
    """The training text of each run that can be read, the last run first."""
    unread: list[str]
    """For each text that cannot be read, a line that says why."""


def seen_texts(data: DataConfig, corpus: Corpus, progress: Mapping[str, Any], run_dir: Path) -> SeenTexts:
    """The texts of a run in this folder with this data, and of those before; its vocabulary knows all of them."""
    seen = SeenTexts([corpus.splits["train"]], [])
    own = {"data": data.model_dump(mode="json"), "sha256": corpus.sha256}
    for earlier in progress.get("earlier_texts", []):
        if earlier == own:
            continue
        name = "a text"
        try:
            earlier_data = DataConfig.model_validate(earlier["data"])
            name = source_name(earlier_data.source)
            known = {"corpus_sha256": earlier["sha256"]}
            seen.texts.append(load_unchanged_corpus(earlier_data, corpus.vocabulary, known, run_dir).splits["train"])
        except (LookupError, TypeError, ValidationError):
            seen.unread.append(f"{name} of an earlier run: its record in the checkpoint is damaged")
        except CharlmError as error:
            seen.unread.append(f"{name}, of an earlier run: {error}")
    return seen
