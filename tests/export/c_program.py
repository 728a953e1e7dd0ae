"""Compiles C files of models, and runs the programs.

CHARLM_CC names another compiler than gcc, CHARLM_CXX another one than g++, and CHARLM_CC_RUN what runs their programs.
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
COMPILERS = dict.fromkeys(("c99", "c11"), COMPILER) | {"c++17": shlex.split(os.environ.get("CHARLM_CXX", "g++"))}
"""By the standard."""
EMULATOR = shlex.split(os.environ.get("CHARLM_CC_RUN", ""))
STRICT = ("-Wall", "-Wextra", "-pedantic", "-Werror", "-O1")


def compiled(trained: TrainedModel, weights: str, folder: Path) -> Program:
    """The program of a model; it takes words and the bytes of standard input."""
    export(trained, "c", folder / "model.c", weights=weights)
    return built(folder, "model.c")


def built(folder: Path, *words: str, standard: str = "c99") -> Program:
    """The program of these files, or one by these options. The files must compile without a warning."""
    command = [*COMPILERS[standard], f"-std={standard}", *STRICT, *words, "-o", "program", "-lm"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")

    def run(*words: str, stdin: str | bytes = b"") -> Any:
        content = stdin.encode() if isinstance(stdin, str) else stdin
        return subprocess.run([*EMULATOR, folder / "program", *words], input=content, capture_output=True)

    return run
