"""scripts/reproduce and benchmarks/ablate.py on made-up runs, without their trainings."""

import importlib
import json
import shutil
import subprocess
from dataclasses import asdict
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from charlm.cells import CELLS
from charlm.config import differences, load_config
from tests.conftest import ROOT

MARKED = "<!-- results -->\n{}<!-- /results -->\n"
CELLS_MARKED = "<!-- cells -->\n{}<!-- /cells -->\n"
PAGE = "Before.\n\n" + MARKED.format("The table that was there.\n") + "\nAfter.\n"
KIND = {
    "cell": "gru",
    "layers": 1,
    "hidden": 256,
    "parameters": 1_234_567,
    "chars_per_s": 1234.5,
    "nats": 1.5,
    "nats_after_chars": 1.51,
    "memory": 32,
    "gradient": 0.0123,
}
"""A row of `charlm compare --json`, as far as the page shows it."""


@pytest.fixture
def recorded(monkeypatch) -> ModuleType:
    """The script as it is, with the results and pages of this checkout."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("reproduce")


@pytest.fixture
def reproduce(recorded, tmp_path, monkeypatch) -> ModuleType:
    """The script, with pages, runs and a plot of its own in `tmp_path`, and nothing recorded."""
    files = {"RUNS": "runs", "RESULTS": "results.json", "PAGE": "a.md", "README": "b.md", "PLOT": "results.png"}
    for name, file in (files | {"COMPARISON": "cells.json"}).items():
        monkeypatch.setattr(recorded, name, tmp_path / file)
    recorded.RESULTS.write_text("{}\n", encoding="utf-8")
    recorded.COMPARISON.write_text('{"rows": []}\n', encoding="utf-8")
    for page in (recorded.PAGE, recorded.README):
        page.write_text(PAGE, encoding="utf-8")
    with recorded.PAGE.open("a", encoding="utf-8") as page:
        page.write(CELLS_MARKED.format(""))
    return recorded


@pytest.fixture
def run_script(reproduce, trained_run, monkeypatch):
    """Run scripts/reproduce; the commands that it would start. Training makes a tiny run; each prints a score."""

    def run(*arguments):
        commands = []

        def start(command, **_):
            words = command[3:]
            commands.append(words)
            if words[0] == "train":
                shutil.copytree(trained_run, words[-1], dirs_exist_ok=True)
            if words[0] == "compare":
                return SimpleNamespace(stdout=json.dumps({"rows": [KIND, KIND | {"cell": "lstm", "nats": 1.4}]}))
            dynamic = {"dynamic": {"nats_per_char": 1.25}} if "--dynamic" in words else {}
            return SimpleNamespace(stdout=json.dumps({"nats_per_char": 1.5, **dynamic}))

        # Not in subprocess itself, which matplotlib uses to find fonts.
        monkeypatch.setattr(reproduce, "subprocess", SimpleNamespace(run=start, PIPE=subprocess.PIPE))
        monkeypatch.setattr("sys.argv", ["reproduce", *arguments])
        reproduce.main()
        return commands

    return run


def made_up(reproduce, seed=1, nats=1.5, dynamic_nats=None, kind="lstm", layers=2, precision="fp32"):
    model = {"cell": {"kind": kind, "hidden": 384}, "layers": layers}
    curve = [[150.0, nats + 0.1], [300.0, nats]]
    return reproduce.Run(seed, "CPU", 4, precision, model, 1_234_567, 1234.5, nats, dynamic_nats, curve)


def complete(reproduce, name, *runs):
    """Leave complete runs of a row in the script's folder."""
    for run in runs:
        file = reproduce.RUNS / f"{name}-seed{run.seed}/result.json"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps(asdict(run)), encoding="utf-8")


def written(page):
    """The rows of the table in a page; the text around them must be unchanged."""
    text = page.read_text(encoding="utf-8").partition("<!-- cells -->")[0]
    before, table, after = text.replace("<!-- /", "<!-- ").split("<!-- results -->")
    assert (before, after) == ("Before.\n\n", "\n\nAfter.\n")
    return table.strip().splitlines()[2:]


def row(reproduce, name):
    return next(row for row in reproduce.ROWS if row.name == name)


def test_lines_of_the_table(reproduce):
    def line(name, *runs):
        return reproduce.line(row(reproduce, name), [made_up(reproduce, **run) for run in runs])

    scores = ((1, 1.4880, 1.30), (2, 1.4922, 1.32), (3, 1.4883, 1.33))
    runs = [{"seed": seed, "nats": nats, "dynamic_nats": dynamic} for seed, nats, dynamic in scores]
    assert line("tinyshakespeare-5min", *runs) == (
        "| tinyshakespeare | 5 min | lstm, 2 × 384 | 1,234,567 | 4 × CPU, fp32 | 1,234 "
        "| 1.4895 (3 seeds: 1.4880 to 1.4922) | 1.3167 |\n"
    )
    assert line("python-stdlib-10s", {"nats": 1.4399}).endswith(" | 1,234 | 1.4399 | – |\n")
    mixed = line("tinyshakespeare-1min", {}, {"layers": 1, "precision": "bf16"})
    assert " | lstm, 2 × 384 or lstm, 1 × 384 | 1,234,567 | 4 × CPU, fp32 or 4 × CPU, bf16 | " in mixed


def test_some_rows_leave_the_others_as_recorded(reproduce, run_script):
    assert run_script("--seeds", "0") == []
    assert written(reproduce.PAGE) == written(reproduce.README) == []
    assert not reproduce.PLOT.exists()
    for name, nats in (("tinyshakespeare-10s", 1.7), ("python-stdlib-1min", 1.3), ("unicode-names-10s", 1.6)):
        complete(reproduce, name, made_up(reproduce, nats=nats))
    run_script("--seeds", "0")
    before = reproduce.read_results()
    shutil.rmtree(reproduce.RUNS)
    five_minutes = made_up(reproduce, 2, 1.42, 1.31), made_up(reproduce, 1, 1.40, 1.30)
    complete(reproduce, "tinyshakespeare-5min", *five_minutes)
    complete(reproduce, "unicode-names-10s", made_up(reproduce, 2, 1.50, kind="rnn"))
    assert run_script("tinyshakespeare-5min", "--seeds", "2") == []
    after = reproduce.read_results()
    names = ["tinyshakespeare-10s", "tinyshakespeare-5min", "python-stdlib-1min", "unicode-names-10s"]
    assert list(after) == names
    assert all(after[name] == before[name] for name in ("tinyshakespeare-10s", "python-stdlib-1min"))
    assert [[run.seed for run in after[name]] for name in names[1::2]] == [[1, 2], [2]]
    lines = written(reproduce.PAGE)
    assert len(lines) == len(reproduce.RESULTS.read_text(encoding="utf-8").splitlines()) == 4
    assert lines[1].endswith(" | 1,234 | 1.4100 (2 seeds: 1.4000 to 1.4200) | 1.3050 |")
    short = ["| 10 s | lstm, 2 × 384 | 1.70 | 2.45 |", "| 5 min | lstm, 2 × 384 | 1.41 | 2.03 |"]
    assert written(reproduce.README) == short
    assert reproduce.PLOT.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("name", "text", "given", "dynamic"),
    [
        ("tinyshakespeare-5min", "text.txt", ["--minutes=5", "--set=data.split=[0.9, 0.1, 0]"], ["--dynamic"]),
        ("python-stdlib-5min", "builtin:python-stdlib", ["--minutes=5", "--set=data.split=[0.98, 0.02, 0]"], []),
        ("unicode-names-1min", "runs/unicode-names.txt", ["--minutes=1", "--set=data.split=[0.9, 0.1, 0]"], []),
    ],
)
def test_trains_scores_and_records(reproduce, run_script, tmp_path, name, text, given, dynamic):
    source = text if ":" in text else str(tmp_path / text)
    run = str(reproduce.RUNS / f"{name}-seed1")
    score = ["eval", run, "--json", *dynamic]
    words = [name, "--source", str(tmp_path / "text.txt")]
    assert run_script(*words) == [
        ["train", source, *given, "--set=seed=1", "--device=cpu", "--run-dir", run], score,
    ]  # fmt: skip
    [result] = reproduce.read_results()[name]
    assert (result.seed, result.nats, result.dynamic_nats) == (1, 1.5, 1.25 if dynamic else None)
    assert (result.precision, result.parameters, result.model["cell"]["hidden"]) == ("fp32", 2014, 16)
    assert len(result.curve) == 2
    assert result.chars_per_s > 0
    assert run_script(*words) == []  # it is complete
    assert "runs/" not in text or "\nLATIN SMALL LETTER A\n" in Path(source).read_text(encoding="utf-8")
    (Path(run) / "result.json").unlink()  # an interrupted run is resumed
    assert run_script(*words) == [["train", "--resume", "--run-dir", run], score]


def test_compares_and_records_the_kinds(reproduce, run_script, tmp_path):
    text = str(tmp_path / "text.txt")
    settings = [f"--cells={','.join(CELLS)}", "--set=data.split=[0.9, 0.1, 0]", "--set=device=cpu"]
    words = ["compare", text, "--minutes=2", *settings, "--out", str(reproduce.RUNS / "cells"), "--json"]
    assert run_script("cells", "--source", text) == [words]
    assert json.loads(reproduce.COMPARISON.read_text(encoding="utf-8"))["rows"][0] == KIND
    before, _, table = reproduce.PAGE.read_text(encoding="utf-8").partition("<!-- cells -->\n")
    assert before == PAGE.replace("The table that was there.\n", reproduce.table({}))
    assert table.splitlines()[2:4] == [
        "| lstm, 1 × 256 | 1,234,567 | 1,234 | 1.4000 | 1.5100 | 32 | 1.2e-02 |",
        "| gru, 1 × 256 | 1,234,567 | 1,234 | 1.5000 | 1.5100 | 32 | 1.2e-02 |",
    ]


def test_wrong_arguments_and_pages_without_marks_are_refused(reproduce, run_script, capsys):
    with pytest.raises(SystemExit, match="2"):
        run_script("no-such-row")
    assert "row 'no-such-row': unknown; allowed: tinyshakespeare-10s | " in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        run_script("--seeds", "-1")
    assert "--seeds: found -1; allowed: integers ≥ 0" in capsys.readouterr().err
    for text, number in (("<!-- results -->\n", 1), (PAGE + PAGE, 4)):
        reproduce.PAGE.write_text(text, encoding="utf-8")
        with pytest.raises(SystemExit, match=f"found {number} lines <!-- results --> and <!-- /results -->; allowed: "):
            reproduce.write_between(reproduce.PAGE, "results", "| table |\n")
        assert reproduce.PAGE.read_text(encoding="utf-8") == text


def test_this_checkout_shows_what_is_recorded(recorded):
    results = recorded.read_results()
    compared = json.loads(recorded.COMPARISON.read_text(encoding="utf-8"))
    page = recorded.PAGE.read_text(encoding="utf-8")
    assert results.keys() <= {row.name for row in recorded.ROWS}
    assert MARKED.format(recorded.table(results)) in page
    assert CELLS_MARKED.format(recorded.table_of_cells(compared)) in page
    assert MARKED.format(recorded.summary(results)) in recorded.README.read_text(encoding="utf-8")
    assert {row["cell"] for row in compared["rows"]} == CELLS.keys()


# benchmarks/ablate.py


@pytest.fixture
def ablate(reproduce) -> ModuleType:
    return importlib.import_module("ablate")


def test_a_run_of_another_config_is_refused(ablate, tiny_config, text_file, tmp_path):
    """The text may lie elsewhere, and a CPU may have chosen the precision."""
    run, text = tmp_path / "run", tiny_config.read_text(encoding="utf-8")

    def fault(config, *settings):
        (run / "config.yaml").write_text(config, encoding="utf-8")
        try:
            ablate.refuse_other(run, tiny_config, list(settings))
        except SystemExit as left:
            return left.code
        return None

    ablate.refuse_other(run, tiny_config, [])  # nothing there yet
    run.mkdir()
    other = text.replace("hidden: 16", "hidden: 17") + "seed: 2\n"
    assert fault(other) == f"{run}: trained with another model.cell.hidden, seed; remove it to train it anew"
    assert fault(other, "model.cell.hidden=17", "seed=2") is None
    assert fault(text.replace(str(text_file), "data/elsewhere.txt")) is None
    other = text.replace("precision: fp32", "precision: bf16")
    assert fault(other) == f"{run}: trained with another precision; remove it to train it anew"
    assert fault(other, "precision=auto") is None


def test_trials_change_what_they_name_and_nothing_else(ablate, tmp_path):
    config = tmp_path / "base.yaml"
    config.write_text(ablate.BASE, encoding="utf-8")
    base = load_config(config)
    for trial in ablate.TRIALS:
        named = [setting.partition("=")[0] for setting in trial]
        changed = differences(base, load_config(config, list(trial)))
        assert all(any(key.startswith(name) for key in changed) for name in named), trial
        assert all(any(key.startswith(name) for name in named) for key in changed), trial
    assert len(set(ablate.TRIALS)) == len(ablate.TRIALS)


def test_ablation_writes_a_row_a_trial(ablate, tmp_path, monkeypatch):
    monkeypatch.setattr(ablate, "TRIALS", [(), ("seed=2", "model.layers=2")])
    monkeypatch.setattr(ablate, "RUNS", tmp_path)
    monkeypatch.setattr("sys.argv", ["ablate"])
    page = tmp_path / "README.md"
    monkeypatch.setattr(ablate, "PAGE", page)
    page.write_text("<!-- ablation -->\n<!-- /ablation -->\n", encoding="utf-8")
    for name, nats in (("base", 1.5), ("seed=2_model.layers=2", 1.4)):
        (tmp_path / f"{name}.json").write_text(json.dumps({"valid_nats": nats}))
    ablate.main()
    assert page.read_text(encoding="utf-8") == (
        "<!-- ablation -->\n| set | validation, nats | against the base |\n|---|---|---|\n"
        "| nothing: the base | 1.5000 | +0.0000 |\n"
        "| `seed=2`, `model.layers=2` | 1.4000 | -0.1000 |\n<!-- /ablation -->\n"
    )
