"""What is fed to charlm by scripts/stress fuzz, and in short by test_hostile_input.py."""

import contextlib
import io
import json
import random
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from charlm.cells.stored import as_json
from charlm.checkpoint import FORMAT, VERSION, digest, newest_whole, read_checkpoint, save
from charlm.cli import main
from charlm.config import load_config
from charlm.config.schema import DataConfig
from charlm.data.corpus import CountedSources
from charlm.errors import CharlmError
from charlm.inference.loading import load_model
from charlm.system.cache import cache_dir
from tests.cells.test_stored import accept_or_refuse, damaged, section_of
from tests.export.odd import Odd
from tests.stress.fuzz import COMMANDS, ROOT


class Targets:
    """Each takes any bytes; `self.folder` is its own to write in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def config(self, data: bytes) -> None:
        """A YAML file."""
        load_config(self._file("config.yaml", data))

    def corpus(self, data: bytes) -> None:
        """A text, encoded, cut and read back, in characters and in bytes; then the same from the cache."""
        shutil.rmtree(cache_dir(), ignore_errors=True)
        path = self._file("text.txt", data[1:])
        level = "byte" if data[:1] < b"\x80" else "char"
        for _ in ("encoded", "cached"):
            data_config = DataConfig(source=str(path), level=level, split=(0.5, 0.25, 0.25))
            corpus = CountedSources(data_config).corpus()
            text = "".join(corpus.vocabulary.decode(ids) for ids in corpus.splits.values())
            assert level == "byte" or text == data[1:].decode().removeprefix("\ufeff")

    def header(self, data: bytes) -> None:
        """The JSON in a checkpoint, whose content hash is right all the same."""
        parts = data.decode("utf-8", "replace").split("\n\n", 2)
        names = "config", "vocabulary", "progress"
        header: dict[str, str] = dict(zip(names, parts, strict=False))
        path = forged(self.folder / "h.safetensors", header, {"weights/decoder.bias": torch.zeros(3)})
        load_model(read_checkpoint(path), torch.device("cpu"))

    def cell(self, data: bytes) -> None:
        """The programs of a cell in a checkpoint: JSON, or damages of good JSON that the bytes choose."""
        cell = Odd(hidden=5)
        for stored in (data.decode("utf-8", "replace"), damaged(as_json(cell), random.Random(data))):
            accept_or_refuse(section_of(cell), stored)

    def runs(self, data: bytes) -> None:
        """The JSON of a checkpoint's header, what follows, and metrics: all that reads a run goes on without it."""
        config, progress, tensor, rows = (data.decode("utf-8", "replace").split("\n\n", 3) + [""] * 3)[:4]
        texts = {"format": FORMAT, "version": str(VERSION), "config": config, "progress": progress, "parameters": "9"}
        header = f'{{"__metadata__": {json.dumps(texts)}, "weights/a": {tensor}}}'.encode("utf-8", "replace")
        run = self.folder / "forged/run"
        (run / "checkpoints").mkdir(parents=True, exist_ok=True)
        (run / "checkpoints/last.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
        for name in ("metrics", "samples"):
            (run / f"{name}.jsonl").write_text(rows, encoding="utf-8")
        for options in ([], ["--json"]):
            assert str(run) in self._command("runs", str(run.parent), *options)
        self._command("report", str(run.parent), "--out", str(self.folder / "page.html"))
        assert newest_whole(run) is None  # which --resume reads

    def _file(self, name: str, data: bytes) -> Path:
        path = self.folder / name
        path.write_bytes(data)
        return path

    def _command(self, *words: str) -> str:
        """What it prints, in which a terminal must not take a character for a command."""
        out, err, code = Terminal(), Terminal(), None
        sys.argv = ["charlm", *words]
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                main()
            except SystemExit as left:
                code = left.code
        assert code in (None, 0, 1, 2)
        assert not COMMANDS.search(out.getvalue() + err.getvalue())
        return out.getvalue()


def forged(path: Path, texts: Mapping[str, str], tensors: dict[str, torch.Tensor]) -> Path:
    """A checkpoint file with the right hash, whatever it holds."""
    header = {"format": FORMAT, "version": str(VERSION), **texts}
    header["sha256"] = digest(header, tensors)
    path.write_bytes(save(tensors, header))
    return path


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def guarded(target: Callable[[bytes], None]) -> Callable[[bytes], None]:
    """The target, whose own errors are how it refuses."""

    def call(data: bytes) -> None:
        try:
            target(data)
        except CharlmError as error:
            if not str(error):
                raise AssertionError("an empty message") from None

    return call


GOOD_INPUTS = {
    "config": [path.read_bytes() for path in sorted((ROOT / "configs").glob("*.yaml"))],
    "corpus": ["xaé中😀\r\n".encode() * 5, b"\xff\xef\xbb\xbfafter a mark", b"a\xef\xbb\xbfbytes\xff\xfe" * 3],
    "header": [b'{}\n\n{"level": "char", "characters": "abc"}\n\n{"step": 1}'],
    "cell": [b"{}", b"1", b"seed"],
    "runs": [
        b'{"model": {"cell": {"kind": "gru", "hidden": 4}, "layers": 1, "members": 1}, "train": {"max_steps": 3}}\n\n'
        b'{"step": 3, "stop_reason": "", "best_nats": 1.5, "elapsed_s": 2.0}\n\n'
        b'{"dtype": "F32", "shape": [0, 4], "data_offsets": [0, 0]}\n\n'
        b'{"step": 1, "chars": 8, "elapsed_s": 0.5, "split": "train", "nats": 2.0}\n'
        b'{"step": 1, "split": "rollback", "lr_factor": 0.5, "text": "ab", "bits": [1, null]}\n'
    ],
}
"""What each target reads without an error, or nearly so."""
