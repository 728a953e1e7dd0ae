"""What a run takes from another one, whose weights it starts from: settings, vocabulary and weights."""

import torch

from charlm.checkpoint import Checkpoint
from charlm.config import Config, differences, flatten
from charlm.config.yaml import dump_flow
from charlm.data.corpus import CountedSources
from charlm.data.vocabulary import Vocabulary, describe_characters
from charlm.errors import ConfigError, VocabularyError
from charlm.model import Network
from charlm.system.console import say
from charlm.system.formatting import counted

_FREE_TO_DIFFER = ("model.dropout.", "model.zoneout", "model.init_uniform", "model.orthogonal")


def settings_of_run(config: Config) -> list[str]:
    """What a run takes over, as KEY=VALUE: how the text is read, and the model without its dropout."""
    options = flatten(config).items()
    taken = {key: value for key, value in options if key.startswith(("data.level", "data.records", "model."))}
    return [f"{key}={dump_flow(value)}" for key, value in taken.items() if not key.startswith("model.dropout.")]


def check_same_model(config: Config, init_from: Checkpoint) -> None:
    """ConfigError unless the config's model can take the checkpoint's weights."""
    changed = differences(init_from.config, config)
    free = (*_FREE_TO_DIFFER, *(f"model.cell.{name}" for name in config.model.cell.initial))
    faults = [
        f"{key}: found {found!r}; the checkpoint of --init-from has {wanted!r}; allowed: the same"
        for key, (wanted, found) in changed.items()
        if key.startswith(("model.", "data.level")) and not key.startswith(free)
    ]
    if faults:
        raise ConfigError(*faults)


def fine_tuned_vocabulary(config: Config, init_from: Checkpoint, text: CountedSources) -> Vocabulary:
    """The checkpoint's vocabulary, extended by the new text's characters if the config asks for it."""
    vocabulary = init_from.vocabulary
    if not (unknown := text.unknown(vocabulary)):
        return vocabulary
    listed = describe_characters(unknown, limit=20)
    if not config.data.grow_vocabulary:
        raise VocabularyError(
            f"data.source: the checkpoint of --init-from has never seen {listed}; allowed: its "
            f"{counted(len(vocabulary), 'character')}; --set data.grow_vocabulary=true adds the new ones"
        )
    say("grow", f"{counted(len(unknown), 'new character')}: {listed}")
    return vocabulary.extended(unknown)


def grown_weights(model: Network, checkpoint: Checkpoint) -> dict[str, torch.Tensor]:
    """The checkpoint's weights in the model's shapes. New characters are random, with the lowest output bias."""
    weights = dict(checkpoint.averaged or checkpoint.weights)
    for name, parameter in model.named_parameters():
        old = weights.get(name)
        if old is None or old.shape == parameter.shape or old.dim() != parameter.dim():
            continue
        grown = parameter.detach().cpu().clone()
        if name.endswith("decoder.bias"):
            grown.fill_(old.min())
        grown[tuple(slice(size) for size in old.shape)] = old
        weights[name] = grown
    return weights
