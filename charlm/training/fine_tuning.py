"""What a run takes from another one, whose weights it starts from: settings, vocabulary and weights."""

from typing import Any

import torch

from charlm.cells import Cell
from charlm.cells.cell import is_in_file
from charlm.cells.split import equations_only
from charlm.cells.stored import StoredCell
from charlm.checkpoint import Checkpoint
from charlm.config import Config, differences
from charlm.data.corpus import CountedSources
from charlm.data.vocabulary import Vocabulary, describe_characters
from charlm.errors import ConfigError, VocabularyError
from charlm.layers import RecurrentLayers
from charlm.model import Network
from charlm.system.console import say
from charlm.system.formatting import counted

_FREE_TO_DIFFER = ("model.dropout.", "model.zoneout", "model.init_uniform", "model.orthogonal")


def settings_of_run(config: Config) -> dict[str, Any]:
    """What a run takes over, as sections: how the text is read, and the model without its dropout."""
    sections = config.model_dump(mode="json", include={"data": {"level", "records"}, "model": True})
    del sections["model"]["dropout"]
    return sections


def check_same_model(config: Config, init_from: Checkpoint) -> None:
    """ConfigError unless the config's model can take the checkpoint's weights."""
    cell, known = config.model.cell, init_from.config.model.cell
    changed = differences(init_from.config, config)
    # The options of a stored cell change nothing: it has the step of the checkpoint.
    initial = () if isinstance(cell, StoredCell) else cell.initial
    free = (*_FREE_TO_DIFFER, *(f"model.cell.{name}" for name in initial))
    if is_in_file(cell.kind) and is_in_file(known.kind) and not isinstance(cell, StoredCell):
        # The steps are compared, below and in `say_if_other_step`, instead of names and options.
        changed = {key: values for key, values in changed.items() if not key.startswith("model.cell.")}
        if cell.hidden != known.hidden:
            changed["model.cell.hidden"] = known.hidden, cell.hidden
    faults = [
        f"{key}: found {found!r}; the checkpoint of --init-from has {wanted!r}; allowed: the same"
        for key, (wanted, found) in changed.items()
        if key.startswith(("model.", "data.level")) and not key.startswith(free)
    ]
    if faults:
        raise ConfigError(*faults)
    shapes, known_shapes = (_shapes(one) for one in (cell, known))
    if shapes != known_shapes:
        raise ConfigError(
            f"model.cell.kind: found a step with the parameters {shapes}; the checkpoint of --init-from has "
            f"{known_shapes}; allowed: the same"
        )


def _shapes(cell: Cell) -> str:
    """The names and the shapes of the parameters of a step."""
    shapes: dict[str, None] = {}
    for program in filter(None, cell.programs()):
        shapes |= dict.fromkeys(f"{one.name} {one.shape_text}" for one in program.parameters)
    return ", ".join(sorted(shapes))


def say_if_other_step(config: Config, init_from: Checkpoint) -> None:
    """Say whether the cell's file has another step than the checkpoint, whose weights the run starts from."""
    steps = []
    for cell in (config.model.cell, init_from.config.model.cell):
        steps.append([program and equations_only(program) for program in cell.programs()])
    if steps[0] != steps[1]:
        say("cell", f"{config.model.cell.kind}: the step differs from that of the checkpoint; the run uses the file's")


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
    grown = vocabulary.extended(unknown)
    model = init_from.config.model  # the run's: settings that are being chosen do not have it yet
    if not model.embedding:
        _check_same_first_layer(model.cell, len(vocabulary), len(grown))
    say("grow", f"{counted(len(unknown), 'new character')}: {listed}")
    return grown


def _check_same_first_layer(cell: Cell, inputs: int, grown: int) -> None:
    """ConfigError if a layer that reads one-hot vectors has another step with more of them."""
    if (inputs == cell.hidden) == (grown == cell.hidden):
        return
    if cell.program(square=True) != cell.program(square=False):
        raise ConfigError(
            f"data.grow_vocabulary: found {inputs:,} characters that grow to {grown:,}, and {cell.hidden:,} units; "
            f"{cell.name} has another step where the two numbers are equal; allowed: another number of new characters, "
            "or a new run"
        )


def grown_weights(model: Network, checkpoint: Checkpoint) -> dict[str, torch.Tensor]:
    """The checkpoint's weights in the model's shapes. New characters are random, with the lowest output bias.

    Weights that a cell fixes at given values are the model's own: its file may fix other ones.
    """
    weights = dict(checkpoint.averaged or checkpoint.weights)
    for prefix, module in model.named_modules():
        if isinstance(module, RecurrentLayers):
            weights |= {f"{prefix}.{name}": fixed.cpu() for name, fixed in module.fixed_at_start().items()}
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
