"""Only a whole checkpoint is read; any other is refused in one line."""

import json
import os
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from charlm import checkpoint as module
from charlm.checkpoint import Checkpoint, newest_whole, read_checkpoint, save_checkpoint
from charlm.errors import CheckpointError, DamagedCheckpointError
from charlm.runs import BEST, FOLDER, LAST, find_checkpoint
from tests.checkpoint.conftest import later

OWN_CELL = '{"model": {"cell": {"kind": "/tmp/mine.py:Mine", "hidden": 4}}}'
FORMAT = {"format": module.FORMAT, "version": str(module.VERSION)}


def assert_refused(path: Path) -> None:
    with pytest.raises(CheckpointError) as error:
        read_checkpoint(path)
    assert str(error.value).startswith(f"{path}: ")
    assert "\n" not in str(error.value)


def test_a_file_of_another_length_or_size(saved):
    content = saved.read_bytes()
    lengths = [*range(0, 40, 3), *range(40, len(content), 297), len(content) - 1]
    claims = [size.to_bytes(8, "little") + content[8:] for size in (2**40, 2**63, 2**64 - 1)]
    for size in (2**42, 2**62):
        header = {
            "__metadata__": FORMAT,
            "weights/a": {"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size]},
        }
        text = json.dumps(header).encode()
        claims.append(len(text).to_bytes(8, "little") + text + bytes(100))
    for damaged in (*(content[:length] for length in lengths), content + b"\0", *claims):
        saved.write_bytes(damaged)
        assert_refused(saved)


def test_any_flipped_bit(saved):
    content = saved.read_bytes()
    data = 8 + int.from_bytes(content[:8], "little")
    assert len(content) - data > 5000, "the random state alone has 5056 bytes"
    for position in [*range(0, data, 5), *range(data, len(content), 41), len(content) - 1]:
        damaged = bytearray(content)
        damaged[position] ^= 1 << position % 8
        saved.write_bytes(damaged)
        assert_refused(saved)


def test_an_altered_header_or_one_without_a_hash(saved):
    content = saved.read_bytes()
    for old, new in ((b'\\"seed\\": 1', b'\\"seed\\": 2'), (b'\\"step\\": 7', b'\\"step\\": 8')):
        assert content.count(old) == 1
        saved.write_bytes(content.replace(old, new))
        assert_refused(saved)
    save_file({"weights/a": torch.zeros(1)}, saved, FORMAT)
    assert_refused(saved)


def test_a_pickle_is_not_run(tmp_path):
    marker, path = tmp_path / "run by the pickle", tmp_path / LAST

    class Malice:
        def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
            return os.mkdir, (str(marker),)

    path.write_bytes(pickle.dumps(Malice()))
    assert_refused(path)
    torch.save({"weights": Malice()}, path)
    assert_refused(path)
    assert not marker.exists()
    pickle.loads(pickle.dumps(Malice()))
    assert marker.is_dir(), "the malice of this test works"


@pytest.mark.parametrize("header", [None, {"format": "pt"}, FORMAT | {"version": "99", "charlm": "9.1"}])
def test_a_file_of_another_program_or_version(tmp_path, header):
    save_file({"weights/decoder.weight": torch.zeros(3)}, tmp_path / LAST, header)
    assert_refused(tmp_path / LAST)


@pytest.mark.parametrize(
    "entry",
    [
        {"config": None},
        {"config": "[" * 100_000},
        {"config": '{"model": {"cell": {"kind": "rhn", "dept": 3}}}'},
        {"config": OWN_CELL, "cell": "{"},
        {"config": OWN_CELL, "cell": "[" * 100_000},
        {"config": OWN_CELL, "cell": '{"states": ["h"]}'},
        {"progress": '{"step": 7.0}'},
        {"progress": '{"best_nats": "low"}'},
        {"progress": '{"elapsed_s": NaN}'},
        {"progress": '{"best_nats": -1e999}'},
        {"progress": f'{{"step": {10**400}}}'},
        {"vocabulary": '{"level": "char", "characters": "aa"}'},
        {"vocabulary": '{"level": "char", "characters": ""}'},
        {"vocabulary": '["a"]'},
    ],
    ids=lambda entry: str(entry)[:60],
)
def test_a_right_hash_of_a_wrong_header(tmp_path, entry):
    header = FORMAT | {"config": "{}", "vocabulary": '{"level": "byte", "characters": ""}', "progress": "{}"}
    tensors = {"weights/a": torch.zeros(1)}
    path = tmp_path / "c.safetensors"

    def write(fields: dict[str, str]) -> None:
        save_file(tensors, path, fields | {"sha256": module.digest(fields, tensors)})

    write(header)
    read_checkpoint(path)
    write({key: value for key, value in (header | entry).items() if value is not None})
    assert_refused(path)


@pytest.mark.parametrize(
    ("group", "number"),
    [("weights", torch.nan), ("averaged", torch.inf), ("optimizer", torch.nan), ("carried", -torch.inf)],
)
def test_a_right_hash_of_numbers_that_are_not_finite(checkpoint, tmp_path, group, number):
    tensor = torch.randn(70, dtype=torch.float64 if group == "carried" else torch.float32)
    tensor[33] = number
    save_checkpoint(replace(checkpoint, **{group: {**getattr(checkpoint, group), "x": tensor}}), tmp_path / LAST)
    assert_refused(tmp_path / LAST)


def test_a_run_gives_its_best_checkpoint_then_its_last(tmp_path):
    folder = tmp_path / FOLDER
    with pytest.raises(CheckpointError):
        find_checkpoint(tmp_path)
    folder.mkdir()
    (folder / LAST).touch()
    assert find_checkpoint(tmp_path) == folder / LAST
    (folder / BEST).touch()
    assert find_checkpoint(tmp_path) == find_checkpoint(folder) == folder / BEST
    (tmp_path / "any name").touch()
    assert find_checkpoint(tmp_path / "any name") == tmp_path / "any name"


def test_the_newest_whole_checkpoint_stands_in_for_a_damaged_one(checkpoint: Checkpoint, tmp_path):
    folder = tmp_path / FOLDER
    assert newest_whole(tmp_path) is None
    for step in (100, 300, 200, 400):
        save_checkpoint(later(checkpoint, step), folder / f"step-{step:08}.safetensors")
    newest = folder / "step-00000400.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1] + b"\x7f")
    with pytest.raises(DamagedCheckpointError):
        read_checkpoint(newest)
    for before_step, wanted in ((float("inf"), 300), (300, 200)):
        path, found = newest_whole(tmp_path, before_step)
        assert (path.name, found.progress["step"]) == (f"step-{wanted:08}.safetensors", wanted)
