"""Loads a trained model from a run's folder or a checkpoint file."""

from pathlib import Path

import torch

from charlm.checkpoint import Checkpoint, read_checkpoint
from charlm.data.lines import reset_id_of
from charlm.errors import CheckpointError
from charlm.inference.trained import TrainedModel
from charlm.model import Network, count_parameters, load_weights, uninitialized_model
from charlm.runs import find_checkpoint
from charlm.system.console import say
from charlm.system.device import describe_device, precisions, prepare_device, resolve_device


def load(path: str | Path, device: str = "auto", precision: str = "auto") -> TrainedModel:
    """Load a trained model from a run's folder (its best checkpoint) or from a checkpoint file.

    device: auto, cpu, cuda or cuda:N. precision: see `load_model`. CheckpointError if there is no usable checkpoint,
    DeviceError if there is no such GPU, or if it lacks the precision.
    """
    where = resolve_device(device)
    file = find_checkpoint(Path(path))
    checkpoint = read_checkpoint(file)
    return TrainedModel(
        path=file,
        network=load_model(checkpoint, where, precision),
        vocabulary=checkpoint.vocabulary,
        device=where,
        config=checkpoint.config,
        progress=checkpoint.progress,
    )


def load_model(checkpoint: Checkpoint, device: torch.device, precision: str = "auto") -> Network:
    """Build the model of a checkpoint in evaluation mode, with the averaged weights if the run kept them.

    precision: of matrix products: fp32, tf32 or bf16; auto: as in training, or fp32 if the device lacks that.
    CheckpointError if the weights do not fit the config, DeviceError if the device lacks the precision.
    """
    expected = count_parameters(checkpoint.config.model, len(checkpoint.vocabulary))
    stored = sum(tensor.numel() for tensor in checkpoint.weights.values())
    if stored != expected:  # checked before a forged config can ask for memory
        raise CheckpointError(f"weights: found {stored:,}; the model has {expected:,}; use a checkpoint of its config")
    if precision == "auto":
        precision = checkpoint.config.precision
        if precision not in precisions(device):
            say("device", f"precision fp32: {describe_device(device)} lacks {precision}, the precision of the training")
            precision = "fp32"
    prepare_device(device, precision)
    model = uninitialized_model(checkpoint.config.model, len(checkpoint.vocabulary), precision)
    model.reset_id = reset_id_of(checkpoint.config.data.unit, checkpoint.vocabulary)
    load_weights(model, checkpoint.averaged or checkpoint.weights)
    return model.to(device).eval()
