"""Whole uses: a training update beside a plain script, of lines beside running text, and sampling beside modules."""

import ctypes
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bench_measure import Effort, Figure, Report, Row, Way, figure, has_fast_bf16, interleave, rate, ratio
from plain import plain_update
from torch import Tensor, nn

from charlm.cells import LSTM
from charlm.choice.speed import measure
from charlm.config import Config, parse_config
from charlm.data.corpus import Corpus
from charlm.data.vocabulary import Vocabulary
from charlm.inference.options import SamplingOptions
from charlm.inference.sampling import read_ids, sample_ids
from charlm.model import CharLM, build_model
from charlm.training.machine import choose_machine
from charlm.training.step import Trainer

ROOT = Path(__file__).parents[1]
TEXT = ROOT / "data/tinyshakespeare.txt"
CPU = torch.device("cpu")

DROPOUT = {"output": 0.1, "between_layers": 0.05}
TWO_LAYERS = {"layers": 2, "residual": True, "embedding": 256, "dropout": DROPOUT}
SIZES = {
    "LSTM 1 × 64": (1, 64),
    "LSTM 1 × 128": (1, 128),
    "LSTM 1 × 256": (1, 256),
    "LSTM 2 × 256": (2, 256),
    "LSTM 1 × 512": (1, 512),
}
"""Layers and units of models that are compared with benchmarks/plain.py."""
SHORT: dict[str, dict[str, Any]] = {
    name: {**TWO_LAYERS, "cell": {"kind": "lstm", "hidden": H}, "layers": L, "residual": L > 1}
    for name, (L, H) in SIZES.items()
}
MODELS: dict[str, dict[str, Any]] = {
    "LSTM 1min": {"cell": {"kind": "lstm", "hidden": 384, "layer_norm": True}, "embedding": 64},
    "RHN 1min": {"cell": {"kind": "rhn", "hidden": 224, "depth": 4}, "embedding": 64},
    "LSTM": {"cell": {"kind": "lstm", "hidden": 384}, **TWO_LAYERS},
    "GRU": {"cell": {"kind": "gru", "hidden": 256}, **TWO_LAYERS},
    "RNN": {"cell": {"kind": "rnn", "hidden": 512}, **TWO_LAYERS},
    "RHN": {"cell": {"kind": "rhn", "hidden": 320, "depth": 6}, "embedding": 64, "dropout": {"output": 0.15}},
}
"""The measured models, of sizes that train well in one minute and in five."""
OTHERS = {
    "train": {
        "batch_size": 16,
        "bptt": 64,
        "reset_state": 0.01,
        "ema": 0.99,
        "activation_penalty": 0.5,
        "max_minutes": 5,
    },
    "optimizer": {"name": "adamw", "lr": 1e-3, "weight_decay": 0.1, "clip_norm": 10, "schedule": {"name": "cosine"}},
    "device": "cpu",
    "precision": "fp32",
}
"""The other settings, the same for all models."""


def trainer_of(config: Config, corpus: Corpus) -> Trainer:
    return Trainer(config, corpus, choose_machine(config))


def measure_train(report: Report, effort: Effort) -> None:
    """The section `train`."""
    fetched = TEXT.is_file()
    report.table(
        f"train: updates on {TEXT.name if fetched else 'a generated text'}",
        "÷ plain: speed divided by that of an LSTM of PyTorch's modules in fp32, without dropout, penalty and average "
        "(benchmarks/plain.py); ÷ promised: by the speed that the choice of settings measures; outside kernels: % of "
        "an update's time; bf16 ÷ fp32: whole updates, on CPUs where bf16 is faster",
        ["characters/s", "÷ plain", "÷ promised", "outside kernels", "bf16 ÷ fp32"],
    )
    has_bf16 = has_fast_bf16()
    corpus = make_corpus(TEXT.read_text(encoding="utf-8") if fetched else generated_text())
    ids = torch.from_numpy(corpus.splits["train"].astype(np.int64))
    for name, model in (SHORT | MODELS).items():
        if effort.quick and not name.endswith("1min") and name not in SHORT:
            continue
        config = parse_config({"model": model, **OTHERS}, "bench")
        trainers = {"fp32": trainer_of(config, corpus)}
        if has_bf16:
            trainers["bf16"] = trainer_of(config.model_copy(update={"precision": "bf16"}), corpus)
        ways: dict[str, Way] = {precision: trainer.update for precision, trainer in trainers.items()}
        H, B, T = config.model.cell.hidden, config.train.batch_size, config.train.bptt
        if name in SHORT:
            ways["plain"] = plain_update(ids, H, config.model.layers, batch_size=B, steps=T)
        times = interleave(ways, effort, least_s=0.2)
        for precision, trainer in trainers.items():
            figures = {
                "characters/s": rate(B * T, times[precision], "characters/s"),
                "÷ promised": reached(trainer, effort.rounds),
                "outside kernels": outside_kernels(trainer),
            }
            if "plain" in times:
                figures["÷ plain"] = ratio(times[precision], times["plain"])
            if precision == "bf16":
                figures["bf16 ÷ fp32"] = ratio(times["bf16"], times["fp32"])
            what = f"{name} bf16" if precision == "bf16" else name
            report.add(Row("train", "cpu", what, {"H": H, "B": B, "T": T}, figures))


def reached(trainer: Trainer, rounds: int) -> Figure:
    """The speed of updates ÷ the speed that the choice of settings measures."""
    ratios = []
    machine = choose_machine(trainer.config)
    for _ in range(rounds):
        promised_s = measure(trainer.config, trainer.corpus, machine, 0.05)
        start_s = time.perf_counter()
        for _ in range(10):
            trainer.update()
        ratios.append(promised_s / ((time.perf_counter() - start_s) / 10))
    return figure(ratios, "")


def outside_kernels(trainer: Trainer, updates: int = 50) -> Figure:
    """The share of an update in which no kernel computes, in %."""
    inside_s = 0.0

    def timed(step: Callable[[], object]) -> Callable[[], object]:
        if not (isinstance(step, partial) and isinstance(step.func, ctypes._CFuncPtr)):
            return step

        def call() -> None:
            nonlocal inside_s
            start_s = time.perf_counter()
            step()
            inside_s += time.perf_counter() - start_s

        return call

    for recorded in (trainer._recorded_gradients, trainer._recorded_clip, trainer._recorded_step):
        recording = recorded._recording
        assert recording is not None, recorded.refusal
        recording._steps = [timed(step) for step in recording._steps]
    shares = []
    for _ in range(updates):
        inside_s, start_s = 0.0, time.perf_counter()
        trainer.update()
        shares.append(100 * (1 - inside_s / (time.perf_counter() - start_s)))
    return figure(shares, "%")


def measure_lines(report: Report, effort: Effort) -> None:
    """The section `lines`."""
    fetched = TEXT.is_file()
    text = TEXT.read_text(encoding="utf-8") if fetched else generated_text()
    report.table(
        f"lines: updates on {TEXT.name if fetched else 'a generated text'}, each line a sample of its own",
        "÷ text: speed divided by that of the same updates on the same text with no data.records",
        ["characters/s", "÷ text"],
    )
    corpora = {"": make_corpus(text), "\n": line_corpus(text)}
    for name, model in MODELS.items():
        if effort.quick and not name.endswith("1min"):
            continue
        for precision in ("fp32", "bf16") if has_fast_bf16() else ("fp32",):
            raw = {"model": model, **OTHERS, "precision": precision}
            ways: dict[str, Way] = {
                separator: trainer_of(parse_config({**raw, "data": {"records": separator}}, "bench"), corpus).update
                for separator, corpus in corpora.items()
            }
            times = interleave(ways, effort, least_s=0.2)
            B, T = OTHERS["train"]["batch_size"], OTHERS["train"]["bptt"]
            figures = {
                "characters/s": rate(B * T, times["\n"], "characters/s"),
                "÷ text": ratio(times["\n"], times[""]),
            }
            what = f"{name} bf16" if precision == "bf16" else name
            report.add(Row("lines", "cpu", what, {"H": model["cell"]["hidden"], "B": B, "T": T}, figures))


def generated_text() -> str:
    """A million characters, drawn evenly from 65, one of which is the newline."""
    drawn = np.random.default_rng(1).integers(32, 97, 1_000_000)
    return "".join(map(chr, np.where(drawn == 96, ord("\n"), drawn)))


def make_corpus(text: str) -> Corpus:
    """A corpus in memory, which leaves nothing in the user's cache."""
    vocabulary = Vocabulary("char", "".join(sorted(set(text))))
    ids = vocabulary.encode(text).astype(vocabulary.dtype)
    return Corpus(vocabulary, {"train": ids}, sha256="", size_bytes=len(text.encode()), files=1)


def line_corpus(text: str) -> Corpus:
    """The corpus of a text whose lines are samples of their own."""
    corpus = make_corpus(f"\n{text.removesuffix(chr(10))}\n")
    ids = corpus.splits["train"]
    return replace(corpus, starts={"train": np.flatnonzero(ids == ids[0]) + 1})


def measure_sampling(report: Report, effort: Effort) -> None:
    """The section `sampling`."""
    length = 100 if effort.quick else 400
    options = SamplingOptions(length=length, temperature=1.0)
    report.table(
        f"sampling: embedding 64, V 65, {length} characters a stream from one character, temperature 1",
        "characters/s of all streams together; ÷ eager: speed divided by that of a loop of nn.Embedding, the layers, "
        "nn.Linear, softmax and multinomial",
        ["characters/s", "÷ eager", "eager chars/s"],
    )
    for name, cell in {"LSTM": {"kind": "lstm"}, "RHN D5": {"kind": "rhn", "depth": 5}}.items():
        model_options = {"cell": {**cell, "hidden": 512}, "embedding": 64}
        config: Config = parse_config({"model": model_options}, "bench")
        model = build_model(config.model, 65).eval()
        for streams in (1, 64):
            ways: dict[str, Way] = {
                "charlm": lambda model=model, n=streams: list(
                    sample_ids(model, *read_ids(model, [0]), options, range(n))
                ),
                "eager": eager_sampling(model, streams, length),
            }
            times = interleave(ways, effort)
            characters = streams * length
            figures = {
                "characters/s": rate(characters, times["charlm"], "characters/s"),
                "÷ eager": ratio(times["charlm"], times["eager"]),
                "eager chars/s": rate(characters, times["eager"], "characters/s"),
            }
            report.add(Row("sampling", "cpu", name, {"H": 512, "streams": streams}, figures))


def eager_sampling(model: CharLM, streams: int, length: int) -> Way:
    """Sampling written plainly with torch's modules, or with the reference equations for kinds that torch lacks."""
    embedding, decoder, layers = model.embedding, model.decoder, model.layers
    assert embedding is not None
    forward: Callable[..., tuple[Tensor, object]] = layers.forward_reference
    if isinstance(layers.cell, LSTM):
        forward = nn.LSTM(layers.input_size, layers.hidden_size, layers.num_layers)
        forward.load_state_dict(layers.state_dict())

    @torch.inference_mode()
    def sample() -> list[Tensor]:
        ids_1B = torch.zeros(1, streams, dtype=torch.int64)
        state = None
        drawn = []
        for _ in range(length):
            y_1BH, state = forward(embedding(ids_1B), state)
            ids_1B = torch.multinomial(decoder(y_1BH[0]).softmax(-1), 1).t()
            drawn.append(ids_1B[0])
        return drawn

    return sample
