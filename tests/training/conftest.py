"""Fixtures for tests of training."""

from dataclasses import replace

import pytest
import torch

from charlm.config import parse_config
from charlm.training.machine import choose_machine
from charlm.training.step import Trainer
from tests.corpora import load_corpus
from tests.text import words_text


@pytest.fixture
def config_of(tmp_path):
    file = tmp_path / "text.txt"
    file.write_text(words_text(4000))

    def build(train=None, model=None, data=None, **top):
        return parse_config(
            {
                "data": {"source": str(file), "split": [0.8, 0.2, 0], **(data or {})},
                "model": {"cell": {"kind": "lstm", "hidden": 12}, **(model or {})},
                "train": {
                    "batch_size": 4,
                    "bptt": 10,
                    "max_steps": 12,
                    "log_every": 3,
                    "eval_every": 4,
                    "save_every": 5,
                    "sample_every": 6,
                    **(train or {}),
                },
                "threads": 1,
                "precision": "fp32",
                **top,
            },
            "test",
        )

    return build


@pytest.fixture
def trainer_of(tmp_path):
    file = tmp_path / "text.txt"
    file.write_text(words_text(3000))

    def build(train=None, optimizer=None, model=None, on=None, unit="text", **top):
        """`on`: a device that is no option of a config."""
        raw = {
            "data": {"source": str(file), "split": [0.9, 0.1, 0], "unit": unit},
            "model": {"cell": {"kind": "lstm", "hidden": 12}, **(model or {})},
            "train": {"batch_size": 4, "bptt": 10, "max_steps": 100, "reset_state": 0, **(train or {})},
            "optimizer": {"name": "sgd", "lr": 0.05, "clip_norm": 2.0, **(optimizer or {})},
            **{"device": "cpu", "precision": "fp32", **top},
        }
        config = parse_config(raw, "test")
        corpus = load_corpus(str(file), level="char", split=config.data.split, unit=unit)
        machine = choose_machine(config)
        return Trainer(config, corpus, replace(machine, device=torch.device(on)) if on else machine)

    return build
