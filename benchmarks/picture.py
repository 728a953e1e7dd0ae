"""Draws the README's picture, docs/charlm.png: a text, how its model learned, and what the model writes.

    .venv/bin/python benchmarks/picture.py runs/shakespeare data/tinyshakespeare.txt

The run is made with `charlm train data/tinyshakespeare.txt --minutes 5`. Needs matplotlib: `./scripts/install results`.
"""

import json
import sys
from pathlib import Path
from typing import Any

from charlm.inference import load

PICTURE = Path(__file__).parents[1] / "docs/charlm.png"
SAMPLE: dict[str, Any] = {"prompt": "ROMEO:", "temperature": 0.6, "seed": 14, "length": 400}
LINES = 9


def main(run: Path, text: Path) -> None:
    """Draw the picture of a run and its text."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    written = SAMPLE["prompt"] + load(run).sample(**SAMPLE)
    figure = pyplot.figure(figsize=(10.8, 2.5))
    draw_text(figure.add_axes((0.01, 0.05, 0.3, 0.8)), "Your text …", text.read_text(encoding="utf-8"))
    axes = figure.add_axes((0.43, 0.2, 0.17, 0.65))
    train = [(row["elapsed_s"] / 60, row["nats"]) for row in rows if row["split"] == "train"]
    axes.plot(*zip(*train, strict=True), color="tab:blue")
    axes.set_title(f"… {rows[-1]['elapsed_s'] / 60:.0f} minutes on a CPU …", loc="left")
    axes.set(xlabel="minutes of training", ylabel="training, nats per char", ylim=(1.2, None))
    axes.spines[["top", "right"]].set_visible(False)
    draw_text(figure.add_axes((0.64, 0.05, 0.3, 0.8)), "… and new text in its style", written.partition("\n\n")[0])
    figure.savefig(PICTURE, dpi=130)


def draw_text(axes: Any, title: str, text: str) -> None:
    """The first lines of a text."""
    axes.set_title(title, loc="left")
    axes.text(0, 0.97, "\n".join(text.splitlines()[:LINES]), family="monospace", size=9, va="top", linespacing=1.5)
    axes.axis("off")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
