"""Tries charlm on this machine's GPU: the proof of its kernels, tests, speed, and a short training of each kind.

Run by scripts/gpu. It uses the Python and PyTorch that it is run with and installs nothing. A step that fails does not
stop the others.
"""

import argparse
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from datetime import datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
NEEDED = ("torch", "hypothesis", "numpy", "pydantic", "pytest", "safetensors", "tensorboard", "tqdm", "typer", "yaml")
KINDS = ("lstm", "gru", "rnn", "rhn", "slstm")


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/gpu", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu tries the program itself")
    parser.add_argument("--minutes", type=float, default=8.0, help="time for everything; default: 8")
    parser.add_argument("--json", type=Path, help="default: benchmarks/gpu-<name of the card>.json")
    arguments = parser.parse_args()
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        sys.exit(
            f"error: found no {', '.join(missing)} in {sys.executable}; install them, or set PYTHON to another Python"
        )
    found = describe(arguments.device)
    print(" · ".join(f"{name} {value}" for name, value in found.items()), flush=True)
    steps = Steps(end_s=time.monotonic() + 60 * arguments.minutes)
    with tempfile.TemporaryDirectory() as folder:
        found["kernels"] = prove(arguments.device, steps)
        steps.run("tests", 0.4, ["-m", "pytest", "-q", "-m", "cuda", "-p", "no:cacheprovider", *side_by_side()])
        figures = Path(folder, "speed.json")
        bench = [str(ROOT / "benchmarks/bench.py"), "gpu", "--skip-tests", "--json", str(figures)]
        steps.run("speed", 0.6, [*bench, *([] if arguments.device == "cuda" else ["--quick"])])
        if figures.is_file() and figures.stat().st_size:  # a program that is stopped may leave it empty
            found["speed"] = json.loads(figures.read_text(encoding="utf-8"))
        found["training"] = [
            train(kind, folder, arguments.device, steps, len(KINDS) - n) for n, kind in enumerate(KINDS)
        ]
    found["steps"] = steps.outcomes
    file = arguments.json or ROOT / "benchmarks" / f"gpu-{slug(found['device'])}.json"
    file.write_text(json.dumps(found, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    print(f"\nfigures in {file}")
    for name, outcome in steps.outcomes.items():
        print(f"{name:<16} {outcome}")
    sys.exit(any(outcome != "passed" for outcome in steps.outcomes.values()))


def describe(device: str) -> dict[str, Any]:
    """The card and its software; exits with one line if there is none."""
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        sys.exit(
            f"error: PyTorch {torch.__version__} (CUDA {torch.version.cuda or 'not built in'}) sees no GPU; "
            "check its driver with nvidia-smi, or try --device cpu"
        )
    name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    date = datetime.now().astimezone().isoformat(timespec="seconds")
    found = {"device": name, "torch": torch.__version__, "CUDA": torch.version.cuda, "Python": sys.version.split()[0]}
    triton = importlib.util.find_spec("triton")
    return found | {"Triton": "found" if triton else "none", "date": date}


class Steps:
    """Runs one program after another until the time is up, and notes how each ended."""

    def __init__(self, end_s: float) -> None:
        self.end_s = end_s
        self.outcomes: dict[str, str] = {}

    def run(self, name: str, share: float, arguments: list[str]) -> str:
        """Run Python with these arguments for at most this share of the time that is left; its output on stdout."""
        left_s = max(1.0, share * (self.end_s - time.monotonic()))
        print(f"\n--- {name} (at most {left_s:.0f} s)", flush=True)
        command = [sys.executable, *arguments]
        with subprocess.Popen(
            command, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            late: list[bool] = []

            def stop() -> None:
                late.append(True)
                process.kill()

            timer = threading.Timer(left_s, stop)
            timer.start()
            assert process.stdout is not None
            lines = []
            for line in process.stdout:
                print(line, end="", flush=True)
                lines.append(line)
            timer.cancel()
        end = "stopped: its time was up" if late else f"failed with exit code {process.returncode}"
        self.outcomes[name] = "passed" if process.returncode == 0 else end
        return "".join(lines)


def environment() -> dict[str, str]:
    """This one; charlm is imported from here, and pytest loads no plugins, whose warnings would end the tests."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return os.environ | {"PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


def side_by_side() -> list[str]:
    """Tests in several processes, if that plugin is there."""
    processes = min(16, os.cpu_count() or 1)
    return ["-p", "xdist.plugin", "-n", str(processes)] if importlib.util.find_spec("xdist") else []


def prove(device: str, steps: Steps) -> dict[str, str]:
    """What computes each kind; the step fails where charlm's loop does not prove itself."""
    printed = steps.run("kernels", 0.25, ["-m", "charlm", "doctor", "--kernels", "--json", "--device", device])
    report = next((json.loads(line) for line in printed.splitlines() if line.startswith("{")), {})
    if faults := [f"{name}: {text}" for name, text in report.items() if "no loop " in text]:
        steps.outcomes["kernels"] = "; ".join(faults)
    return report


def train(kind: str, folder: str, device: str, steps: Steps, left: int) -> dict[str, Any]:
    """Train a kind on the Python standard library, for its part of the time that is left; its result."""
    minutes = max(0.1, min(1.0, (steps.end_s - time.monotonic()) / 60 / left - 0.3))
    words = f"-m charlm train --config {kind} --run-dir {folder}/{kind} --device {device} --json"
    limits = (f"train.max_minutes={minutes:.2f}", "train.max_steps=null")
    # The configs' own learning rates are for fewer units.
    for setting in (*limits, "train.log_every=20", "model.cell.hidden=512", "optimizer.lr=0.003"):
        words += f" --set {setting}"
    printed = steps.run(f"train {kind}", 1 / left, words.split())
    outcome = next((json.loads(line) for line in printed.splitlines() if line.startswith("{")), {})
    outcome.pop("run_dir", None)
    metrics = Path(folder, kind, "metrics.jsonl")
    if not outcome and metrics.is_file():  # what came before the failure
        outcome["last"] = metrics.read_text(encoding="utf-8").splitlines()[-20:]
    return {"kind": kind, "minutes": round(minutes, 2)} | outcome


def slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


if __name__ == "__main__":
    main()
