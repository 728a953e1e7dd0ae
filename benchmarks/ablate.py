"""Trains one small LSTM with each option changed in turn, for the same number of updates, and rewrites the table.

The table is in benchmarks/README.md. Trained on the first 81% of tinyshakespeare and scored on the next 9%: a
choice made by this table has not seen the last tenth. Each run uses one thread, so its score does not depend on the
machine's load. A complete run is not trained again. The table is written once all trials are complete.
"""

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from reproduce import ROOT, charlm, write_between

PAGE = ROOT / "benchmarks/README.md"
RUNS = ROOT / "runs/ablate"

BASE = """\
data:
  source: data/tinyshakespeare.txt
  split: [0.81, 0.09, 0.1]
model:
  cell: {kind: lstm, hidden: 256}
  embedding: 64
train:
  batch_size: 16
  bptt: 64
  max_steps: 4000
  eval_every: 0
  save_every: 0
  sample_every: 0
optimizer:
  name: adamw
  lr: 1.0e-2
  clip_norm: 10.0
  schedule: {name: cosine, warmup_steps: 100, final_fraction: 0.02}
threads: 1
"""


Trial = tuple[str, ...]
"""Settings that override the base."""

TOGETHER = (
    "model.cell.layer_norm=true",
    "model.dropout.output=0.2",
    "train.ema=0.999",
    "optimizer.weight_decay=0.3",
)
REST = "clip_norm: 10, schedule: {name: cosine, warmup_steps: 100}"

TRIALS: list[Trial] = [
    (),
    ("seed=2",),  # seed noise
    ("seed=3",),  # seed noise
    ("model.cell.layer_norm=true",),  # Ba et al. 2016
    ("model.dropout.embedding=0.05",),  # Iyyer et al. 2015
    ("model.dropout.embedding=0.05", "model.dropout.variational=true"),  # Gal & Ghahramani 2016
    ("model.dropout.input=0.1",),  # Zaremba et al. 2014
    ("model.dropout.input=0.1", "model.dropout.variational=true"),  # Gal & Ghahramani 2016
    ("model.dropout.state=0.1",),  # Gal & Ghahramani 2016
    ("model.dropout.weights=0.2",),  # Wan et al. 2013, Merity et al. 2018
    ("model.dropout.output=0.2",),  # Zaremba et al. 2014
    ("model.dropout.output=0.2", "model.dropout.variational=true"),  # Gal & Ghahramani 2016
    ("model.zoneout=0.05",),  # Krueger et al. 2017
    ("model.embedding=256",),  # to compare with the next
    ("model.embedding=256", "model.tie_embeddings=true"),  # Press & Wolf 2017, Inan et al. 2017
    ("model.layers=2",),  # to compare with the next two
    ("model.layers=2", "model.residual=true"),  # He et al. 2016
    ("model.layers=2", "model.dropout.between_layers=0.1"),  # Zaremba et al. 2014
    ("model.orthogonal=true",),  # Saxe et al. 2014
    ("model.cell.forget_bias=null",),  # the base has 1: Jozefowicz et al. 2015
    ("model.init_uniform=0.04",),  # Zilly et al. 2017
    ("train.activation_penalty=2",),  # AR: Merity et al. 2017
    ("train.change_penalty=1",),  # TAR: Merity et al. 2017
    ("train.ema=0.999",),  # Polyak & Juditsky 1992
    ("optimizer.weight_decay=0.3",),  # Loshchilov & Hutter 2019; the base has 0.01
    ("optimizer.schedule={name: constant, warmup_steps: 100}",),  # the base has cosine
    ("optimizer.schedule.warmup_steps=0",),  # the base has 100: Goyal et al. 2017
    (f"optimizer={{name: muon, lr: 3e-3, {REST}}}",),  # Jordan et al. 2024
    (f"optimizer={{name: sgd, lr: 0.2, {REST}}}",),  # Zilly et al. 2017, except the schedule
    TOGETHER,  # four of the above
]


def main() -> None:
    """Train what is missing, then write the table."""
    arguments = parse()
    RUNS.mkdir(parents=True, exist_ok=True)
    config = RUNS / "base.yaml"
    config.write_text(BASE, encoding="utf-8")
    with ThreadPoolExecutor(arguments.jobs) as pool:
        scores = list(pool.map(lambda trial: score(trial, config, arguments.source), TRIALS))
    heading = f"| set | nats above the base ({scores[0]:.4f}) |\n|---|---|\n"
    rows = [row(trial, nats, scores[0]) for trial, nats in zip(TRIALS[1:], scores[1:], strict=True)]
    write_between(PAGE, "ablation", heading + "".join(rows))


def row(trial: Trial, nats: float, base: float) -> str:
    name = ", ".join(f"`{text}`" for text in trial)
    return f"| {name} | {nats - base:+.4f} |\n"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks/ablate.py", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count(), metavar="N", help="runs at a time (default: one per core)"
    )
    parser.add_argument("--source", type=Path, metavar="FILE", help="tinyshakespeare's text, if not in data/")
    arguments = parser.parse_args()
    if arguments.jobs < 1:
        parser.error(f"--jobs: found {arguments.jobs}; allowed: integers ≥ 1")
    return arguments


def score(trial: Trial, config: Path, source: Path | None) -> float:
    """The trial's final validation score in nats per character; trains it unless that is done."""
    name = re.sub(r"[^\w.=-]+", "_", "+".join(trial)) or "base"
    run, outcome = RUNS / name, RUNS / f"{name}.json"
    refuse_other(run, config, trial)
    if not outcome.is_file():
        resumable = (run / "checkpoints/last.safetensors").is_file()
        settings = [*trial, *([f"data.source={source.resolve()}"] if source else [])]
        words = ["--resume"] if resumable else ["--config", config, *(f"--set={text}" for text in settings)]
        with (RUNS / f"{name}.log").open("w", encoding="utf-8") as log:
            command = charlm("train", *words, "--run-dir", run, "--json")
            done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, stderr=log, text=True)
        outcome.write_text(done.stdout, encoding="utf-8")
    nats = json.loads(outcome.read_text(encoding="utf-8"))["valid_nats"]
    print(f"{nats:.4f} {' '.join(trial) or 'base'}", file=sys.stderr, flush=True)
    return nats


def refuse_other(run: Path, config: Path, settings: Iterable[str]) -> None:
    """Exit if a run was started with another config, apart from its text's path and a resolved `auto` precision."""
    from charlm.config import differences, load_config, read_settings

    if not (run / "config.yaml").is_file():
        return
    wanted = load_config(config, read_settings(settings))
    may_differ = {"data.source", "precision"} if wanted.precision == "auto" else {"data.source"}
    if changed := differences(load_config(run / "config.yaml"), wanted).keys() - may_differ:
        sys.exit(f"{run}: trained with another {', '.join(sorted(changed))}; remove it to train it anew")


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as error:
        sys.exit(f"ablate: {' '.join(error.cmd)} ended with {error.returncode}; see {RUNS.relative_to(ROOT)}/*.log")
    except KeyboardInterrupt:
        sys.exit(130)
