"""Any input is used, or refused by an error of charlm's own, within bounds of time and memory.

scripts/stress fuzz feeds the same targets 100,000 inputs each.
"""

import json
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from charlm.api import load
from charlm.cells import Cell
from charlm.cells.stored import as_json
from charlm.checkpoint import read_checkpoint
from charlm.config import load_config
from charlm.errors import CharlmError
from charlm.runs import HEADER_BYTES, read_header
from tests.stress.fuzz import COMMANDS, NAMES
from tests.stress.targets import GOOD_INPUTS, Targets, forged, guarded
from tests.text import ESC, RTL

LIMIT_S = 10
LIMIT_MB = 150  # beyond what the process held before; an input of 10 MB counts


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
def test_any_bytes_are_read_or_refused(name, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", sys.argv)
    call, choose = guarded(getattr(Targets(tmp_path), name)), random.Random(0)
    for data in [*GOOD_INPUTS[name], *(damaged(choose.choice(GOOD_INPUTS[name]), choose) for _ in range(40))]:
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


CONFIGS = {
    "nested 100,000 deep": "[" * 100_000,
    "as many lists as can be": "[" + "[]," * 33_000 + "]",
    "as long a value as can be": "seed: " + "v" * 99_000,
    "escapes": f'{RTL}: "{ESC}\\0\\ud800"',
}


@pytest.mark.parametrize("name", CONFIGS)
def test_configs_made_to_hurt(tmp_path, cli, name):
    path = tmp_path / "c.yaml"
    path.write_text(CONFIGS[name], encoding="utf-8")
    [line] = bounded_refusal(lambda: load_config(path))
    assert line.startswith(f"{path}: ")
    shown = cli("config", "show", path).error
    assert len(shown) <= 2010
    assert not COMMANDS.search(shown)


def test_more_faults_than_anyone_reads(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("\n".join(f"a{n}: 1" for n in range(9000)))
    lines = bounded_refusal(lambda: load_config(path))
    assert len(lines) == 101
    assert lines[100] == f"{path}: and 8900 more"


@pytest.mark.parametrize("value", ["[]", "{}", "1", "9" * 4000, "[" * 9999])
def test_headers_made_to_hurt(tmp_path, value):
    """As many values as a checkpoint's header may have, in place of a tensor's shape."""
    values = ",".join([value] * ((HEADER_BYTES - 100) // (len(value) + 1)))
    header = f'{{"a":{{"data_offsets":[0,0],"shape":[{values}]}}}}'.encode()
    assert HEADER_BYTES - 10**5 < len(header) < HEADER_BYTES
    path = tmp_path / "x.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    for read in (read_header, read_checkpoint):
        [line] = bounded_refusal(lambda read=read: read(path))
        assert len(line) < 1000


class Wide(Cell):
    """As many states as a cell may have, and few weights."""

    states: ClassVar = tuple(f"h{number}" for number in range(64))

    def step(self, p: Any, x: Any, *states: Any) -> Any:
        w = p.vector("w")
        return tuple(h + w for h in states)


WIDE: dict[str, Any] = {
    "cell": {"kind": "/somewhere/mine.py:Wide", "hidden": 20_000},
    "embedding": 20_000,
    "layers": 60,
}
# Config and tensors of a checkpoint, and a part of the error. The wide model has as many weights as it asks for.
FORGED: dict[str, tuple[dict[str, Any] | str, dict[str, torch.Tensor], str]] = {
    "units": ({"cell": {"kind": "lstm", "hidden": 10**6}}, {}, "weights: found 0 "),
    "states × layers × units": (
        WIDE,
        {f"weights/{name}": torch.zeros(20_000) for name in range(64)} | {"weights/bias": torch.zeros(2)},
        "numbers per stream; allowed: ",
    ),
    "a long option": ({"cell": WIDE["cell"] | {"o" * 10**6: 1}}, {}, "found an option 'oooo"),
    "nested": ("[" * 10**6, {}, "maximum recursion depth"),
}


@pytest.mark.parametrize("name", FORGED)
def test_checkpoints_with_a_right_hash_that_ask_for_time_or_memory_without_end(tmp_path, name):
    model, tensors, text = FORGED[name]
    config = model if isinstance(model, str) else json.dumps({"model": model})
    header = {"config": config, "vocabulary": '{"level": "char", "characters": "ab"}', "progress": "{}"}
    path = forged(tmp_path / "x.safetensors", header | {"cell": as_json(Wide(hidden=4))}, tensors)
    [line] = bounded_refusal(lambda: load(path, "cpu"))
    assert text in line
    assert len(line) < 1000
