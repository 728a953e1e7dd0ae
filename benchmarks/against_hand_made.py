"""What `charlm train TEXT --minutes M` chooses beside twelve configs made by hand, on texts that the rule has not seen.

Every config trains for as many updates as this machine makes in the minutes. The seconds of an update are measured
first, for all configs in turns, and the fastest of several measurements counts, because other load only makes them
slower. The trainings then take one thread each, and other load does not change their scores.

The file has the number of updates of each training as soon as that is measured, and the score once it is trained. A
later call trains what has no score. Only trainings whose speed was measured in the same call are compared. The five
seconds that charlm takes to measure speed the first time on a machine are not counted.
"""

import argparse
import concurrent.futures
import itertools
import json
import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from curves import joined, run_charlm, shuffled, write_lines

from charlm.choice.families import Request
from charlm.choice.speed import measure
from charlm.choice.suggest import suggest, training_s
from charlm.config import Config, dump_config, override_config, parse_config
from charlm.system.device import keep_freed_memory
from charlm.training.machine import choose_machine

FILE = Path(__file__).with_name("against-hand-made.json")
CHOSEN = "chosen"
MINUTES = (1 / 6, 1.0, 5.0)
ROUNDS = 8


def lstm(
    hidden: int, layers: int = 1, layer_norm: bool = False, lr: float = 1e-2, dropout: float = 0.0
) -> dict[str, Any]:
    cell = {"kind": "lstm", "hidden": hidden, "layer_norm": layer_norm}
    return {"cell": cell, "layers": layers, "residual": layers > 1, "lr": lr, "dropout": dropout}


def rhn(hidden: int, depth: int = 4, lr: float = 8e-3, dropout: float = 0.0) -> dict[str, Any]:
    cell = {"kind": "rhn", "hidden": hidden, "depth": depth}
    return {"cell": cell, "layers": 1, "residual": False, "lr": lr, "dropout": dropout}


HAND_MADE = {
    "LSTM 128": lstm(128),
    "LSTM 256": lstm(256),
    "LSTM 512": lstm(512, lr=8e-3),
    "LSTM 96 normalized": lstm(96, layer_norm=True, lr=1.2e-2),
    "LSTM 192 normalized": lstm(192, layer_norm=True, lr=1.2e-2),
    "LSTM 384 normalized": lstm(384, layer_norm=True, lr=1.2e-2),
    "LSTM 2 × 256": lstm(256, 2, lr=1.2e-2),
    "LSTM 2 × 384, dropout": lstm(384, 2, lr=1.2e-2, dropout=0.2),
    "GRU 256": {"cell": {"kind": "gru", "hidden": 256}, "layers": 1, "residual": False, "lr": 6e-3, "dropout": 0.0},
    "RHN 160": rhn(160),
    "RHN 224": rhn(224),
    "RHN 320, dropout": rhn(320, lr=7e-3, dropout=0.15),
}


@dataclass(frozen=True)
class Job:
    """A training."""

    key: dict[str, Any]
    config: Config
    minutes: float
    vocabulary: int
    """Distinct characters of the text."""

    @property
    def row(self) -> dict[str, Any]:
        """The training in the file, before anything is measured."""
        model = self.config.model
        return self.key | {"model": f"{model.cell.kind}, {model.layers} × {model.cell.hidden}"}

    @property
    def update(self) -> str:
        """What decides how long an update takes. Configs with the same share their measurements."""
        model, train = self.config.model.model_dump(), self.config.train
        for first_value in ("forget_bias", "gate_bias"):
            model["cell"].pop(first_value, None)
        return f"{model} {train.batch_size} {train.bptt} {self.config.optimizer.name} {self.vocabulary}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hours", type=float, default=0, help="train for this long; default: 0")
    parser.add_argument("--minutes", type=float, nargs="*", default=MINUTES, help="of a training; default: all")
    parser.add_argument("--texts", nargs="*", help="default: all")
    parser.add_argument(
        "--configs", nargs="*", choices=HAND_MADE, default=list(HAND_MADE), help="to train; default: all"
    )
    arguments = parser.parse_args()
    keep_freed_memory()  # as every run does
    found = json.loads(FILE.read_text(encoding="utf-8")) if FILE.is_file() else []
    end_s = time.monotonic() + 3600 * arguments.hours
    lock = threading.Lock()

    def add(job: Job, row: dict[str, Any], folder: Path) -> None:
        if time.monotonic() > end_s:
            return
        result = train(job.config, row["updates"], folder)
        with lock:
            row |= result
            print(row, file=sys.stderr, flush=True)
            write_lines(FILE, found)

    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        if arguments.hours:
            jobs = jobs_of(arguments, found, Path(folder))
            plan(jobs, found)
            write_lines(FILE, found)
            rows = [(job, row) for job in jobs for row in found if row.items() >= job.row.items() and "nats" not in row]
            for done in [
                pool.submit(add, job, row, Path(folder))
                for job, row in rows
                if job.key["config"] in (CHOSEN, *arguments.configs)
            ]:
                done.result()
    report([row for row in found if "nats" in row])


def jobs_of(arguments: argparse.Namespace, found: list[dict[str, Any]], folder: Path) -> list[Job]:
    """All trainings on the texts and for the minutes asked for, but charlm's own choice only where it has no score."""
    jobs = []
    texts = {name: text for name, text in make_texts() if not arguments.texts or name in arguments.texts}
    for name, text in texts.items():
        (folder / f"{name}.txt").write_text(text, encoding="utf-8")
    for config, minutes, (name, text) in itertools.product((CHOSEN, *HAND_MADE), arguments.minutes, texts.items()):
        key = {"text": name, "chars": len(text), "minutes": round(minutes, 4), "config": config}
        if config != CHOSEN or not any(row.items() >= key.items() and "nats" in row for row in found):
            jobs.append(Job(key, config_of(config, folder / f"{name}.txt", minutes), minutes, len(set(text))))
    return jobs


def plan(jobs: list[Job], found: list[dict[str, Any]]) -> None:
    """Add rows without scores: the updates of each training.

    If charlm chose a model that has no row, all that is compared with it is measured with it, again if it was before.
    """
    compared = [job.key | {"config": None} for job in jobs if not any(row.items() >= job.row.items() for row in found)]
    new = updates_of([job for job in jobs if job.key | {"config": None} in compared])
    found[:] = [row for row in found if not any(row.items() >= job.key.items() for job, _ in new)]
    measured = time.strftime("%Y-%m-%d %H:%M", time.gmtime())
    found += [job.row | {"updates": updates, "measured": measured} for job, updates in new]


def config_of(name: str, text: Path, minutes: float) -> Config:
    """What charlm chooses, or the config made by hand."""
    split = ["data.split=[0.9,0.1,0]"]
    if name == CHOSEN:
        return suggest(Request(str(text), minutes, split)).config
    return override_config(parse_config(made(HAND_MADE[name], minutes), name), name, [*split, f"data.source={text}"])


def updates_of(jobs: list[Job]) -> list[tuple[Job, int]]:
    """The jobs, each with the updates that it makes in its minutes on all cores."""
    seconds: dict[str, list[float]] = {}
    for _ in range(ROUNDS):
        for update, job in {job.update: job for job in jobs}.items():  # those of equal cost once
            config = job.config.model_copy(update={"device": "cpu"})
            measured = measure(config, choose_machine(config), job.vocabulary, enough_s=0.3)
            assert measured is not None, f"{job.key}: too little memory"
            seconds.setdefault(update, []).append(measured)
    return [(job, max(1, int(training_s(job.minutes) / min(seconds[job.update])))) for job in jobs]


def make_texts() -> Iterator[tuple[str, str]]:
    """Texts that are not in benchmarks/curves.py: name, text. What is missing here is left out.

    No file is long, so that the last tenth, which is scored, is like the rest.
    """
    share = Path("/usr/share")
    for name, files, length in (
        ("man", shuffled(share.glob("man/man[18]/*.gz")), 2_000_000),
        ("changelog", shuffled(share.glob("doc/*/changelog*.gz")), 1_500_000),
        ("html", shuffled(share.glob("doc/**/*.html")), 1_000_000),
        ("locales", shuffled(share.glob("i18n/locales/*")), 600_000),
    ):
        if text := joined(files, length, each=10_000):
            yield name, text[:length]
    yield "generated", generated(200_000)


def generated(length: int) -> str:
    """Sentences of made-up words, each word drawn by the one before."""
    draw = random.Random(1)
    words = ["".join(draw.choice("aeiounrstlmkpd") for _ in range(draw.randint(2, 8))) for _ in range(400)]
    after = {word: draw.choices(words, k=6) for word in words}
    text, word = "", words[0]
    while len(text) < length:
        word = draw.choice(after[word])
        text += word + (".\n" if draw.random() < 0.1 else " ")
    return text[:length]


def train(config: Config, updates: int, folder: Path) -> dict[str, Any]:
    """Train for so many updates in a process of its own, with one thread."""
    limits: dict[str, Any] = {"max_steps": updates, "max_minutes": None, "save_every": 0, "sample_every": 0}
    if config.train.eval_every:
        limits["eval_every"] = max(updates // 10, 1)
    fixed = config.model_copy(update={"threads": 1, "train": config.train.model_copy(update=limits)})
    outcome, _ = run_charlm(dump_config(fixed), folder)
    return {"nats": round(outcome["best_nats"], 4), "parameters": outcome["parameters"]}


def made(model: dict[str, Any], minutes: float) -> dict[str, Any]:
    """A config of somebody who knows what works for these minutes."""
    return {
        "model": {
            "cell": model["cell"],
            "layers": model["layers"],
            "residual": model["residual"],
            "embedding": 64,
            "dropout": model["dropout"],
        },
        "train": {
            "batch_size": 16,
            "bptt": 64,
            "ema": 0.98 if minutes < 0.5 else 0.99 if minutes < 3 else 0.998,
            "activation_penalty": 0.5,
            "eval_every": 0 if minutes < 0.5 else 500,
            "save_every": 0,
            "sample_every": 0,
        },
        "optimizer": {
            "name": "adamw",
            "lr": model["lr"],
            "weight_decay": 0.1,
            "clip_norm": 10.0,
            "schedule": {"name": "cosine", "warmup_steps": 50, "final_fraction": 0.02},
        },
    }


def report(found: list[dict[str, Any]]) -> None:
    """A line for each text and time: what was chosen, the best by hand of the same call, and how much lower that is."""
    behind = []
    for mine in sorted((one for one in found if one["config"] == CHOSEN), key=lambda one: one["minutes"]):
        same = [one for one in found if all(one[key] == mine[key] for key in ("text", "minutes", "measured"))]
        by_hand = [one for one in same if one is not mine]
        if not by_hand:
            continue
        best = min(by_hand, key=lambda one: one["nats"])
        behind.append(mine["nats"] / best["nats"] - 1)
        print(
            f"{mine['minutes']:>7} min  {mine['text']:<10} chosen {mine['nats']:.4f} ({mine['model']}); "
            f"best of {len(by_hand)}: {best['nats']:.4f} ({best['config']}); {behind[-1]:+.1%}"
        )
    if behind:
        print(f"mean {sum(behind) / len(behind):+.2%}, worst {max(behind):+.2%}")


if __name__ == "__main__":
    main()
