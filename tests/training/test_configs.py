"""Every config of configs/ is valid and trains."""

from pathlib import Path

import pytest

from charlm.cells import CELLS
from charlm.choice.families import ON_REQUEST
from charlm.config import load_config
from charlm.model import count_parameters
from charlm.training.start import start_run
from tests.text import words_text

CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("*.yaml"))
SMALL = ["model.cell.hidden=8", "train.batch_size=2", "train.max_steps=2", "train.sample_length=10"]


@pytest.mark.parametrize("file", CONFIGS, ids=lambda file: file.stem)
def test_trains(tmp_path, file):
    """At its own depth, layers, window, dropout and optimizer; with few units and on a short text."""
    text = tmp_path / "text.txt"
    text.write_text(words_text(20_000))
    outcome = start_run(load_config(file, [*SMALL, f"data.source={text}"]), tmp_path / "run")
    assert outcome.step == 2
    assert 0 < outcome.best_nats < 10


def test_one_for_each_kind_and_two_papers():
    assert {file.stem for file in CONFIGS} == {*CELLS, "paper-char-rnn", "paper-rhn-enwik8"}
    for kind in CELLS:
        config = recipe(kind)
        assert (config.model.cell.kind, config.train.max_minutes, config.train.max_steps) == (kind, 5, None)


@pytest.mark.parametrize("kind", ["mingru", "minlstm", "sru"])
def test_deep_kinds_have_the_layers_that_charlm_chooses(kind):
    family, config = ON_REQUEST[kind], recipe(kind)
    assert (config.model.layers, config.model.residual) == (family.layers, family.residual)
    assert {name: getattr(config.model.cell, name) for name in family.cell} == family.cell
    assert (config.train.activation_penalty > 0) == family.activation_penalty


def recipe(name):
    return next(load_config(file) for file in CONFIGS if file.stem == name)


def test_char_rnn_is_karpathys():
    config = recipe("paper-char-rnn")
    cell, train, optimizer = config.model.cell, config.train, config.optimizer
    assert (cell.kind, cell.hidden, config.model.layers, config.model.embedding) == ("lstm", 128, 2, 0)
    assert (train.bptt, train.batch_size, train.reset_state) == (50, 50, 0)
    assert (optimizer.name, optimizer.lr, optimizer.alpha, optimizer.clip_value) == ("rmsprop", 2e-3, 0.95, 5)
    assert (optimizer.schedule.factor, optimizer.schedule.after_epochs) == (0.97, 10)


def test_rhn_enwik8_is_the_papers():
    config = recipe("paper-rhn-enwik8")
    cell, train, optimizer, dropout = config.model.cell, config.train, config.optimizer, config.model.dropout
    assert (cell.kind, cell.hidden, cell.depth, cell.gate_bias, config.model.layers) == ("rhn", 1500, 10, -4, 1)
    assert (train.bptt, train.batch_size, config.model.init_uniform) == (50, 128, 0.04)
    assert (optimizer.name, optimizer.lr, optimizer.clip_norm, optimizer.weight_decay) == ("sgd", 0.2, 10, 1e-7)
    assert optimizer.schedule.factor == pytest.approx(1 / 1.03)
    assert optimizer.schedule.after_epochs == 5
    places = (dropout.embedding, dropout.input, dropout.state, dropout.output, dropout.variational)
    assert places == (0.1, 0.4, 0.1, 0.4, True)
    # The size the paper gives: 46 million.
    assert count_parameters(config.model, 256) == pytest.approx(46e6, rel=0.005)
