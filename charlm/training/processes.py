"""What the processes of a run agree on before they train."""

import torch

from charlm.config import Config
from charlm.errors import ConfigError
from charlm.system.device import resolve_device
from charlm.system.world import World
from charlm.training.precision import with_precision


def choose_device(config: Config, world: World) -> torch.device:
    """The device of this process, by which it exchanges tensors with the others from here on."""
    B, W = config.train.batch_size, world.size
    if B % W:
        nearest = " or ".join(str(size) for size in (B // W * W, (B // W + 1) * W) if size)
        raise world.common(
            ConfigError(f"train.batch_size: found {B} for {W} processes; allowed: multiples of {W}; take {nearest}")
        )
    device = world.each(lambda: resolve_device(config.device, world))
    world.use(device)
    return device


def with_common_precision(config: Config, device: torch.device, world: World) -> Config:
    """The config with the precision that the first process chooses."""
    chosen = world.in_turn(lambda: with_precision(config, device))
    return world.first(lambda: chosen)
