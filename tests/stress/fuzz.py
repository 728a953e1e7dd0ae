"""Feeds input made by a coverage-guided fuzzer (libFuzzer, by Atheris) to what reads a user's files and options.

Any bytes must be read or refused by an error of charlm's own, in printable lines, within LIMIT_S seconds and
LIMIT_MB of memory, and nothing else may happen; run by scripts/stress fuzz.
"""

import argparse
import contextlib
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIMIT_S = 20
LIMIT_MB = 2048
LONGEST = 4096  # bytes of an input
CHECKPOINT = "run/checkpoints/last.safetensors"

# One thread: the fuzzer's processes share the machine.
TINY = """\
data: {{source: {text}}}
model: {{cell: {{kind: gru, hidden: 4}}, embedding: 3}}
train: {{batch_size: 2, bptt: 4, max_steps: 1}}
threads: 1
"""


class Targets:
    """What is fed. Each takes any bytes; `self.folder` is its own to write in."""

    def __init__(self, folder: Path, checkpoint: Path) -> None:
        self.folder = folder
        self.checkpoint = checkpoint

    def config(self, data: bytes) -> None:
        """A YAML file."""
        from charlm.config import load_config

        load_config(self._file("config.yaml", data))

    def override(self, data: bytes) -> None:
        """The value of --set."""
        from charlm.config import parse_config

        parse_config({}, "config.yaml", data.decode("utf-8", "surrogateescape").split("\n"))

    def corpus(self, data: bytes) -> None:
        """A text, encoded, cut and read back, in characters and in bytes; then the same from the cache."""
        from charlm.config.schema import DataConfig
        from charlm.data.corpus import CountedSources
        from charlm.system.cache import cache_dir

        shutil.rmtree(cache_dir(), ignore_errors=True)
        path = self._file("text.txt", data[1:])
        level = "byte" if data[:1] < b"\x80" else "char"
        for _ in ("encoded", "cached"):
            data_config = DataConfig(source=str(path), level=level, split=(0.5, 0.25, 0.25))
            corpus = CountedSources(data_config).corpus()
            text = "".join(corpus.vocabulary.decode(ids) for ids in corpus.splits.values())
            if level == "char" and text != data[1:].decode().removeprefix("\ufeff"):
                raise AssertionError("the text has changed")

    def vocabulary(self, data: bytes) -> None:
        """The vocabulary of a checkpoint, as JSON; and a text for it, which its own characters encode."""
        from charlm.data.vocabulary import Vocabulary

        first, _, rest = data.partition(b"\n")
        try:
            value = json.loads(first)
        except (ValueError, RecursionError):
            value = first.decode("utf-8", "replace")
        text = rest.decode("utf-8", "surrogateescape")
        if text:
            own = Vocabulary.from_json({"level": "char", "characters": "".join(sorted(set(text)))})
            if own.decode(own.encode(text)) != text:
                raise AssertionError("the text has changed")
        Vocabulary.from_json(value).encode(text)

    def file(self, data: bytes) -> None:
        """A checkpoint file."""
        from charlm.checkpoint import read_checkpoint

        read_checkpoint(self._file("x.safetensors", data))

    def header(self, data: bytes) -> None:
        """The JSON in a checkpoint, whose content hash is right all the same."""
        import torch

        from charlm.checkpoint import FORMAT, VERSION, digest, read_checkpoint, save
        from charlm.inference.trained import load_model

        parts = data.decode("utf-8", "replace").split("\n\n", 2)
        header = {"format": FORMAT, "version": str(VERSION)}
        header |= dict(zip(("config", "vocabulary", "progress"), parts, strict=False))
        tensors = {"weights/decoder.bias": torch.zeros(3)}
        header["sha256"] = digest(header, tensors)
        path = self.folder / "h.safetensors"
        path.write_bytes(save(tensors, header))
        load_model(read_checkpoint(path), torch.device("cpu"))

    def cell(self, data: bytes) -> None:
        """The programs of a cell in a checkpoint: JSON, or damages of good JSON that the bytes choose."""
        from random import Random

        from tests.cells.damage import damaged
        from tests.cells.test_stored import Own, accept_or_refuse, as_json, section_of

        cell = Own(hidden=5)
        for stored in (data.decode("utf-8", "replace"), damaged(as_json(cell), Random(data))):
            accept_or_refuse(section_of(cell), stored)

    def runs(self, data: bytes) -> None:
        """The JSON in a checkpoint's header, and metrics: `charlm runs` and `charlm report` show the run anyway."""
        from charlm.runs import VERSION

        config, progress, shape, rows = (data.decode("utf-8", "replace").split("\n\n", 3) + [""] * 3)[:4]
        texts = {"format": "charlm checkpoint", "version": str(VERSION), "config": config, "progress": progress}
        weight = f'{{"data_offsets": [0, 0], "shape": {shape or "[0]"}}}'
        header = f'{{"__metadata__": {json.dumps(texts)}, "weights/a": {weight}}}'.encode("utf-8", "replace")
        checkpoint = self.folder / "forged" / CHECKPOINT
        checkpoint.parent.mkdir(parents=True, exist_ok=True)
        checkpoint.write_bytes(len(header).to_bytes(8, "little") + header)
        for name in ("metrics", "samples"):
            (checkpoint.parents[1] / f"{name}.jsonl").write_text(rows, encoding="utf-8")
        for words in (["runs"], ["runs", "--json"], ["report", "--out", str(self.folder / "page.html")]):
            out = self._command(words[0], str(self.folder / "forged"), *words[1:])
            if words[0] == "runs" and str(checkpoint.parents[1]) not in out:
                raise AssertionError("the run is not listed")

    def sample(self, data: bytes) -> None:
        """The options of `charlm sample`: lines of one character, which chooses an option, and its value."""
        words: list[str] = []
        for line in data.decode("utf-8", "surrogateescape").replace("\0", "").split("\n"):
            option = OPTIONS[ord(line[:1] or "a") % len(OPTIONS)]
            words += [option] if option in FLAGS else [option, line[1:]]
        # The last of equal options counts, so that no input asks for a sample of an hour.
        self._command("sample", str(self.checkpoint), *words, "--length", "20", "--count", "2")

    def _file(self, name: str, data: bytes) -> Path:
        path = self.folder / name
        path.write_bytes(data)
        return path

    def _command(self, *words: str) -> str:
        from charlm.cli import main

        out, err, code = Terminal(), Terminal(), None
        sys.argv = ["charlm", *words]
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                main()
            except SystemExit as left:
                code = left.code
        if code not in (None, 0, 1, 2):
            raise AssertionError(f"exit code {code}")
        check_printable(out.getvalue())
        check_printable(err.getvalue())
        return out.getvalue()


FLAGS = ["--json", "--novelty", "--new"]
OPTIONS = [*FLAGS, "--prompt", "--temperature", "--top-k", "--top-p", "--seed", "--stop"]
OPTIONS += ["--device", ""]
COMMANDS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def check_printable(text: str) -> None:
    """AssertionError where a terminal would take a character for a command."""
    if found := set(COMMANDS.findall(text)):
        raise AssertionError(f"characters that a terminal obeys: {found!r}")


def guarded(target: Callable[[bytes], None]) -> Callable[[bytes], None]:
    """The target, whose own errors are how it refuses."""
    from charlm.errors import CharlmError

    def call(data: bytes) -> None:
        try:
            target(data)
        except CharlmError as error:
            if not str(error):
                raise AssertionError("an empty message") from None

    return call


def main() -> None:
    """Run every target in a process of its own, or in that process one target."""
    arguments, others = parse()
    if arguments.inside:
        fuzz(arguments.targets[0], Path(arguments.inside), others)
        return
    failed = []
    with tempfile.TemporaryDirectory(prefix="charlm-fuzz-") as folder:
        seeds = make_seeds(Path(folder))
        for name in arguments.targets or NAMES:
            print(f"=== {name}: {getattr(Targets, name).__doc__}", file=sys.stderr, flush=True)
            command = [sys.executable, __file__, name, "--inside", folder, f"-atheris_runs={arguments.runs}"]
            command += [f"-timeout={LIMIT_S}", f"-rss_limit_mb={LIMIT_MB}", f"-max_len={LONGEST}"]
            command += [f"-seed={arguments.seed}"]
            command += [f"-artifact_prefix={ROOT}/fuzz-{name}-", str(seeds / name)]
            environment = os.environ | {"CHARLM_CACHE": f"{folder}/cache", "OMP_NUM_THREADS": "1"}
            if code := subprocess.run(command, cwd=folder, env=environment, check=False).returncode:
                failed.append(f"{name} (exit code {code})")
    if failed:
        sys.exit(f"fuzz: failed: {', '.join(failed)}; where an input is to blame, it is in fuzz-NAME-*")
    print(f"fuzz: {arguments.runs:,} inputs each, seed {arguments.seed}: nothing but charlm's own errors")


NAMES = [name for name in vars(Targets) if not name.startswith("_")]


def parse() -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(prog="scripts/stress fuzz", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"some of: {', '.join(NAMES)}; all if none")
    parser.add_argument("--runs", type=int, default=100_000, metavar="N", help="inputs for each; default 100000")
    parser.add_argument("--quick", action="store_true", help="--runs 2000: about a minute")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="seed of the fuzzer; default 1")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    arguments, others = parser.parse_known_args()
    if arguments.quick:
        arguments.runs = 2000
    if unknown := [name for name in arguments.targets if name not in NAMES]:
        parser.error(f"target {unknown[0]!r}: there is none of this name; allowed: {' | '.join(NAMES)}")
    return arguments, others


def make_seeds(folder: Path) -> Path:
    """Good inputs to begin with, one folder a target; and the run that `sample` samples from."""
    text = folder / "text.txt"
    text.write_text("to be, or not to be: that is the question\n" * 20)
    tiny = folder / "tiny.yaml"
    tiny.write_text(TINY.format(text=text))
    words = ["train", "--config", str(tiny), "--run-dir", str(folder / "run")]
    subprocess.run([sys.executable, "-m", "charlm", *words], cwd=ROOT, check=True, stderr=subprocess.DEVNULL)
    good = good_inputs(folder / CHECKPOINT)
    for name, contents in good.items():
        (folder / "seeds" / name).mkdir(parents=True)
        for content in contents:
            (folder / "seeds" / name / hashlib.sha256(content).hexdigest()[:8]).write_bytes(content)
    return folder / "seeds"


def good_inputs(checkpoint: Path) -> dict[str, list[bytes]]:
    """What each target reads without an error, or nearly so."""
    configs = [path.read_bytes() for path in sorted((ROOT / "configs").glob("*.yaml"))]
    return {
        "config": configs,
        "override": [b"train.max_steps=5", b"model.cell={kind: rhn, depth: 3}\noptimizer.lr=1e-3"],
        "corpus": ["xaé中😀\r\n".encode() * 5, b"\xff\xef\xbb\xbfafter a mark", b"a\xef\xbb\xbfbytes\xff\xfe" * 3],
        "vocabulary": [b'{"level": "char", "characters": "abc"}\nabc', b'{"level": "byte", "characters": ""}\nx'],
        "file": [checkpoint.read_bytes()[:LONGEST]],
        "header": [b'{}\n\n{"level": "char", "characters": "abc"}\n\n{"step": 1}'],
        "cell": [b"{}", b"1", b"seed"],
        "runs": [
            b'{"model": {"cell": {"kind": "gru", "hidden": 4}, "layers": 1}, "train": {"max_steps": 3}}\n\n'
            b'{"step": 3, "best_nats": 1.5, "elapsed_s": 2.0}\n\n[0, 4]\n\n'
            b'{"step": 1, "chars": 8, "elapsed_s": 0.5, "split": "train", "nats": 2.0}\n'
            b'{"step": 1, "split": "rollback", "lr_factor": 0.5, "text": "ab", "bits": [1, null]}\n'
        ],
        "sample": [options(prompt="to be", temperature="0.5", seed="1"), options(top_k="3", top_p="0.9", json="")],
    }


def options(**values: str) -> bytes:
    """What the target `sample` reads as these options."""
    lines = [chr(OPTIONS.index("--" + name.replace("_", "-")) + 8 * len(OPTIONS)) + v for name, v in values.items()]
    return "\n".join(lines).encode()


def fuzz(name: str, folder: Path, options: list[str]) -> None:
    import atheris

    sys.path.insert(0, str(ROOT))  # for what the tests share
    with atheris.instrument_imports(include=["charlm"]):
        import charlm.checkpoint
        import charlm.cli
        import charlm.data.corpus  # noqa: F401
    atheris.Setup([sys.argv[0], *options], guarded(getattr(Targets(folder, folder / CHECKPOINT), name)))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
