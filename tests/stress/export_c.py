"""Compiles the C files of every kind of cell with several compilers and for other machines (scripts/stress export_c).

Each file must compile without a warning; the program must score a text as charlm does, to 1e-5 bits, and write its
text for a seed. What is not installed is left out and named: clang, ziglang (a package of pip), and qemu-user.
"""

import importlib.util
import shutil
import sys
import tempfile
from pathlib import Path

import torch

from charlm.export.rounding import Weights
from charlm.inference.options import SamplingOptions
from charlm.inference.sampling import sample_text
from tests.export.c_program import compiled
from tests.export.models import CELLS_TO_EXPORT, EMBEDDINGS, model_of

TEXT = "abcd efé gha\nbacé hgf\n" * 20
ZIG = (sys.executable, "-m", "ziglang", "cc", "-target")
TARGETS = {
    "gcc": (("gcc",), ()),
    "gcc, sanitizers": (("gcc", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover"), ()),
    "clang": (("clang",), ()),
    "ARM, 64 bits": ((*ZIG, "aarch64-linux-musl"), ("qemu-aarch64",)),
    "ARM, 32 bits": ((*ZIG, "arm-linux-musleabihf"), ("qemu-arm",)),
    "x86, 32 bits": ((*ZIG, "x86-linux-musl"), ("qemu-i386",)),
    "MIPS, big-endian": ((*ZIG, "mips-linux-musleabihf"), ("qemu-mips",)),
}
"""A compiler, and what runs its programs."""


def check(case: str, number: int, compiler: tuple[str, ...], emulator: tuple[str, ...]) -> None:
    """Compile the model of a case in float32 and int8, and hold it to charlm's."""
    torch.manual_seed(number)
    inputs = [*EMBEDDINGS][number % len(EMBEDDINGS)]
    trained = model_of(case, inputs, layers=1 + number % 3, records="\n" if number % 2 else "", zoneout=0.1)
    kinds: tuple[Weights, ...] = ("float32", "bfloat16", "int8")
    for weights in kinds:
        with tempfile.TemporaryDirectory() as folder:
            run = compiled(trained, weights, Path(folder), compiler, emulator)
            done = run("--score", stdin=TEXT)
            assert done.returncode == 0, done.stderr
            if weights != "float32":
                continue
            difference = float(done.stdout.split()[0]) - trained.evaluate(TEXT).bits_per_char
            assert abs(difference) < 1e-5, f"{case}: the score differs by {difference:.1e}"
            drawn = sample_text(trained.network, trained.vocabulary, "ab", SamplingOptions(length=60), [number])
            text = "ab" + "".join(piece for [piece] in drawn)
            assert run("--prompt", "ab", "--length", "60", "--seed", str(number)).stdout.decode() == text + "\n", case


def main() -> None:
    for name, (compiler, emulator) in TARGETS.items():
        has_zig = compiler[:3] != ZIG[:3] or importlib.util.find_spec("ziglang")
        missing = [tool for tool in (compiler[0], *emulator) if not shutil.which(tool)]
        if missing or not has_zig:
            print(f"{name}: left out; {', '.join(missing) or 'ziglang'} is not installed", flush=True)
            continue
        for number, case in enumerate([*CELLS_TO_EXPORT, "odd"]):
            check(case, number, compiler, emulator)
        print(f"{name}: {len(CELLS_TO_EXPORT) + 1} models", flush=True)


if __name__ == "__main__":
    main()
