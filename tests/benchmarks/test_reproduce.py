"""scripts/reproduce and scripts/ablate on made-up runs, without their trainings."""

import importlib
import json
import shutil
import subprocess
from dataclasses import asdict
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from charlm.config import differences, load_config, parse_config
from tests.conftest import ROOT

PAGE = """\
Before.

<!-- results -->
The table that was there.
<!-- /results -->

After.
"""
HEADING = """\
| text | time | model (layers × units) | parameters | machine | characters/s | nats | dynamic |
|---|---|---|---|---|---|---|---|
"""
SUMMARY_HEADING = """\
| training time | chosen model (layers × units) | nats per character | bits |
|---|---|---|---|
"""


@pytest.fixture
def recorded(monkeypatch) -> ModuleType:
    """The script as it is, with the results and pages of this checkout."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("reproduce")


@pytest.fixture
def reproduce(recorded, tmp_path, monkeypatch) -> ModuleType:
    """The script, with pages, runs and a plot of its own in `tmp_path`, and nothing recorded."""
    monkeypatch.setattr(recorded, "RUNS", tmp_path / "runs")
    monkeypatch.setattr(recorded, "RESULTS", tmp_path / "results.json")
    monkeypatch.setattr(recorded, "PAGE", tmp_path / "results.md")
    monkeypatch.setattr(recorded, "README", tmp_path / "README.md")
    monkeypatch.setattr(recorded, "PLOT", tmp_path / "results.png")
    recorded.RESULTS.write_text("{}\n", encoding="utf-8")
    for page in (recorded.PAGE, recorded.README):
        page.write_text(PAGE, encoding="utf-8")
    return recorded


@pytest.fixture
def ablate(reproduce) -> ModuleType:
    return importlib.import_module("ablate")


@pytest.fixture
def started(reproduce, trained_run, monkeypatch) -> list[list[str]]:
    """The arguments of every command that the script would start. Training makes a tiny run; each prints a score."""
    commands = []

    def run(command, **_):
        words = command[3:]
        commands.append(words)
        if words[0] == "train":
            shutil.copytree(trained_run, words[-1], dirs_exist_ok=True)
        return SimpleNamespace(stdout=json.dumps({"nats_per_char": 1.5, **DYNAMIC[("--dynamic" in words)]}))

    # Not in subprocess itself, which matplotlib uses to find fonts.
    monkeypatch.setattr(reproduce, "subprocess", SimpleNamespace(run=run, PIPE=subprocess.PIPE))
    return commands


DYNAMIC = ({}, {"dynamic": {"nats_per_char": 1.25}})


@pytest.fixture
def run_script(reproduce, monkeypatch):
    """Run scripts/reproduce with these arguments."""

    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["reproduce", *arguments])
        reproduce.main()

    return run


@pytest.fixture
def make_run(reproduce):
    """A run on a made-up machine."""

    def make(seed=1, nats=1.5, dynamic_nats=None, kind="lstm", layers=2, precision="fp32"):
        return reproduce.Run(
            seed=seed,
            cpu="CPU",
            cores=4,
            precision=precision,
            model={"cell": {"kind": kind, "hidden": 384}, "layers": layers},
            parameters=1_234_567,
            chars_per_s=1234.5,
            nats=nats,
            dynamic_nats=dynamic_nats,
            curve=[[150.0, nats + 0.1], [300.0, nats]],
        )

    return make


def complete(reproduce, name, *runs):
    """Leave complete runs of a row in the script's folder."""
    for run in runs:
        file = reproduce.RUNS / f"{name}-seed{run.seed}/result.json"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps(asdict(run)), encoding="utf-8")


def written(page, heading):
    """The rows of the table in a page; the text around them must be unchanged."""
    before, rows = page.read_text(encoding="utf-8").split(heading)
    rows, after = rows.split("<!-- /results -->")
    assert (before, after) == ("Before.\n\n<!-- results -->\n", "\n\nAfter.\n")
    return rows.splitlines()


def row(reproduce, name):
    return next(row for row in reproduce.ROWS if row.name == name)


def test_lines_of_the_table(reproduce, make_run):
    def line(name, *runs):
        return reproduce.line(row(reproduce, name), list(runs))

    runs = [make_run(1, 1.4880, 1.30), make_run(2, 1.4922, 1.32), make_run(3, 1.4883, 1.33)]
    assert line("tinyshakespeare-5min", *runs) == (
        "| tinyshakespeare | 5 min | lstm, 2 × 384 | 1,234,567 | 4 × CPU, fp32 | 1,234 "
        "| 1.4895 (3 seeds: 1.4880 to 1.4922) | 1.3167 |\n"
    )
    assert line("python-stdlib-10s", make_run(nats=1.4399)).endswith(" | 1,234 | 1.4399 | – |\n")
    assert line("gru", make_run(kind="gru")).startswith("| tinyshakespeare | 5 min | `--config gru`: gru, 2 × 384 |")
    mixed = line("tinyshakespeare-1min", make_run(), make_run(2, layers=1, precision="bf16"))
    assert " | lstm, 2 × 384 or lstm, 1 × 384 | 1,234,567 | 4 × CPU, fp32 or 4 × CPU, bf16 | " in mixed


# The whole script


def test_nothing_is_recorded_and_nothing_trained(reproduce, run_script, started):
    run_script("--seeds", "0")
    assert written(reproduce.PAGE, HEADING) == written(reproduce.README, SUMMARY_HEADING) == []
    assert reproduce.RESULTS.read_text(encoding="utf-8") == "{}\n"
    assert not reproduce.PLOT.exists()
    assert started == []


def test_some_rows_leave_the_others_as_recorded(reproduce, make_run, run_script, started):
    for name, nats in (("tinyshakespeare-10s", 1.7), ("python-stdlib-1min", 1.3), ("rnn", 1.6)):
        complete(reproduce, name, make_run(nats=nats))
    run_script("--seeds", "0")
    before = reproduce.read_results()
    shutil.rmtree(reproduce.RUNS)
    complete(reproduce, "tinyshakespeare-5min", make_run(2, 1.42, 1.31), make_run(1, 1.40, 1.30))
    complete(reproduce, "rnn", make_run(2, 1.50, 1.40, kind="rnn"))
    run_script("tinyshakespeare-5min", "--seeds", "2")
    after = reproduce.read_results()
    assert list(after) == ["tinyshakespeare-10s", "tinyshakespeare-5min", "python-stdlib-1min", "rnn"]
    assert all(after[name] == before[name] for name in ("tinyshakespeare-10s", "python-stdlib-1min"))
    assert [run.seed for run in after["tinyshakespeare-5min"]] == [1, 2]
    assert [run.seed for run in after["rnn"]] == [2]
    lines = written(reproduce.PAGE, HEADING)
    assert len(lines) == 4
    assert lines[1].endswith(" | 1,234 | 1.4100 (2 seeds: 1.4000 to 1.4200) | 1.3050 |")
    assert written(reproduce.README, SUMMARY_HEADING) == [
        "| 10 s | lstm, 2 × 384 | 1.70 | 2.45 |", "| 5 min | lstm, 2 × 384 | 1.41 | 2.03 |",
    ]  # fmt: skip
    assert len(reproduce.RESULTS.read_text(encoding="utf-8").splitlines()) == 4
    assert reproduce.PLOT.read_bytes().startswith(b"\x89PNG")
    assert started == []


@pytest.mark.parametrize(
    ("name", "text", "given", "dynamic"),
    [
        ("tinyshakespeare-10s", "text.txt", ["--minutes=0.1667", "--set=data.split=[0.9, 0.1, 0]"], []),
        ("gru", "text.txt", ["--minutes=5", "--config=gru", "--set=data.split=[0.9, 0.1, 0]"], ["--dynamic"]),
        ("python-stdlib-5min", "builtin:python-stdlib", ["--minutes=5", "--set=data.split=[0.98, 0.02, 0]"], []),
        ("unicode-names-1min", "runs/unicode-names.txt", ["--minutes=1", "--set=data.split=[0.9, 0.1, 0]"], []),
    ],
)
def test_trains_scores_and_records(reproduce, run_script, started, tmp_path, name, text, given, dynamic):
    run_script(name, "--source", str(tmp_path / "text.txt"))
    run = str(reproduce.RUNS / f"{name}-seed1")
    source = text if ":" in text else str(tmp_path / text)
    assert started == [
        ["train", source, *given, "--set=seed=1", "--device=cpu", "--run-dir", run],
        ["eval", run, "--json", *dynamic],
    ]
    [found] = reproduce.read_results()[name]
    assert (found.seed, found.nats, found.dynamic_nats) == (1, 1.5, 1.25 if dynamic else None)
    assert (found.precision, found.parameters, found.model["cell"]["hidden"]) == ("fp32", 2014, 16)
    assert len(found.curve) == 2
    assert found.chars_per_s > 0
    started.clear()
    run_script(name)  # it is complete
    assert started == []
    assert "runs/" not in text or "\nLATIN SMALL LETTER A\n" in Path(source).read_text(encoding="utf-8")


def test_an_interrupted_run_is_resumed(reproduce, run_script, started, trained_run):
    run = reproduce.RUNS / "lstm-seed2"
    complete(reproduce, "lstm", reproduce.Run(1, "CPU", 4, "fp32", {}, 1, 1.0, 1.4, 1.3, []))
    shutil.copytree(trained_run, run)
    reproduce.train(row(reproduce, "lstm"), 2, None)
    assert started == [["train", "--resume", "--run-dir", str(run)], ["eval", str(run), "--json", "--dynamic"]]
    assert (run / "result.json").is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no-such-row"], "row 'no-such-row': unknown; allowed: tinyshakespeare-10s | "),
        (["--seeds", "-1"], "--seeds: found -1; allowed: integers ≥ 0"),
    ],
)
def test_wrong_arguments(run_script, capsys, arguments, message):
    with pytest.raises(SystemExit) as left:
        run_script(*arguments)
    assert left.value.code == 2
    assert message in capsys.readouterr().err


# What is recorded in this checkout


def test_pages_show_what_is_recorded(recorded):
    results = recorded.read_results()
    assert results.keys() <= {row.name for row in recorded.ROWS}
    marked = "<!-- results -->\n{}<!-- /results -->\n"
    assert marked.format(recorded.table(results)) in recorded.PAGE.read_text(encoding="utf-8")
    assert marked.format(recorded.summary(results)) in recorded.README.read_text(encoding="utf-8")


def test_recorded_kinds_have_the_models_of_the_shipped_configs(recorded):
    """If a config changes without being trained again, the page would show the old one's figures."""
    results = recorded.read_results()
    for kind in recorded.KINDS:
        for run in results.get(kind, []):
            assert parse_config({"model": run.model}, "results.json").model == load_config(Path(kind)).model, kind


@pytest.mark.parametrize(("text", "found"), [("<!-- results -->\n", 1), (PAGE + PAGE, 4)], ids=["one", "twice"])
def test_a_page_without_its_marks_is_refused(reproduce, text, found):
    reproduce.PAGE.write_text(text, encoding="utf-8")
    with pytest.raises(SystemExit) as left:
        reproduce.write_between(reproduce.PAGE, "results", "| table |\n")
    marks = "<!-- results --> and <!-- /results -->"
    assert left.value.code == f"{reproduce.PAGE}: found {found} lines {marks}; allowed: one of each"
    assert reproduce.PAGE.read_text(encoding="utf-8") == text


# scripts/ablate


def test_a_run_of_another_config_is_refused(ablate, tiny_config, text_file, tmp_path):
    """The text may lie elsewhere, and a CPU may have chosen the precision."""
    run, text = tmp_path / "run", tiny_config.read_text(encoding="utf-8")

    def fault(*settings):
        try:
            ablate.refuse_other(run, tiny_config, list(settings))
        except SystemExit as left:
            return left.code
        return None

    assert fault() is None  # nothing there yet
    run.mkdir()
    config = run / "config.yaml"
    config.write_text(text.replace("hidden: 16", "hidden: 17") + "seed: 2\n", encoding="utf-8")
    assert fault() == f"{run}: trained with another model.cell.hidden, seed; remove it to train it anew"
    assert fault("model.cell.hidden=17", "seed=2") is None
    config.write_text(text.replace(str(text_file), "data/elsewhere.txt"), encoding="utf-8")
    assert fault() is None
    config.write_text(text.replace("precision: fp32", "precision: bf16"), encoding="utf-8")
    assert fault() == f"{run}: trained with another precision; remove it to train it anew"
    assert fault("precision=auto") is None


def test_trials_change_what_they_name_and_nothing_else(ablate, tmp_path):
    config = tmp_path / "base.yaml"
    config.write_text(ablate.BASE, encoding="utf-8")
    base = load_config(config)
    for trial in ablate.TRIALS:
        named = [setting.partition("=")[0] for setting in trial.settings]
        changed = differences(base, load_config(config, list(trial.settings)))
        assert all(any(key.startswith(name) for key in changed) for name in named), trial.settings
        assert all(any(key.startswith(name) for name in named) for key in changed), trial.settings
    assert len({trial.settings for trial in ablate.TRIALS}) == len(ablate.TRIALS)


def test_ablation_writes_a_row_a_trial(ablate, reproduce, tmp_path, monkeypatch):
    trials = [ablate.Trial(source="us"), ablate.Trial("seed=2", "model.layers=2", source="them")]
    monkeypatch.setattr(ablate, "TRIALS", trials)
    monkeypatch.setattr(ablate, "RUNS", tmp_path / "ablate")
    monkeypatch.setattr("sys.argv", ["ablate"])
    reproduce.PAGE.write_text("<!-- ablation -->\n<!-- /ablation -->\n", encoding="utf-8")
    (tmp_path / "ablate").mkdir()
    for name, nats in (("base", 1.5), ("seed=2_model.layers=2", 1.4)):
        (tmp_path / f"ablate/{name}.json").write_text(json.dumps({"valid_nats": nats}))
    ablate.main()
    assert reproduce.PAGE.read_text(encoding="utf-8") == (
        "<!-- ablation -->\n| set | from | validation, nats | against the base |\n|---|---|---|---|\n"
        "| nothing: the base | us | 1.5000 | +0.0000 |\n"
        "| `seed=2`, `model.layers=2` | them | 1.4000 | -0.1000 |\n<!-- /ablation -->\n"
    )
