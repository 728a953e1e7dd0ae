"""What models learn: validation loss by size, characters read, dropout and text.

A point is a training of a fixed number of updates, so it does not depend on the machine. Points that are in the file
already are not trained again.
"""

import argparse
import itertools
import json
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import unicodedata
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FILE = Path(__file__).with_name("curves.json")

SIZES: dict[str, dict[str, Any]] = {
    "lstm-96": {"cell": {"kind": "lstm", "hidden": 96, "layer_norm": True, "forget_bias": None}, "embedding": 32},
    "lstm-192": {"cell": {"kind": "lstm", "hidden": 192, "layer_norm": True, "forget_bias": None}, "embedding": 64},
    "lstm-384": {"cell": {"kind": "lstm", "hidden": 384, "layer_norm": True, "forget_bias": None}, "embedding": 64},
    "lstm-2x384": {
        "cell": {"kind": "lstm", "hidden": 384, "forget_bias": None},
        "layers": 2,
        "residual": True,
        "embedding": 256,
    },
    "rhn-224": {"cell": {"kind": "rhn", "hidden": 224, "depth": 4, "gate_bias": -2.0}, "embedding": 64},
}
UPDATES = (1000, 4000, 16000)
DROPOUT = (0.0, 0.3)
BATCH, STEPS = 16, 64


@dataclass(frozen=True)
class Point:
    """One training."""

    text: str
    size: str
    updates: int
    dropout: float


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60, help="begin no training after this time; default: 60")
    parser.add_argument("--json", type=Path, default=FILE)
    arguments = parser.parse_args()
    found = json.loads(arguments.json.read_text(encoding="utf-8")) if arguments.json.is_file() else []
    known = {tuple(one["point"].values()) for one in found}
    end_s = time.monotonic() + 60 * arguments.minutes
    with tempfile.TemporaryDirectory() as folder:
        texts = {}
        for name, text in make_texts():
            texts[name] = Path(folder, f"{name}.txt")
            texts[name].write_text(text, encoding="utf-8")
        for point in points(texts):
            if tuple(asdict(point).values()) in known:
                continue
            if time.monotonic() > end_s:
                break
            result = train(point, texts[point.text], Path(folder, "run"))
            print(point, f"{result['best_nats']:.4f} nats at step {result['best_step']}", flush=True)
            found.append({"point": asdict(point), **result})
            arguments.json.write_text("[\n" + ",\n".join(json.dumps(one) for one in found) + "\n]\n", encoding="utf-8")


def make_texts() -> Iterator[tuple[str, str]]:
    """Texts that every machine has, or nearly: name, text."""
    library = Path(sysconfig.get_path("stdlib"))
    code = "".join(file.read_text(encoding="utf-8") for file in sorted(library.glob("*.py")))
    headers = "".join(
        file.read_text(encoding="utf-8", errors="replace") for file in sorted(Path("/usr/include").glob("*.h"))
    )
    licenses = "".join(
        file.read_text(encoding="utf-8", errors="replace")
        for file in sorted(Path("/usr/share/common-licenses").glob("*"))
        if not file.is_symlink()
    )
    names = "".join(f"{name}\n" for point in range(0x30000) if (name := unicodedata.name(chr(point), "")))
    plays = ROOT / "data/tinyshakespeare.txt"
    prose = plays.read_text(encoding="utf-8") if plays.is_file() else ""
    for name, text, length in (
        ("plays-1MB", prose, None),
        ("code-4MB", code, 4_000_000),
        ("plays-100kB", prose, 100_000),
        ("names-1MB", names, 1_000_000),
        ("code-300kB", code[1_000_000:], 300_000),
        ("headers", headers, None),
        ("licenses", licenses, None),
        ("plays-30kB", prose[500_000:], 30_000),
    ):
        if text:
            yield name, text[:length]


def points(texts: dict[str, Path]) -> Iterator[Point]:
    """The trainings, cheapest first for each text. Dropout matters where a text is read several times."""
    for updates, text in itertools.product(UPDATES, texts):
        epochs = updates * BATCH * STEPS / texts[text].stat().st_size
        for size, dropout in itertools.product(SIZES, DROPOUT):
            if (dropout == 0 or epochs > 2) and epochs < 200:
                yield Point(text, size, updates, dropout)


def train(point: Point, text: Path, run: Path) -> dict[str, Any]:
    """Train in a process of its own; sizes, and the scores of eight evaluations."""
    model = SIZES[point.size] | {"dropout": {"output": point.dropout, "between_layers": point.dropout / 2}}
    rate = 8e-3 if point.size.startswith("rhn") else 1.2e-2
    config = {
        "data": {"source": str(text), "split": [0.9, 0.1, 0]},
        "model": model,
        "train": {
            "batch_size": BATCH,
            "bptt": STEPS,
            "reset_state": 0.01,
            "ema": round(1 - 20 / point.updates, 5),
            "activation_penalty": 0.5,
            "max_steps": point.updates,
            "eval_every": point.updates // 8,
            "save_every": 0,
            "sample_every": 0,
        },
        "optimizer": {
            "name": "adamw",
            "lr": rate,
            "weight_decay": 0.1,
            "clip_norm": 10.0,
            "schedule": {"name": "cosine", "warmup_steps": 100, "final_fraction": 0.02},
        },
    }
    file = text.with_suffix(".json")  # JSON is YAML
    file.write_text(json.dumps(config), encoding="utf-8")
    shutil.rmtree(run, ignore_errors=True)
    command = [sys.executable, "-m", "charlm", "train", "--config", str(file), "--run-dir", str(run), "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"error: {point}\n{done.stderr}")
    outcome = json.loads(done.stdout)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return {
        "chars": len(text.read_text(encoding="utf-8")),
        "vocabulary": len(set(text.read_text(encoding="utf-8"))),
        "parameters": outcome["parameters"],
        "best_nats": outcome["best_nats"],
        "best_step": outcome["best_step"],
        "curve": [[row["step"], round(row["nats"], 4)] for row in rows if row["split"] == "valid"],
        "elapsed_s": round(outcome["elapsed_s"], 1),
    }


if __name__ == "__main__":
    main()
