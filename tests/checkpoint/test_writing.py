"""What is saved comes back; a failed write changes nothing."""

import errno
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from charlm import checkpoint as module
from charlm.checkpoint import Checkpoint, read_checkpoint, save_checkpoint
from charlm.config import parse_config
from charlm.data.vocabulary import Vocabulary
from charlm.errors import DamagedCheckpointError, RunError
from charlm.inference.trained import load_model
from charlm.model import build_model
from charlm.runs import BEST, FOLDER, LAST
from tests.checkpoint.conftest import CONFIG, CPU, VOCABULARY, bits, names


class TestRoundTrip:
    def test_everything_comes_back(self, checkpoint, saved):
        found = read_checkpoint(saved)
        assert found.config == checkpoint.config
        assert found.vocabulary == checkpoint.vocabulary
        assert found.progress == checkpoint.progress
        for group in ("weights", "averaged", "optimizer", "carried"):
            before, after = getattr(checkpoint, group), getattr(found, group)
            assert after.keys() == before.keys()
            for name, tensor in before.items():
                assert (after[name].dtype, after[name].shape) == (tensor.dtype, tensor.shape), name
                assert bits(after[name]) == bits(tensor), name

    def test_labels(self, checkpoint, tmp_path):
        lines = parse_config({"data": {"unit": "line", "label_separator": "\t"}}, "test")
        labels = {"é\n\udcff": 3, "": 1}
        for config, kept, fits in ((lines, labels, True), (lines, {}, False), (CONFIG, labels, False)):
            path = tmp_path / FOLDER / "labels.safetensors"
            save_checkpoint(replace(checkpoint, config=config, labels=kept), path)
            if fits:
                assert list(read_checkpoint(path).labels.items()) == list(labels.items())
            else:
                with pytest.raises(DamagedCheckpointError, match=r"labels: found \d, which do not fit data.label_sep"):
                    read_checkpoint(path)

    def test_bytes_vocabulary_and_empty_groups(self, checkpoint, tmp_path):
        path = tmp_path / "c.safetensors"
        plain = replace(checkpoint, vocabulary=Vocabulary.of_bytes(), averaged={}, optimizer={}, carried={})
        save_checkpoint(plain, path)
        found = read_checkpoint(path)
        assert (found.vocabulary, found.averaged, found.optimizer, found.carried) == (Vocabulary.of_bytes(), {}, {}, {})

    def test_model_has_the_averaged_weights_where_there_are_some(self, checkpoint, saved, tmp_path):
        model = load_model(read_checkpoint(saved), CPU)
        assert not model.training
        assert torch.equal(model.decoder.weight, checkpoint.averaged["decoder.weight"])
        save_checkpoint(replace(checkpoint, averaged={}), tmp_path / "plain")
        model = load_model(read_checkpoint(tmp_path / "plain"), CPU)
        assert torch.equal(model.decoder.weight, checkpoint.weights["decoder.weight"])

    def test_tied_weights_are_stored_once(self, checkpoint, tmp_path):
        model_config = CONFIG.model.model_copy(update={"embedding": 3, "tie_embeddings": True})
        config = CONFIG.model_copy(update={"model": model_config})
        model = build_model(model_config, len(VOCABULARY))
        tied = replace(checkpoint, config=config, weights=dict(model.named_parameters()), averaged={})
        save_checkpoint(tied, tmp_path / "tied")
        found = load_model(read_checkpoint(tmp_path / "tied"), CPU)
        assert found.embedding.weight is found.decoder.weight
        assert torch.equal(found.decoder.weight, model.decoder.weight)


def test_permissions_are_those_of_any_new_file(checkpoint, tmp_path, monkeypatch):
    """And the umask, which is that of all threads, is not touched."""
    before = os.umask(0o027)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(os, "umask", lambda _: pytest.fail("changed"))
            save_checkpoint(checkpoint, tmp_path / LAST)
    finally:
        os.umask(before)
    assert (tmp_path / LAST).stat().st_mode & 0o777 == 0o640


class TestNames:
    def test_further_names_are_the_same_file(self, checkpoint, saved):
        others = [saved.with_name(BEST), saved.with_name("step-00000007.safetensors")]
        save_checkpoint(checkpoint, saved, others)
        assert all(other.samefile(saved) for other in others)
        assert names(saved.parent) == sorted([BEST, LAST, "step-00000007.safetensors"])

    def test_a_later_save_leaves_the_other_names_as_they_are(self, checkpoint, saved):
        best = saved.with_name(BEST)
        save_checkpoint(checkpoint, saved, [best])
        save_checkpoint(replace(checkpoint, progress={"step": 8}), saved)
        assert [read_checkpoint(path).progress["step"] for path in (best, saved)] == [7, 8]
        save_checkpoint(replace(checkpoint, progress={"step": 9}), saved, [best])
        assert [read_checkpoint(path).progress["step"] for path in (best, saved)] == [9, 9]

    def test_a_copy_where_there_are_no_links(self, checkpoint, saved, monkeypatch):
        def no_links(*_):
            raise OSError(errno.EPERM, "Operation not permitted")

        monkeypatch.setattr(os, "link", no_links)
        best = saved.with_name(BEST)
        save_checkpoint(checkpoint, saved, [best])
        assert best.read_bytes() == saved.read_bytes()
        assert not best.samefile(saved)
        assert names(saved.parent) == [BEST, LAST]


def full_disk(*_, **__):
    raise OSError(errno.ENOSPC, "No space left on device")


def half_a_file(tensors, path, header):
    Path(path).write_bytes(b"half")
    full_disk()


def interrupted(tensors, path, header):
    Path(path).write_bytes(b"half")
    raise KeyboardInterrupt


class TestFailedWrite:
    @pytest.fixture
    def old(self, saved: Path, checkpoint: Checkpoint) -> dict[str, bytes]:
        save_checkpoint(checkpoint, saved, [saved.with_name(BEST)])
        return self.content(saved)

    @staticmethod
    def content(saved: Path) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in saved.parent.iterdir()}

    @pytest.mark.parametrize(
        ("target", "name", "fault"),
        [
            (module, "save_file", full_disk),
            (module, "save_file", half_a_file),
            (os, "fsync", full_disk),
            (Path, "replace", full_disk),
        ],
    )
    def test_leaves_what_was_there(self, checkpoint, saved, old, monkeypatch, target, name, fault):
        monkeypatch.setattr(target, name, fault)
        with pytest.raises(RunError) as error:
            save_checkpoint(replace(checkpoint, progress={"step": 8}), saved, [saved.with_name(BEST)])
        assert str(error.value) == (
            f"{saved}: cannot be written ([Errno 28] No space left on device); earlier checkpoints are whole; "
            "free space or check permissions"
        )
        assert self.content(saved) == old

    def test_interrupted(self, checkpoint, saved, old, monkeypatch):
        monkeypatch.setattr(module, "save_file", interrupted)
        with pytest.raises(KeyboardInterrupt):
            save_checkpoint(replace(checkpoint, progress={"step": 8}), saved)
        assert self.content(saved) == old

    def test_of_the_second_name_leaves_both_whole(self, checkpoint, saved, old, monkeypatch):
        monkeypatch.setattr(os, "link", full_disk)

        def half_a_copy(source, target):
            Path(target).write_bytes(b"half")
            full_disk()

        monkeypatch.setattr(shutil, "copyfile", half_a_copy)
        with pytest.raises(RunError, match="No space left"):
            save_checkpoint(replace(checkpoint, progress={"step": 8}), saved, [saved.with_name(BEST)])
        assert names(saved.parent) == [BEST, LAST]
        assert saved.with_name(BEST).read_bytes() == old[BEST]
        assert saved.read_bytes() == old[LAST]

    def test_the_data_is_on_the_disk_before_it_gets_its_name(self, checkpoint, saved, monkeypatch):
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
        save_checkpoint(checkpoint, saved)
        assert events == ["flush file", "rename", "flush folder"]

    @pytest.mark.parametrize("path", ["file/last.safetensors", "file/deeper/last.safetensors"])
    def test_folder_that_cannot_be_made(self, checkpoint, tmp_path, path):
        (tmp_path / "file").write_text("in the way")
        with pytest.raises(
            RunError, match=r"last\.safetensors: cannot be written \(.*\); earlier checkpoints are whole"
        ):
            save_checkpoint(checkpoint, tmp_path / path)
        assert names(tmp_path) == ["file"]

    def test_name_that_is_a_folder(self, checkpoint, tmp_path):
        (tmp_path / LAST).mkdir()
        with pytest.raises(RunError, match="cannot be written"):
            save_checkpoint(checkpoint, tmp_path / LAST)
        assert names(tmp_path) == [LAST]
