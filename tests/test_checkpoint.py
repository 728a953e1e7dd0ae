"""Checkpoints: what goes in comes out, a failed write changes nothing, and nothing but a whole one is read."""

import errno
import json
import os
import pickle
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from charlm import checkpoint as module
from charlm.checkpoint import (
    BEST,
    FOLDER,
    LAST,
    Checkpoint,
    find_checkpoint,
    load_model,
    load_weights,
    read_checkpoint,
    save_checkpoint,
)
from charlm.config import parse_config
from charlm.data.vocabulary import Vocabulary
from charlm.errors import CheckpointError, RunError
from charlm.model import build_model

CPU = torch.device("cpu")
CONFIG = parse_config(
    {"model": {"cell": {"kind": "gru", "hidden": 3}, "embedding": 2}, "optimizer": {"name": "adam", "lr": 1e-7}}, "test"
)
VOCABULARY = Vocabulary("char", "\0\n aé😀\ud800")


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
            "not finite": torch.tensor([float("nan"), float("-inf")]),
        },
    )


@pytest.fixture
def saved(checkpoint: Checkpoint, tmp_path: Path) -> Path:
    path = tmp_path / FOLDER / LAST
    save_checkpoint(checkpoint, path)
    return path


def refusal(path: Path) -> str:
    with pytest.raises(CheckpointError) as error:
        read_checkpoint(path)
    text = str(error.value)
    assert "\n" not in text
    assert text.startswith(f"{path}: ")
    return text.removeprefix(f"{path}: ")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


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


class TestRefused:
    def test_missing_file_and_folder(self, tmp_path):
        for path in (tmp_path / "no.safetensors", tmp_path):
            assert refusal(path) == "no such file; allowed: a run's folder or a checkpoint in its checkpoints/"

    def test_truncated_at_any_length(self, saved):
        content = saved.read_bytes()
        for length in [*range(0, 40), *range(40, len(content), 97), len(content) - 1]:
            saved.write_bytes(content[:length])
            text = refusal(saved)
            assert text.startswith("damaged or no checkpoint ("), length
            assert text.endswith("; use another one of the run")

    def test_something_appended(self, saved):
        saved.write_bytes(saved.read_bytes() + b"\0")
        assert refusal(saved).startswith("damaged or no checkpoint (")

    def test_any_flipped_bit(self, saved):
        content = saved.read_bytes()
        data = 8 + int.from_bytes(content[:8], "little")
        assert len(content) - data > 5000, "the random state alone has 5056 bytes"
        positions = [*range(0, data, 5), *range(data, len(content), 41), len(content) - 1]
        for position in positions:
            damaged = bytearray(content)
            damaged[position] ^= 1 << position % 8
            saved.write_bytes(damaged)
            text = refusal(saved)
            if position >= data:
                assert text == "altered or damaged: its content hash does not match; use another one"

    @pytest.mark.parametrize(
        ("old", "new"), [(b'\\"seed\\": 1', b'\\"seed\\": 2'), (b'\\"step\\": 7', b'\\"step\\": 8')]
    )
    def test_altered_header(self, saved, old, new):
        content = saved.read_bytes()
        assert content.count(old) == 1
        saved.write_bytes(content.replace(old, new))
        assert refusal(saved) == "altered or damaged: its content hash does not match; use another one"

    def test_pickle_is_not_run(self, tmp_path):
        marker = tmp_path / "run by the pickle"

        class Malice:
            def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
                return os.mkdir, (str(marker),)

        path = tmp_path / LAST
        for write in (
            lambda: path.write_bytes(pickle.dumps(Malice())),
            lambda: torch.save({"weights": Malice()}, path),
        ):
            write()
            assert refusal(path).startswith("damaged or no checkpoint (")
            assert not marker.exists()
        pickle.loads(pickle.dumps(Malice()))
        assert marker.is_dir(), "the malice of this test works"

    @pytest.mark.parametrize("header", [None, {"format": "pt"}])
    def test_safetensors_of_something_else(self, tmp_path, header):
        save_file({"weights/decoder.weight": torch.zeros(3)}, tmp_path / "other.safetensors", header)
        assert refusal(tmp_path / "other.safetensors") == "a safetensors file, but no charlm checkpoint"

    def test_newer_version(self, checkpoint, saved, monkeypatch):
        with monkeypatch.context() as patch:
            patch.setattr(module, "VERSION", 2)
            save_checkpoint(checkpoint, saved)
        assert refusal(saved) == "found format version 2; this charlm reads 1; update charlm"

    @pytest.mark.parametrize(
        ("entry", "text"),
        [
            ({"config": None}, "'config'"),
            ({"vocabulary": None}, "'vocabulary'"),
            ({"progress": None}, "'progress'"),
            ({"config": "{"}, "Expecting property name"),
            ({"progress": "step 7"}, "Expecting value"),
            ({"progress": "[7]"}, "progress: found list; allowed: a table"),
            ({"vocabulary": "abc"}, "Expecting value"),
            ({"config": "[" * 100_000}, "maximum recursion depth"),
            ({"config": '{"model": {"cell": {"kind": "rhn", "dept": 3}}}'}, "config: model.cell.dept: unknown key"),
            ({"vocabulary": '{"level": "char", "characters": "aa"}'}, "not a list of distinct characters"),
            ({"vocabulary": '{"level": "char", "characters": ""}'}, "not a list of distinct characters"),
            ({"vocabulary": '["a"]'}, "not a list of distinct characters"),
        ],
    )
    def test_rightly_hashed_but_wrong_inside(self, tmp_path, entry, text):
        header = {"format": module.FORMAT, "version": "1", "config": "{}", "vocabulary": "{}", "progress": "{}"} | {
            "vocabulary": '{"level": "byte", "characters": ""}'
        }
        tensors = {"weights/a": torch.zeros(1)}
        path = tmp_path / "c.safetensors"

        def write(fields: dict[str, str]) -> None:
            save_file(tensors, path, fields | {"sha256": module._digest(fields, tensors)})

        write(header)
        read_checkpoint(path)
        write({key: value for key, value in (header | entry).items() if value is not None})
        assert refusal(path).startswith("no readable config, vocabulary or progress in it (")
        assert text in refusal(path)

    @pytest.mark.parametrize("claimed", [2**40, 2**63, 2**64 - 1])
    def test_a_header_that_claims_terabytes(self, saved, claimed):
        content = saved.read_bytes()
        saved.write_bytes(claimed.to_bytes(8, "little") + content[8:])
        assert refusal(saved).startswith("damaged or no checkpoint (")

    @pytest.mark.parametrize("size", [2**42, 2**62])
    def test_a_tensor_that_claims_terabytes(self, tmp_path, size):
        header = {"__metadata__": {"format": module.FORMAT, "version": "1"}}
        header["weights/a"] = {"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size]}
        text = json.dumps(header).encode()
        path = tmp_path / LAST
        path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(100))
        assert refusal(path).startswith("damaged or no checkpoint (")

    def test_no_hash(self, tmp_path):
        path = tmp_path / "c.safetensors"
        save_file({"weights/a": torch.zeros(1)}, path, {"format": module.FORMAT, "version": "1"})
        assert refusal(path) == "altered or damaged: its content hash does not match; use another one"


class TestLoadWeights:
    def model(self):
        return build_model(CONFIG.model, len(VOCABULARY))

    @pytest.mark.parametrize(
        ("change", "text"),
        [
            ({"decoder.bias": torch.zeros(5)}, "weights decoder.bias: found (5,); the model has (7,)"),
            ({"decoder.weight": torch.zeros(3, 7)}, "weights decoder.weight: found (3, 7); the model has (7, 3)"),
            ({"decoder.bias": None}, "weights decoder.bias: found none; the model has (7,)"),
            ({"more": torch.zeros(2, 2)}, "weights more: found (2, 2); the model has none"),
            (
                {"decoder.bias": torch.zeros(7, dtype=torch.int8)},
                "weights decoder.bias: found torch.int8; the model has torch.float32",
            ),
            (
                {"decoder.bias": torch.zeros(7, dtype=torch.float64)},
                "weights decoder.bias: found torch.float64; the model has torch.float32",
            ),
        ],
    )
    def test_other_names_shapes_or_types_change_nothing(self, checkpoint, change, text):
        model = self.model()
        before = {name: bits(weight) for name, weight in model.named_parameters()}
        weights = {name: tensor for name, tensor in {**checkpoint.weights, **change}.items() if tensor is not None}
        with pytest.raises(CheckpointError) as error:
            load_weights(model, weights)
        assert str(error.value) == f"{text}; use a checkpoint of the same model section"
        assert {name: bits(weight) for name, weight in model.named_parameters()} == before

    def test_copies(self, checkpoint):
        model = self.model()
        load_weights(model, checkpoint.weights)
        with torch.no_grad():
            model.decoder.bias += 1
        assert torch.equal(model.decoder.bias, checkpoint.weights["decoder.bias"] + 1)


class TestFindCheckpoint:
    def test_best_then_last_then_none(self, tmp_path):
        folder = tmp_path / FOLDER
        with pytest.raises(CheckpointError) as error:
            find_checkpoint(tmp_path)
        assert str(error.value) == (
            f"{tmp_path}: no checkpoint in {folder}; allowed: the folder of a run, or a checkpoint"
        )
        folder.mkdir()
        (folder / LAST).touch()
        assert find_checkpoint(tmp_path) == folder / LAST
        (folder / BEST).touch()
        assert find_checkpoint(tmp_path) == folder / BEST
        assert find_checkpoint(folder) == folder / BEST

    def test_a_file_is_itself(self, tmp_path):
        assert find_checkpoint(tmp_path / "any name") == tmp_path / "any name"
