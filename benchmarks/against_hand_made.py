"""What `charlm train TEXT --minutes M` reaches beside twelve configs made by hand, on texts that the rule has not seen.

Every training has the same minutes, start included, and the same tenth of the text for validation. Trainings that are
in the file already are not repeated.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from curves import joined, shuffled

ROOT = Path(__file__).parents[1]
FILE = Path(__file__).with_name("against-hand-made.json")
CHOSEN = "chosen"
MINUTES = (1 / 6, 1.0, 5.0)


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


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hours", type=float, default=0, help="train for this long; default: 0")
    parser.add_argument("--minutes", type=float, nargs="*", default=MINUTES, help="of a training; default: all")
    parser.add_argument("--texts", nargs="*", help="default: all")
    parser.add_argument("--again", action="store_true", help="train what is chosen once more")
    arguments = parser.parse_args()
    found = json.loads(FILE.read_text(encoding="utf-8")) if FILE.is_file() else []
    end_s = time.monotonic() + 3600 * arguments.hours
    with tempfile.TemporaryDirectory() as folder:
        for minutes in arguments.minutes:
            for name, text in make_texts():
                if arguments.texts and name not in arguments.texts:
                    continue
                file = Path(folder, f"{name}.txt")
                file.write_text(text, encoding="utf-8")
                for config in (CHOSEN, *HAND_MADE):
                    key = {"text": name, "chars": len(text), "minutes": round(minutes, 4), "config": config}
                    same = [one for one in found if one.items() >= key.items()]
                    if (same and not (arguments.again and config == CHOSEN)) or time.monotonic() > end_s:
                        continue
                    found = [one for one in found if one not in same]
                    found.append(key | train(file, minutes, config, Path(folder)))
                    print(found[-1], file=sys.stderr, flush=True)
                    lines = ",\n".join(json.dumps(one) for one in found)
                    FILE.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    report(found)


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


def train(text: Path, minutes: float, config: str, folder: Path) -> dict[str, Any]:
    """Train in a process of its own; its best score, seconds of the whole command, and the model."""
    given = ["--minutes", str(minutes), "--set", "data.split=[0.9,0.1,0]", "--json"]
    if config != CHOSEN:
        file = folder / "config.json"  # JSON is YAML
        file.write_text(json.dumps(made(HAND_MADE[config], minutes)), encoding="utf-8")
        given += ["--config", str(file)]
    run = folder / f"run-{time.monotonic_ns()}"
    command = [sys.executable, "-m", "charlm", "train", str(text), *given, "--run-dir", str(run)]
    start_s = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    elapsed_s = time.monotonic() - start_s
    if done.returncode:
        sys.exit(f"error: {config} on {text.name}\n{done.stderr}")
    outcome = json.loads(done.stdout)
    labels = ("choice", "text", "machine")
    said = [line for line in done.stderr.splitlines() if line.split()[0] in labels] if config == CHOSEN else []
    return {
        "nats": round(outcome["best_nats"], 4),
        "steps": outcome["step"],
        "parameters": outcome["parameters"],
        "elapsed_s": round(elapsed_s, 1),
        "said": said,
    }


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
    """A line for each text and time: what was chosen, the best by hand, and how much lower that is."""
    behind = []
    for key in dict.fromkeys((one["minutes"], one["text"]) for one in found):
        own = {one["config"]: one for one in found if (one["minutes"], one["text"]) == key}
        by_hand = {name: one["nats"] for name, one in own.items() if name != CHOSEN}
        if CHOSEN not in own or not by_hand:
            continue
        best, mine = min(by_hand, key=lambda name: by_hand[name]), own[CHOSEN]
        behind.append(mine["nats"] / by_hand[best] - 1)
        print(
            f"{key[0]:>7} min  {key[1]:<10} chosen {mine['nats']:.4f} ({mine['parameters']:,} parameters), "
            f"{mine['elapsed_s']} s; best of {len(by_hand)}: {by_hand[best]:.4f} ({best}); {behind[-1]:+.1%}"
        )
    if behind:
        print(f"mean {sum(behind) / len(behind):+.2%}, worst {max(behind):+.2%}")


if __name__ == "__main__":
    main()
