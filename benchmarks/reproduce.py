"""Trains the recipes of docs/results.md and rewrites its table, its plot and the README's short table.

Run by scripts/reproduce. Each run has its own folder under runs/reproduce/: a complete one is not trained again, an
interrupted one is resumed. What each run reached, on which machine and with which settings, is recorded in
benchmarks/results.json; tables and plot are made from it, and a recipe without a complete run keeps its record.

The score is that of the final weights, not of the best evaluation: choosing among evaluations would be choosing on the
split that is scored.
"""

import argparse
import json
import math
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
PAGE = ROOT / "docs/results.md"
README = ROOT / "README.md"
PLOT = ROOT / "docs/results.png"


@dataclass(frozen=True)
class Recipe:
    """A shipped config, the seeds it is trained with, the split it is scored on, and whether dynamically too."""

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

# The README's rows: the best recipe for each training time.
SUMMARY = [f"tinyshakespeare-{time}" for time in ("10s", "1min", "5min", "30min")]

# Validation nats on tinyshakespeare from nanoGPT's README, on random windows without carried state. Seconds on an A100
# (its GPU config) and on four CPU cores (its CPU config, timed by us).
PUBLISHED = {"nanoGPT, A100: 1.47": (180, 1.4697), "nanoGPT, 4 CPU cores: 1.88": (74, 1.88)}


@dataclass(frozen=True)
class Run:
    """What one training with one seed reached."""

    seed: int
    seconds: float
    parameters: int
    chars_per_s: float
    nats: float
    dynamic_nats: float | None
    curve: list[list[float]]
    """Seconds and nats of every evaluation during training."""


@dataclass(frozen=True)
class Result:
    """The runs of a recipe, the config they share except for the seed, and the CPU as `bench_measure.cpu` gives it."""

    config: dict[str, Any]
    cpu: dict[str, Any]
    runs: list[Run]
    precision: str
    """What the runs were trained in; the config may leave it to the CPU."""


def main() -> None:
    """Train and score what is missing, record what is complete, write tables and plot."""
    arguments = parse()
    recipes = [recipe for recipe in RECIPES if recipe.config in (arguments.recipes or {r.config for r in RECIPES})]
    for recipe in RECIPES:
        for seed in recipe.seeds:
            refuse_other(folder(recipe, seed), recipe.file, f"seed={seed}")
    for recipe in recipes:
        for seed in recipe.seeds[: arguments.seeds]:
            train(recipe, seed, arguments.source)
    results = record()
    write_between(PAGE, "results", table(results))
    write_between(README, "results", summary(results))
    shown = [recipe.config for recipe in RECIPES if recipe.on_shakespeare and recipe.config in results]
    draw({name: results[name] for name in shown if results[name].runs[0].curve})


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/reproduce", description=(__doc__ or "").splitlines()[0])
    names = [recipe.config for recipe in RECIPES]
    parser.add_argument("recipes", nargs="*", metavar="RECIPE", help=f"default: all of {', '.join(names)}")
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="train at most N seeds of each recipe")
    parser.add_argument("--source", type=Path, metavar="FILE", help="tinyshakespeare's text, if not in data/")
    arguments = parser.parse_args()
    for name in arguments.recipes:
        if name not in names:
            parser.error(f"recipe {name!r}: unknown; allowed: {' | '.join(names)}")
    if arguments.seeds < 1:
        parser.error(f"--seeds: found {arguments.seeds}; allowed: integers ≥ 1")
    return arguments


def folder(recipe: Recipe, seed: int) -> Path:
    return RUNS / f"{recipe.config}-seed{seed}"


def last_checkpoint(recipe: Recipe, seed: int) -> Path:
    return folder(recipe, seed) / "checkpoints/last.safetensors"


def is_whole(recipe: Recipe, seed: int) -> bool:
    """Whether the run is trained to its end and has every score that the recipe asks for."""
    score = folder(recipe, seed) / "score.json"
    return score.is_file() and (not recipe.dynamic or "dynamic" in json.loads(score.read_text(encoding="utf-8")))


def refuse_other(run: Path, config: Path, *overrides: str) -> None:
    """Exit if a run was started with another config, apart from its text's path and a resolved `auto` precision."""
    from charlm.config import differences, load_config

    if not (run / "config.yaml").is_file():
        return
    wanted = load_config(config, [*overrides])
    may_differ = {"data.source", "precision"} if wanted.precision == "auto" else {"data.source"}
    if changed := differences(load_config(run / "config.yaml"), wanted).keys() - may_differ:
        sys.exit(f"{run}: trained with another {', '.join(sorted(changed))}; remove it to train it anew")


def charlm(*words: object) -> list[str]:
    return [sys.executable, "-m", "charlm", *map(str, words)]


def train(recipe: Recipe, seed: int, source: Path | None) -> None:
    """Train and score one seed unless that is done."""
    if is_whole(recipe, seed):
        return
    run = folder(recipe, seed)
    settings = [f"--set=seed={seed}"]
    if source and recipe.on_shakespeare:
        settings.append(f"--set=data.source={source.resolve()}")
    last = last_checkpoint(recipe, seed)
    if last.is_file():
        command = charlm("train", "--resume", "--run-dir", run)
    else:
        command = charlm("train", "--config", recipe.file, "--run-dir", run, *settings)
    print(f"=== {recipe.config}, seed {seed}", file=sys.stderr, flush=True)
    subprocess.run(command, cwd=ROOT, check=True)
    command = charlm("eval", last, "--json", "--split", recipe.split, *(["--dynamic"] if recipe.dynamic else []))
    scored = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    (run / "score.json").write_text(scored.stdout, encoding="utf-8")


def record() -> dict[str, Result]:
    """Record every recipe that has complete runs; the others keep their earlier record."""
    from bench_measure import cpu

    from charlm.checkpoint import read_checkpoint
    from charlm.config import read_config_file

    results, here = read_results(), cpu()
    for recipe in RECIPES:
        if runs := [read(recipe, seed) for seed in recipe.seeds if is_whole(recipe, seed)]:
            checkpoints = [last_checkpoint(recipe, run.seed) for run in runs]
            precision, *others = {read_checkpoint(checkpoint).config.precision for checkpoint in checkpoints}
            if others:
                sys.exit(
                    f"{recipe.config}: its seeds were trained in {precision} and {others[0]}; remove one or the other"
                )
            results[recipe.config] = Result(read_config_file(recipe.file), here, runs, precision)
    results = {recipe.config: results[recipe.config] for recipe in RECIPES if recipe.config in results}
    write_results(results)
    return results


def write_results(results: dict[str, Result]) -> None:
    """One line per recipe, so that a diff shows which ones changed."""
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
    weights = read_checkpoint(last_checkpoint(recipe, seed)).weights
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
    """One row of the table: mean and range over the seeds."""
    nats = [run.nats for run in result.runs]
    seeds = "1 seed" if len(nats) == 1 else f"{len(nats)} seeds: {min(nats):.4f} to {max(nats):.4f}"
    dynamic = [run.dynamic_nats for run in result.runs if run.dynamic_nats is not None]
    cells = [
        f"`{name}`",
        f"{result.cpu['cores']} × {re.sub(r'[(](R|TM)[)]| Processor', '', result.cpu['cpu'])}, {result.precision}",
        duration(statistics.median(run.seconds for run in result.runs)),
        f"{result.runs[0].parameters:,}",
        f"{statistics.median(run.chars_per_s for run in result.runs):,.0f}",
        f"{statistics.mean(nats):.4f} ({seeds})",
        f"{statistics.mean(dynamic):.4f}" if dynamic else "–",
    ]
    return f"| {' | '.join(cells)} |\n"


def summary(results: dict[str, Result]) -> str:
    """The README's table: the best recipe for each training time, scores as a newcomer reads them."""
    lines = ["| training time | config | cell | nats per character | bits |\n|---|---|---|---|---|\n"]
    for name in SUMMARY:
        if result := results.get(name):
            nats = statistics.mean(run.nats for run in result.runs)
            minutes = result.config["train"]["max_minutes"]
            time = f"{minutes:g} min" if minutes >= 1 else f"{60 * minutes:.0f} s"
            lines.append(f"| {time} | `{name}` | {kind(result).upper()} | {nats:.2f} | {nats / math.log(2):.2f} |\n")
    return "".join(lines)


def duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.1f} min"


def write_between(page: Path, mark: str, table: str) -> None:
    """Put a table between a page's two comments of this name, and print it; exit if they are missing."""
    parts = re.split(f"(<!-- /?{mark} -->\n)", page.read_text(encoding="utf-8"))
    if len(parts) != 5:
        sys.exit(f"{page}: found {len(parts) // 2} lines <!-- {mark} --> and <!-- /{mark} -->; allowed: one of each")
    before, begin, _, end, after = parts
    page.write_text(before + begin + table + end + after, encoding="utf-8")
    print(table)


def draw(results: dict[str, Result]) -> None:
    """Validation score over training time: the first seed of each recipe, and nanoGPT's published points."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 5))
    style: dict[str, Any] = {"textcoords": "offset points", "bbox": {"color": "white", "alpha": 0.8, "pad": 1}}
    for result in results.values():
        curve, color = result.runs[0].curve, COLORS.get(kind(result), "tab:purple")
        axes.plot(*zip(*curve, strict=True), color=color, alpha=0.5)
        axes.plot(*curve[-1], "o", color=color)
    for result, nats in zip(results.values(), label_heights(results), strict=True):
        label = f"{kind(result).upper()} {result.runs[0].nats:.2f}"
        seconds = result.runs[0].curve[-1][0]
        axes.annotate(
            label, (seconds, nats), (9, -3), color=COLORS.get(kind(result), "tab:purple"), weight="bold", **style
        )
    for name, (seconds, nats) in PUBLISHED.items():
        axes.plot(seconds, nats, "k*", markersize=9)
        axes.annotate(name, (seconds, nats), (9, -9), **style)
    axes.set_title("Tinyshakespeare: what training time buys on two or four CPU cores", loc="left")
    axes.set(xscale="log", xlabel="training time", ylabel="validation, nats per character (lower is better)")
    axes.set(xlim=(8, 4000), ylim=(1.28, 1.95))
    axes.set_xticks([10, 60, 300, 1800], ["10 s", "1 min", "5 min", "30 min"])
    axes.minorticks_off()
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(PLOT, dpi=110, bbox_inches="tight")
    print(f"plot: {PLOT.relative_to(ROOT)}", file=sys.stderr)


COLORS = {"rnn": "gray", "gru": "tab:green", "lstm": "tab:blue", "rhn": "tab:orange"}


def kind(result: Result) -> str:
    return result.config["model"]["cell"]["kind"]


def label_heights(results: dict[str, Result], apart: float = 0.027) -> list[float]:
    """Where each line's label stands: at its last evaluation, or higher so that labels do not overlap."""
    heights: dict[str, float] = {}
    for name in sorted(results, key=lambda name: results[name].runs[0].curve[-1][1]):
        seconds, nats = results[name].runs[0].curve[-1]
        beside = [heights[other] for other in heights if 0.7 < results[other].runs[0].curve[-1][0] / seconds < 1.5]
        heights[name] = max([nats, *(height + apart for height in beside)])
    return [heights[name] for name in results]


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)
    except KeyboardInterrupt:
        sys.exit(130)
