"""Measures charlm's speed beside PyTorch's own, in the same rounds. Run by scripts/bench.

bench.py            arguments, the tests that run first, sections
bench_measure.py    timing in rounds, figures, tables, the machine
bench_kernels.py    layers forward and backward, matrix products, growth with T, D, L
bench_gpu.py        layers and updates on a GPU
bench_uses.py       training, on lines too, and sampling
bench_processes.py  several processes that share a batch
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from charlm.system.host import limit_spinning

if TYPE_CHECKING:
    from bench_measure import Effort, Report

ROOT = Path(__file__).parents[1]
SECTIONS = {
    "kernels": "forward and backward of every cell; bf16 if the CPU has it; a GPU if there is one",
    "shipped": "kernels that ./scripts/wheels has built for this machine ÷ those compiled here",
    "gpu": "layers and updates on a GPU, if there is one",
    "train": "updates of the trainer ÷ a plain PyTorch script; how much of one is outside kernels",
    "lines": "updates with data.records set ÷ with no data.records",
    "processes": "several processes that share a batch ÷ one with as many threads",
    "sampling": "1 and 64 streams ÷ a loop of PyTorch modules",
    "scaling": "time against T, D and L",
}
TESTS = [
    "tests/cells/test_against_reference.py",
    "tests/cells/test_kernels.py",
    "tests/cells/test_bf16.py",
    "tests/inference/test_sampling.py",
    "tests/training/test_step.py",
]


def main() -> None:
    """Check the arguments, then the results, then the speed."""
    arguments = parse()
    sections = [name for name in SECTIONS if name in (arguments.sections or SECTIONS)]
    load = {"load_average_at_start": load_average()}
    limit_spinning()
    verified = "NOT VERIFIED: tests skipped (--skip-tests)" if arguments.skip_tests else run_tests()

    from bench_measure import Effort, Report, machine

    from charlm.system.device import keep_freed_memory, set_threads

    keep_freed_memory()
    set_threads(arguments.threads)
    effort = Effort(
        rounds=arguments.rounds or (7 if arguments.quick else 15),
        budget_s=None if arguments.rounds else 2.0 if arguments.quick else 4.0,
        quick=arguments.quick,
    )
    found = {"date": datetime.now().astimezone().isoformat(timespec="seconds"), "machine": machine()}
    found |= {"verified": verified, "effort": effort._asdict()} | load
    print_heading(found, effort)
    report = Report()
    start_s = time.perf_counter()
    for section in sections:
        measure(section, report, effort)
        if arguments.json:  # so that what was measured outlives a failure
            write_json(arguments.json, found | report.as_json())
    found |= {"load_average_at_end": load_average(), "elapsed_s": time.perf_counter() - start_s}
    found |= report.as_json()
    at_end = f"{words_of_load(found['load_average_at_end'])} at the end, including this program"
    print(f"\n{found['elapsed_s']:.0f} s; {at_end}\n{verified}")
    if arguments.json:
        write_json(arguments.json, found)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/bench",
        description=(__doc__ or "").splitlines()[0],
        epilog="sections:\n" + "\n".join(f"  {name:<10} {text}" for name, text in SECTIONS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("sections", nargs="*", metavar="SECTION", help="sections to measure; default: all those below")
    parser.add_argument("--quick", action="store_true", help="a minute on an idle machine: fewer sizes and rounds")
    parser.add_argument(
        "--rounds", type=int, metavar="N", help="rounds per comparison, however long they take; default: up to 15"
    )
    parser.add_argument("--threads", type=int, default=0, metavar="N", help="CPU threads; default: one per core")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to a JSON file")
    parser.add_argument("--skip-tests", action="store_true", help="skip the tests that run first")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.sections if name not in SECTIONS]:
        parser.error(f"section {unknown[0]!r}: unknown; allowed: {' | '.join(SECTIONS)}")
    if arguments.rounds is not None and arguments.rounds < 1:
        parser.error(f"--rounds: found {arguments.rounds}; allowed: integers ≥ 1")
    if arguments.json:
        arguments.json.open("a", encoding="utf-8").close()  # fails now rather than after ten minutes
    return arguments


def write_json(path: Path, found: dict[str, Any]) -> None:
    path.write_text(json.dumps(found, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def run_tests() -> str:
    """Run the tests of every kernel against the reference; exit if one fails, since wrong results have no speed."""
    print("running the kernel tests first ...", file=sys.stderr, flush=True)
    command = [sys.executable, "-m", "pytest", "-q", *TESTS]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    lines = result.stdout.strip().splitlines()
    last = (lines or result.stderr.strip().splitlines() or ["pytest printed nothing"])[-1].strip("= ")
    if result.returncode:
        print(*(line for line in lines if line.startswith("FAILED")), sep="\n", file=sys.stderr)
        sys.exit(f"error: kernel tests: {last}; wrong results have no speed; see scripts/test {' '.join(TESTS)}")
    return f"results verified by tests: {last}"


def print_heading(found: dict[str, Any], effort: "Effort") -> None:
    machine = found["machine"]
    gpu = f"; {machine['gpu']}" if machine["gpu"] else ""
    print(f"charlm's speed, {found['date']}\n{found['verified']}")
    print(f"{machine['cpu']}, {machine['cores']} cores, {', '.join(machine['vectors'])}{gpu}")
    print(f"torch {machine['torch']}, Python {machine['python']}, compiler: {machine['compiler']}")
    threads = f"{machine['threads']} CPU thread{'s' * (machine['threads'] > 1)}"
    print(f"{threads}, GOMP_SPINCOUNT={machine['GOMP_SPINCOUNT']}, freed memory kept as in charlm")
    load = found["load_average_at_start"]
    busy = "; other programs are busy: trust the ratios more than the speeds" if load and load[0] > 1 else ""
    print(f"{words_of_load(load)} at the start{busy}")
    print(
        f"figures: median [quartiles] of up to {effort.rounds} interleaved rounds; ratios are taken within each round"
    )


def load_average() -> list[float] | None:
    """Average number of runnable processes over the last 1, 5 and 15 minutes."""
    return [round(load, 2) for load in os.getloadavg()] if hasattr(os, "getloadavg") else None


def words_of_load(load: list[float] | None) -> str:
    return f"load average {load[0]} {load[1]} {load[2]}" if load else "load average unknown"


def measure(section: str, report: "Report", effort: "Effort") -> None:
    from bench_gpu import measure_gpu
    from bench_kernels import measure_growth, measure_kernels, measure_shipped
    from bench_processes import measure_processes
    from bench_uses import measure_lines, measure_sampling, measure_train

    functions = {
        "kernels": measure_kernels,
        "shipped": measure_shipped,
        "gpu": measure_gpu,
        "train": measure_train,
        "lines": measure_lines,
        "processes": measure_processes,
        "sampling": measure_sampling,
        "scaling": measure_growth,
    }
    functions[section](report, effort)


if __name__ == "__main__":
    # Exit normally on SIGTERM, so that temporary files are removed.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
