"""Feeds input made by a coverage-guided fuzzer (libFuzzer, by Atheris) to what reads a user's files.

Any bytes must be read or refused by an error of charlm's own, in printable lines, within LIMIT_S seconds and
LIMIT_MB of memory, and nothing else may happen; run by scripts/stress fuzz.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIMIT_S = 20
LIMIT_MB = 2048
LONGEST = 4096  # bytes of an input
NAMES = ("config", "corpus", "header", "cell", "runs")
"""The methods of `Targets`."""
COMMANDS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""What a terminal takes for a command."""


def main() -> None:
    """Run every target in a process of its own, or in that process one target."""
    parser = argparse.ArgumentParser(prog="scripts/stress fuzz", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"some of: {', '.join(NAMES)}; all if none")
    parser.add_argument("--runs", type=int, default=100_000, metavar="N", help="inputs for each; default 100000")
    parser.add_argument("--quick", action="store_const", dest="runs", const=2000, help="--runs 2000: about a minute")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    arguments, others = parser.parse_known_args()
    if arguments.inside:
        fuzz(arguments.targets[0], Path(arguments.inside), others)
        return
    failed = []
    with tempfile.TemporaryDirectory(prefix="charlm-fuzz-") as folder:
        for name in arguments.targets or NAMES:
            print(f"=== {name}", file=sys.stderr, flush=True)
            command = [sys.executable, "-m", "tests.stress.fuzz", name, "--inside", folder, "-seed=1"]
            command += [f"-timeout={LIMIT_S}", f"-rss_limit_mb={LIMIT_MB}", f"-max_len={LONGEST}"]
            command += [f"-atheris_runs={arguments.runs}", f"-artifact_prefix={ROOT}/fuzz-{name}-", *others]
            environment = os.environ | {"CHARLM_CACHE": f"{folder}/cache", "OMP_NUM_THREADS": "1"}
            if code := subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode:
                failed.append(f"{name} (exit code {code})")
    if failed:
        sys.exit(f"fuzz: failed: {', '.join(failed)}; where an input is to blame, it is in fuzz-NAME-*")


def fuzz(name: str, folder: Path, options: list[str]) -> None:
    import atheris

    with atheris.instrument_imports(include=["charlm"]):
        from tests.stress.targets import GOOD_INPUTS, Targets, guarded
    seeds = folder / "seeds" / name
    seeds.mkdir(parents=True)
    for number, content in enumerate(GOOD_INPUTS[name]):
        (seeds / str(number)).write_bytes(content)
    atheris.Setup([sys.argv[0], *options, str(seeds)], guarded(getattr(Targets(folder), name)))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
