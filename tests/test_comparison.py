"""Cells compared: sizes that match, a comparison that goes on, the measures, and the page."""

import json
import math
import re
import shutil
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
import torch

import charlm
from charlm.cells import Cell
from charlm.comparison import compare
from charlm.comparison.page import comparison_data
from charlm.comparison.plan import Plan
from charlm.comparison.settings import configs_of
from charlm.config import flatten
from charlm.errors import ConfigError
from charlm.layers import RecurrentLayers
from charlm.model import CharLM, count_parameters
from charlm.report.page import report_page, text_data
from charlm.report.run import read_run
from charlm.runs import find_runs
from tests.browser import HOSTILE, check_access, data_of
from tests.runs import interrupted_after
from tests.runs import rows as metrics_of
from tests.text import words_text

SETTINGS = {"train.max_steps": 6, "train.eval_every": 2, "threads": 1, "device": "cpu"}
SHORT = ("--minutes", 0.02, *(f"--set={key}={value}" for key, value in SETTINGS.items()))


@pytest.fixture(scope="module", autouse=True)
def speeds():
    """No speed is measured: updates take longer, the larger the model is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("charlm.choice.speed.measure", lambda config, *_: 1e-6 * config.model.cell.hidden**2)
        yield


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    file = tmp_path_factory.mktemp("text") / "my.txt"
    file.write_text(words_text(30_000), encoding="utf-8")
    return str(file)


@pytest.fixture(scope="module")
def compared(text, tmp_path_factory, compiled):
    """A comparison of two kinds with two seeds: its folder, to read only, and its rows."""
    folder = tmp_path_factory.mktemp("comparison") / "all"
    options = {"minutes": 0.02, "equal": "updates", "seeds": 2, "overrides": SETTINGS}
    return folder, charlm.compare(text, cells=["rnn", "gru"], **options, folder=folder)


@pytest.fixture
def again(cli, text, compared, tmp_path):
    """The command of that comparison, in a folder with a copy of it."""
    folder = shutil.copytree(compared[0], tmp_path / "all")

    def again(*words):
        same = ("--cells", "rnn,gru", *SHORT, "--equal", "updates", "--seeds", 2, "--out", folder)
        return cli("compare", text, *same, *words)

    return again


def test_the_same_command_trains_nothing_again_and_reports_show_the_comparison(cli, again, compared, tmp_path):
    folder, rows = compared
    assert sorted(path.name for path in find_runs(folder)) == ["gru-1", "gru-2", "rnn-1", "rnn-2"]
    weights = {path: path.stat().st_mtime_ns for path in (tmp_path / "all").rglob("*.safetensors")}
    assert json.loads(again("--json").out)["rows"] == rows
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "all").rglob("*.safetensors")} == weights
    page = data_of((tmp_path / "all/comparison.html").read_text(encoding="utf-8"))
    assert page["comparison"]["rows"] == rows
    assert [run["name"] for run in page["runs"]] == [row["cell"] for row in rows]
    assert cli("report", tmp_path / "all", "--out", tmp_path / "report.html").code == 0
    assert data_of((tmp_path / "report.html").read_text(encoding="utf-8"))["comparison"] == page["comparison"]


def test_a_run_that_read_less_than_the_others(again, tmp_path):
    """Scores after equal characters are those at the last place that every run has reached."""
    folder = tmp_path / "all"
    for run in ("gru-1", "gru-2"):
        lines = [json.dumps(row) for row in metrics_of(folder / run) if row["step"] <= 4]
        (folder / run / "metrics.jsonl").write_text("\n".join([*lines, ""]))
    at_step_4 = [row["nats"] for n in (1, 2) for row in metrics_of(folder / f"rnn-{n}")
                 if (row["split"], row["step"]) == ("valid", 4)]  # fmt: skip
    after = {row["cell"]: row["nats_after_chars"] for row in json.loads(again("--json").out)["rows"]}
    assert after["rnn"] == pytest.approx(np.mean(at_step_4))


def test_one_that_was_stopped_goes_on_as_if_it_had_not(cli, compared, again, tmp_path):
    shutil.rmtree(tmp_path / "all/gru-1")
    with interrupted_after(3):
        result = again("--json")
    assert (result.code, result.out) == (130, "")
    assert "stopped  SIGINT; the same command goes on\n" in result.err

    def nats_of(rows):
        return [(row["cell"], row["nats"], row["nats_after_chars"]) for row in rows]

    assert nats_of(json.loads(again("--json").out)["rows"]) == nats_of(compared[1])


def test_a_folder_runs_no_code(again, tmp_path, write):
    """The files that are run are those that the command names."""
    ran = tmp_path / "ran"
    own = write("own.py", f"open({str(ran)!r}, 'w')\n")
    file = tmp_path / "all/comparison.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    shutil.rmtree(tmp_path / "all/rnn-1")
    content["configs"]["rnn"]["model"]["cell"]["kind"] = f"{own}:Own"
    file.write_text(json.dumps(content), encoding="utf-8")
    assert again().code == 0
    assert not ran.exists()
    content["configs"]["../rnn"] = content["configs"].pop("rnn")
    file.write_text(json.dumps(content), encoding="utf-8")
    assert again().error.startswith(f"{file}: damaged; ")


@pytest.mark.parametrize("name", ["rnn-1", "comparison.json", "comparison.html"])
def test_a_folder_from_somebody_else_writes_nothing_outside(cli, text, tmp_path, name):
    outside, folder = tmp_path / "outside", tmp_path / "all"
    outside.mkdir()
    folder.mkdir()
    (folder / name).symlink_to(outside)
    refused = cli("compare", text, "--cells", "rnn,lstm", *SHORT, "--out", folder)
    assert refused.error.startswith(f"{folder / name}: found a link, ")
    assert not [*outside.iterdir()]


@pytest.fixture
def configs(text, tmp_path, no_kernels):
    """The configs of some kinds, as charlm chooses them."""

    def configs(cells=("rnn", "lstm", "sru"), **options):
        overrides = {"threads": 1, "device": "cpu"} | options.pop("overrides", {})
        plan = Plan(text, 0.02, cells, overrides=overrides, **options)
        return configs_of(plan, tmp_path / f"{len([*tmp_path.iterdir()])}")

    return configs


def test_models_are_as_large_as_the_middle_one_that_charlm_would_choose(configs):
    def sizes(equal):
        return [count_parameters(config.model, 20) for config in configs(equal=equal).values()]

    chosen, same = sizes("time"), sizes("parameters")
    assert max(chosen) > 1.2 * sorted(chosen)[1]
    assert same == pytest.approx([sorted(chosen)[1]] * 3, rel=0.1)


def test_plain_trainings_differ_in_their_cells_alone(configs):
    plain = configs(plain=True)
    options = [flatten(config) for config in plain.values()]
    keys = {key for key in options[0] if len({str(each.get(key)) for each in options}) > 1}
    assert {key for key in keys if not re.match(r"model\.cell\.|train\.\w+_every$", key)} == set()
    assert (plain["lstm"].model.layers, plain["lstm"].model.cell.layer_norm) == (1, False)


def test_an_option_of_some_cells_is_left_out_for_the_others(configs):
    found = configs(overrides={"model.cell.normalize": False, "model.cell.nonlinearity": "relu"})
    assert (found["sru"].model.cell.normalize, found["rnn"].model.cell.nonlinearity) == (False, "relu")


@pytest.mark.parametrize(
    ("cells", "overrides"),
    [
        (["rnn"], {}),
        (["a.py:Mine", "b.py:mine"], {}),
        (["rnn", "gru"], {"seed": 5}),
        (["rnn", "gru"], {"model.cell.hidden": 64}),
        (["rnn", "gru"], {"data.split": [1, 0, 0]}),
    ],
)
def test_what_cannot_be_compared(text, tmp_path, cells, overrides):
    with pytest.raises((ValueError, ConfigError)):
        charlm.compare(text, cells=cells, folder=tmp_path / "none", overrides=overrides)


def test_another_comparison_has_another_folder(text, compared, again):
    with pytest.raises(ConfigError):
        charlm.compare(text, cells=["rnn", "lstm"], minutes=0.02, folder=compared[0])
    for words in (["--lines"], ["--records", "~"]):
        assert "found a comparison with overrides: " in again(*words).error


class Slow(Cell):
    """Shows the last character, but nothing until it has read a text for a while."""

    states: ClassVar = ("h", "w")

    def step(self, p, x, h, w):
        w = 0.9 * w + 0.1
        return w * p.product("weight_ih", x), w


class Delayed(Cell):
    """Shows the last character but two."""

    states: ClassVar = ("h", "a", "b")

    def step(self, p, x, h, a, b):
        return a, b, p.product("weight_ih", x)


@pytest.mark.usefixtures("no_kernels")
@pytest.mark.parametrize(("cell", "expected"), [(Slow, 1), (Delayed, 3)])
def test_the_memory_of_a_network_that_guesses_a_character_again(cell, expected):
    V, triples = 8, np.random.default_rng(0).integers(8, size=(300, 3))
    model = CharLM(V, 0, RecurrentLayers(cell(hidden=V), V)).eval()
    torch.nn.init.eye_(model.layers.get_parameter("weight_ih_l0"))
    torch.nn.init.eye_(model.decoder.weight).data *= 3
    ids = np.repeat(triples, 2, axis=0).ravel().astype(np.uint8) if cell is Delayed else np.repeat(triples, 2)
    assert compare.memory(model, ids) == expected
    assert compare.memory(model, ids[:7]) is None


def test_the_page_in_a_browser(trained_run, model, opened):
    """Two kinds that came out differently, whose runs and models are the same."""
    row = {"layers": 1, "hidden": 16, "parameters": 2014, "chars_per_s": 61_234.0, "spread": None}
    row |= {"seed_nats": [1.5, 1.6, 2.3], "updates": [61, 68, 90]}
    lstm = {"cell": "lstm", "nats": 1.5, "nats_after_chars": None, "memory": 512, "gradient": 7.6e-5}
    other = {"cell": f"cells/{HOSTILE}.py", "nats": 2.25, "nats_after_chars": 2.0, "memory": None, "gradient": None}
    plan = Plan(f"texts/{HOSTILE}", 2, (lstm["cell"], other["cell"]), seeds=3)
    comparison = comparison_data(plan, [row | lstm, row | other], [model, model])
    comparison["passages"] = [text_data("abc", [1.0, 2.0, math.nan]), text_data("abc", [7.0, 2.0, math.nan])]
    record = read_run(trained_run)
    path, records = record.about.path, []
    for name in comparison["runs"]:
        records.append(replace(record, about=replace(record.about, path=path.with_name(name))))
    second = replace(record, about=replace(record.about, path=path.with_name("lstm-2")))
    all_runs = data_of(report_page([*records, second], comparison, path.parent))["runs"]
    assert [run["name"] for run in all_runs][::2] == ["lstm-1", "lstm-2"]
    assert data_of(report_page(records, comparison, path.parent))["runs"][0]["name"] == "lstm"
    view = opened(report_page(records, comparison, path.parent), color_scheme="dark")
    assert view.text_content("h1") == "2 kinds of cells compared"
    assert "the means of 3 trainings" in view.text_content("#story")
    cautions = view.locator("#cautions li").all_text_contents()
    assert "numbers of updates (lstm: 61, 68, 90; " in cautions[0]
    assert cautions[1].endswith("their seeds overlap, so the difference may be chance")
    cells = view.locator("#comparison tbody tr >> nth=0").locator("td").all_text_contents()
    assert cells == ["1.500", "512", "7.6·10⁻⁵", "—", "61,234", "2,014", "1 × 16"]
    assert view.locator("#comparison .best").all_text_contents() == ["1.500", "2.000"]
    assert (view.locator("#passages .sample").count(), view.locator("#written .sample").count()) == (2, 2)
    assert (view.locator("#gradients .trained").count(), view.locator("#gradients .untrained").count()) == (2, 2)
    told = view.get_attribute("#gradients svg[role=img]", "aria-label")
    said = re.match(r"What is left of the gradient 100 characters back: lstm (\S+) trained, (\S+) untrained; ", told)
    assert said[1] != said[2]
    assert view.evaluate("window.broken") is None
    shades = "spans => spans.map(span => span.style.backgroundColor)"
    differences = ["rgba(30, 110, 210, 0.72)", "", "rgba(230, 120, 0, 0.72)", ""]  # those of "bc" are alike
    assert view.eval_on_selector_all("#passages .sample span", shades) == differences
    view.click("#passage-colors [value=surprise]")
    surprises = view.eval_on_selector_all("#passages .sample span", shades)
    assert surprises[1:3] == surprises[4:6] != differences[1:3]
    check_access(view, 21)
    view.click("#legend button >> nth=0")  # a run that is hidden is hidden everywhere
    assert (view.locator("#gradients .trained").count(), view.locator("#passages .sample").count()) == (1, 1)
