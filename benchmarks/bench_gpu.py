"""Layers and updates on a GPU, beside the reference loop, cuDNN and plain products of the same sizes."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from bench_kernels import Subject, both_passes, matrix_elements, torch_layer
from bench_measure import Effort, Report, Row, Way, interleave, rate, ratio
from bench_uses import generated_text, make_corpus
from torch import Tensor

from charlm.config import parse_config
from charlm.gpu.product import torch_product
from charlm.gpu.recurrence import DRIVERS
from charlm.layers import Lookup, RecurrentLayers
from charlm.layers.selection import gpu_backend
from charlm.system.device import prepare_device
from charlm.training.machine import choose_machine
from charlm.training.step import Trainer

T = 64
RHN_SIZES = [(512, 64), (512, 512), (1024, 128), (1500, 64), (1500, 128)]
SIZES = [(512, 64), (1024, 128)]
CUDNN_SIZES = [(128, 64), *SIZES]


class Measured(NamedTuple):
    """A stack, and the precision of its products."""

    subject: Subject
    precision: str


SUBJECTS = [
    Measured(Subject("RHN D5", "rhn", RHN_SIZES, [(512, 64)], options={"depth": 5}), "bf16"),
    Measured(Subject("LSTM layer norm", "lstm", SIZES, [(512, 64)], options={"layer_norm": True}), "bf16"),
    Measured(Subject("LSTM zoneout", "lstm", SIZES, [(512, 64)], zoneout=0.1), "bf16"),
    Measured(Subject("sLSTM", "slstm", SIZES, []), "bf16"),
    Measured(Subject("LSTM", "lstm", CUDNN_SIZES, [(512, 64)]), "tf32"),
    Measured(Subject("GRU", "gru", CUDNN_SIZES, []), "tf32"),
    Measured(Subject("RNN", "rnn", CUDNN_SIZES, []), "tf32"),
]
UPDATES = {
    "LSTM": {"kind": "lstm", "hidden": 512},
    "RHN D5": {"kind": "rhn", "hidden": 512, "depth": 5},
}


def measure_gpu(report: Report, effort: Effort) -> None:
    """The section `gpu`."""
    if not torch.cuda.is_available():
        report.note("gpu: there is none")
        return
    device = torch.device("cuda", 0)
    report.table(
        f"gpu: forward and backward, T {T}",
        "GF/s counts 6 × weights × T × B; ÷ x: speed divided by that of x: the reference loop, torch.nn's plain layer, "
        "the layer's matrix products alone, step by step, the layer without CUDA graphs, or, where cuDNN computes the "
        "layer, charlm's loop",
        ["GF/s", "÷ reference", "÷ torch", "÷ products", "÷ launched", "÷ loop"],
    )
    for subject, precision in SUBJECTS:
        for H, B in subject.quick_sizes if effort.quick else subject.sizes:
            prepare_device(device, precision)
            report.add(_measure_stack(subject, H, B, precision, effort, device))
    report.table(
        "gpu: updates of the trainer on a generated text, T 64, B 64",
        "÷ bare: speed divided by that of the same layers and logits, forward and backward",
        ["characters/s", "÷ bare"],
    )
    corpus = make_corpus(generated_text())
    for name, cell in UPDATES.items():
        raw = {"model": {"cell": cell}, "train": {"batch_size": 64, "bptt": 64}, "precision": "bf16"}
        config = parse_config({**raw, "device": str(device)}, "bench")
        trainer = Trainer(config, corpus, choose_machine(config))
        ways = {"update": trainer.update, "bare": bare_update(trainer)}
        times = interleave(ways, effort, least_s=0.2)
        figures = {
            "characters/s": rate(64 * 64, times["update"], "characters/s"),
            "÷ bare": ratio(times["update"], times["bare"]),
        }
        report.add(Row("gpu", device.type, name, {"H": 512, "B": 64, "T": 64}, figures))


def _measure_stack(subject: Subject, H: int, B: int, precision: str, effort: Effort, device: torch.device) -> Row:
    stack = subject.build(H, device)
    dtype = torch.bfloat16 if precision == "bf16" else None
    described = stack.select_backend(device).description
    x_TBH, dy_TBH = torch.randn(T, B, H, device=device, requires_grad=True), torch.randn(T, B, H, device=device)
    ways: dict[str, Way] = {
        "layer": both_passes(stack, stack, x_TBH, dy_TBH, dtype),
        "reference": both_passes(stack.forward_reference, stack, x_TBH, dy_TBH, dtype),
        "products": _products_alone(stack, B, bf16=precision == "bf16"),
    }
    if layer := torch_layer(stack):
        ways["torch"] = both_passes(layer.to(device), layer, x_TBH, dy_TBH)
    if "cuDNN" in described:
        ways["loop"] = both_passes(_by_loop(stack, device, 0), stack, x_TBH, dy_TBH, dtype)
    else:
        ways["launched"] = both_passes(_by_loop(stack, device, 1), stack, x_TBH, dy_TBH, dtype)
    times = interleave(ways, effort, rare=["reference"])
    figures = {
        "GF/s": rate(6 * matrix_elements(stack) * T * B / 1e9, times["layer"], "GF/s"),
        "÷ reference": ratio(times["layer"], times["reference"]),
        "÷ products": ratio(times["layer"], times["products"]),
    }
    if layer:
        figures["÷ torch"] = ratio(times["layer"], times["torch"])
    for way in ("launched", "loop"):
        if way in ways:
            figures[f"÷ {way}"] = ratio(times["layer"], times[way])
    name = f"{subject.name} {precision}"
    return Row("gpu", device.type, name, {"H": H, "B": B, "T": T}, figures, described)


def _by_loop(stack: RecurrentLayers, device: torch.device, number: int) -> Callable[[Tensor], Any]:
    """`forward` by one of charlm's loops on GPUs, the fastest first."""
    return partial(stack.forward_by, gpu_backend(DRIVERS[number], stack.task(training=True)))


def _products_alone(stack: RecurrentLayers, B: int, *, bf16: bool) -> Way:
    """The matrix products of both passes: step by step those of the state, as large ones those of the window."""
    w_ih_GI, w_hh = stack.weight_ih_l0.detach(), stack.weight_hh_l0.detach()
    w_hh_DGH = w_hh.view(-1, *w_hh.shape[-2:])
    dtype = torch.bfloat16 if bf16 else torch.float32
    (D, G, H), new = w_hh_DGH.shape, w_hh.new_ones
    weights, w_ih = w_hh_DGH.to(dtype), w_ih_GI.to(dtype)
    h_BH, d_BG = new(B, H).to(dtype), new(B, G).to(dtype)
    x_NI, h_NH, d_NG = new(T * B, H).to(dtype), new(T * B, H).to(dtype), new(T * B, G).to(dtype)

    def call() -> None:
        torch_product(x_NI, w_ih.t(), bf16=bf16)
        for _ in range(T):
            for w_GH in weights:
                torch_product(h_BH, w_GH.t(), bf16=bf16)
                torch_product(d_BG, w_GH, bf16=bf16)
        for _ in range(D):
            torch_product(d_NG.t(), h_NH, bf16=bf16)
        torch_product(d_NG.t(), x_NI, bf16=bf16)
        torch_product(d_NG, w_ih, bf16=bf16)

    return call


def bare_update(trainer: Trainer) -> Way:
    """The kernels of the trainer's model, forward and backward.

    Layers and logits without dropout and loss. The gradient of the logits is random; the parameters are copies.
    """
    model = copy.deepcopy(trainer.model)
    train = trainer.config.train
    x_TB, _ = trainer.streams.read(0, train.bptt, trainer.device)
    d_logits_TBV = torch.randn(train.bptt, train.batch_size, model.vocabulary_size, device=trainer.device)
    assert model.embedding is not None
    table_VE = model.embedding.weight

    def update() -> None:
        with model.autocast(trainer.device):
            y_TBH, _ = model.layers(Lookup(x_TB, table_VE))
        model.logits(y_TBH).backward(d_logits_TBV)
        model.zero_grad()

    return update
