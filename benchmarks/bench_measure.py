"""Interleaved timing, figures with their spread, tables, and a description of the machine."""

import math
import os
import platform
import statistics
import subprocess
import textwrap
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch

from charlm.native import compiler, loading
from charlm.native.precision import choose_precision

Way = Callable[[], object]
Times = dict[int, float]
"""Round → seconds of one call."""

LEAST_ROUNDS = 5
RARE_ROUNDS = 3


class Effort(NamedTuple):
    """How long to measure."""

    rounds: int
    budget_s: float | None
    """A comparison ends after about this time, but not before its fifth round."""
    quick: bool


@dataclass(frozen=True)
class Figure:
    """A median over rounds, with quartiles and extremes."""

    unit: str
    median: float
    low: float
    """Quartile."""
    high: float
    minimum: float
    maximum: float
    rounds: int

    def __str__(self) -> str:
        if self.rounds == 1:
            return show(self.median)
        return f"{show(self.median)} [{show(self.low)} {show(self.high)}]"


def show(value: float) -> str:
    """A number with its significant digits."""
    if value >= 1e4:
        return f"{value / 1e3:.{0 if value >= 1e5 else 1}f}k"
    decimals = 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:.{decimals}f}"


def figure(values: Iterable[float], unit: str) -> Figure:
    found = sorted(values)
    low, middle, high = statistics.quantiles(found, n=4, method="inclusive") if len(found) > 1 else found * 3
    return Figure(unit, middle, low, high, found[0], found[-1], len(found))


def rate(work: float, times: Times, unit: str) -> Figure:
    """Work per second."""
    return figure((work / seconds for seconds in times.values()), unit)


def ratio(times: Times, other: Times, work: float = 1.0) -> Figure:
    """Speed divided by the other's, round by round; `work`: work of one call ÷ work of one of the other's calls."""
    return figure((work * other[n] / times[n] for n in times if n in other), "")


def interleave(
    ways: dict[str, Way], effort: Effort, *, rare: Sequence[str] = (), least_s: float = 0.02
) -> dict[str, Times]:
    """Time each way in rounds A B C A B C …; `rare` ways take part in three of the rounds only.

    In each round a way is called as often as needed to take at least `least_s` seconds.
    """
    calls: dict[str, int] = {}
    round_s, on_gpu = 0.0, torch.cuda.is_available()
    for name, way in ways.items():
        took = _seconds(way, 1)
        # The first call may compile something and allocates the buffers that later calls reuse.
        if on_gpu:
            _seconds(way, 1)  # graphs are recorded the second time, and replayed from the third
        took = _seconds(way, 1) if on_gpu or took < 10 * least_s else took
        calls[name] = math.ceil(least_s / took)
        round_s += 0 if name in rare else took * calls[name]
    fitting = effort.rounds if effort.budget_s is None else int(effort.budget_s / round_s)
    rounds = min(effort.rounds, max(LEAST_ROUNDS, fitting))
    stride = math.ceil(rounds / RARE_ROUNDS)
    times: dict[str, Times] = {name: {} for name in ways}
    for n in range(rounds):
        for name, way in ways.items():
            if name not in rare or n % stride == 0:
                times[name][n] = _seconds(way, calls[name])
    return times


def _seconds(way: Way, calls: int) -> float:
    """Seconds of one call, including its work on a GPU."""
    wait()
    start_s = time.perf_counter()
    for _ in range(calls):
        way()
    wait()
    return (time.perf_counter() - start_s) / calls


def wait() -> None:
    """Wait until a GPU has finished its work."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


@dataclass(frozen=True)
class Row:
    """What was measured, at which sizes, and the figures."""

    section: str
    device: str
    what: str
    shape: dict[str, int]
    figures: dict[str, Figure]
    implementation: str = ""

    def __str__(self) -> str:
        return f"{self.what}, {' '.join(f'{name} {size}' for name, size in self.shape.items())}"


@dataclass
class Report:
    """Prints each table row as it is measured and keeps everything for the JSON file."""

    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    _columns: list[str] = field(default_factory=list)

    def table(self, title: str, explanation: str, columns: list[str]) -> None:
        self._columns = columns
        heading = "".join(f"{column:>{_WIDTH}}" for column in columns)
        wrapped = textwrap.fill(explanation, 116, initial_indent="  ", subsequent_indent="  ")
        print(f"\n{title}\n{wrapped}\n{'':{_NAME_WIDTH}}{heading}", flush=True)

    def add(self, row: Row) -> None:
        self.rows.append(row)
        cells = (str(row.figures[name]) if name in row.figures else "–" for name in self._columns)
        print(f"{row!s:{_NAME_WIDTH}}" + "".join(f"{cell:>{_WIDTH}}" for cell in cells), flush=True)

    def note(self, text: str) -> None:
        self.notes.append(text)
        print(textwrap.fill(text, 116, initial_indent="  ", subsequent_indent="  "), flush=True)

    def as_json(self) -> dict[str, Any]:
        return {"rows": [asdict(row) for row in self.rows], "notes": self.notes}


_NAME_WIDTH = 36
_WIDTH = 20

_VECTORS = {
    "avx2": "AVX2",
    "fma": "FMA",
    "avx_vnni": "AVX-VNNI",
    "avx512f": "AVX-512",
    "avx512_vnni": "AVX512_VNNI",
    "avx512_bf16": "AVX512_BF16",
    "avx512_fp16": "AVX512_FP16",
    "amx_bf16": "AMX-BF16",
    "amx_int8": "AMX-INT8",
    "asimd": "NEON",
    "bf16": "BF16",
    "sve": "SVE",
}


def cpu_flags() -> set[str]:
    """The CPU's flags according to Linux; empty on other systems."""
    lines = _cpuinfo("flags") or _cpuinfo("Features")
    return set(lines[0].split()) if lines else set()


def has_fast_bf16() -> bool:
    """Whether this CPU multiplies bfloat16 faster than float32."""
    return choose_precision("auto", torch.device("cpu"))[0] == "bf16"


def _cpuinfo(key: str) -> list[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    return [value.strip() for name, _, value in (line.partition(":") for line in lines) if name.strip() == key]


def cpu() -> dict[str, Any]:
    """The CPU's name, number of cores, and vector and matrix instructions."""
    flags = cpu_flags()
    vectors = [word for flag, word in _VECTORS.items() if flag in flags]
    models = _cpuinfo("model name")
    return {
        "cpu": models[0] if models else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "vectors": vectors or [torch.backends.cpu.get_cpu_capability()],
    }


def machine() -> dict[str, Any]:
    """Everything about this machine that decides speed."""
    return cpu() | {
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "threads": torch.get_num_threads(),
        "GOMP_SPINCOUNT": os.environ["GOMP_SPINCOUNT"],
        "torch": torch.__version__,
        "python": platform.python_version(),
        "compiler": _compiler(),
        "system": platform.platform(),
    }


def _compiler() -> str:
    try:
        command = [*compiler.find_compiler(), "--version"]
        lines = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.splitlines()
        return lines[0]
    except (loading.KernelError, OSError, IndexError, subprocess.SubprocessError) as error:
        return f"none ({error})"
