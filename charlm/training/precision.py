"""The precision of a run, chosen once: it is part of the run's config from then on."""

import torch

from charlm.config import Config
from charlm.native.precision import choose_precision
from charlm.system.console import say


def with_precision(config: Config, device: torch.device) -> Config:
    """The config with a precision in place of `auto`; prints why, or why another one would be faster."""
    precision, reason = choose_precision(config.precision, device)
    if reason:
        say("auto" if config.precision == "auto" else "slow", f"precision {precision}: {reason}")
    return config.model_copy(update={"precision": precision})
