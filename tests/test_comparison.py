"""Cells compared: sizes that match, a comparison that goes on, and the measures."""

import json

import numpy as np
import pytest
import torch

import charlm
from charlm.cells import RNN
from charlm.comparison import EQUAL, Plan, compare, gradient_back, hidden_for
from charlm.config import parse_config
from charlm.errors import ComparisonError
from charlm.layers import RecurrentLayers
from charlm.model import CharLM, count_parameters
from charlm.runs import find_runs
from tests.runs import interrupted_after
from tests.text import words_text

SHORT = ("--minutes", 0.02, "--set", "train.max_steps=6", "--set", "threads=1", "--set", "device=cpu")


@pytest.fixture
def text(write):
    return write("my.txt", words_text(30_000))


def nats_of(rows):
    return [(row["cell"], row["nats"], row["nats_after_updates"]) for row in rows]


@pytest.mark.usefixtures("needs_kernels")
def test_models_of_equal_size_and_the_same_rows_again(cli, text, tmp_path):
    words = ("compare", text, "--cells", "rnn,gru", *SHORT, "--out", tmp_path / "all", "--json", "--seeds", 2)
    first = json.loads(cli(*words).out)
    small, large = sorted(row["parameters"] for row in first["rows"])
    assert large < 1.1 * small
    assert sorted(path.name for path in find_runs(tmp_path / "all")) == ["gru-1", "gru-2", "rnn-1", "rnn-2"]
    configs = json.loads((tmp_path / "all/comparison.json").read_text(encoding="utf-8"))["configs"]
    assert configs["rnn"]["data"]["split"] == configs["gru"]["data"]["split"]
    page = (tmp_path / "all/comparison.html").read_text(encoding="utf-8")
    assert "The same passage, as each reads it" in page
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "all").rglob("*.safetensors")}
    again = json.loads(cli(*words).out)
    assert again == first
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "all").rglob("*.safetensors")} == before
    for row in first["rows"]:
        assert row["nats_after_updates"] == pytest.approx(row["nats"], abs=0.2)
        assert row["spread"] >= 0
        assert row["memory"] >= 1
        assert row["gradient"] >= 0


def test_one_that_was_stopped_goes_on_as_if_it_had_not(cli, text, tmp_path):
    def words(folder):
        return (
            "compare",
            text,
            "--cells",
            "rnn,lstm",
            *SHORT,
            "--equal",
            "updates",
            "--out",
            tmp_path / folder,
            "--json",
        )

    whole = json.loads(cli(*words("whole")).out)["rows"]
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts/comparison.json").write_bytes((tmp_path / "whole/comparison.json").read_bytes())
    with interrupted_after(3):
        result = cli(*words("parts"))
    assert (result.code, result.out) == (130, "")
    assert "stopped  SIGINT; the same command goes on\n" in result.err
    assert nats_of(json.loads(cli(*words("parts")).out)["rows"]) == nats_of(whole)


def test_a_table(cli, text, tmp_path):
    words = ("compare", text, "--cells", "rnn,mingru", *SHORT, "--equal", "time", "--out", tmp_path / "all")
    lines = cli(*words).out.splitlines()
    assert lines[0].split() == [
        "cell",
        "units",
        "parameters",
        "chars/s",
        "best",
        "nats",
        "u",
        "c",
        "t",
        "memory",
        "gradient",
    ]
    assert {line.split()[0] for line in lines[1:]} == {"rnn", "mingru"}


def test_errors(cli, text, tmp_path):
    assert cli("compare", text, "--cells", "rnn").code == 2
    assert cli("compare", tmp_path / "gone", "--cells", "rnn,lstm").error.startswith(f"{tmp_path / 'gone'}: ")
    folder = tmp_path / "all"
    folder.mkdir()
    (folder / "comparison.json").write_text("{}")
    with pytest.raises(ComparisonError, match="damaged; allowed: the file of a comparison"):
        charlm.compare(text, cells=["rnn", "lstm"], folder=folder)
    plan = {"text": text, "minutes": 5.0, "cells": ["rnn", "gru"], "equal": "parameters", "seeds": 1, "overrides": []}
    (folder / "comparison.json").write_text(json.dumps({"plan": plan, "configs": {}}))
    with pytest.raises(ComparisonError, match=r"found a comparison with cells: \['rnn', 'gru'\]; allowed: the same"):
        charlm.compare(text, cells=["rnn", "lstm"], folder=folder)
    with pytest.raises(ComparisonError, match=r"^equal: found 'size'; allowed: parameters, time, updates$"):
        compare(Plan(text, 1, ("rnn", "lstm"), "size"), folder)
    assert EQUAL == ("parameters", "time", "updates")


@pytest.mark.parametrize("kind", ["lstm", "rhn", "sru"])
def test_the_size_that_comes_nearest(kind):
    config = parse_config({"model": {"cell": {"kind": kind}, "layers": 2, "embedding": 16}}, "test")

    def distance(hidden):
        cell = config.model.cell.model_copy(update={"hidden": hidden})
        return abs(count_parameters(config.model.model_copy(update={"cell": cell}), 40) - 20_000)

    assert hidden_for(config, 40, 20_000) == min(range(1, 200), key=distance)


@pytest.mark.parametrize("factor", [0.9, 1.0, 1.1])
def test_the_gradient_of_a_linear_network_is_a_power(factor):
    """With h_t = W x_t + factor · h_{t−1}, the gradient is multiplied by the factor in each step."""
    torch.manual_seed(1)
    layers = RecurrentLayers(RNN(hidden=8, nonlinearity="relu"), 5)
    model = CharLM(5, 0, layers)
    with torch.no_grad():
        for name, parameter in layers.named_parameters():
            parameter.copy_(parameter.abs() if "weight_ih" in name else torch.zeros_like(parameter))
            if "weight_hh" in name:
                parameter.copy_(factor * torch.eye(8))
    ids = np.random.default_rng(1).integers(0, 5, 400)
    assert gradient_back(model, ids) == pytest.approx(factor**99, rel=1e-3)
    assert gradient_back(model, ids[:200]) is None
