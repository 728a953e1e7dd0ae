"""Models of lines with labels: `charlm train --labels`, `sample --label` and `classify`."""

import json
import math
import random

import numpy as np
import pytest

from charlm.checkpoint import read_checkpoint
from charlm.config import load_config
from charlm.errors import LabelError
from charlm.inference import TrainedModel, load
from charlm.inference.line_quantiles import Limit

NAMES = {"it": ["maria", "luca", "paola"], "de": ["hans", "ulrich", "gerd"], "": ["x"]}


def names_text(count=400):
    draw = random.Random(1)
    labels = [draw.choice(list(NAMES)) for _ in range(count)]
    return "".join(f"{label}: {draw.choice(NAMES[label])} {draw.choice(NAMES[label])}\n" for label in labels)


def train(folder, *words, text="names.txt"):
    from typer.testing import CliRunner

    from charlm.cli import app

    settings = ["data.split=[0.8,0.2,0]", "model.cell.hidden=24", "train.batch_size=4", "train.bptt=16", "threads=1"]
    settings += ["train.max_steps=200", "optimizer.lr=0.02", "precision=fp32"]
    settings = [word for setting in settings for word in ("--set", setting)]
    all_words = ["train", "--config", "lstm", str(folder / text), "--lines", *settings, *map(str, words)]
    return CliRunner().invoke(app, all_words, catch_exceptions=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("labels")
    (folder / "names.txt").write_text(names_text())
    return folder


@pytest.fixture(scope="module")
def run(folder):
    """A run that soon knows which names belong together."""
    assert train(folder, "--labels", ": ", "--run-dir", folder / "run").exit_code == 0
    return folder / "run"


def test_the_checkpoint_keeps_the_labels(run):
    assert load_config(run / "config.yaml").data.label_separator == ": "
    model = load(run)
    lines = model.vocabulary.decode(model.split("train")).split("\n")[1:-1]
    assert model.labels == {label: sum(line.startswith(f"{label}:") for line in lines) for label in NAMES}
    assert list(model.labels.values()) == sorted(model.labels.values(), reverse=True)


def test_samples_with_a_label(cli, run):
    words = ["sample", run, "--seed", 1, "--temperature", 0.3]
    result = cli(*words, "--label", "de", "--count", 20)
    lines = result.out.splitlines()
    assert (result.code, len(lines)) == (0, 20)
    assert sum(set(line.split()) <= set(NAMES["de"]) for line in lines) > 15
    assert not any(":" in line for line in lines)
    prompted = cli(*words, "--label", "de", "--prompt", "ul", "--count", 5).out.splitlines()
    assert all(line.startswith("ul") for line in prompted)
    value = json.loads(cli(*words, "--label", "de", "--prompt", "ul", "--count", 5, "--json").out)
    assert value["label"] == "de"
    assert [each["prompt"] + each["text"] for each in value["samples"]] == prompted
    assert load(run).sample("ul", label="de", temperature=0.3, seed=1) == prompted[0].removeprefix("ul")
    free = cli(*words, "--count", 20).out.splitlines()
    assert sum(line.split(": ")[0] in NAMES for line in free) > 15
    assert cli(*words, "--label", "de", "--prompt", "ul", "--novelty").out.startswith("ul")


def test_novel_lines_stand_under_no_label(cli, folder, run):
    lines = cli("sample", run, "--label", "it", "--count", 5, "--temperature", 3, "--seed", 1, "--novel", "--unique")
    known = {line.split(": ", 1)[1] for line in (folder / "names.txt").read_text().splitlines()}
    trained = load(run)
    train_lines = trained.vocabulary.decode(trained.split("train")).split("\n")[1:-1]
    found = lines.out.split("\n")[:-1]
    assert len(set(found)) == len(found) == 5
    assert not set(found) & {line.split(": ", 1)[1] for line in train_lines}
    copied = cli("sample", run, "--label", "de", "--count", 1, "--temperature", 0, "--seed", 1, "--novel")
    assert copied.out == ""
    assert "20 lines of the training text" in copied.err
    assert cli("sample", run, "--label", "de", "--temperature", 0, "--seed", 1).out.strip() in known


def test_errors_of_samples(cli, run, trained_run):
    error = cli("sample", run, "--label", "fr").error
    assert error.startswith("label: found 'fr', which the model has never seen; allowed: ")
    assert {repr(label) for label in NAMES} == set(error.split("allowed: ")[1].split(", "))
    assert "--label needs a model with labels" in cli("sample", trained_run, "--label", "x").usage_error


def test_lines_get_labels(cli, run, write):
    lines = ["maria luca", "hans", "gerd hans", "luca", "", "maria"]
    result = cli("classify", run, write("a.txt", "\n".join(lines)))
    rows = [line.split("\t") for line in result.out.splitlines()]
    assert [row[2] for row in rows] == lines
    assert [row[0] for row in rows[:4]] == ["it", "de", "de", "it"]
    found = load(run).classify(iter(lines))
    assert (len(load(run).classify([])), load(run).classify([]).best) == (0, [])
    assert [row[:2] for row in rows] == [
        [label, f"{m:.2f}"] for label, m in zip(found.best, found.margin_bits, strict=True)
    ]
    assert cli("classify", run, "-", stdin="\n".join(lines).encode()).out == result.out


def test_the_likeliest_labels(cli, run, write):
    file = write("a.txt", "maria luca\nhans\n")
    found = load(run).classify(["maria luca", "hans"])
    expected = [[*(text for label, p in row for text in (label, f"{p:.4f}"))] for row in found.top(2)]
    rows = [line.split("\t") for line in cli("classify", run, file, "--top", 2).out.splitlines()]
    assert rows == [[*expected[0], "maria luca"], [*expected[1], "hans"]]
    values = list(map(json.loads, cli("classify", run, file, "--top", 9, "--json").out.splitlines()))
    assert [list(value) for value in values] == [["label", "margin_bits", "line", "labels"]] * 2
    assert [each["label"] for value in values for each in value["labels"]] == [
        n for row in found.top(3) for n, _ in row
    ]
    assert values[0]["margin_bits"] == pytest.approx(found.margin_bits[0])


def test_labels_that_are_known_are_compared(cli, run, write):
    file = write("a.txt", "it: maria luca\nde: hans\nit: hans\nfr: luca\n")
    result = cli("classify", run, file, "--labeled")
    assert [line.split("\t")[2:] for line in result.out.splitlines()] == [
        ["it", "maria luca"], ["de", "hans"], ["it", "hans"], ["fr", "luca"],
    ]  # fmt: skip
    assert result.err.splitlines() == [
        "right    50.0% of 4 lines",
        "label    'it': 50.0% of 2 lines; found 'de' × 1",
        "label    'de': 100.0% of 1 line",
        "unseen   1 line with a label that the model has never seen",
    ]
    *values, last = map(json.loads, cli("classify", run, file, "--labeled", "--json").out.splitlines())
    assert [value["true"] for value in values] == ["it", "de", "it", "fr"]
    confusion = {"it": {"it": 1, "de": 1}, "de": {"de": 1}}
    assert last == {"accuracy": 0.5, "lines": 4, "unseen_labels": 1, "confusion": confusion}
    assert cli("classify", run, "-", "--labeled", stdin=b"").err == "right    found no line\n"
    fault = cli("classify", run, write("b.txt", "it: maria\nluca\n"), "--labeled").error
    assert fault.endswith("b.txt: line 2: found 'luca'; allowed: a label, ': ' and the record in every line")


def test_characters_that_the_model_does_not_know(cli, run, write):
    file = write("a.txt", "hans\nluca é\nZ\n")
    fault = cli("classify", run, file).error
    assert fault.startswith(f"{file}: line 2: found 'é' (U+00E9), which the model has never seen; allowed: ")
    result = cli("classify", run, file, "--skip-unknown")
    assert [line.split("\t")[2] for line in result.out.splitlines()] == ["hans", "luca é", "Z"]
    assert result.err == f"skipped  {file}: 'Z' (U+005A), 'é' (U+00E9)\n"


def test_scores_of_lines_given_their_label(cli, run, write):
    """The score of the label and the line, without that of the label: what classify compares, up to p(label)."""
    lines = ["paola", "", "hans luca"]
    file = write("a.txt", "\n".join(lines))

    def bits(*options):
        rows = [json.loads(row) for row in cli("score", run, file, "--lines", "--json", *options).out.splitlines()]
        assert [(row["text"], row["chars"]) for row in rows] == [(line, len(line) + 1) for line in lines]
        return np.array([row["bits"] for row in rows])

    found = load(run).classify(lines)
    labels = list(found.labels)
    given = np.stack([bits("--label", label) for label in labels], axis=1)
    prior = (found.nats / math.log(2) - given).mean(0)
    np.testing.assert_allclose(given + prior, found.nats / math.log(2), atol=1e-3)
    np.testing.assert_allclose(bits("--label", labels[0], "--per-char"), given[:, 0], atol=1e-9)
    assert "never seen" in cli("score", run, file, "--lines", "--label", "none").error


def test_models_without_labels(cli, trained_run, write):
    fault = cli("classify", trained_run, write("a.txt", "so\n")).error
    assert fault.endswith("the model knows no labels; allowed: one that was trained with data.label_separator")
    with pytest.raises(LabelError):
        load(trained_run).classify(["so"])


def test_lines_hold_no_line_ends(run):
    with pytest.raises(ValueError, match="lines: found a line end within a line"):
        load(run).classify(["hans\nhans"])


def test_a_resumed_run_keeps_its_labels(cli, folder, run):
    other = folder / "resumed"
    assert train(folder, "--labels", ": ", "--run-dir", other, "--set", "train.max_steps=3").exit_code == 0
    assert cli("train", "--resume", "--run-dir", other, "--set", "train.max_steps=5").code == 0
    assert load(other).labels == load(run).labels
    changed = cli("train", "--resume", "--run-dir", other, "--set", "data.label_separator=a")
    assert "data.label_separator: found 'a', the run has ': '" in changed.err
    (folder / "names.txt").rename(folder / "moved.txt")
    try:
        assert load(other).labels == load(run).labels
    finally:
        (folder / "moved.txt").rename(folder / "names.txt")


def test_another_text_has_other_labels(folder, run):
    (folder / "more.txt").write_text("luca: it\nhans: de\n" * 60 + "gerd: de\n" * 3)
    steps = ["--set", "train.max_steps=2", "--set", "data.split=[1,0,0]"]
    result = train(folder, "--labels", ": ", "--init-from", run, "--run-dir", folder / "tuned", *steps, text="more.txt")
    assert result.exit_code == 0
    assert load(folder / "tuned").labels == {"hans": 60, "luca": 60, "gerd": 3}
    plain = train(folder, "--init-from", run, "--run-dir", folder / "plain", *steps, text="more.txt")
    assert plain.exit_code == 0
    assert read_checkpoint(folder / "plain/checkpoints/last.safetensors").labels == {}


def test_the_choice_of_settings_keeps_the_separator(cli, folder, tmp_path, monkeypatch):
    monkeypatch.setattr("charlm.choice.speed.measure", lambda config, *_: 1e-8 * config.model.cell.hidden**2)
    words = [folder / "names.txt", "--lines", "--minutes", 0.01]
    assert "  label_separator: ': '\n" in cli("config", "suggest", *words, "--labels", ": ").out
    assert r'  label_separator: "\t"' in cli("config", "suggest", *words, "--labels", r"\t").out
    assert cli("train", *words, "--labels", ": ", "--run-dir", tmp_path / "run").code == 0
    assert load(tmp_path / "run").labels.keys() == NAMES.keys()


def test_percentiles_given_a_label_are_of_the_lines_with_it(cli, run, write):
    model = load(run)
    lines = [f"{first} {second}" for first in NAMES["de"] for second in NAMES["de"]]
    text = "".join(f"{label}: {line}\n" for line in lines for label in ("it", "de"))
    model.__dict__["_splits"] = {"valid": model.vocabulary.encode(f"\n{text}")}
    given = cli("score", run, write("de.txt", "\n".join(lines)), "--lines", "--label", "de").out
    bits = [float(row.split("\t")[0]) for row in given.splitlines()]
    for percent in (10, 50, 100):
        limit = Limit.parse(f"p{percent}").nats(model, "--above", "de") / math.log(2)
        assert limit == pytest.approx(np.percentile(bits, percent), abs=1e-4)


def test_a_percentile_needs_validation_lines_with_the_label(cli, run, write, monkeypatch):
    monkeypatch.setattr(TrainedModel, "split", lambda self, name: self.vocabulary.encode("\nit: luca luca\n"))
    words = ["score", run, write("de.txt", "hans\n"), "--lines", "--label", "de", "--above", "p50"]
    assert "cannot be found now (no validation line has the label)" in cli(*words).error
