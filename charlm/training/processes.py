"""What the processes of a run agree on before they train."""

from collections.abc import Callable

import torch

from charlm.config import Config, ignored_options
from charlm.data.corpus import Corpus
from charlm.data.streams import check_length
from charlm.errors import ConfigError
from charlm.system.console import say
from charlm.system.device import resolve_device
from charlm.system.formatting import counted, format_bytes
from charlm.system.process_group import ProcessGroup
from charlm.training.precision import with_precision


def choose_device(config: Config, group: ProcessGroup) -> torch.device:
    """The device of this process, by which it exchanges tensors with the others from here on."""
    B, W = config.train.batch_size, group.size
    if B % W:
        nearest = " or ".join(str(size) for size in (B // W * W, (B // W + 1) * W) if size)
        raise group.shared_error(
            ConfigError(f"train.batch_size: found {B} for {W} processes; allowed: multiples of {W}; take {nearest}")
        )
    device = group.on_each(resolve_device, config.device, group)
    group.use(device)
    return device


def load_common_corpus(config: Config, group: ProcessGroup, load: Callable[[], Corpus]) -> Corpus:
    """The text of the run; prints what was read, and the options that have no effect.

    DataError if a split is too short for one window; ProcessError unless all processes have read the same.
    """
    corpus = group.local_first(load)
    group.check_equal("text", lambda: (corpus.sha256, corpus.vocabulary.to_json()))
    group.on_each(_check_splits, config, corpus)
    parts = ", ".join(f"{name} {len(ids):,}" for name, ids in corpus.splits.items())
    lines = ""
    if corpus.starts:
        lines = f" in {counted(sum(len(starts) - 1 for starts in corpus.starts.values()), 'line')}"
    files = counted(corpus.files, "file")
    size = format_bytes(corpus.size_bytes)
    vocabulary = f"vocabulary {len(corpus.vocabulary):,}"
    say("data", f"{config.data.source}: {size} in {files}; {parts} {config.data.level}s{lines}; {vocabulary}")
    for line in ignored_options(config):
        say("ignored", line)
    return corpus


def _check_splits(config: Config, corpus: Corpus) -> None:
    for name, ids in corpus.splits.items():
        streams = config.train.batch_size if name == "train" else 1
        check_length(len(ids), streams, config.train.bptt, f"{name} split")


def with_common_precision(config: Config, device: torch.device, group: ProcessGroup) -> Config:
    """The config with the precision that the first process chooses."""
    chosen = group.local_first(with_precision, config, device)
    return group.on_first(lambda: chosen)
