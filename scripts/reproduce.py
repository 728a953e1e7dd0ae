"""Trains the recipes of README's table of results, and rewrites the table and its plot; run by scripts/reproduce.

Each run has a folder of its own under runs/reproduce/: one that is whole is not trained again, one that was cut off
goes on. The rows of recipes without a whole run stay as they stand in README. The score of a run is that of the
weights it ends with, not of its best evaluation: to choose among evaluations would be to look at the split that is
scored.
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RUNS = ROOT / "runs/reproduce"
README = ROOT / "README.md"
PLOT = ROOT / "docs/results.png"


@dataclass(frozen=True)
class Recipe:
    """A config of configs/, the seeds it is trained with, and what is scored: which split, and dynamically too."""

    config: str
    seeds: tuple[int, ...] = (1, 2, 3)
    split: str = "valid"
    dynamic: bool = False

    @property
    def file(self) -> Path:
        return ROOT / f"configs/{self.config}.yaml"

    @property
    def on_shakespeare(self) -> bool:
        return self.config.startswith("tinyshakespeare")


# tinyshakespeare-lstm is missing: the LSTM is the best that we know for five minutes, so that it is the same recipe.
RECIPES = [
    Recipe("tinyshakespeare-10s"),
    Recipe("tinyshakespeare-1min"),
    Recipe("tinyshakespeare-5min", dynamic=True),
    Recipe("tinyshakespeare-30min", seeds=(1,), dynamic=True),
    Recipe("tinyshakespeare-rnn", dynamic=True),
    Recipe("tinyshakespeare-gru", dynamic=True),
    Recipe("tinyshakespeare-rhn", dynamic=True),
    Recipe("python-stdlib-1min", split="test"),
    Recipe("python-stdlib-5min", split="test", dynamic=True),
    Recipe("python-stdlib-30min", seeds=(1,), split="test", dynamic=True),
]

# Validation nats on tinyshakespeare as nanoGPT's README gives them; its seconds are those of an A100 (GPU config) and
# of four CPU cores (CPU config, timed by us). It scores random windows without carried state.
PUBLISHED = {"nanoGPT, A100: 1.4697": (180, 1.4697), "nanoGPT, CPU config: 1.88": (74, 1.88)}


@dataclass(frozen=True)
class Run:
    """What one training with one seed came to."""

    rows: list[dict[str, Any]]
    parameters: int
    nats: float
    dynamic_nats: float | None

    @property
    def seconds(self) -> float:
        return self.rows[-1]["elapsed_s"]

    @property
    def chars_per_s(self) -> float:
        return statistics.median(row["chars_per_s"] for row in self.rows if row["split"] == "train")


def main() -> None:
    """Train what is asked for and not there, score it, write table and plot of all that is there."""
    arguments = parse()
    recipes = [recipe for recipe in RECIPES if recipe.config in (arguments.recipes or {r.config for r in RECIPES})]
    for recipe in RECIPES:
        for seed in recipe.seeds:
            refuse_other(folder(recipe, seed), recipe.file, f"seed={seed}")
    for recipe in recipes:
        for seed in recipe.seeds[: arguments.seeds]:
            train(recipe, seed, arguments.source)
    found = {recipe: [read(recipe, seed) for seed in recipe.seeds if is_whole(recipe, seed)] for recipe in RECIPES}
    write_table({recipe.config: row(recipe, runs) for recipe, runs in found.items() if runs})
    lines = [recipe for recipe in RECIPES if recipe.on_shakespeare]
    if missing := [recipe.config for recipe in lines if not is_whole(recipe, seed=1)]:
        print(f"plot: left as it is, for want of seed 1 of {', '.join(missing)}", file=sys.stderr)
    else:
        draw({recipe.config: found[recipe][0] for recipe in lines})


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/reproduce", description=(__doc__ or "").splitlines()[0])
    names = [recipe.config for recipe in RECIPES]
    parser.add_argument("recipes", nargs="*", metavar="RECIPE", help=f"some of: {', '.join(names)}; all if none")
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="at most so many seeds of each recipe")
    parser.add_argument("--source", type=Path, metavar="FILE", help="tinyshakespeare's text, if not in data/")
    arguments = parser.parse_args()
    for name in arguments.recipes:
        if name not in names:
            parser.error(f"recipe {name!r}: there is none of this name; allowed: {' | '.join(names)}")
    if arguments.seeds < 1:
        parser.error(f"--seeds: found {arguments.seeds}; allowed: integers ≥ 1")
    return arguments


def folder(recipe: Recipe, seed: int) -> Path:
    return RUNS / f"{recipe.config}-seed{seed}"


def is_whole(recipe: Recipe, seed: int) -> bool:
    """Whether it is trained to its end and has every score that the recipe asks for."""
    score = folder(recipe, seed) / "score.json"
    return score.is_file() and (not recipe.dynamic or "dynamic" in json.loads(score.read_text(encoding="utf-8")))


def refuse_other(run: Path, config: Path, *overrides: str) -> None:
    """Leave with an error where a run was begun with another config; where the text lies does not count."""
    from charlm.config import differences, load_config

    if not (run / "config.yaml").is_file():
        return
    changed = differences(load_config(run / "config.yaml"), load_config(config, [*overrides])).keys() - {"data.source"}
    if changed:
        sys.exit(f"{run}: trained with another {', '.join(sorted(changed))}; remove it to train it anew")


def charlm(*words: object) -> list[str]:
    return [sys.executable, "-m", "charlm", *map(str, words)]


def train(recipe: Recipe, seed: int, source: Path | None) -> None:
    """Train and score one seed, unless that is done."""
    if is_whole(recipe, seed):
        return
    run = folder(recipe, seed)
    settings = [f"--set=seed={seed}"]
    if source and recipe.on_shakespeare:
        settings.append(f"--set=data.source={source.resolve()}")
    if (run / "checkpoints/last.safetensors").is_file():
        command = charlm("train", "--resume", "--run-dir", run)
    else:
        command = charlm("train", "--config", recipe.file, "--run-dir", run, *settings)
    print(f"=== {recipe.config}, seed {seed}", file=sys.stderr, flush=True)
    subprocess.run(command, cwd=ROOT, check=True)
    last = run / "checkpoints/last.safetensors"
    command = charlm("eval", last, "--json", "--split", recipe.split, *(["--dynamic"] if recipe.dynamic else []))
    scored = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    (run / "score.json").write_text(scored.stdout, encoding="utf-8")


def read(recipe: Recipe, seed: int) -> Run:
    from charlm.checkpoint import read_checkpoint

    run = folder(recipe, seed)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    score = json.loads((run / "score.json").read_text(encoding="utf-8"))
    weights = read_checkpoint(run / "checkpoints/last.safetensors").weights
    parameters = sum(weight.numel() for weight in weights.values())
    return Run(rows, parameters, score["nats_per_char"], score.get("dynamic", {}).get("nats_per_char"))


def row(recipe: Recipe, runs: list[Run]) -> str:
    """A line of the table: mean and range over the seeds."""
    nats = [run.nats for run in runs]
    seeds = "1 seed" if len(nats) == 1 else f"{len(nats)} seeds: {min(nats):.4f} to {max(nats):.4f}"
    dynamic = [run.dynamic_nats for run in runs if run.dynamic_nats is not None]
    cells = [
        f"`{recipe.config}`",
        duration(statistics.median(run.seconds for run in runs)),
        f"{runs[0].parameters:,}",
        f"{statistics.median(run.chars_per_s for run in runs):,.0f}",
        f"{statistics.mean(nats):.4f} ({seeds})",
        f"{statistics.mean(dynamic):.4f}" if dynamic else "–",
    ]
    return f"| {' | '.join(cells)} |\n"


def duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.1f} min"


def write_table(rows: dict[str, str]) -> None:
    """Put the rows, by their recipes' names, between README's marks; of recipes without one, the row that is there."""
    columns = ["recipe", "time", "parameters", "characters/s", "nats (range of seeds)", "dynamic"]
    heading = f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|\n"
    _, before, _ = split_readme("results")
    rows = {line.split("`")[1]: line for line in before.splitlines(keepends=True) if line.startswith("| `")} | rows
    write_between("results", heading + "".join(rows[recipe.config] for recipe in RECIPES if recipe.config in rows))


def write_between(mark: str, table: str) -> None:
    """Put a table between README's two comments of this name, and print it."""
    before, _, after = split_readme(mark)
    README.write_text(before + table + after, encoding="utf-8")
    print(table)


def split_readme(mark: str) -> tuple[str, str, str]:
    """README up to a table, the table, and the rest; leave with an error where its two comments are not there once."""
    parts = re.split(f"(<!-- /?{mark} -->\n)", README.read_text(encoding="utf-8"))
    if len(parts) != 5:
        sys.exit(f"{README}: found {len(parts) // 2} lines <!-- {mark} --> and <!-- /{mark} -->; allowed: one of each")
    before, begin, table, end, after = parts
    return before + begin, table, end + after


def draw(runs: dict[str, Run]) -> None:
    """Validation over seconds, each recipe a line (a dot if evaluated once), the published points beside them."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 5.5))
    for name, run in runs.items():
        points = [(row["elapsed_s"], row["nats"]) for row in run.rows if row["split"] == "valid"]
        label = f"{name.removeprefix('tinyshakespeare-')}: {run.nats:.3f}"
        axes.plot(*zip(*points, strict=True), marker=".", label=label)
    for name, (seconds, nats) in PUBLISHED.items():
        axes.plot(seconds, nats, "k*", markersize=10)
        axes.annotate(name, (seconds, nats), xytext=(6, 4), textcoords="offset points", fontsize=8)
    axes.set(xscale="log", xlabel="seconds of training", ylabel="validation, nats per character", ylim=(1.3, 2.2))
    axes.grid(alpha=0.3)
    axes.legend(title="recipe: last score", fontsize=8)
    figure.savefig(PLOT, dpi=120, bbox_inches="tight")
    print(f"plot: {PLOT.relative_to(ROOT)}", file=sys.stderr)


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)
    except KeyboardInterrupt:
        sys.exit(130)
