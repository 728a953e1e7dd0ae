"""The lesson: its gradients are charlm's, it learns, and its notebook is the same text and runs."""

import functools
import os
import re
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import charlm
from charlm import cells
from charlm.layers import RecurrentLayers
from charlm.model import CharLM
from tests.learn.notebook import LESSON, NOTEBOOK, code_cells, notebook
from tests.text import words_text

H, V, T, B = 7, 11, 13, 3


@pytest.fixture(scope="module")
def lesson() -> dict[str, Any]:
    return runpy.run_path(str(LESSON))


def pair(lesson: dict[str, Any], kind: str) -> tuple[Any, CharLM]:
    """A network of the lesson and charlm's model with the same weights, in float64."""
    network = lesson["Network"](lesson[kind](H), V, dtype=np.float64)
    model = CharLM(V, 0, RecurrentLayers(getattr(cells, kind)(hidden=H, **({"depth": 3} if kind == "RHN" else {})), V))
    model = model.double()
    model.load_state_dict({named(name): torch.tensor(value) for name, value in network.w.items()})
    return network, model


def named(name: str) -> str:
    """charlm's name of one of the lesson's weights."""
    return name if name.startswith("decoder") else f"layers.{name}_l0"


@pytest.mark.parametrize("kind", ["RNN", "LSTM", "RHN"])
def test_loss_states_and_gradients_are_charlms(lesson, kind):
    network, model = pair(lesson, kind)
    ids = np.random.default_rng(1).integers(V, size=(T + 1, B))
    state = tuple(np.random.default_rng(2).normal(size=(network.cell.states, B, H)))
    logits, last, saved = network.forward(ids[:-1], state)
    loss, d_logits = lesson["surprise"](logits, ids[1:])
    gradients, _ = network.backward(d_logits, saved)

    tensors = tuple(torch.tensor(s)[None] for s in state)
    x_TB, y_TB = torch.tensor(ids[:-1]), torch.tensor(ids[1:])
    their_logits, their_last = model(x_TB, tensors)
    their_loss = F.cross_entropy(their_logits.flatten(0, 1), y_TB.flatten(), reduction="sum") / B
    their_loss.backward()
    assert loss == pytest.approx(their_loss.item(), abs=1e-9)
    for ours, tensor in zip(last, their_last, strict=True):
        np.testing.assert_allclose(ours, tensor[0].detach(), atol=1e-9)
    parameters = dict(model.named_parameters())
    assert {named(name) for name in gradients} == parameters.keys()
    for name, gradient in gradients.items():
        assert np.abs(gradient).max() > 1e-3, name
        np.testing.assert_allclose(gradient, parameters[named(name)].grad, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("kind", ["RNN", "LSTM", "RHN"])
def test_norms_are_those_of_the_states_gradients(lesson, kind):
    """∂loss/∂state four steps before the end: charlm hands the state over between two parts of the window."""
    network, model = pair(lesson, kind)
    ids = np.random.default_rng(1).integers(V, size=(T + 1, B))
    logits, _, saved = network.forward(ids[:-1])
    d_logits = lesson["surprise"](logits, ids[1:])[1]
    d_logits[:-1] = 0
    norms = network.backward(d_logits, saved)[1]
    with torch.no_grad():
        _, state = model(torch.tensor(ids[: T - 4]))
    state = tuple(tensor.requires_grad_() for tensor in state)
    logits, _ = model(torch.tensor(ids[T - 4 : T]), state)
    (F.cross_entropy(logits[-1], torch.tensor(ids[T]), reduction="sum") / B).backward()
    squares = sum(float(tensor.grad.square().sum()) for tensor in state)
    assert norms[4] == pytest.approx(squares**0.5, rel=1e-5)


@pytest.mark.parametrize("kind", ["RNN", "LSTM", "RHN"])
def test_training_learns_a_text(lesson, kind):
    """A text in which the next character depends on the last two, so that it takes a memory."""
    vocabulary, ids = np.unique(list("aab" * 700), return_inverse=True)
    network = lesson["train"](lesson[kind](16), *lesson["cut_into_streams"](ids, 4), 2, updates=100, T=20)
    assert lesson["write"](network, vocabulary, prompt="aabaab", length=10, temperature=0.1) == "aabaabaaba"


@pytest.fixture
def small(quick: None, standard_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder, and a standard library of one small module."""
    (standard_library / "module.py").write_text(f"def \n{words_text(60_000)}", encoding="utf-8")
    monkeypatch.setattr(os, "__file__", f"{standard_library}/os.py")
    monkeypatch.chdir(tmp_path)
    return tmp_path


TINY = {"model.cell.hidden": 8, "train.batch_size": 2, "train.max_steps": 2, "threads": 1, "device": "cpu"}


def test_the_program_ends_with_commands_of_charlm(lesson, small, capsys, cli):
    (small / "my.txt").write_text(words_text(60_000), encoding="utf-8")
    lesson["compare"]("my.txt", H=8, B=4, updates=2)
    out = capsys.readouterr().out
    assert out.startswith("60,000 characters")
    assert re.findall(r"^(\w+) +[\d,]+ +\d\.\d\d(?: +\d+e-\d+){3}$", out, re.MULTILINE) == ["RNN", "LSTM", "RHN"]
    commands = [line.split() for line in re.findall(r"^  charlm (.*?)(?:   .*)?$", out, re.MULTILINE)]
    assert [words[0] for words in commands] == ["train", "look", "cells"]
    commands[0] += [word for key, value in TINY.items() for word in ("--set", f"{key}={value}")]
    for words in commands:
        assert cli(*words).code == 0


def test_its_help_is_its_docstring(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", [str(LESSON), "--help"])
    runpy.run_path(str(LESSON), run_name="__main__")
    assert "python learn/lesson.py [my.txt]" in capsys.readouterr().out


def test_a_text_that_is_too_short_takes_one_line(lesson, tmp_path):
    (tmp_path / "my.txt").write_text("abc", encoding="utf-8")
    with pytest.raises(SystemExit, match="3 characters; the lesson needs 50,000"):
        lesson["compare"](tmp_path / "my.txt")


def test_the_notebook_is_made_from_the_lesson():
    assert NOTEBOOK.read_text(encoding="utf-8") == notebook(), "learn/charlm.ipynb: run python -m tests.learn.notebook"


@pytest.mark.usefixtures("small", "kernels")
def test_the_notebook_runs(monkeypatch, capsys):
    """Its cells, one after the other, with tiny networks."""
    monkeypatch.setattr(charlm, "train", functools.partial(charlm.train, overrides=TINY))
    names: dict[str, Any] = {"__name__": "__main__"}
    for code in code_cells():
        exec(compile(code, "cell", "exec"), names)
        if "compare" in names:
            names["compare"].__defaults__ = (None, 8, 4, 2)
    differences = [float(number) for number in re.findall(r"largest difference (\S+)", capsys.readouterr().out)]
    assert len(differences) == 3
    assert max(differences) < 1e-6
