"""Models to export: every kind with every option that changes what a trained model computes, and a strange one."""

from pathlib import Path
from typing import Any

import pytest
import torch

from charlm.config import parse_config
from charlm.data.records import end_of_record, reset_id_of
from charlm.data.vocabulary import Vocabulary
from charlm.inference.trained import TrainedModel
from charlm.model import build_model
from tests.cells.measure import CASES
from tests.export.odd import Deep, Odd
from tests.pairwise import all_pairs

CHARACTERS = "\n abcdefghé😀"
HIDDEN = 13
OWN = {"odd": Odd, "deep": Deep}
"""Cells that no config can name."""
CELLS_TO_EXPORT = {str(case): {"kind": case.kind, **case.options} for case in CASES}
EMBEDDINGS = {
    "embedding": {"embedding": 7},
    "one-hot": {"embedding": 0},
    "tied": {"embedding": HIDDEN, "tie_embeddings": True},
    "projected": {"embedding": 7, "tie_embeddings": True},
}

_COLUMNS: dict[str, list[Any]] = {
    "inputs": [*EMBEDDINGS],
    "layers": [1, 3],
    "residual": [False, True],
    "zoneout": [0.0, 0.2],
    "level": ["char", "byte"],
    "records": ["", "\n"],
}
_OTHERS = all_pairs(*_COLUMNS.values())
_ROWS = [(case, *_OTHERS[n % len(_OTHERS)]) for n, case in enumerate([*CELLS_TO_EXPORT, "odd"])]
assert len(_ROWS) >= len(_OTHERS)
every_model = pytest.mark.parametrize(
    "options",
    [dict(zip(("case", *_COLUMNS), row, strict=True)) for row in _ROWS],
    ids=["-".join(map(str, row)) for row in _ROWS],
)
"""Parametrizes a test by `options` of `model_of`: one for each case, and all pairs of the other options."""


def model_of(
    case="lstm", inputs="embedding", level: Any = "char", records="", characters=CHARACTERS, **model: Any
) -> TrainedModel:
    """A model with random weights, whose training text is gone."""
    named = CELLS_TO_EXPORT.get(case, {"kind": "rnn"})
    model |= {"cell": {**named, "hidden": HIDDEN}, "learned_start": case == "odd", **EMBEDDINGS[inputs]}
    config = parse_config(
        {"data": {"source": "gone.txt", "level": level, "records": records}, "model": model}, "a test"
    )
    if case in OWN:
        whole = config.model.model_copy(update={"cell": OWN[case](hidden=HIDDEN)})
        config = config.model_copy(update={"model": whole})
    characters = "".join(sorted({*characters, *(end_of_record(records) if records else "")}))
    vocabulary = Vocabulary(level, "" if level == "byte" else characters)
    network = build_model(config.model, len(vocabulary)).eval()
    network.reset_id = reset_id_of(records, vocabulary)
    with torch.no_grad():
        network.decoder.weight.mul_(4)
        network.decoder.bias.uniform_(-1, 1)
        for name, parameter in network.named_parameters():
            if "start_l" in name:
                parameter.normal_()
    return TrainedModel(Path("none"), network, vocabulary, config, {})


def some_ids(trained: TrainedModel, steps: int, streams: int) -> torch.Tensor:
    """Ids [T, B], some of which begin lines."""
    ids = torch.randint(len(trained.vocabulary), (steps, streams))
    ids[torch.rand(steps, streams) < 0.2] = int(trained.vocabulary.encode("\n")[0])
    return ids
