"""Trains the recipes of README's table of results, and rewrites the table and its plot; run by scripts/reproduce.

Each run has a folder of its own under runs/reproduce/: one that is whole is not trained again, one that was cut off
goes on. What came of them, on which machine and with which settings, is kept in benchmarks/results.json, from which
table and plot are made: a recipe without a whole run stays there as it is. The score of a run is that of the weights it
ends with, not of its best evaluation: to choose among evaluations would be to look at the split that is scored.
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RUNS = ROOT / "runs/reproduce"
RESULTS = ROOT / "benchmarks/results.json"
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


RECIPES = [
    Recipe("tinyshakespeare-10s"),
    Recipe("tinyshakespeare-1min"),
    Recipe("tinyshakespeare-lstm-1min"),
    Recipe("tinyshakespeare-5min", dynamic=True),
    Recipe("tinyshakespeare-30min", seeds=(1,), dynamic=True),
    Recipe("tinyshakespeare-rnn-5min", dynamic=True),
    Recipe("tinyshakespeare-gru-5min", dynamic=True),
    Recipe("tinyshakespeare-rhn-5min", dynamic=True),
    Recipe("tinyshakespeare-rhn-30min", seeds=(1,), dynamic=True),
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

    seed: int
    seconds: float
    parameters: int
    chars_per_s: float
    nats: float
    dynamic_nats: float | None
    curve: list[list[float]]
    """Every evaluation on the way: seconds and nats."""


@dataclass(frozen=True)
class Result:
    """The runs of a recipe, the config that all of them had but for the seed, and the CPU, as `bench_measure.cpu`."""

    config: dict[str, Any]
    cpu: dict[str, Any]
    runs: list[Run]


def main() -> None:
    """Train what is asked for and not there, score it, record all that is there, write table and plot."""
    arguments = parse()
    recipes = [recipe for recipe in RECIPES if recipe.config in (arguments.recipes or {r.config for r in RECIPES})]
    for recipe in RECIPES:
        for seed in recipe.seeds:
            refuse_other(folder(recipe, seed), recipe.file, f"seed={seed}")
    for recipe in recipes:
        for seed in recipe.seeds[: arguments.seeds]:
            train(recipe, seed, arguments.source)
    results = record()
    write_between("results", table(results))
    shown = [recipe.config for recipe in RECIPES if recipe.on_shakespeare and recipe.config in results]
    draw({name: results[name].runs[0] for name in shown if results[name].runs[0].curve})


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


def record() -> dict[str, Result]:
    """What is known of every recipe: its whole runs where there are some, else what was recorded before."""
    from bench_measure import cpu

    from charlm.config import read_config_file

    results, here = read_results(), cpu()
    for recipe in RECIPES:
        if runs := [read(recipe, seed) for seed in recipe.seeds if is_whole(recipe, seed)]:
            results[recipe.config] = Result(read_config_file(recipe.file), here, runs)
    results = {recipe.config: results[recipe.config] for recipe in RECIPES if recipe.config in results}
    write_results(results)
    return results


def write_results(results: dict[str, Result]) -> None:
    """A line a recipe: what changes between two commits is then seen."""
    lines = (f"{json.dumps(name)}: {json.dumps(asdict(result))}" for name, result in results.items())
    RESULTS.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def read_results() -> dict[str, Result]:
    if not RESULTS.exists():
        return {}
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    return {
        name: Result(**result | {"runs": [Run(**run) for run in result["runs"]]}) for name, result in results.items()
    }


def read(recipe: Recipe, seed: int) -> Run:
    from charlm.checkpoint import read_checkpoint

    run = folder(recipe, seed)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    score = json.loads((run / "score.json").read_text(encoding="utf-8"))
    weights = read_checkpoint(run / "checkpoints/last.safetensors").weights
    return Run(
        seed=seed,
        seconds=rows[-1]["elapsed_s"],
        parameters=sum(weight.numel() for weight in weights.values()),
        chars_per_s=statistics.median(row["chars_per_s"] for row in rows if row["split"] == "train"),
        nats=score["nats_per_char"],
        dynamic_nats=score.get("dynamic", {}).get("nats_per_char"),
        curve=[[row["elapsed_s"], row["nats"]] for row in rows if row["split"] == "valid"],
    )


def table(results: dict[str, Result]) -> str:
    columns = ["recipe", "CPU", "time", "parameters", "characters/s", "nats (range of seeds)", "dynamic"]
    heading = f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|\n"
    return heading + "".join(row(name, result) for name, result in results.items())


def row(name: str, result: Result) -> str:
    """A line of the table: mean and range over the seeds."""
    nats = [run.nats for run in result.runs]
    seeds = "1 seed" if len(nats) == 1 else f"{len(nats)} seeds: {min(nats):.4f} to {max(nats):.4f}"
    dynamic = [run.dynamic_nats for run in result.runs if run.dynamic_nats is not None]
    cells = [
        f"`{name}`",
        f"{result.cpu['cores']} × {result.cpu['cpu']}",
        duration(statistics.median(run.seconds for run in result.runs)),
        f"{result.runs[0].parameters:,}",
        f"{statistics.median(run.chars_per_s for run in result.runs):,.0f}",
        f"{statistics.mean(nats):.4f} ({seeds})",
        f"{statistics.mean(dynamic):.4f}" if dynamic else "–",
    ]
    return f"| {' | '.join(cells)} |\n"


def duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.1f} min"


def write_between(mark: str, table: str) -> None:
    """Put a table between README's two comments of this name, and print it; leave with an error without the two."""
    parts = re.split(f"(<!-- /?{mark} -->\n)", README.read_text(encoding="utf-8"))
    if len(parts) != 5:
        sys.exit(f"{README}: found {len(parts) // 2} lines <!-- {mark} --> and <!-- /{mark} -->; allowed: one of each")
    before, begin, _, end, after = parts
    README.write_text(before + begin + table + end + after, encoding="utf-8")
    print(table)


def draw(runs: dict[str, Run]) -> None:
    """Validation over seconds, each recipe a line (a dot if evaluated once), the published points beside them."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 5.5))
    for name, run in runs.items():
        label = f"{name.removeprefix('tinyshakespeare-')}: {run.nats:.3f}"
        axes.plot(*zip(*run.curve, strict=True), marker=".", label=label)
    for name, (seconds, nats) in PUBLISHED.items():
        axes.plot(seconds, nats, "k*", markersize=10)
        axes.annotate(name, (seconds, nats), xytext=(6, 4), textcoords="offset points", fontsize=8)
    axes.set(xscale="log", xlabel="seconds of training", ylabel="validation, nats per character")
    axes.set(xlim=(8, 2500), ylim=(1.2, 2.2))
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
