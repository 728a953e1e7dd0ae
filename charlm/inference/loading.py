"""Loads a trained model from a run's folder or a checkpoint file."""

from pathlib import Path

import torch

from charlm.checkpoint import Checkpoint, read_checkpoint
from charlm.data.records import reset_id_of
from charlm.errors import CheckpointError
from charlm.inference.trained import TrainedModel
from charlm.model import Network, count_weights, load_weights, uninitialized_model
from charlm.runs import BEST, LAST, find_checkpoint
from charlm.system.console import say
from charlm.system.device import describe_device, precisions, prepare_device, resolve_device


def load(path: str | Path, device: str | torch.device = "auto", precision: str = "auto") -> TrainedModel:
    """What `charlm.load` gives."""
    where = resolve_device(str(device))
    file = find_checkpoint(Path(path))
    checkpoint = read_checkpoint(file)
    progress = checkpoint.progress
    if file.name == LAST and Path(path).is_dir() and progress.get("best_nats") is not None:
        say("note", f"{file.with_name(BEST)} is gone; the weights are those of update {progress['step']}, in {LAST}")
    network = load_model(checkpoint, where, precision)
    return TrainedModel(file, network, checkpoint.vocabulary, checkpoint.config, progress)


def load_model(checkpoint: Checkpoint, device: torch.device, precision: str = "auto") -> Network:
    """Build the model of a checkpoint in evaluation mode, with the averaged weights if the run kept them.

    precision: of matrix products: fp32, tf32 or bf16; auto: as in training, or fp32 if the device lacks that.
    CheckpointError if the weights do not fit the config, DeviceError if the device lacks the precision.
    """
    model = checkpoint.config.model
    expected, least = count_weights(model, len(checkpoint.vocabulary)), model.members * model.layers
    stored, tensors = sum(tensor.numel() for tensor in checkpoint.weights.values()), len(checkpoint.weights)
    if stored != expected or tensors < least:  # checked before a forged config can ask for time and memory
        raise CheckpointError(
            f"weights: found {stored:,} in {tensors:,} tensors; the model has {expected:,} in at least {least:,}; "
            "use a checkpoint of its config"
        )
    if precision == "auto":
        precision = checkpoint.config.precision
        if precision not in precisions(device):
            say("device", f"precision fp32: {describe_device(device)} lacks {precision}, the precision of the training")
            precision = "fp32"
    prepare_device(device, precision)
    reset_id = reset_id_of(checkpoint.config.data.records, checkpoint.vocabulary)
    network = uninitialized_model(model, len(checkpoint.vocabulary), precision, reset_id=reset_id)
    load_weights(network, checkpoint.averaged or checkpoint.weights)
    return network.to(device).eval()
