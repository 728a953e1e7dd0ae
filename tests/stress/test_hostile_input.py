"""Any input is used, or refused by an error of charlm's own, within bounds of time and memory.

scripts/stress fuzz feeds the same targets 100,000 inputs each.
"""

import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save

from charlm.api import load
from charlm.cells.program import Node, Parameter, Program
from charlm.cells.stored import _of_program
from charlm.checkpoint import FORMAT, VERSION, digest, read_checkpoint
from charlm.config import load_config
from charlm.errors import CharlmError
from tests.stress.fuzz import COMMANDS, NAMES
from tests.stress.targets import Targets, good_inputs, guarded
from tests.text import ESC, RTL

LIMIT_S = 10
LIMIT_MB = 150  # beyond what the process held before; an input of 10 MB counts


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory, trained_run: Path) -> Iterator[Targets]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", sys.argv)
        yield Targets(tmp_path_factory.mktemp("input"), trained_run / "checkpoints/last.safetensors")


ODD = [ESC, RTL, "\0", "\ud800", "\u200f", "\x9b", "\r", "\u2028", "\ufeff", "[" * 2000, '{"a":' * 500, "9" * 500]


def damaged(data: bytes, choose: random.Random) -> bytes:
    """A good input of which parts are cut, doubled or replaced by odd bytes."""
    for _ in range(choose.randint(1, 3)):
        at, to = sorted(choose.randrange(len(data) + 1) for _ in range(2))
        if choose.random() < 0.5:
            to = min(at + 1, len(data))
        odd = choose.choice(ODD).encode("utf-8", "surrogatepass")
        data = data[:at] + choose.choice([b"", odd, choose.randbytes(1), data[at:to] * 2]) + data[to:]
    return data


@pytest.mark.parametrize("name", NAMES)
def test_any_bytes_are_read_or_refused(name: str, targets: Targets) -> None:
    call, choose = guarded(getattr(targets, name)), random.Random(0)
    seeds = good_inputs(targets.checkpoint)[name]
    for data in [*seeds, *(damaged(choose.choice(seeds), choose) for _ in range(40))]:
        call(data)


def peak_mb() -> float:
    """The most memory this process has held since the last call; where that cannot be told, always 0."""
    try:
        status = Path("/proc/self/status").read_text()
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    except OSError:
        return 0
    return int(status.split("VmHWM:")[1].split()[0]) / 1e3


def bounded_refusal(read: Callable[[], object]) -> list[str]:
    """The lines of the error that `read` raises, within the bounds of time and memory."""
    peak_mb()
    before_mb = peak_mb()
    start_s = time.process_time()
    with pytest.raises(CharlmError) as refusal:
        read()
    assert time.process_time() - start_s < LIMIT_S
    assert peak_mb() - before_mb < LIMIT_MB
    return str(refusal.value).split("\n")


BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10)
)
CONFIGS = {
    "bomb": BOMB,
    "key of 10 MB": "k" * 10**7 + ": 1",
    "nested 100,000 deep": "[" * 100_000,
    "nested in lines": "\n".join(" " * n + "a:" for n in range(400)),
    "as many lists as can be": "[" + "[]," * 33_000 + "]",
    "as long a value as can be": "seed: " + "v" * 99_000,
    "escape": f"seed: {ESC}",
    "NUL and a lone surrogate, written out": r'seed: "\0\ud800"',
    "right-to-left marks": f"{RTL}: \u200f",
}


@pytest.mark.parametrize("name", CONFIGS)
def test_configs_made_to_hurt(tmp_path: Path, cli: Any, name: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(CONFIGS[name], encoding="utf-8")
    [line] = bounded_refusal(lambda: load_config(path))
    assert line.startswith(f"{path}: ")
    shown = cli("config", "show", path).error
    assert len(shown) <= 2010
    assert not COMMANDS.search(shown)


def test_more_faults_than_anyone_reads(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("\n".join(f"a{n}: 1" for n in range(9000)))
    lines = bounded_refusal(lambda: load_config(path))
    assert len(lines) == 101
    assert lines[100] == f"{path}: and 8900 more"


TENSOR_OF_4_TB = json.dumps({"x": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}).encode()


@pytest.mark.parametrize("length", [2**64 - 1, 2**62, len(TENSOR_OF_4_TB)])
def test_a_checkpoint_that_promises_more_than_it_holds(tmp_path: Path, length: int) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(length.to_bytes(8, "little") + TENSOR_OF_4_TB)
    [line] = bounded_refusal(lambda: read_checkpoint(path))
    assert line.startswith(f"{path}: damaged, or not a checkpoint (")


@pytest.mark.parametrize(
    ("header", "text"),
    [
        ("[" * 10**6, "maximum recursion depth"),
        (json.dumps({"k" * 10**7: 1}), "unknown key; allowed: data, model, "),
        ("{}\n\n" + json.dumps({"level": "char", "characters": "x" * 10**7}), "vocabulary: not a list of distinct"),
        ('{}\n\n{"level": "char", "characters": "ab"}\n\n\0', "Expecting value"),
    ],
    ids=["nested", "key", "vocabulary", "progress"],
)
def test_headers_made_to_hurt(targets: Targets, header: str, text: str) -> None:
    [line] = bounded_refusal(lambda: targets.header(header.encode()))
    assert text in line


# Small checkpoints with a right hash whose config, cell or sizes ask for time or memory without end.


def own_cell(states: int = 1, names: int = 0, parameters: int = 0, operations: int = 0, name: str = "w") -> str:
    """The stored programs of a cell: h + w for every state h, and as much else as is asked for."""
    nodes = [Node("state", name=f"h{k}") for k in range(states)]
    declared = [Parameter(name, starts=(None,)), *(Parameter(f"p{k}", starts=(None,)) for k in range(parameters))]
    nodes += [Node("vector", name=each.name) for each in declared]
    results = range(len(nodes), len(nodes) + states)
    nodes += [Node("add", (k, states)) for k in range(states)]
    nodes += [Node("tanh", (len(nodes) - 1 + k,)) for k in range(operations)]
    gates = tuple((f"g{k}", 0) for k in range(names))
    program = _of_program(Program(tuple(nodes), (), tuple(results), tuple(declared), (), gates))
    stored = {"states": [f"h{k}" for k in range(states)], "internal": [], "initial": [], "programs": [None, program]}
    return json.dumps(stored)


def weights_of(hidden: int, layers: int = 1) -> dict[str, torch.Tensor]:
    """The weights of a model of the smallest vocabulary, whose layers have a vector `w` alone."""
    shapes = {"embedding.weight": (2, hidden), "decoder.weight": (2, hidden), "decoder.bias": (2,)}
    shapes |= {f"layers.w_l{layer}": (hidden,) for layer in range(layers)}
    return {f"weights/{name}": torch.zeros(shape) for name, shape in shapes.items()}


def model_of(kind: str = "/somewhere/mine.py:Mine", hidden: int = 4, layers: int = 1, **options: Any) -> dict[str, Any]:
    return {"cell": {"kind": kind, "hidden": hidden, **options}, "embedding": hidden, "layers": layers}


FORGED: dict[str, tuple[dict[str, Any], str, dict[str, torch.Tensor], str]] = {
    "rounds": (model_of("mogrifier", rounds=10**9), "", {}, "≤ 100)"),
    "units": ({"cell": {"kind": "lstm", "hidden": 10**12}}, "", {}, "≤ 1,048,576)"),
    "layers": ({"layers": 10**9}, "", {}, "≤ 100)"),
    "members": ({"members": 10**9}, "", {}, "≤ 100)"),
    "embedding": ({"embedding": 10**12}, "", {}, "≤ 1,048,576)"),
    "more units than in the file": (model_of("lstm", 10**6), "", weights_of(4), "weights: found 22 "),
    "layers without tensors": (
        model_of(hidden=1, layers=100),
        own_cell(),
        {"weights/one": torch.zeros(106)},
        "weights: found 106 in 1 tensors",
    ),
    "states × layers × units": (
        model_of(hidden=20_000, layers=60),
        own_cell(states=64),
        weights_of(20_000, layers=60),
        "numbers per stream; allowed: ",
    ),
    "states": (model_of(), own_cell(states=65), {}, "found 65 states; allowed: 1 to 64"),
    "gates": (model_of(), own_cell(names=60_000), {}, "found 60000 names of gates and values; allowed: up to 4000"),
    "parameters": (model_of(), own_cell(parameters=10_000), {}, "found 10001 parameters; allowed: "),
    "operations": (model_of(), own_cell(operations=60_000), {}, "found 60003 operations; allowed: "),
    "a long name": (model_of(), own_cell(name="w" * 10**6), {}, "found a parameter 'wwww"),
    "a long option": (model_of(**{"o" * 10**6: 1}), own_cell(), {}, "found an option 'oooo"),
}


@pytest.mark.parametrize("name", FORGED)
def test_forged_checkpoints(tmp_path: Path, name: str) -> None:
    model, cell, tensors, text = FORGED[name]
    header = {"format": FORMAT, "version": str(VERSION), "config": json.dumps({"model": model}), "progress": "{}"}
    header |= {"vocabulary": json.dumps({"level": "char", "characters": "ab"}), "cell": cell}
    header["sha256"] = digest(header, tensors)
    path = tmp_path / "x.safetensors"
    path.write_bytes(save(tensors, header))
    [line] = bounded_refusal(lambda: load(path, "cpu"))
    assert text in line
    assert len(line) < 1000
