"""Inputs made to take time or memory are refused within bounds of both."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save

from charlm.api import load
from charlm.cells.program import Node, Parameter, Program
from charlm.cells.stored import _of_program
from charlm.checkpoint import FORMAT, VERSION, digest
from charlm.config import load_config, parse_config
from charlm.errors import CharlmError
from tests.stress.fuzz import COMMANDS
from tests.text import BYTE, ESC, RTL

LIMIT_S = 10
LIMIT_MB = 150  # beyond what the process held before; an input of 10 MB counts


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
    start_s = time.perf_counter()
    with pytest.raises(CharlmError) as refusal:
        read()
    assert time.perf_counter() - start_s < LIMIT_S
    assert peak_mb() - before_mb < LIMIT_MB
    return str(refusal.value).split("\n")


BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10)
)
TOO_LONG = " bytes, more than 100,000; allowed: a YAML file, or a name from `charlm config list`"
TOO_DEEP = "nested too deeply; allowed: the sections of `charlm config schema`"
ALIAS = "found an alias (*name); write the value out; allowed: plain YAML"
HORRORS = {
    "bomb": (BOMB, f"line 2, column 10: {ALIAS}"),
    "key of 10 MB": ("k" * 10**7 + ": 1", TOO_LONG),
    "quoted scalar of 10 MB": ('seed: "' + "v" * 10**7 + '"', TOO_LONG),
    "nested 100,000 deep": ("[" * 100_000, TOO_DEEP),
    "nested 90,000 deep, in a section": ("a: " + "{b: " * 22_000, TOO_DEEP),
    "nested in lines": ("\n".join(" " * n + "a:" for n in range(400)), TOO_DEEP),
    "as many lists as can be": ("[" + "[]," * 33_000 + "]", "found list; allowed: sections such as data:, model:"),
    "as long a key as can be": ("? " + "k" * 99_000 + "\n: 1", "unknown key; allowed: data, model, "),
    "as long a value as can be": ("seed: " + "v" * 99_000, "seed: found "),
    "NUL": ("seed: \0", "unacceptable character #x0000: special characters are not allowed in "),
    "escape": (f"seed: {ESC}", "unacceptable character #x001b: "),
    "C1": ("seed: \x9b", "unacceptable character #x009b: "),
    "NUL, written out": (r'seed: "\0"', r'seed: found "\u0000"; allowed: '),
    "a lone surrogate, written out": (r'seed: "\ud800"', "seed: found "),
    "right-to-left marks": (f"{RTL}: \u200f", "\u202e: unknown key; "),
}


@pytest.mark.parametrize("name", HORRORS)
def test_yaml_horrors(tmp_path, cli, name):
    text, told = HORRORS[name]
    path = tmp_path / "c.yaml"
    path.write_text(text, encoding="utf-8")
    [line] = bounded_refusal(lambda: load_config(path))
    assert line.startswith(f"{path}: ")
    assert told in line
    shown = cli("config", "show", path).error
    assert len(shown) <= 2010
    assert not COMMANDS.search(shown)


def test_more_faults_than_anyone_reads(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("\n".join(f"a{n}: 1" for n in range(9000)))
    lines = bounded_refusal(lambda: load_config(path))
    assert len(lines) == 101
    assert lines[99].startswith(f"{path}: a99: unknown key; allowed: data, ")
    assert lines[100] == f"{path}: and 8900 more"


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("a." * 40_000 + "b=1", "found no KEY=VALUE; allowed: for example --set train.max_steps=500"),
        ("seed=" + "[" * 99_000, TOO_DEEP),
        ("seed=[&a [1], *a]", f"column 10: {ALIAS}"),
        ("seed=\0", "unacceptable character #x0000: "),
        (f"seed={BYTE}", "unacceptable character #xdcff: "),
        ("seed=\u200f1", "seed: found "),
    ],
    ids=lambda text: repr(text[:20]),
)
def test_override_horrors(override, told):
    [line] = bounded_refusal(lambda: parse_config({}, "x", [override]))
    assert told in line
    assert line.startswith("--set ")


@pytest.mark.parametrize(
    ("words", "length"), [(["--prompt", "\x1b" + "x" * 100_000], 500), (["--stop", "\x1b" + "x" * 5000], 500)]
)
def test_long_words_make_no_long_errors(cli, trained_run, words, length):
    error = cli("sample", trained_run, *words).error
    assert len(error) <= length
    assert error.startswith(words[0])
    assert "; allowed: " in error


TENSOR_OF_4_TB = json.dumps({"x": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}).encode()


@pytest.mark.parametrize("length", [2**64 - 1, 2**62, len(TENSOR_OF_4_TB)])
def test_checkpoint_that_promises_more_than_it_holds(tmp_path, length):
    from charlm.checkpoint import read_checkpoint

    path = tmp_path / "x.safetensors"
    path.write_bytes(length.to_bytes(8, "little") + TENSOR_OF_4_TB)
    [line] = bounded_refusal(lambda: read_checkpoint(path))
    assert line.startswith(f"{path}: damaged, or not a checkpoint (")


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        (["[" * 10**6], "maximum recursion depth"),
        ([json.dumps({"k" * 10**7: 1})], "unknown key; allowed: data, model, "),
        (['{"a": 1, "b": 2}'], "config: a: unknown key; allowed: data, "),
        (["{}", json.dumps({"level": "char", "characters": "x" * 10**7})], "vocabulary: not a list of distinct"),
        (["{}", '{"level": "char", "characters": ""}'], "vocabulary: not a list of distinct characters"),
        (["{}", '{"level": "char", "characters": "ab"}', "\0"], "Expecting value"),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_header_horrors(targets, parts, told):
    [line] = bounded_refusal(lambda: targets.header("\n\n".join(parts).encode()))
    assert told in line


# Small checkpoints with a right hash whose config, cell or sizes ask for time or memory without end.


def own_cell(
    states: int = 1, names: int = 0, parameters: int = 0, operations: int = 0, size: Any = "H", name: str = "w"
) -> str:
    """The stored programs of a cell: h + w for every state h, and as much else as is asked for."""
    nodes = [Node("state", name=f"h{k}") for k in range(states)]
    declared = [Parameter(name, starts=(None,)), *(Parameter(f"p{k}", starts=(None,)) for k in range(parameters))]
    nodes += [Node("vector", name=each.name) for each in declared]
    results = []
    for k in range(states):
        nodes.append(Node("add", (k, states)))
        results.append(len(nodes) - 1)
    if size != "H":
        declared.append(Parameter("wide", size=size, starts=(None,)))
        nodes.append(Node("vector", size=size, name="wide"))
    nodes += [Node("tanh", (len(nodes) - 1 + k,), size=size) for k in range(operations)]
    program = _of_program(Program(tuple(nodes), (), tuple(results), tuple(declared), (), gates_of(names)))
    states_ = [f"h{k}" for k in range(states)]
    return json.dumps({"states": states_, "internal": [], "initial": [], "programs": [None, program]})


def gates_of(number: int) -> tuple[tuple[str, int], ...]:
    return tuple((f"g{k}", 0) for k in range(number))


def weights_of(hidden: int, layers: int = 1, **others: int) -> dict[str, torch.Tensor]:
    """The weights of a model of the smallest vocabulary, with these vectors besides `w`."""
    shapes = {"embedding.weight": (2, hidden), "decoder.weight": (2, hidden), "decoder.bias": (2,)}
    for layer in range(layers):
        shapes |= {f"layers.{name}_l{layer}": (units,) for name, units in {"w": hidden, **others}.items()}
    return {f"weights/{name}": torch.zeros(shape) for name, shape in shapes.items()}


OWN = {"kind": "/somewhere/mine.py:Mine"}
UNITS = 20_000
FORGED: dict[str, tuple[dict[str, Any], str, dict[str, torch.Tensor], str]] = {
    "rounds": ({"cell": {"kind": "mogrifier", "rounds": 10**9}}, "", {}, "≤ 100)"),
    "depth": ({"cell": {"kind": "rhn", "depth": 10**9}}, "", {}, "≤ 100)"),
    "rank": ({"cell": {"kind": "mogrifier", "rank": 10**12}}, "", {}, "≤ 10,000)"),
    "units": ({"cell": {"kind": "lstm", "hidden": 10**12}}, "", {}, "≤ 1,048,576)"),
    "layers": ({"layers": 10**9}, "", {}, "≤ 100)"),
    "members": ({"members": 10**9}, "", {}, "≤ 100)"),
    "embedding": ({"embedding": 10**12}, "", {}, "≤ 1,048,576)"),
    "more units than in the file": (
        {"cell": {"kind": "lstm", "hidden": 10**6}},
        "",
        weights_of(4),
        "weights: found 22 ",
    ),
    "more layers than tensors": (
        {"cell": {**OWN, "hidden": 1}, "embedding": 1, "layers": 100},
        own_cell(),
        {"weights/one": torch.zeros(106)},
        "weights: found 106 in 1 tensors; the model has 106 in at least 100; use a checkpoint of its config",
    ),
    "states × layers × units": (
        {"cell": {**OWN, "hidden": UNITS}, "embedding": UNITS, "layers": 60},
        own_cell(states=64),
        weights_of(UNITS, layers=60),
        "numbers that a step computes of each stream; allowed: ",
    ),
    "many wide values": (
        {"cell": {**OWN, "hidden": 4}, "embedding": 4},
        own_cell(operations=19_000, size=100_000),
        weights_of(4, wide=100_000),
        "numbers that a step computes of each stream; allowed: ",
    ),
    "states": ({"cell": {**OWN, "hidden": 4}}, own_cell(states=65), {}, "found 65 states; allowed: 1 to 64"),
    "gates": (
        {"cell": {**OWN, "hidden": 4}},
        own_cell(names=60_000),
        {},
        "found 60000 names of gates and values; allowed: up to 4000",
    ),
    "parameters": (
        {"cell": {**OWN, "hidden": 4}},
        own_cell(parameters=10_000),
        {},
        "found 10001 parameters; allowed: ",
    ),
    "operations": (
        {"cell": {**OWN, "hidden": 4}},
        own_cell(operations=60_000),
        {},
        "found 60003 operations; allowed: ",
    ),
    "a long name": ({"cell": {**OWN, "hidden": 4}}, own_cell(name="w" * 10**6), {}, "found a parameter 'wwww"),
    "a long option": ({"cell": {**OWN, "hidden": 4, "o" * 10**6: 1}}, own_cell(), {}, "found an option 'oooo"),
}


@pytest.mark.parametrize("name", FORGED)
def test_forged_checkpoints(tmp_path, name):
    model, cell, tensors, told = FORGED[name]
    header = {"format": FORMAT, "version": str(VERSION), "config": json.dumps({"model": model}), "progress": "{}"}
    header |= {"vocabulary": json.dumps({"level": "char", "characters": "ab"}), "cell": cell}
    header["sha256"] = digest(header, tensors)
    path = tmp_path / "x.safetensors"
    path.write_bytes(save(tensors, header))
    [line] = bounded_refusal(lambda: load(path, "cpu"))
    assert told in line
    assert len(line) < 1000
