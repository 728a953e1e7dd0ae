"""Compiles the C file of a model, and runs the program.

CHARLM_CC names another compiler than gcc, and CHARLM_CC_RUN what runs its programs.
"""

import os
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from charlm.export import export
from charlm.inference.trained import TrainedModel

Program = Callable[..., "subprocess.CompletedProcess[bytes]"]
COMPILER = shlex.split(os.environ.get("CHARLM_CC", "gcc"))
EMULATOR = shlex.split(os.environ.get("CHARLM_CC_RUN", ""))
STRICT = ("-std=c99", "-Wall", "-Wextra", "-pedantic", "-Werror", "-O1")


def compiled(trained: TrainedModel, weights: str, folder: Path, source: str = "") -> Program:
    """The program of a model, or one that includes `model.c`; it takes words and the bytes of standard input.

    It must compile without a warning.
    """
    file = folder / "model.c"
    export(trained, "c", file, weights=weights)
    if source:
        file = folder / "own.c"
        file.write_text(source)
    command = [*COMPILER, *STRICT, file, "-o", folder / "model", "-lm"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")

    def run(*words: str, stdin: str | bytes = b"") -> Any:
        content = stdin.encode() if isinstance(stdin, str) else stdin
        return subprocess.run([*EMULATOR, folder / "model", *words], input=content, capture_output=True)

    return run
