"""Cells compared: sizes that match, a comparison that goes on, the measures, and the page."""

import itertools
import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

import charlm
from charlm.cells import RNN
from charlm.cli.compare import _print
from charlm.comparison import compare
from charlm.comparison.compare import gradient_left
from charlm.comparison.page import PASSAGE, WRITTEN, comparison_data
from charlm.comparison.plan import Plan, run_name, short_name
from charlm.comparison.settings import configs_of, hidden_for
from charlm.config import flatten, parse_config
from charlm.data.vocabulary import Vocabulary
from charlm.errors import ConfigError
from charlm.inference.trained import TrainedModel, load
from charlm.layers import RecurrentLayers
from charlm.model import CharLM, count_parameters
from charlm.report.page import report_page
from charlm.report.run import read_run
from charlm.runs import VERSION, find_runs
from tests.browser import HOSTILE, check_access, data_of, unpacked
from tests.runs import interrupted_after
from tests.text import words_text

SHORT = ("--minutes", 0.02, "--set", "train.max_steps=6", "--set", "threads=1", "--set", "device=cpu")


@pytest.fixture
def text(write):
    return write("my.txt", words_text(30_000))


def row_of(cell, nats, **others):
    row = {"cell": cell, "layers": 1, "hidden": 16, "parameters": 2014, "chars_per_s": 61_234.0, "nats": nats}
    return row | {"spread": None, "nats_after_chars": None, "memory": 512, "gradient": 7.6e-5} | others


@pytest.fixture
def page(trained_run, monkeypatch):
    """The page of two kinds that came out differently, whose runs and models are the same."""
    record, model = read_run(trained_run), load(trained_run, "cpu", "fp32")
    rows = row_of("lstm", 1.5), row_of(f"cells/{HOSTILE}.py", 2.25, memory=None, gradient=None, nats_after_chars=2.0)
    cells = tuple(row["cell"] for row in rows)
    left = itertools.cycle([0.9 ** np.arange(100), 0.5 ** np.arange(100)])
    monkeypatch.setattr("charlm.comparison.page.gradient_left", lambda *_: next(left))

    def make(minutes=2, model=model):
        plan = Plan(f"texts/{HOSTILE}", minutes, cells, seeds=3)
        comparison = comparison_data(plan, rows, [model, model])
        records = [replace(record, path=record.path.with_name(name)) for name in comparison["runs"]]
        return report_page(records, comparison, record.path.parent)

    return make


def nats_of(rows):
    return [(row["cell"], row["nats"], row["nats_after_chars"]) for row in rows]


@pytest.mark.usefixtures("needs_kernels")
def test_models_of_equal_size_and_the_same_rows_again(cli, text, tmp_path):
    words = ("compare", text, "--cells", "rnn,gru", *SHORT, "--out", tmp_path / "all", "--json", "--seeds", 2)
    first = json.loads(cli(*words).out)
    small, large = sorted(row["parameters"] for row in first["rows"])
    assert large < 1.1 * small
    assert sorted(path.name for path in find_runs(tmp_path / "all")) == ["gru-1", "gru-2", "rnn-1", "rnn-2"]
    configs = json.loads((tmp_path / "all/comparison.json").read_text(encoding="utf-8"))["configs"]
    assert configs["rnn"]["data"]["split"] == configs["gru"]["data"]["split"]
    page = data_of((tmp_path / "all/comparison.html").read_text(encoding="utf-8"))
    assert page["comparison"]["rows"] == first["rows"]
    assert [run["name"] for run in page["runs"]] == [row["cell"] for row in first["rows"]]
    assert cli("report", tmp_path / "all", "--out", tmp_path / "report.html").code == 0
    report = data_of((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert report["comparison"] == page["comparison"]
    assert [run["name"] for run in report["runs"]] == [*page["comparison"]["runs"].values(), "gru-2", "rnn-2"]
    shutil.copytree(tmp_path / "all", tmp_path / "copy")  # of another comparison, runs have the same names
    assert cli("report", tmp_path / "all", tmp_path / "copy", "--out", tmp_path / "report.html").code == 0
    both = data_of((tmp_path / "report.html").read_text(encoding="utf-8"))["runs"]
    assert [run["name"] for run in both[:2]] == [row["cell"] for row in first["rows"]]
    assert str(tmp_path / "copy/gru-1") in [run["name"] for run in both]
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "all").rglob("*.safetensors")}
    again = json.loads(cli(*words).out)
    assert again == first
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "all").rglob("*.safetensors")} == before
    for row in first["rows"]:
        assert row["nats_after_chars"] == pytest.approx(row["nats"], abs=0.2)
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


def test_a_folder_runs_no_code(cli, text, tmp_path, write):
    """The files that are run are those that the command names."""
    folder = tmp_path / "all"
    words = ("compare", text, "--cells", "rnn,lstm", *SHORT, "--equal", "time", "--out", folder)
    assert cli(*words).code == 0
    for run in find_runs(folder):
        shutil.rmtree(run)
    ran = tmp_path / "ran"
    own = write("own.py", f"open({str(ran)!r}, 'w')\n")
    file = folder / "comparison.json"
    kept = json.loads(file.read_text(encoding="utf-8"))
    kept["configs"]["rnn"]["model"]["cell"]["kind"] = f"{own}:Own"
    file.write_text(json.dumps(kept), encoding="utf-8")
    assert cli(*words).code == 0
    kept["configs"]["../rnn"] = kept["configs"].pop("rnn")
    file.write_text(json.dumps(kept), encoding="utf-8")
    assert cli(*words).error == f"{file}: damaged; allowed: the file of a comparison; delete it, or take another --out"
    file.write_text(json.dumps(kept | {"version": "99", "charlm": "9.1"}), encoding="utf-8")
    found = f"{file}: found format version 99, of charlm 9.1; allowed: version {VERSION}, of charlm "
    assert cli(*words).error.startswith(found)
    assert not ran.exists()


@pytest.mark.parametrize("name", ["rnn-1", "comparison.json", "comparison.html"])
def test_a_folder_from_somebody_else_writes_nothing_outside(cli, text, tmp_path, name):
    outside, folder = tmp_path / "outside", tmp_path / "all"
    outside.mkdir()
    folder.mkdir()
    (folder / name).symlink_to(outside)
    refused = cli("compare", text, "--cells", "rnn,lstm", *SHORT, "--equal", "time", "--out", folder)
    found = "found a link, through which charlm does not write"
    assert refused.error == f"{folder / name}: {found}; allowed: what charlm wrote itself; remove it"
    assert not [*outside.iterdir()]


def test_a_table_and_each_model_loaded_once(cli, text, tmp_path, monkeypatch):
    loaded = []
    monkeypatch.setattr("charlm.comparison.compare.load", lambda path, *more: loaded.append(path) or load(path, *more))
    words = ("compare", text, "--cells", "rnn,mingru", *SHORT, "--equal", "time", "--out", tmp_path / "all")
    result = cli(*words)
    differing, table = (block.splitlines() for block in result.out.split("\n\n"))
    assert table[0].split() == ["cell", "units", "params", "chars/s", "nats", "after", "memory", "grad"]
    kinds = [line.split()[0] for line in table[1:]]
    assert differing[0].split() == ["differs", *kinds]
    [rates] = [line.split()[1:] for line in differing if line.startswith("optimizer.lr ")]
    rate = dict(zip(kinds, rates, strict=True))
    assert float(rate["rnn"]) < float(rate["mingru"])
    metrics = tmp_path / "all/rnn-1/metrics.jsonl"
    metrics.unlink()
    metrics.mkdir()
    damaged = cli(*words)
    assert damaged.err.startswith(f"note     {metrics.parent}: metrics.jsonl cannot be read (found no regular file).\n")
    assert "—" in next(line for line in damaged.out.splitlines() if line.startswith("rnn "))
    assert len(loaded) == 4
    assert (tmp_path / "all/comparison.html").is_file()


def test_a_table_in_80_columns(monkeypatch, capsys):
    monkeypatch.setattr("charlm.cli.common.terminal_columns", lambda _: 80)
    rows = [row_of("mogrifier", 1.2345, hidden=1024, parameters=302_123), row_of("rnn", 2.3, nats_after_chars=2.4)]
    _print(rows, [], "parameters")
    lines = capsys.readouterr().out.splitlines()
    assert " ".join(lines[1].split()) == "mogrifier 1×1024 302 k 61.2 k 1.234 — 512 7.6e-05"
    assert max(map(len, lines)) < 80
    _print(rows, [], "updates")  # all have read the same characters
    assert "after" not in capsys.readouterr().out


def test_plain_trainings_differ_in_their_cells_alone(text, tmp_path):
    def configs(folder, *overrides, cells=("rnn", "lstm", "sru"), **more):
        plan = Plan(str(text), 0.02, cells, overrides=("threads=1", "device=cpu", *overrides), **more)
        return configs_of(plan, tmp_path / folder)

    found = configs("plain", plain=True)
    options = [flatten(config) for config in found.values()]
    keys = {key for key in options[0] if len({str(each.get(key)) for each in options}) > 1}
    assert {key for key in keys if not re.match(r"model\.cell\.|train\.\w+_every$", key)} == set()
    assert (found["lstm"].model.layers, found["lstm"].model.residual) == (1, False)
    assert (found["lstm"].model.cell.layer_norm, found["sru"].model.cell.normalize) == (False, False)

    found = configs("one", "model.cell.normalize=false", "model.cell.nonlinearity=relu")
    assert (found["sru"].model.cell.normalize, found["rnn"].model.cell.nonlinearity) == (False, "relu")
    with pytest.raises(ConfigError, match=r"--set model\.cell\.normalise=false: .*unknown key"):
        configs("none", "model.cell.normalise=false")
    with pytest.raises(ValueError, match=r"^set model\.cell: found a whole section"):
        configs("section", "model={cell: {layer_norm: true}}")


def test_errors(cli, text, tmp_path):
    allowed = "allowed: two kinds or more, for example rnn, lstm"
    assert cli("compare", text, "--cells", "rnn").usage_error == f"Invalid value: --cells: found rnn; {allowed}"
    for cells in ([], ["rnn"]):
        with pytest.raises(ValueError, match=f"^cells: found {', '.join(cells) or 'none'}; {allowed}$"):
            charlm.compare(text, cells=cells)
    for cells, name in ((["rnn", "rnn"], "rnn"), (["mine.py", "others/mine.py"], "mine"), (["gru", "gru.py"], "gru"),
                        (["a.py:Mine", "b.py:mine"], "Mine")):  # fmt: skip
        found = f"^cells: found {cells[0]} and another '{name}'; allowed: each name once$"
        with pytest.raises(ValueError, match=found):
            charlm.compare(text, cells=cells)
    for option, decides in (
        ("model.cell.kind=gru", "cells"),
        ("model={cell: {kind: gru}}", "cells"),
        ("seed=5", "seeds"),
        ("model.cell.hidden=64", "equal parameters"),
    ):
        refused = cli("compare", text, "--cells", "rnn,lstm", "--set", option).usage_error
        assert f"found an option that --{decides} decides; leave it out" in refused
    plan = Plan(text, 1, ("two.py:First", "two.py:Second"), "time", overrides=("model.cell.hidden=64",))
    assert [short_name(cell) for cell in plan.cells] == ["First", "Second"]
    assert run_name("x.py:../../outside", 1) == "outside-1"
    with pytest.raises(TypeError, match="cells: found a string"):
        charlm.compare(text, cells="rnn,lstm")
    with pytest.raises(ValueError, match=r"^seeds: found 0; allowed: an integer from 1 to 100$"):
        charlm.compare(text, seeds=0)
    with pytest.raises(ConfigError, match=r"^data.split: found no validation share; kinds are compared by"):
        charlm.compare(text, overrides=["data.split=[1,0,0]"], folder=tmp_path / "none")
    assert cli("compare", tmp_path / "gone", "--cells", "rnn,lstm").error.startswith(f"{tmp_path / 'gone'}: ")
    folder = tmp_path / "all"
    folder.mkdir()
    (folder / "comparison.json").write_text("{}")
    with pytest.raises(ConfigError, match="damaged; allowed: the file of a comparison"):
        charlm.compare(text, cells=["rnn", "lstm"], folder=folder)
    plan = {"text": text, "minutes": 5.0, "cells": ["rnn", "gru"], "equal": "parameters", "seeds": 1, "overrides": []}
    plan |= {"plain": False}
    (folder / "comparison.json").write_text(json.dumps({"version": str(VERSION), "plan": plan, "configs": {}}))
    with pytest.raises(ConfigError, match=r"found a comparison with cells: \['rnn', 'gru'\]; allowed: the same"):
        charlm.compare(text, cells=["rnn", "lstm"], folder=folder)
    with pytest.raises(ValueError, match=r"^equal: found 'size'; allowed: parameters, time, updates$"):
        charlm.compare(text, equal="size")


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
    assert gradient_left(model, ids) == pytest.approx(factor ** np.arange(100), rel=1e-3)
    assert len(gradient_left(model, ids[:200])) == 99


def test_the_data_of_the_page(page, model):
    data = data_of(page())["comparison"]
    [passage, same] = data["passages"]
    assert passage == same
    assert len(passage["text"]) == len(unpacked(passage["bits"])) == PASSAGE
    [written, _] = data["written"]
    assert len(written["text"]) == len(unpacked(written["bits"])) == WRITTEN


def test_the_page_in_a_browser(page, opened):
    view = opened(page(), color_scheme="dark")
    assert view.text_content("h1") == "2 kinds of cells compared"
    story = view.text_content("#story")
    assert "for 2 minutes and learned to guess its next character. All have about the same" in story
    assert "the means of 3 trainings" in story
    assert "for 3 seconds and learned" in opened(page(minutes=0.05)).text_content("#story")
    cells = view.locator("#comparison tbody tr >> nth=0").locator("td").all_text_contents()
    assert cells == ["1.500", "512", "7.6e−5", "—", "61,234", "2,014", "1 × 16"]
    assert view.locator("#comparison .best").all_text_contents() == ["1.500", "2.000"]
    assert not view.locator("#scores").is_visible()
    assert (view.locator("#passages .sample").count(), view.locator("#written .sample").count()) == (2, 2)
    assert view.locator("#chart-loss path.line").count() == 4
    assert (view.locator("#gradients .trained").count(), view.locator("#gradients .untrained").count()) == (2, 2)
    told = view.get_attribute("#gradients svg[role=img]", "aria-label")
    assert told.startswith("What is left of the gradient 100 characters back: lstm 3e−5 trained, 1.6e−30 untrained; ")
    widths = view.eval_on_selector_all("#gradients path", "paths => paths.map(path => path.getBBox().width)")
    assert widths[0] < widths[2]  # the untrained ones leave the chart
    assert view.evaluate("window.broken") is None
    check_access(view, 20)
    view.click("#legend button >> nth=0")  # a run that is hidden is hidden everywhere
    assert view.locator("#gradients .trained").count() == 1
    assert (view.locator("#passages .sample").count(), view.locator("#written .sample").count()) == (1, 1)
    scrolling = "boxes => boxes.filter(box => box.scrollHeight > box.clientHeight + 1).length"
    assert view.eval_on_selector_all(".sample", scrolling) == 0
    view.set_viewport_size({"width": 390, "height": 800})
    view.wait_for_function("document.documentElement.scrollWidth <= 390")
    right = view.locator("#comparison").locator("..").evaluate("box => box.getBoundingClientRect().right")
    for column in range(2):  # what the text explains is in sight
        box = view.locator("#comparison tbody td").nth(column).bounding_box()
        assert box["x"] + box["width"] <= right


def test_a_page_of_bytes(page, model, opened, monkeypatch):
    vocabulary = Vocabulary("byte")
    network = CharLM(256, 0, RecurrentLayers(RNN(hidden=8), 256)).eval()
    monkeypatch.setattr(TrainedModel, "split", lambda *_: vocabulary.encode(words_text(3000)))
    view = opened(page(model=replace(model, vocabulary=vocabulary, network=network)))
    assert "learned to guess its next byte." in view.text_content("#story")
    assert "bytes read per second" in view.inner_text("#comparison")
    assert "character" not in " ".join(view.locator(".of-comparison").all_inner_texts())


@pytest.mark.parametrize("back", [1, 7, 20])
def test_the_memory_of_a_network_that_needs_one_character(monkeypatch, back):
    """A character costs 1 nat, and nothing once the one `back` places before it has been read."""
    nats = np.concatenate([np.ones(back - 1), np.zeros(600)])
    monkeypatch.setattr(compare, "score_texts", lambda _, texts, *more: [nats[: len(ids) - 1] for ids in texts])
    model, ids = CharLM(5, 0, RecurrentLayers(RNN(hidden=8), 5)), np.zeros(4000, np.uint8)
    assert back <= compare.memory(model, ids) <= 1.25 * back + 1
    monkeypatch.setattr(compare, "score_texts", lambda _, texts, *more: [-np.arange(len(ids) - 1) for ids in texts])
    assert compare.memory(model, ids) == compare.CONTEXT
    assert compare.memory(model, ids[:15]) is None
