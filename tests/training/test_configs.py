"""The shipped configs: each trains, one for each kind of cell and those of two papers."""

import pytest

from charlm.cells import CELLS
from charlm.choice.families import ON_REQUEST
from charlm.config import flatten, load_config
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


def test_one_for_each_kind_with_the_layers_that_charlm_chooses_for_it():
    assert CONFIGS.keys() == {*CELLS, "paper-char-rnn", "paper-rhn-enwik8"}
    for kind in CELLS:
        config = load_config(CONFIGS[kind])
        assert (config.model.cell.kind, config.train.max_minutes, config.train.max_steps) == (kind, 5, None)
        if family := ON_REQUEST.get(kind):
            assert (config.model.layers, config.model.residual) == (family.layers, family.residual)


PAPERS = {
    "paper-char-rnn": {
        "model.cell.kind": "lstm",
        "model.cell.hidden": 128,
        "model.layers": 2,
        "model.embedding": 0,
        "train.bptt": 50,
        "train.batch_size": 50,
        "train.reset_state": 0,
        "optimizer.name": "rmsprop",
        "optimizer.lr": 2e-3,
        "optimizer.alpha": 0.95,
        "optimizer.clip_value": 5,
        "optimizer.schedule.factor": 0.97,
        "optimizer.schedule.after_epochs": 10,
    },
    "paper-rhn-enwik8": {
        "model.cell.kind": "rhn",
        "model.cell.hidden": 1500,
        "model.cell.depth": 10,
        "model.cell.gate_bias": -4,
        "model.layers": 1,
        "model.init_uniform": 0.04,
        "model.dropout.embedding": 0.1,
        "model.dropout.input": 0.4,
        "model.dropout.state": 0.1,
        "model.dropout.output": 0.4,
        "model.dropout.variational": True,
        "train.bptt": 50,
        "train.batch_size": 128,
        "optimizer.name": "sgd",
        "optimizer.lr": 0.2,
        "optimizer.clip_norm": 10,
        "optimizer.weight_decay": 1e-7,
        "optimizer.schedule.factor": pytest.approx(1 / 1.03),
        "optimizer.schedule.after_epochs": 5,
    },
}


@pytest.mark.parametrize("name", PAPERS)
def test_settings_of_a_paper(name):
    options = flatten(load_config(CONFIGS[name]))
    assert {key: options[key] for key in PAPERS[name]} == PAPERS[name]


def test_the_model_of_the_rhn_paper_has_its_46_million_parameters():
    assert count_parameters(load_config(CONFIGS["paper-rhn-enwik8"]).model, 256) == pytest.approx(46e6, rel=0.005)
