"""A model as a folder with weights, vocabulary and a Python file, which need PyTorch and safetensors but not charlm.

char_model.py         Model, load and sample, see `module_code.py`
weights.safetensors   the state dict of Model, whose names are charlm's own
vocabulary.json       see `vocabulary_json`
"""

import json
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from charlm.data.outputs import CODE, VOCABULARY, WEIGHTS
from charlm.export.agreement import Agreement, check_agreement, plain_copy, vocabulary_json
from charlm.export.module_code import model_code, zoneout_share
from charlm.inference import TrainedModel
from charlm.layers import as_tuple
from charlm.model import CharLM


def write_torch(trained: TrainedModel, path: Path) -> Agreement:
    """Write the folder, run its code, and compare its logits with charlm's."""
    network = plain_copy(trained)
    path.mkdir()
    save_file(state_dict(network), path / WEIGHTS)
    (path / VOCABULARY).write_text(json.dumps(vocabulary_json(trained), ensure_ascii=False), encoding="utf-8")
    (path / CODE).write_text(model_code(trained, network), encoding="utf-8")
    model = load_exported(path)["load"]()
    alone = len(network.layers.state_names) == 1

    def step(ids_TB: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        logits, last = model(ids_TB, state[0] if alone else state)
        return logits, as_tuple(last)

    return check_agreement(network, step, "torch")


def state_dict(network: CharLM) -> dict[str, Tensor]:
    """The weights of Model; tied ones occur twice."""
    weights = {name: tensor.detach().clone().contiguous() for name, tensor in network.state_dict().items()}
    if (zoneout_11S := zoneout_share(network.layers)) is not None:
        weights["layers.zoneout"] = zoneout_11S
    return weights


def load_exported(folder: Path) -> dict[str, Any]:
    """What the Python file of an exported folder defines."""
    file = folder / CODE
    names: dict[str, Any] = {"__name__": "exported", "__file__": str(file)}
    exec(compile(file.read_text(encoding="utf-8"), str(file), "exec"), names)
    return names
