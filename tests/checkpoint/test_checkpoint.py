"""What is saved comes back; a failed write changes nothing; only a whole checkpoint is read."""

import errno
import os
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from charlm import checkpoint as module
from charlm.checkpoint import Checkpoint, newest_whole, read_checkpoint, save_checkpoint
from charlm.config import parse_config
from charlm.data.vocabulary import Vocabulary
from charlm.errors import CheckpointError, DamagedCheckpointError, RunError
from charlm.model import build_model
from charlm.runs import BEST, FOLDER, LAST, find_checkpoint

CONFIG = parse_config(
    {"model": {"cell": {"kind": "gru", "hidden": 3}, "embedding": 2}, "optimizer": {"name": "adam", "lr": 1e-7}}, "test"
)
VOCABULARY = Vocabulary("char", "\0\n aé😀😁")


@pytest.fixture
def checkpoint() -> Checkpoint:
    torch.manual_seed(0)
    weights = dict(build_model(CONFIG.model, len(VOCABULARY)).named_parameters())
    return Checkpoint(
        config=CONFIG,
        vocabulary=VOCABULARY,
        weights=weights,
        progress={"step": 7, "best_nats": 0.1 + 0.2, "corpus_sha256": "é", "valid_nats": None, "list": [1, 2.0]},
        averaged={name: weight.detach() / 2 for name, weight in weights.items()},
        optimizer={"step/decoder.bias": torch.tensor(7.0), "empty": torch.zeros(0, 3)},
        carried={
            "sums": torch.tensor([0.1, 1e300], dtype=torch.float64),
            "rng.cpu": torch.get_rng_state(),
            "bf16": torch.tensor([1.5, -0.0], dtype=torch.bfloat16),
            "transposed": torch.arange(6).reshape(2, 3).T,
        },
    )


@pytest.fixture
def saved(checkpoint: Checkpoint, tmp_path: Path) -> Path:
    path = tmp_path / FOLDER / LAST
    save_checkpoint(checkpoint, path)
    return path


def later(checkpoint: Checkpoint, step: int) -> Checkpoint:
    return replace(checkpoint, progress={"step": step})


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


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


def test_permissions_are_those_of_any_new_file(checkpoint, tmp_path):
    before = os.umask(0o027)
    try:
        save_checkpoint(checkpoint, tmp_path / LAST)
    finally:
        os.umask(before)
    assert (tmp_path / LAST).stat().st_mode & 0o777 == 0o640


@dataclass
class Disk:
    """Notes the flushes and renames of files, and raises the errors of those that are to fail."""

    events: list[str] = field(default_factory=list)
    errors: dict[str, BaseException] = field(default_factory=dict)

    def note(self, event: str) -> None:
        self.events.append(event)
        if event in self.errors:
            raise self.errors[event]


@pytest.fixture
def disk(monkeypatch) -> Disk:
    disk, fsync, rename = Disk(), os.fsync, Path.replace

    def noted_fsync(descriptor: int) -> None:
        disk.note("flush folder" if os.path.isdir(f"/dev/fd/{descriptor}") else "flush file")  # noqa: PTH112
        fsync(descriptor)

    def noted_rename(path: Path, target: Path) -> Path:
        disk.note(f"rename to {target.stem}")
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(Path, "replace", noted_rename)
    return disk


FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    ("event", "cause", "error", "steps"),
    [
        ("flush file", FULL, RunError, [7, 7]),
        ("flush file", KeyboardInterrupt(), KeyboardInterrupt, [7, 7]),
        ("rename to best", FULL, RunError, [7, 7]),
        # A run killed between two names resumes from the older file and writes both again.
        ("rename to last", FULL, RunError, [8, 7]),
    ],
)
def test_a_write_that_fails_leaves_whole_files(checkpoint, saved, disk, event, cause, error, steps):
    save_checkpoint(checkpoint, saved, [saved.with_name(BEST)])
    disk.errors[event] = cause
    with pytest.raises(error):
        save_checkpoint(later(checkpoint, 8), saved, [saved.with_name(BEST)])
    assert [read_checkpoint(saved.with_name(name)).progress["step"] for name in (BEST, LAST)] == steps
    assert names(saved.parent) == [BEST, LAST]


def test_the_data_is_on_the_disk_before_it_gets_its_name(checkpoint, saved, disk):
    save_checkpoint(checkpoint, saved, [saved.with_name(BEST)])
    best, last = (["flush file", f"rename to {name}", "flush folder"] for name in ("best", "last"))
    assert disk.events == [*best, *last]


def test_a_header_that_would_not_be_read_is_not_written(checkpoint, saved, monkeypatch):
    monkeypatch.setattr(module, "HEADER_BYTES", 1000)
    with pytest.raises(RunError, match=r": found a header of [\d,]+ bytes; allowed: 1,000; "):
        save_checkpoint(later(checkpoint, 8), saved)
    monkeypatch.undo()
    assert read_checkpoint(saved).progress["step"] == 7


# Files that are no whole checkpoint


FORMAT = {"format": module.FORMAT, "version": str(module.VERSION)}


def assert_refused(path: Path) -> None:
    with pytest.raises(CheckpointError) as error:
        read_checkpoint(path)
    assert str(error.value).startswith(f"{path}: ")
    assert "\n" not in str(error.value)


def test_any_flipped_bit(saved):
    content = saved.read_bytes()
    data = 8 + int.from_bytes(content[:8], "little")
    assert len(content) - data > 5000, "the random state alone has 5056 bytes"
    for position in [*range(0, data, 5), *range(data, len(content), 41), len(content) - 1]:
        damaged = bytearray(content)
        damaged[position] ^= 1 << position % 8
        saved.write_bytes(damaged)
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


def test_a_checkpoint_larger_than_the_free_memory_is_not_called_damaged(saved, monkeypatch):
    monkeypatch.setattr(module, "free_bytes", lambda: 0)
    with pytest.raises(CheckpointError, match="more than 0 of free memory") as caught:
        read_checkpoint(saved)
    assert not isinstance(caught.value, DamagedCheckpointError)


@pytest.mark.parametrize("header", [None, {"format": "pt"}, FORMAT, FORMAT | {"version": "99"}])
def test_a_file_of_another_program_or_version_or_without_a_hash(tmp_path, header):
    save_file({"weights/decoder.weight": torch.zeros(3)}, tmp_path / LAST, header)
    assert_refused(tmp_path / LAST)


@pytest.mark.parametrize("progress", [{"step": 7.0}, {"step": 10**400}])
def test_progress_of_another_type_or_size(checkpoint, tmp_path, progress):
    save_checkpoint(replace(checkpoint, progress=progress), tmp_path / LAST)
    assert_refused(tmp_path / LAST)


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
