"""What flows back in a model: for the page, as numbers."""

from typing import Any

import numpy as np

from charlm.data.vocabulary import Ids
from charlm.inference.gradients import influences
from charlm.inference.trained import TrainedModel
from charlm.system.console import say
from charlm.web.page import packed


def norms_data(trained: TrainedModel, ids: Ids) -> dict[str, Any]:
    """Norms of gradients [L][K] of the model, and of one with the same config and random weights."""
    say("look", "following gradients back through the layers, in the model and in one with random weights ...")
    models = {"trained": trained, "untrained": trained.untrained()}
    return {name: model.gradient_norms(ids).tolist() for name, model in models.items()}


def influence_data(trained: TrainedModel, ids: Ids, hidden: int) -> dict[str, Any]:
    """The influences on each character, [N · K], relative to the strongest on it: ±127."""
    say("look", f"following gradients back to the characters before each of {len(ids):,} predictions ...")
    found_NK = influences(trained.network.first_member("look"), ids)
    strongest_N1 = np.maximum(np.abs(found_NK).max(1, keepdims=True), 1e-30)
    values = np.round(127 * (found_NK / strongest_N1)[hidden:]).astype(np.int8)
    return {"reach": values.shape[1], "values": packed(values.reshape(-1))}
