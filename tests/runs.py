"""What two runs are compared by."""

import json
from pathlib import Path
from typing import Any

import torch

from charlm.checkpoint import read_checkpoint

TIMES = {"elapsed_s", "chars_per_s"}


def rows(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def untimed(run: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k not in TIMES} for row in rows(run)]


def assert_same_checkpoint(one: Path, other: Path) -> None:
    a, b = read_checkpoint(one), read_checkpoint(other)
    for group in ("weights", "averaged", "optimizer", "carried"):
        ours, theirs = getattr(a, group), getattr(b, group)
        assert ours.keys() == theirs.keys()
        for name in ours:
            assert torch.equal(ours[name], theirs[name]), f"{group} {name}"
    assert {k: v for k, v in a.progress.items() if not k.endswith("_s")} == {
        k: v for k, v in b.progress.items() if not k.endswith("_s")
    }
