"""Compiles the C file of a model, and runs the program."""

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from charlm.export import export
from charlm.inference.trained import TrainedModel

Program = Callable[..., "subprocess.CompletedProcess[bytes]"]
STRICT = ("-std=c99", "-Wall", "-Wextra", "-pedantic", "-Werror", "-O1")


def compiled(
    trained: TrainedModel, weights: str, folder: Path, compiler: Sequence[str] = ("gcc",), emulator: Sequence[str] = ()
) -> Program:
    """The program of a model, which must compile without a warning; it takes words and the bytes of standard input."""
    file = folder / "model.c"
    export(trained, "c", file, weights=weights)
    done = subprocess.run([*compiler, *STRICT, file, "-o", folder / "model", "-lm"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")

    def run(*words: str, stdin: str | bytes = b"") -> Any:
        content = stdin.encode() if isinstance(stdin, str) else stdin
        return subprocess.run([*emulator, folder / "model", *words], input=content, capture_output=True)

    return run
