"""A checkpoint with something in every part."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from charlm.checkpoint import Checkpoint, save_checkpoint
from charlm.config import parse_config
from charlm.data.vocabulary import Vocabulary
from charlm.model import build_model
from charlm.runs import FOLDER, LAST

CONFIG = parse_config(
    {"model": {"cell": {"kind": "gru", "hidden": 3}, "embedding": 2}, "optimizer": {"name": "adam", "lr": 1e-7}}, "test"
)


VOCABULARY = Vocabulary("char", "\0\n aé😀😁")


@pytest.fixture
def checkpoint() -> Checkpoint:
    torch.manual_seed(0)
    weights = dict(build_model(CONFIG.model, len(VOCABULARY)).named_parameters())
    return Checkpoint(
        config=CONFIG,
        vocabulary=VOCABULARY,
        weights=weights,
        progress={"step": 7, "best_nats": 0.1 + 0.2, "corpus_sha256": "é", "valid_nats": None, "list": [1, 2.0]},
        averaged={name: weight.detach() / 2 for name, weight in weights.items()},
        optimizer={"step/decoder.bias": torch.tensor(7.0), "empty": torch.zeros(0, 3)},
        carried={
            "sums": torch.tensor([0.1, 1e300], dtype=torch.float64),
            "rng.cpu": torch.get_rng_state(),
            "bf16": torch.tensor([1.5, -0.0], dtype=torch.bfloat16),
            "transposed": torch.arange(6).reshape(2, 3).T,
        },
    )


@pytest.fixture
def saved(checkpoint: Checkpoint, tmp_path: Path) -> Path:
    path = tmp_path / FOLDER / LAST
    save_checkpoint(checkpoint, path)
    return path


def later(checkpoint: Checkpoint, step: int) -> Checkpoint:
    return replace(checkpoint, progress={"step": step})


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


CPU = torch.device("cpu")
