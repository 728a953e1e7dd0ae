"""Models with random weights, and what they say of a text that they read alone, from the equations."""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from charlm.config import parse_config
from charlm.data.encoded import EncodedText
from charlm.data.vocabulary import Vocabulary
from charlm.inference.trained import TrainedModel
from charlm.model import CharLM, build_model

V, H = 11, 13


def model_of(kind: str = "lstm", vocabulary: int = V, precision: str = "fp32", **options: Any) -> Any:
    """A model that is surer of what comes next than a new one."""
    torch.manual_seed(3)
    config = {"cell": {"kind": kind, "hidden": H}, "embedding": 6, "layers": 2, "dropout": 0.5, **options}
    model = build_model(parse_config({"model": config}, "t").model, vocabulary, precision)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("decoder.weight"):
                parameter.mul_(6)
    return model.eval()


def ids(length: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(V, size=length).astype(np.uint8)


def encoded(ids: np.ndarray) -> EncodedText:
    """These ids as a text to score."""
    return EncodedText(ids, Vocabulary("char", "abcdefghijk"[:V]))


def outputs_of(trained: TrainedModel, text: str) -> np.ndarray:
    """The outputs of the top layer after every character, [N, H]."""
    x_T1 = torch.from_numpy(trained.vocabulary.encode(text).astype(np.int64))[:, None]
    with torch.no_grad():
        outputs_T1H, _ = trained.network.features(x_T1)
    return outputs_T1H[:, 0].numpy()


def alone(model: CharLM, text: Any) -> tuple[np.ndarray, np.ndarray]:
    """Outputs [N, H] and nats [N − 1] of the ids of a text that is read in one go."""
    if not len(text):
        return np.zeros((0, H)), np.zeros(0)
    x = torch.from_numpy(np.asarray(text, np.int64))
    with torch.no_grad():
        outputs, _ = model.layers.forward_reference(model.embedding(x)[:, None])
        logits = F.linear(outputs[:-1, 0], model.decoder.weight, model.decoder.bias)
        nats = F.cross_entropy(logits, x[1:], reduction="none")
    return outputs[:, 0].numpy(), nats.numpy()
