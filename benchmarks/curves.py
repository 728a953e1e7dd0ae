"""What models learn: validation loss by size, characters read, dropout and text.

A point is a training of a fixed number of updates, so it does not depend on the machine. Each takes one thread, and as
many run at once as there are cores. Points that are in the file already are not trained again.
"""

import argparse
import concurrent.futures
import gzip
import itertools
import json
import os
import random
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from charlm.choice.families import PLAIN, USUAL, Request, on_request
from charlm.choice.ngram import mean_line_chars, simple_scores
from charlm.choice.recipe import all_settings
from charlm.choice.rule import Candidate
from charlm.config.schema import DataConfig
from charlm.data.corpus import load_corpus
from charlm.model import count_parameters

ROOT = Path(__file__).parents[1]
FILE = Path(__file__).with_name("curves.json")

SIZES = {
    "lstm-96": (USUAL[0], 96),
    "lstm-192": (USUAL[0], 192),
    "lstm-384": (USUAL[0], 384),
    "lstm-512": (USUAL[0], 512),
    "lstm-plain-192": (PLAIN, 192),
    "lstm-plain-384": (PLAIN, 384),
    "lstm-2x256": (USUAL[2], 256),
    "lstm-2x384": (USUAL[2], 384),
    "rhn-160": (USUAL[1], 160),
    "rhn-224": (USUAL[1], 224),
    "rhn-320": (USUAL[1], 320),
    "gru-128": (on_request("gru"), 128),
    "gru-256": (on_request("gru"), 256),
    "gru-512": (on_request("gru"), 512),
}
"""Name → family and units."""
UPDATES = (250, 500, 1000, 4000, 16000)
DROPOUT: tuple[dict[str, float], ...] = (
    {},
    {"output": 0.3, "between_layers": 0.15},
    {"output": 0.5, "between_layers": 0.25, "weights": 0.3},
    {"output": 0.7, "between_layers": 0.35, "weights": 0.5, "embedding": 0.1},
)
BATCH, STEPS = 16, 64


@dataclass(frozen=True)
class Point:
    """One training."""

    text: str
    size: str
    updates: int
    dropout: dict[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=0, help="train for this long; default: 0")
    parser.add_argument("--json", type=Path, default=FILE)
    parser.add_argument("--texts", nargs="*", help="default: all")
    parser.add_argument("--sizes", nargs="*", choices=SIZES, help="default: all")
    parser.add_argument("--updates", nargs="*", type=int, choices=UPDATES, help="default: all")
    parser.add_argument("--plain", action="store_true", help="only trainings without dropout")
    arguments = parser.parse_args()
    found = json.loads(arguments.json.read_text(encoding="utf-8")) if arguments.json.is_file() else []
    known = [(one["point"], one["facts"]) for one in found]
    end_s = time.monotonic() + 60 * arguments.minutes
    with tempfile.TemporaryDirectory() as folder:
        texts, facts = {}, {}
        for name, text in make_texts():
            texts[name] = Path(folder, f"{name}.txt")
            texts[name].write_text(text, encoding="utf-8")
            corpus = load_corpus(DataConfig(source=str(texts[name]), split=(1, 0, 0)))
            ids, vocabulary = corpus.splits["train"], corpus.vocabulary
            train_chars = int(0.9 * len(ids))
            facts[name] = {
                "chars": len(ids),
                "vocabulary": len(vocabulary),
                "ngram_nats": simple_scores(ids[:train_chars], ids[train_chars:], len(vocabulary)).ngram,
                "line_chars": mean_line_chars(ids, vocabulary),
            }
        wanted = [
            point
            for point in points(texts)
            if point.text in (arguments.texts or texts)
            and point.size in (arguments.sizes or SIZES)
            and point.updates in (arguments.updates or UPDATES)
            and not (arguments.plain and point.dropout)
            and (asdict(point), facts[point.text]) not in known
        ]

        def add(point: Point) -> None:
            if time.monotonic() > end_s:
                return
            result = train(point, texts[point.text], facts[point.text])
            with lock:
                print(point, f"{result['best_nats']:.4f} nats at step {result['best_step']}", flush=True)
                found.append({"point": asdict(point), **result})
                write_lines(arguments.json, found)

        lock = threading.Lock()
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(add, wanted))


def write_lines(file: Path, found: list[dict[str, Any]]) -> None:
    """A JSON file with a line for each training, so that a diff shows which ones changed."""
    lines = ",\n".join(json.dumps(one) for one in found)
    file.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def make_texts() -> Iterator[tuple[str, str]]:
    """Texts that every machine has, or nearly: name, text. What is missing here is left out."""
    file = ROOT / "data/tinyshakespeare.txt"
    plays = file.read_text(encoding="utf-8") if file.is_file() else ""
    plays = plays[: len(plays) * 9 // 10]  # docs/results.md scores the rest
    code = joined(sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")))
    for name, text, length in (
        ("plays", plays, None),
        ("code-4MB", code, 4_000_000),
        ("names", unicode_names(), 1_000_000),
        ("pod", joined(shuffled(Path("/usr/share/perl").glob("*/**/*.pod"))), 3_000_000),
        ("licenses", joined(sorted(Path("/usr/share/common-licenses").glob("*"))), None),
        ("headers", joined(shuffled(Path("/usr/include").glob("**/*.h"))), 2_000_000),
        ("code-300kB", code[1_000_000:], 300_000),
        ("plays-100kB", plays, 100_000),
        ("plays-30kB", plays[500_000:], 30_000),
    ):
        if text:
            yield name, text[:length]


def unicode_names() -> str:
    """The names of Unicode's characters, one a line, in random order."""
    named = [unicodedata.name(chr(point), "") for point in range(0x30000)]
    names = [name for name in named if name and not name.startswith(("CJK", "HANGUL SYLLABLE"))]
    random.Random(1).shuffle(names)
    return "\n".join(names) + "\n"


def shuffled(files: Iterable[Path]) -> list[Path]:
    """The files in an order that does not follow their names, so that the end of a text is like its beginning."""
    found = sorted(files)
    random.Random(1).shuffle(found)
    return found


def joined(files: Iterable[Path], enough: int = 4_000_000, each: int | None = None) -> str:
    """The text of the files, some gzipped, until there are `enough` characters; of each file at most `each`."""
    text = ""
    for file in files:
        if file.is_file() and not file.is_symlink() and len(text) < enough:
            data = file.read_bytes()
            data = gzip.decompress(data) if file.suffix == ".gz" else data
            text += data.decode("utf-8", errors="ignore").replace("\r\n", "\n").replace("\r", "\n")[:each]
    return text


def points(texts: dict[str, Path]) -> Iterator[Point]:
    """The trainings, cheapest first. Dropout matters where a text is read several times."""
    for updates, text in itertools.product(UPDATES, texts):
        epochs = updates * BATCH * STEPS / texts[text].stat().st_size
        for size, dropout in itertools.product(SIZES, DROPOUT):
            if (not dropout or epochs > 2) and epochs < 200:
                yield Point(text, size, updates, dropout)


def run_charlm(config: str, folder: Path) -> tuple[dict[str, Any], Path]:
    """Train a config, as YAML, in a process of its own; the outcome and the run's folder."""
    run = Path(tempfile.mkdtemp(dir=folder))
    file = run / "config.yaml"
    file.write_text(config, encoding="utf-8")
    run /= "run"
    command = [sys.executable, "-m", "charlm", "train", "--config", str(file), "--run-dir", str(run), "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"error: {' '.join(command)}\n{done.stderr}")
    return json.loads(done.stdout), run


def train(point: Point, text: Path, facts: dict[str, Any]) -> dict[str, Any]:
    """Train on one thread; the text's facts, sizes, and the scores of four evaluations."""
    outcome, run = run_charlm(json.dumps(settings_of(point, str(text), facts)), text.parent)  # JSON is YAML
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return {
        "facts": facts,
        "parameters": outcome["parameters"],
        "best_nats": round(outcome["best_nats"], 4),
        "best_step": outcome["best_step"],
        "curve": [[row["step"], round(row["nats"], 4)] for row in rows if row["split"] == "valid"],
        "elapsed_s": round(outcome["elapsed_s"], 1),
    }


def settings_of(point: Point, text: str, facts: dict[str, Any]) -> dict[str, Any]:
    """What charlm would choose for this model and so many updates, with the dropout of the point."""
    family, hidden = SIZES[point.size]
    request = Request(text, minutes=1)
    settings = request.settings(family, hidden, BATCH, STEPS)
    config = request.config(settings)
    candidate = Candidate(
        family,
        settings,
        config,
        parameters=count_parameters(config.model, facts["vocabulary"]),
        train_chars=int(0.9 * facts["chars"]),
        valid_chars=facts["chars"] // 10,
        update_s=1.0,
        updates=point.updates,
    )
    settings = all_settings(candidate, minutes=1.0, split=[0.9, 0.1, 0.0])
    settings["model"]["dropout"] = point.dropout
    settings["train"] |= {
        "max_minutes": None,
        "max_epochs": None,
        "max_steps": point.updates,
        "eval_every": point.updates // 4,
        "save_every": 0,
        "sample_every": 0,
    }
    return settings | {"threads": 1}


if __name__ == "__main__":
    main()
