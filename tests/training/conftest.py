"""Fixtures for tests of training."""

import contextlib
import resource
import shutil
from dataclasses import replace

import pytest
import torch

from charlm.cells.file import load_cell
from charlm.config import parse_config
from charlm.data.corpus import CountedSources
from charlm.training.machine import choose_machine
from charlm.training.start import start_run
from charlm.training.step import Trainer
from tests.runs import assert_same_checkpoint, before_updates, untimed
from tests.text import words_text


@pytest.fixture(scope="session")
def config_of(tmp_path_factory):
    """A config of twelve steps."""
    file = tmp_path_factory.mktemp("texts") / "text.txt"
    file.write_text(words_text(4000))

    def build(train=None, model=None, data=None, **top):
        busy = {"batch_size": 4, "bptt": 10, "max_steps": 12, "log_every": 3, "eval_every": 4, "save_every": 5}
        return parse_config(
            {
                "data": {"source": str(file), "split": [0.8, 0.2, 0], **(data or {})},
                "model": {"cell": {"kind": "lstm", "hidden": 12}, **(model or {})},
                "train": {**busy, "sample_every": 6, **(train or {})},
                "threads": 1,
                "precision": "fp32",
                **top,
            },
            "test",
        )

    return build


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory, config_of, compiled):
    """The folder of a run of `config_of()`, to read only."""
    torch.set_num_threads(1)
    run = tmp_path_factory.mktemp("finished") / "run"
    start_run(config_of(), run)
    return run


@pytest.fixture
def run(finished_run, tmp_path):
    """A copy of the finished run."""
    return shutil.copytree(finished_run, tmp_path / "run")


@pytest.fixture
def before_update():
    """`before_updates` until the end of the test."""
    with contextlib.ExitStack() as stack:
        yield lambda *arguments, **options: stack.enter_context(before_updates(*arguments, **options))


@contextlib.contextmanager
def full_disk():
    """No file of this process can grow."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def assert_same_run(whole, parts):
    for name in ("last", "best"):
        assert_same_checkpoint(*(run / f"checkpoints/{name}.safetensors" for run in (whole, parts)))
    assert untimed(whole) == untimed(parts)
    assert (whole / "samples.jsonl").read_bytes() == (parts / "samples.jsonl").read_bytes()


@pytest.fixture
def trainer_of(tmp_path):
    file = tmp_path / "text.txt"
    file.write_text(words_text(3000))

    def build(train=None, optimizer=None, model=None, on=None, records="", **top):
        """`on`: a device that is no option of a config."""
        raw = {
            "data": {"source": str(file), "split": [0.9, 0.1, 0], "records": records},
            "model": {"cell": {"kind": "lstm", "hidden": 12}, **(model or {})},
            "train": {"batch_size": 4, "bptt": 10, "max_steps": 100, "reset_state": 0, **(train or {})},
            "optimizer": {"name": "sgd", "lr": 0.05, "clip_norm": 2.0, **(optimizer or {})},
            **{"device": "cpu", "precision": "fp32", **top},
        }
        config = parse_config(raw, "test", own_cell=load_cell)
        corpus = CountedSources(config.data).corpus()
        machine = choose_machine(config)
        return Trainer(config, corpus, replace(machine, device=torch.device(on)) if on else machine)

    return build
