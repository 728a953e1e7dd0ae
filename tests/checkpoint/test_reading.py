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

import charlm
from charlm import checkpoint as module
from charlm.checkpoint import read_checkpoint, save_checkpoint
from charlm.errors import CheckpointError
from charlm.runs import BEST, FOLDER, LAST, find_checkpoint

OWN_CELL = '{"model": {"cell": {"kind": "/tmp/mine.py:Mine", "hidden": 4}}}'


def refusal(path: Path) -> str:
    with pytest.raises(CheckpointError) as error:
        read_checkpoint(path)
    text = str(error.value)
    assert "\n" not in text
    assert text.startswith(f"{path}: ")
    return text.removeprefix(f"{path}: ")


def test_a_missing_file_or_folder(tmp_path):
    for path in (tmp_path / "no.safetensors", tmp_path):
        assert refusal(path) == "no such file; allowed: a run's folder or a checkpoint in its checkpoints/"


def test_a_file_of_another_length_or_size(saved):
    content = saved.read_bytes()
    lengths = [*range(0, 40), *range(40, len(content), 97), len(content) - 1]
    claims = [size.to_bytes(8, "little") + content[8:] for size in (2**40, 2**63, 2**64 - 1)]
    header = {"__metadata__": {"format": module.FORMAT, "version": str(module.VERSION)}}
    for size in (2**42, 2**62):
        header["weights/a"] = {"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size]}
        text = json.dumps(header).encode()
        claims.append(len(text).to_bytes(8, "little") + text + bytes(100))
    for damaged in (*(content[:length] for length in lengths), content + b"\0", *claims):
        saved.write_bytes(damaged)
        text = refusal(saved)
        assert text.startswith("damaged, or not a checkpoint ("), len(damaged)
        assert text.endswith("; use another one of the run")


def test_any_flipped_bit(saved):
    content = saved.read_bytes()
    data = 8 + int.from_bytes(content[:8], "little")
    assert len(content) - data > 5000, "the random state alone has 5056 bytes"
    for position in [*range(0, data, 5), *range(data, len(content), 41), len(content) - 1]:
        damaged = bytearray(content)
        damaged[position] ^= 1 << position % 8
        saved.write_bytes(damaged)
        text = refusal(saved)
        if position >= data:
            assert text == ALTERED


ALTERED = "altered or damaged: its content hash does not match; use another one"


def test_an_altered_header_or_one_without_a_hash(saved):
    content = saved.read_bytes()
    for old, new in ((b'\\"seed\\": 1', b'\\"seed\\": 2'), (b'\\"step\\": 7', b'\\"step\\": 8')):
        assert content.count(old) == 1
        saved.write_bytes(content.replace(old, new))
        assert refusal(saved) == ALTERED
    save_file({"weights/a": torch.zeros(1)}, saved, {"format": module.FORMAT, "version": str(module.VERSION)})
    assert refusal(saved) == ALTERED


def test_a_pickle_is_not_run(tmp_path):
    marker, path = tmp_path / "run by the pickle", tmp_path / LAST

    class Malice:
        def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
            return os.mkdir, (str(marker),)

    path.write_bytes(pickle.dumps(Malice()))
    assert refusal(path).startswith("damaged, or not a checkpoint (")
    torch.save({"weights": Malice()}, path)
    assert refusal(path).startswith("damaged, or not a checkpoint (")
    assert not marker.exists()
    pickle.loads(pickle.dumps(Malice()))
    assert marker.is_dir(), "the malice of this test works"


@pytest.mark.parametrize(
    ("header", "text"),
    [
        *[
            (header, "a safetensors file, but not a charlm checkpoint; allowed: a checkpoint that charlm wrote")
            for header in (None, {"format": "pt"})
        ],
        (
            {"format": module.FORMAT, "version": "99", "charlm": "9.1"},
            f"found format version 99, of charlm 9.1; allowed: version {module.VERSION}, of charlm "
            f"{charlm.__version__}; use the charlm that wrote it, or train anew",
        ),
    ],
)
def test_a_file_of_something_else(tmp_path, header, text):
    save_file({"weights/decoder.weight": torch.zeros(3)}, tmp_path / LAST, header)
    assert refusal(tmp_path / LAST) == text


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        ({"config": None}, "'config'"),
        ({"vocabulary": None}, "'vocabulary'"),
        ({"progress": None}, "'progress'"),
        ({"config": "{"}, "Expecting property name"),
        ({"progress": "step 7"}, "Expecting value"),
        ({"progress": "[7]"}, "progress: found list; allowed: a table"),
        ({"progress": '{"step": 7.0}'}, "progress: step: found float"),
        ({"progress": '{"best_nats": "low"}'}, "progress: best_nats: found str"),
        ({"progress": '{"elapsed_s": NaN}'}, "progress: elapsed_s: found nan; allowed: 0 or more, below 2^63"),
        ({"progress": '{"best_nats": -1e999}'}, "progress: best_nats: found -inf; allowed: 0 or more"),
        ({"progress": f'{{"step": {10**400}}}'}, "progress: step: found 1000000000"),
        ({"vocabulary": "abc"}, "Expecting value"),
        ({"config": "[" * 100_000}, "maximum recursion depth"),
        ({"config": '{"model": {"cell": {"kind": "rhn", "dept": 3}}}'}, "config: model.cell.dept: unknown key"),
        ({"config": OWN_CELL}, "the programs of Mine: the JSON: found ''; Invalid JSON"),
        ({"config": OWN_CELL, "cell": "{"}, "the programs of Mine: the JSON: found '{'; Invalid JSON"),
        ({"config": OWN_CELL, "cell": "[" * 100_000}, "Invalid JSON: recursion limit exceeded"),
        (
            {"config": OWN_CELL, "cell": '{"states": ["h"]}'},
            "the programs of Mine: internal: found nothing; Field required",
        ),
        ({"vocabulary": '{"level": "char", "characters": "aa"}'}, "not a list of distinct characters"),
        ({"vocabulary": '{"level": "char", "characters": ""}'}, "not a list of distinct characters"),
        ({"vocabulary": '["a"]'}, "not a list of distinct characters"),
    ],
)
def test_a_right_hash_of_a_wrong_header(tmp_path, entry, text):
    header = {
        "format": module.FORMAT,
        "version": str(module.VERSION),
        "config": "{}",
        "vocabulary": "{}",
        "progress": "{}",
    } | {"vocabulary": '{"level": "byte", "characters": ""}'}
    tensors = {"weights/a": torch.zeros(1)}
    path = tmp_path / "c.safetensors"

    def write(fields: dict[str, str]) -> None:
        save_file(tensors, path, fields | {"sha256": module.digest(fields, tensors)})

    write(header)
    read_checkpoint(path)
    write({key: value for key, value in (header | entry).items() if value is not None})
    assert refusal(path).startswith("no readable config, vocabulary or progress in it (")
    assert text in refusal(path)


@pytest.mark.parametrize("group", ["weights", "averaged", "optimizer", "carried"])
@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_a_right_hash_of_numbers_that_are_not_finite(checkpoint, tmp_path, group, number):
    tensor = torch.randn(70, dtype=torch.float64 if group == "carried" else torch.float32)
    tensor[33] = number
    save_checkpoint(replace(checkpoint, **{group: {**getattr(checkpoint, group), "x": tensor}}), tmp_path / LAST)
    found = refusal(tmp_path / LAST)
    assert found == f"{group}/x holds numbers that are not finite; use another one of the run"


def test_a_run_gives_its_best_checkpoint_then_its_last(tmp_path):
    folder = tmp_path / FOLDER
    with pytest.raises(CheckpointError) as error:
        find_checkpoint(tmp_path)
    assert str(error.value) == (f"{tmp_path}: no checkpoint in {folder}; allowed: the folder of a run, or a checkpoint")
    folder.mkdir()
    (folder / LAST).touch()
    assert find_checkpoint(tmp_path) == folder / LAST
    (folder / BEST).touch()
    assert find_checkpoint(tmp_path) == folder / BEST
    assert find_checkpoint(folder) == folder / BEST
    (tmp_path / "any name").touch()
    assert find_checkpoint(tmp_path / "any name") == tmp_path / "any name"
