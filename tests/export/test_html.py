"""`charlm export --to html`: what the command writes and says, and the set of the training text's windows."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from charlm.errors import DataError, ExportError
from charlm.export import export, html, html_copies
from charlm.export.html_copies import copies_of
from charlm.inference import TrainedModel, load
from tests.export.models import model_of
from tests.export.odd import Odd


def data_of(page: str) -> dict:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found
    return json.loads(found[1])


@pytest.fixture
def without_training_text(monkeypatch):
    def gone(*_):
        raise DataError("the text is gone")

    monkeypatch.setattr(TrainedModel, "training_splits", gone)


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("option", "name"), [([], "int8"), (["--float32"], "float32")])
def test_it_says_what_the_page_costs(cli, trained_run, place, option, name):
    result = cli("export", trained_run, "--to", "html", "--out", "a.html", *option)
    assert (result.code, result.out) == (0, "")
    assert re.fullmatch(
        rf"(data .*\n)*export   a\.html: [\d.]+ kB; {name}: \d\.\d{{4}} nats per character before, \d\.\d{{4}} after "
        r"\([+-]0\.\d\d%\), on [\d,]+ characters of validation text\n",
        result.err,
    )
    data = data_of(Path("a.html").read_text(encoding="utf-8"))
    assert (data["precision"], data["copies"]) == (name, None)
    assert [file.name for file in place.iterdir()] == ["a.html"]


def test_nats_before_are_those_of_charlm(trained_run, tmp_path):
    trained = load(trained_run, "cpu")
    costs = export(trained, "html", tmp_path / "a.html", int8=False).check
    assert costs.before_nats == pytest.approx(trained.evaluate(trained.split("valid")).nats_per_char, rel=1e-6)
    assert costs.after_nats == pytest.approx(costs.before_nats, rel=1e-6)
    assert costs.scored == len(trained.split("valid")) - 1


def test_weights_that_lose_too_much_are_refused(trained_run, tmp_path, monkeypatch):
    monkeypatch.setattr(html, "html_nats", lambda *_, **__: 99.0)
    with pytest.raises(ExportError, match=r"html: int8 weights raise the loss .* allowed: 0\.5%; use --float32"):
        export(load(trained_run, "cpu"), "html", tmp_path / "a.html")
    monkeypatch.setattr(html, "html_nats", lambda *_, **__: float("nan"))
    with pytest.raises(ExportError, match="raise the loss"):
        export(load(trained_run, "cpu"), "html", tmp_path / "a.html")
    assert [*tmp_path.iterdir()] == []


def test_a_text_of_one_character_loses_nothing(cli, tiny_config, text_file, place):
    text_file.write_text("a" * 2000)
    for words in (["train", "--config", tiny_config, "--run-dir", "run"], ["export", "run", "--to", "html"]):
        result = cli(*words, *(["--out", "a.html"] if words[0] == "export" else []))
        assert result.code == 0, result.err
    assert "int8: 0.0000 nats per character before, 0.0000 after (+0.00%), on 99 characters" in result.err


def test_without_the_training_text(tmp_path, without_training_text):
    done = export(model_of(), "html", tmp_path / "a.html")
    assert str(done.check).startswith("int8; nats not compared: the text is gone")
    assert done.check.loss == 0


def test_only_an_earlier_page_is_replaced(cli, trained_run, place):
    words = ["export", trained_run, "--to", "html", "--out", "a.html"]
    Path("a.html").write_text("<!DOCTYPE html>\n<title>years of work</title>", encoding="utf-8")
    assert cli(*words).error == "--out a.html: exists already; --overwrite replaces an earlier export"
    assert cli(*words, "--overwrite").error == (
        "--out a.html: exists and is not a page of charlm export; allowed: a new or empty file, or an earlier page of "
        "charlm export"
    )
    assert "years of work" in Path("a.html").read_text(encoding="utf-8")
    Path("a.html").unlink()
    assert [cli(*words, "--overwrite").code for _ in range(2)] == [0, 0]


@pytest.mark.parametrize("option", ["--int8", "--float32", "--novelty"])
def test_options_of_the_page_need_it(cli, trained_run, option):
    result = cli("export", trained_run, "--to", "torch", "--out", "a", option)
    assert result.usage_error.endswith("--int8, --float32 and --novelty need --to html")


def test_novelty(cli, trained_run, place):
    result = cli("export", trained_run, "--to", "html", "--out", "a.html", "--novelty")
    assert re.search(r"; copies: [\d.]+ kB for [\d,]+ characters of training text; a window of 20 ", result.err)
    copies = data_of(Path("a.html").read_text(encoding="utf-8"))["copies"]
    assert (copies["window"], copies["covered"]) == (20, copies["total"])


def test_every_window_is_in_its_bucket(monkeypatch):
    ids = np.random.default_rng(0).integers(0, 60, 5000).astype(np.uint8)
    copies = copies_of(ids)
    assert copies.counts_B.sum() == len(copies.fingerprints_N)
    assert len(copies.counts_B) == 4096
    assert copies.chance == pytest.approx(len(copies.fingerprints_N) / 4096 / 65536)
    repeated = copies_of(np.tile(ids[:100], 50))
    assert len(repeated.fingerprints_N) == 100
    monkeypatch.setattr(html_copies, "MOST_WINDOWS", 1000)
    cut = copies_of(ids)
    assert (cut.covered, cut.total) == (1019, 5000)


@pytest.mark.parametrize("length", [0, 1, 19, 20, 21])
def test_short_training_texts(length):
    assert len(copies_of(np.arange(length, dtype=np.uint8)).fingerprints_N) == max(0, length - 19)


def test_novelty_needs_the_training_text(tmp_path, without_training_text):
    with pytest.raises(DataError, match="the text is gone"):
        export(model_of(), "html", tmp_path / "a.html", novelty=True)
    assert [*tmp_path.iterdir()] == []


def test_a_cell_that_charlm_does_not_have(tmp_path, without_training_text):
    export(model_of("odd"), "html", tmp_path / "a.html")
    [program] = data_of((tmp_path / "a.html").read_text(encoding="utf-8"))["model"]["programs"]
    assert [state["name"] for state in program["states"]] == [*Odd.states]
    assert [*program["shown"]] == ["leaky", "norm", "gate decay"]


def test_the_page_loads_nothing_and_runs_nothing_else(tmp_path, without_training_text):
    export(model_of(), "html", tmp_path / "a.html")
    page = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert "eval(" not in page
    assert "unsafe-inline" not in page
    assert "://" not in page
