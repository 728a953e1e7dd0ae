"""The shipped configs: each trains, one for each kind of cell."""

import pytest

from charlm.cells import CELLS
from charlm.config import load_config
from charlm.config.shipped import shipped_configs
from charlm.model import count_parameters
from charlm.training.start import start_run
from tests.text import words_text

CONFIGS = shipped_configs()


@pytest.mark.usefixtures("no_kernels")
def test_each_trains(write, tmp_path):
    """At its own depth, layers, window, dropout and optimizer; with few units and on a short text."""
    text = write("text.txt", words_text(20_000))
    small = ["model.cell.hidden=4", "train.batch_size=1", "train.max_steps=1", "train.sample_every=0"]
    for name, file in CONFIGS.items():
        outcome = start_run(load_config(file, [*small, f"data.source={text}"]), tmp_path / name)
        assert (outcome.step, 0 < outcome.best_nats < 10) == (1, True), name


def test_one_for_each_kind_and_two_papers():
    assert CONFIGS.keys() == {*CELLS, "paper-char-rnn", "paper-rhn-enwik8"}
    for kind in CELLS:
        config = load_config(CONFIGS[kind])
        assert (config.model.cell.kind, config.train.max_minutes, config.train.max_steps) == (kind, 5, None)


def test_the_model_of_the_rhn_paper_has_its_46_million_parameters():
    assert count_parameters(load_config(CONFIGS["paper-rhn-enwik8"]).model, 256) == pytest.approx(46e6, rel=0.005)
