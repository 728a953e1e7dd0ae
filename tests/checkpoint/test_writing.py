"""What is saved comes back; a failed write changes nothing."""

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from charlm.checkpoint import read_checkpoint, save_checkpoint
from charlm.data.vocabulary import Vocabulary
from charlm.errors import CheckpointError, RunError
from charlm.inference.trained import load_model
from charlm.model import build_model, load_weights
from charlm.runs import BEST, LAST
from tests.checkpoint.conftest import CONFIG, CPU, VOCABULARY, bits, later, names


def test_everything_comes_back(checkpoint, tmp_path):
    plain = replace(checkpoint, averaged={}, optimizer={}, carried={})
    for before in (checkpoint, plain, replace(plain, vocabulary=Vocabulary("byte"))):
        save_checkpoint(before, tmp_path / LAST)
        after = read_checkpoint(tmp_path / LAST)
        assert (after.config, after.vocabulary, after.progress) == (before.config, before.vocabulary, before.progress)
        for group in ("weights", "averaged", "optimizer", "carried"):
            assert getattr(after, group).keys() == getattr(before, group).keys()
            for name, tensor in getattr(before, group).items():
                found = getattr(after, group)[name]
                assert (found.dtype, found.shape, bits(found)) == (tensor.dtype, tensor.shape, bits(tensor)), name


@pytest.mark.parametrize("embedding", [3, 2])
def test_tied_weights_are_stored_once(checkpoint, tmp_path, embedding):
    model_config = CONFIG.model.model_copy(update={"embedding": embedding, "tie_embeddings": True})
    model = build_model(model_config, len(VOCABULARY))
    config = CONFIG.model_copy(update={"model": model_config})
    tied = replace(checkpoint, config=config, weights=dict(model.named_parameters()), averaged={})
    save_checkpoint(tied, tmp_path / LAST)
    found = load_model(read_checkpoint(tmp_path / LAST), CPU)
    assert found.embedding.weight is found.decoder.weight
    assert all(map(torch.equal, found.parameters(), model.parameters()))


@pytest.mark.parametrize(
    "change",
    [
        {"decoder.bias": torch.zeros(5)},
        {"decoder.bias": None},
        {"more": torch.zeros(2, 2)},
        {"decoder.bias": torch.zeros(7, dtype=torch.float64)},
    ],
)
def test_weights_of_other_names_shapes_or_types_are_refused(checkpoint, change):
    model = build_model(CONFIG.model, len(VOCABULARY))
    before = {name: bits(weight) for name, weight in model.named_parameters()}
    weights = {name: tensor for name, tensor in {**checkpoint.weights, **change}.items() if tensor is not None}
    with pytest.raises(CheckpointError):
        load_weights(model, weights)
    assert {name: bits(weight) for name, weight in model.named_parameters()} == before


def test_permissions_are_those_of_any_new_file(checkpoint, tmp_path):
    before = os.umask(0o027)
    try:
        save_checkpoint(checkpoint, tmp_path / LAST)
    finally:
        os.umask(before)
    assert (tmp_path / LAST).stat().st_mode & 0o777 == 0o640


def test_further_names(checkpoint, saved):
    best, numbered = saved.with_name(BEST), saved.with_name("step-00000007.safetensors")
    save_checkpoint(checkpoint, saved, [best, numbered])
    assert best.read_bytes() == numbered.read_bytes() == saved.read_bytes()
    save_checkpoint(later(checkpoint, 8), saved)
    assert [read_checkpoint(path).progress["step"] for path in (best, numbered, saved)] == [7, 7, 8]
    save_checkpoint(later(checkpoint, 9), saved, [best])
    assert [read_checkpoint(path).progress["step"] for path in (best, numbered, saved)] == [9, 7, 9]
    assert names(saved.parent) == [BEST, LAST, numbered.name]


# Failed writes


def raising(error: BaseException):
    def raises(*_, **__):
        raise error

    return raises


@pytest.mark.parametrize(
    ("target", "name", "cause", "error"),
    [
        (os, "fsync", OSError(errno.ENOSPC, "No space left on device"), RunError),
        (Path, "replace", OSError(errno.EACCES, "Permission denied"), RunError),
        (os, "fsync", KeyboardInterrupt(), KeyboardInterrupt),
    ],
)
def test_a_write_that_fails_leaves_what_was_there(checkpoint, saved, monkeypatch, target, name, cause, error):
    save_checkpoint(checkpoint, saved, [saved.with_name(BEST)])
    before = {path: path.read_bytes() for path in saved.parent.iterdir()}
    monkeypatch.setattr(target, name, raising(cause))
    with pytest.raises(error):
        save_checkpoint(later(checkpoint, 8), saved, [saved.with_name(BEST)])
    assert {path: path.read_bytes() for path in saved.parent.iterdir()} == before


def test_a_disk_that_fills_between_two_names_leaves_both_whole(checkpoint, saved, monkeypatch):
    """`last` is the later one: a run killed between them resumes from the older file and writes both again."""
    save_checkpoint(checkpoint, saved, [saved.with_name(BEST)])
    rename = Path.replace

    def full_for_last(source, target):
        if target.name == LAST:
            raise OSError(errno.ENOSPC, "No space left on device")
        return rename(source, target)

    monkeypatch.setattr(Path, "replace", full_for_last)
    with pytest.raises(RunError):
        save_checkpoint(later(checkpoint, 8), saved, [saved.with_name(BEST)])
    assert [read_checkpoint(saved.with_name(name)).progress["step"] for name in (BEST, LAST)] == [8, 7]
    assert names(saved.parent) == [BEST, LAST]


def test_the_data_is_on_the_disk_before_it_gets_its_name(checkpoint, saved, monkeypatch):
    events: list[str] = []
    fsync, rename = os.fsync, Path.replace

    def noted_fsync(descriptor: int) -> None:
        events.append("flush folder" if os.path.isdir(f"/dev/fd/{descriptor}") else "flush file")  # noqa: PTH112
        fsync(descriptor)

    def noted_replace(path: Path, target: Path) -> Path:
        events.append("rename")
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(Path, "replace", noted_replace)
    save_checkpoint(checkpoint, saved, [saved.with_name(BEST)])
    assert events == ["flush file", "rename", "flush folder"] * 2


@pytest.mark.parametrize("path", ["file/last.safetensors", "removed/checkpoints/last.safetensors", "folder"])
def test_a_place_where_no_file_can_be_is_refused(checkpoint, tmp_path, path):
    """The folder of a run that the user has removed is not made anew."""
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "folder").mkdir()
    with pytest.raises(RunError):
        save_checkpoint(checkpoint, tmp_path / path)
    assert names(tmp_path) == ["file", "folder"]
