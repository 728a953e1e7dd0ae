"""scripts/reproduce and scripts/ablate on made-up runs, without their trainings."""

import importlib
import json
import shutil
from types import ModuleType, SimpleNamespace

import pytest

from charlm.checkpoint import read_checkpoint
from charlm.config import differences, load_config, parse_config
from tests.conftest import ROOT

PAGE = """\
Before.

<!-- results -->
The table that was there.
<!-- /results -->

After.
"""


@pytest.fixture
def reproduce(tmp_path, monkeypatch) -> ModuleType:
    """The script, with pages, runs and a plot of its own in `tmp_path`."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    script = importlib.import_module("reproduce")
    monkeypatch.setattr(script, "RUNS", tmp_path / "runs")
    monkeypatch.setattr(script, "RESULTS", tmp_path / "results.json")
    monkeypatch.setattr(script, "PAGE", tmp_path / "results.md")
    monkeypatch.setattr(script, "README", tmp_path / "README.md")
    monkeypatch.setattr(script, "PLOT", tmp_path / "results.png")
    for page in (script.PAGE, script.README):
        page.write_text(PAGE, encoding="utf-8")
    return script


@pytest.fixture
def ablate(reproduce) -> ModuleType:
    return importlib.import_module("ablate")


@pytest.fixture
def started(reproduce, monkeypatch) -> list[list[str]]:
    """The arguments of every command that the script would start; none runs, and each prints a score."""
    commands = []

    def run(command, **_):
        commands.append(command[3:])
        return SimpleNamespace(stdout='{"nats_per_char": 9.0, "dynamic": {"nats_per_char": 8.0}}')

    monkeypatch.setattr(reproduce.subprocess, "run", run)
    return commands


@pytest.fixture
def drawn(reproduce, monkeypatch) -> list[dict]:
    """What the script draws, a dictionary of results each time."""
    drawings = []
    monkeypatch.setattr(reproduce, "draw", drawings.append)
    return drawings


@pytest.fixture
def make_run(reproduce, trained_run):
    """Make a run as training and scoring leave it: one minute, 1,500 characters/s and `nats` per character."""

    def make(config, seed, nats, dynamic_nats=None):
        folder = reproduce.RUNS / f"{config}-seed{seed}"
        shutil.copytree(trained_run / "checkpoints", folder / "checkpoints")
        rows = [
            {"split": "train", "nats": 2.0, "chars_per_s": 1000, "elapsed_s": 30.0},
            {"split": "train", "nats": 2.0, "chars_per_s": 2000, "elapsed_s": 60.0},
            {"split": "valid", "nats": nats, "chars_per_s": 9e9, "elapsed_s": 61.0},
        ]
        (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        dynamic = {} if dynamic_nats is None else {"dynamic": {"nats_per_char": dynamic_nats}}
        (folder / "score.json").write_text(json.dumps({"nats_per_char": nats, **dynamic}))

    return make


@pytest.fixture
def run_script(reproduce, monkeypatch):
    """Run scripts/reproduce with these arguments."""

    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["reproduce", *arguments])
        reproduce.main()

    return run


def table(reproduce):
    """The rows of the table in docs/results.md; the text around them must be unchanged."""
    text = reproduce.PAGE.read_text(encoding="utf-8")
    before, rows = text.split("|---|---|---|---|---|---|---|\n")
    rows, after = rows.split("<!-- /results -->")
    heading = "| recipe | CPU | time | parameters | characters/s | nats (range of seeds) | dynamic |\n"
    assert (before, after) == (f"Before.\n\n<!-- results -->\n{heading}", "\n\nAfter.\n")
    return rows.splitlines()


def result(reproduce, *scores):
    runs = [
        reproduce.Run(seed, 301.0, 1_234_567, 1234.5, nats, dynamic_nats, curve=[[300.0, nats]])
        for seed, (nats, dynamic_nats) in enumerate(scores, start=1)
    ]
    config = {"model": {"cell": {"kind": "lstm"}}, "train": {"max_minutes": 5}}
    return reproduce.Result(config=config, cpu={"cpu": "CPU", "cores": 4}, runs=runs, precision="fp32")


def test_row_of_three_seeds(reproduce):
    three = result(reproduce, (1.4880, 1.30), (1.4922, 1.32), (1.4883, 1.33))
    assert reproduce.row("a", three) == (
        "| `a` | 4 × CPU, fp32 | 5.0 min | 1,234,567 | 1,234 | 1.4895 (3 seeds: 1.4880 to 1.4922) | 1.3167 |\n"
    )


def test_row_of_one_seed_without_dynamic(reproduce):
    row = "| `a` | 4 × CPU, fp32 | 5.0 min | 1,234,567 | 1,234 | 1.4399 (1 seed) | – |\n"
    assert reproduce.row("a", result(reproduce, (1.4399, None))) == row


def test_a_part_of_the_recipes_leaves_the_others_as_recorded(reproduce, make_run, run_script, started, drawn):
    before = {
        name: result(reproduce, (nats, None))
        for name, nats in (("tinyshakespeare-10s", 1.7), ("tinyshakespeare-rnn-5min", 1.6), ("python-stdlib-1min", 1.3))
    }
    reproduce.write_results(before)
    make_run("tinyshakespeare-5min", 1, 1.40, 1.30)
    make_run("tinyshakespeare-5min", 2, 1.41, 1.31)
    make_run("tinyshakespeare-rnn-5min", 2, 1.50, 1.40)
    run_script("tinyshakespeare-5min", "--seeds", "2")
    after = reproduce.read_results()
    names = ["tinyshakespeare-10s", "tinyshakespeare-5min", "tinyshakespeare-rnn-5min", "python-stdlib-1min"]
    assert list(after) == names
    assert all(after[name] == before[name] for name in (names[0], names[3]))
    assert [run.seed for run in after["tinyshakespeare-rnn-5min"].runs] == [2]
    assert after["tinyshakespeare-rnn-5min"].config["model"]["cell"]["kind"] == "rnn"
    rows = table(reproduce)
    assert [row.split("`")[1] for row in rows] == names
    assert rows[1].endswith(" | 1,500 | 1.4050 (2 seeds: 1.4000 to 1.4100) | 1.3050 |")
    assert rows[2].endswith(" | 1,500 | 1.5000 (1 seed) | 1.4000 |")
    assert started == []
    assert [{name: result.runs[0].curve for name, result in results.items()} for results in drawn] == [
        {names[0]: [[300.0, 1.7]], names[1]: [[61.0, 1.4]], names[2]: [[61.0, 1.5]]}
    ]


def test_all_recipes_in_their_order_and_seed_1_in_the_plot(reproduce, make_run, run_script, started, drawn):
    for recipe in reversed(reproduce.RECIPES):
        for seed in reversed(recipe.seeds):
            make_run(recipe.config, seed, 1 + seed / 10, 1.0 if recipe.dynamic else None)
    run_script()
    assert [row.split("`")[1] for row in table(reproduce)] == [recipe.config for recipe in reproduce.RECIPES]
    names = [recipe.config for recipe in reproduce.RECIPES if recipe.config.startswith("tinyshakespeare")]
    assert [{name: result.runs[0].nats for name, result in results.items()} for results in drawn] == [
        dict.fromkeys(names, 1.1)
    ]
    assert [row.count("`") for row in reproduce.README.read_text(encoding="utf-8").splitlines()].count(2) == 4
    assert started == []


def test_what_is_recorded_is_of_the_recipes_as_they_are(monkeypatch):
    """If a recipe changes without being trained again, the pages would show the old one's figures."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    reproduce = importlib.import_module("reproduce")
    results = reproduce.read_results()
    assert results
    for name, found in results.items():
        config = parse_config(found.config, "results.json")
        assert differences(config, load_config(ROOT / f"configs/{name}.yaml")) == {}, name
    assert reproduce.table(results) in reproduce.PAGE.read_text(encoding="utf-8")
    assert reproduce.summary(results) in reproduce.README.read_text(encoding="utf-8")
    assert len(reproduce.summary(results).splitlines()) == 6


def test_trains_what_is_not_there_whole(reproduce, make_run, tmp_path, started):
    recipe = reproduce.Recipe("tinyshakespeare-rnn-5min", dynamic=True)
    make_run(recipe.config, 1, 1.5, 1.4)  # whole
    make_run(recipe.config, 2, 1.5)  # without its dynamic score
    new = reproduce.RUNS / "tinyshakespeare-rnn-5min-seed3"
    new.mkdir()
    for seed in recipe.seeds:
        reproduce.train(recipe, seed, tmp_path / "text.txt")
    cut_off = f"{reproduce.RUNS}/tinyshakespeare-rnn-5min-seed2"
    last = "checkpoints/last.safetensors"
    settings = ["--set=seed=3", f"--set=data.source={tmp_path}/text.txt"]
    assert started == [
        ["train", "--resume", "--run-dir", cut_off],
        ["eval", f"{cut_off}/{last}", "--json", "--split", "valid", "--dynamic"],
        ["train", "--config", str(recipe.file), "--run-dir", str(new), *settings],
        ["eval", f"{new}/{last}", "--json", "--split", "valid", "--dynamic"],
    ]
    assert all(reproduce.is_whole(recipe, seed) for seed in recipe.seeds)


@pytest.mark.parametrize(
    ("text", "found"), [("Before.\n", 0), ("<!-- results -->\n", 1), (PAGE + PAGE, 4)], ids=["none", "one", "twice"]
)
def test_a_page_without_its_marks_is_refused(reproduce, text, found):
    reproduce.PAGE.write_text(text, encoding="utf-8")
    with pytest.raises(SystemExit) as left:
        reproduce.write_between(reproduce.PAGE, "results", "| table |\n")
    marks = "<!-- results --> and <!-- /results -->"
    assert left.value.code == f"{reproduce.PAGE}: found {found} lines {marks}; allowed: one of each"
    assert reproduce.PAGE.read_text(encoding="utf-8") == text


def test_an_empty_table_is_filled(reproduce):
    reproduce.PAGE.write_text("<!-- results -->\n<!-- /results -->\n", encoding="utf-8")
    reproduce.write_between(reproduce.PAGE, "results", "| \\1 |\n")
    assert reproduce.PAGE.read_text(encoding="utf-8") == "<!-- results -->\n| \\1 |\n<!-- /results -->\n"


def test_a_run_of_another_config_is_refused(reproduce, tiny_config, tmp_path):
    run = tmp_path / "run"
    reproduce.refuse_other(run, tiny_config)  # nothing there yet
    run.mkdir()
    text = tiny_config.read_text(encoding="utf-8")
    (run / "config.yaml").write_text(text.replace("hidden: 16", "hidden: 17") + "seed: 2\n", encoding="utf-8")
    with pytest.raises(SystemExit) as left:
        reproduce.refuse_other(run, tiny_config)
    assert left.value.code == f"{run}: trained with another model.cell.hidden, seed; remove it to train it anew"
    reproduce.refuse_other(run, tiny_config, "model.cell.hidden=17", "seed=2")


def test_no_row_mixes_configs(reproduce, make_run, run_script, started, drawn):
    """A run of another recipe than the one asked for would become a row too."""
    make_run("tinyshakespeare-rnn-5min", 2, 1.5, 1.4)
    text = (ROOT / "configs/tinyshakespeare-rnn-5min.yaml").read_text(encoding="utf-8")
    run = reproduce.RUNS / "tinyshakespeare-rnn-5min-seed2"
    (run / "config.yaml").write_text(f"{text}seed: 2\nthreads: 3\n", encoding="utf-8")
    with pytest.raises(SystemExit) as left:
        run_script("tinyshakespeare-5min")
    assert left.value.code == f"{run}: trained with another threads; remove it to train it anew"
    assert (reproduce.PAGE.read_text(encoding="utf-8"), drawn, started) == (PAGE, [], [])


def test_a_run_of_a_text_elsewhere_is_not_refused(reproduce, tiny_config, text_file, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    text = tiny_config.read_text(encoding="utf-8")
    (run / "config.yaml").write_text(text.replace(str(text_file), "data/elsewhere.txt"), encoding="utf-8")
    assert differences(load_config(run / "config.yaml"), load_config(tiny_config)).keys() == {"data.source"}
    reproduce.refuse_other(run, tiny_config)


def test_a_run_whose_precision_the_cpu_chose_is_not_refused(reproduce, tiny_config, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    text = tiny_config.read_text(encoding="utf-8")
    (run / "config.yaml").write_text(text.replace("precision: fp32", "precision: bf16"), encoding="utf-8")
    assert differences(load_config(run / "config.yaml"), load_config(tiny_config)).keys() == {"precision"}
    with pytest.raises(SystemExit) as left:
        reproduce.refuse_other(run, tiny_config)
    assert left.value.code == f"{run}: trained with another precision; remove it to train it anew"
    reproduce.refuse_other(run, tiny_config, "precision=auto")


def test_seeds_of_different_precision_make_no_row(reproduce, make_run, run_script, started, drawn, monkeypatch):
    make_run("tinyshakespeare-10s", 1, 1.5)
    make_run("tinyshakespeare-10s", 2, 1.5)
    precisions = iter(["bf16", "fp32"])

    class Read:
        def __init__(self, path):
            self.weights = read_checkpoint(path).weights

        @property
        def config(self):
            return SimpleNamespace(precision=next(precisions))

    monkeypatch.setattr("charlm.checkpoint.read_checkpoint", Read)
    with pytest.raises(SystemExit, match=r"tinyshakespeare-10s: its seeds were trained in .* and .*; remove one"):
        run_script("tinyshakespeare-10s", "--seeds", "2")
    assert (reproduce.PAGE.read_text(encoding="utf-8"), drawn) == (PAGE, [])


def test_recipes_have_configs_and_those_of_five_minutes_and_more_a_dynamic_score(reproduce):
    for recipe in reproduce.RECIPES:
        minutes = load_config(recipe.file).train.max_minutes or 0
        assert recipe.dynamic == (minutes >= 5), recipe
        assert recipe.seeds == ((1,) if minutes > 5 else (1, 2, 3)), recipe


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
