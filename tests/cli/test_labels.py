"""Models of lines with labels: `charlm train --labels`, `sample --label` and `classify`."""

import json
import math
import shutil

import numpy as np
import pytest

from charlm.checkpoint import read_checkpoint
from charlm.config import load_config
from charlm.errors import LabelError
from charlm.inference import TrainedModel, load
from charlm.inference.lines import Limit
from tests.cli.conftest import LABELED


def training_lines(run):
    model = load(run)
    return model.vocabulary.decode(model.split("train")).split("\n")[1:-1]


def test_the_checkpoint_keeps_the_labels(labels_run):
    labels = load(labels_run).labels
    lines = training_lines(labels_run)
    assert labels == {label: sum(line.startswith(f"{label}:") for line in lines) for label in LABELED}
    assert list(labels.values()) == sorted(labels.values(), reverse=True)


def test_samples_with_a_label(cli, labels_run):
    words = ["sample", labels_run, "--seed", 1, "--temperature", 0.3]
    result = cli(*words, "--label", "de", "--count", 20)
    lines = result.out.splitlines()
    assert (result.code, len(lines)) == (0, 20)
    assert sum(set(line.split()) <= set(LABELED["de"]) for line in lines) > 15
    assert not any(":" in line for line in lines)
    prompted = cli(*words, "--label", "de", "--prompt", "ul", "--count", 5).out.splitlines()
    assert all(line.startswith("ul") for line in prompted)
    value = json.loads(cli(*words, "--label", "de", "--prompt", "ul", "--count", 5, "--json").out)
    assert value["label"] == "de"
    assert [each["prompt"] + each["text"] for each in value["samples"]] == prompted
    assert load(labels_run).sample("ul", label="de", temperature=0.3, seed=1) == prompted[0].removeprefix("ul")
    free = cli(*words, "--count", 20).out.splitlines()
    assert sum(line.split(": ")[0] in LABELED for line in free) > 15
    assert cli(*words, "--label", "de", "--prompt", "ul", "--novelty").out.startswith("ul")
    error = cli("sample", labels_run, "--label", "fr").error
    assert error.startswith("label: found 'fr', which the model has never seen; allowed: ")
    assert {repr(label) for label in LABELED} == set(error.split("allowed: ")[1].split(", "))


def test_novel_lines_stand_under_no_label(cli, labels_run):
    words = ["sample", labels_run, "--seed", 1, "--novel"]
    novel = cli(*words, "--label", "it", "--count", 5, "--temperature", 3, "--unique").out.split("\n")[:-1]
    assert len(set(novel)) == len(novel) == 5
    assert not set(novel) & {line.split(": ", 1)[1] for line in training_lines(labels_run)}
    copied = cli(*words, "--label", "de", "--temperature", 0)
    assert (copied.out, "20 lines of the training text" in copied.err) == ("", True)


def test_lines_get_labels(cli, labels_run, write):
    lines = ["maria luca", "hans", "gerd hans", "luca", "", "maria"]
    file, model = write("a.txt", "\n".join(lines)), load(labels_run)
    scores = model.classify(iter(lines))
    result = cli("classify", labels_run, file)
    rows = [line.split("\t") for line in result.out.splitlines()]
    assert [row[2] for row in rows] == lines
    assert [row[0] for row in rows[:4]] == ["it", "de", "de", "it"]
    margins = [f"{margin:.2f}" for margin in scores.margin_bits]
    assert [row[:2] for row in rows] == [list(row) for row in zip(scores.best, margins, strict=True)]
    assert cli("classify", labels_run, "-", stdin="\n".join(lines).encode()).out == result.out
    top = [line.split("\t") for line in cli("classify", labels_run, file, "--top", 2).out.splitlines()]
    expected = [[text for label, p in row for text in (label, f"{p:.4f}")] for row in scores.top(2)]
    assert top == [[*row, line] for row, line in zip(expected, lines, strict=True)]
    values = list(map(json.loads, cli("classify", labels_run, file, "--top", 9, "--json").out.splitlines()))
    assert [list(value) for value in values] == [["label", "margin_bits", "line", "labels"]] * len(lines)
    assert [[each["label"] for each in value["labels"]] for value in values] == [
        [label for label, _ in row] for row in scores.top(3)
    ]
    assert values[0]["margin_bits"] == pytest.approx(scores.margin_bits[0])
    assert (len(model.classify([])), model.classify([]).best) == (0, [])
    with pytest.raises(ValueError, match="lines: found a line end within a line"):
        model.classify(["hans\nhans"])


def test_labels_that_are_known_are_compared(cli, labels_run, write):
    file = write("a.txt", "it: maria luca\nde: hans\nit: hans\nfr: luca\n")
    result = cli("classify", labels_run, file, "--labeled")
    assert [line.split("\t")[2:] for line in result.out.splitlines()] == [
        ["it", "maria luca"], ["de", "hans"], ["it", "hans"], ["fr", "luca"],
    ]  # fmt: skip
    assert result.err.splitlines() == [
        "right    50.0% of 4 lines",
        "label    'it': 50.0% of 2 lines; found 'de' × 1",
        "label    'de': 100.0% of 1 line",
        "unseen   1 line with a label that the model has never seen",
    ]
    *values, last = map(json.loads, cli("classify", labels_run, file, "--labeled", "--json").out.splitlines())
    assert [value["true"] for value in values] == ["it", "de", "it", "fr"]
    confusion = {"it": {"it": 1, "de": 1}, "de": {"de": 1}}
    assert last == {"accuracy": 0.5, "lines": 4, "unseen_labels": 1, "confusion": confusion}
    assert cli("classify", labels_run, "-", "--labeled", stdin=b"").err == "right    found no line\n"
    fault = cli("classify", labels_run, write("b.txt", "it: maria\nluca\n"), "--labeled").error
    assert fault.endswith("b.txt: line 2: found 'luca'; allowed: a label, ': ' and the record in every line")


def test_characters_that_the_model_does_not_know(cli, labels_run, write):
    file = write("a.txt", "hans\nluca é\nZ\n")
    fault = cli("classify", labels_run, file).error
    assert fault.startswith(f"{file}: line 2: found 'é' (U+00E9), which the model has never seen; allowed: ")
    result = cli("classify", labels_run, file, "--skip-unknown")
    assert [line.split("\t")[2] for line in result.out.splitlines()] == ["hans", "luca é", "Z"]
    assert result.err == f"skipped  {file}: 'Z' (U+005A), 'é' (U+00E9)\n"


def test_scores_of_lines_given_their_label(cli, labels_run, write):
    """The score of the label and the line, without that of the label: what classify compares, up to p(label)."""
    lines = ["paola", "", "hans luca"]
    file = write("a.txt", "\n".join(lines))

    def bits(*options):
        rows = map(json.loads, cli("score", labels_run, file, "--lines", "--json", *options).out.splitlines())
        texts, chars, bits = zip(*((row["text"], row["chars"], row["bits"]) for row in rows), strict=True)
        assert (list(texts), list(chars)) == (lines, [len(line) + 1 for line in lines])
        return np.array(bits)

    scores = load(labels_run).classify(lines)
    given = np.stack([bits("--label", label) for label in scores.labels], axis=1)
    prior = (scores.nats / math.log(2) - given).mean(0)
    np.testing.assert_allclose(given + prior, scores.nats / math.log(2), atol=1e-3)
    np.testing.assert_allclose(bits("--label", scores.labels[0], "--per-char"), given[:, 0], atol=1e-9)
    assert "never seen" in cli("score", labels_run, file, "--lines", "--label", "none").error


def test_models_without_labels(trained_run):
    with pytest.raises(LabelError):
        load(trained_run).classify(["so"])


def test_a_resumed_run_and_one_whose_text_has_gone_keep_their_labels(cli, labels_run, tmp_path):
    run, labels = shutil.copytree(labels_run, tmp_path / "run"), load(labels_run).labels
    resume = ["train", "--resume", "--run-dir", run]
    assert cli(*resume, "--set", "train.max_steps=202").code == 0
    assert load(run).labels == labels
    changed = cli(*resume, "--set", "data.label_separator=a")
    assert "data.label_separator: found 'a', the run has ': '" in changed.err
    text = labels_run.parent / "text.txt"
    text.rename(tmp_path / "moved.txt")
    try:
        assert load(run).labels == labels
    finally:
        (tmp_path / "moved.txt").rename(text)


def test_another_text_has_other_labels(cli, labels_run, write, tmp_path):
    more = write("more.txt", "luca: it\nhans: de\n" * 60 + "gerd: de\n" * 3)
    words = ["train", "--config", labels_run / "config.yaml", more, "--init-from", labels_run]
    words += ["--set", "train.max_steps=2", "--set", "data.split=[1,0,0]"]
    assert cli(*words, "--run-dir", tmp_path / "run").code == 0
    assert load(tmp_path / "run").labels == {"hans": 60, "luca": 60, "gerd": 3}
    assert cli(*words, "--set", "data.label_separator=null", "--run-dir", tmp_path / "plain").code == 0
    assert read_checkpoint(tmp_path / "plain/checkpoints/last.safetensors").labels == {}


@pytest.mark.usefixtures("quick")
def test_the_command_and_the_choice_of_settings_take_the_separator(cli, labels_run, tmp_path):
    words = [labels_run.parent / "text.txt", "--lines", "--minutes", 0.01]
    assert r'  label_separator: "\t"' in cli("config", "suggest", *words, "--labels", r"\t").out
    assert cli("train", *words, "--labels", ": ", "--run-dir", tmp_path / "run").code == 0
    assert load_config(tmp_path / "run/config.yaml").data.label_separator == ": "
    assert load(tmp_path / "run").labels.keys() == LABELED.keys()


def test_percentiles_given_a_label_are_of_the_validation_lines_with_it(cli, labels_run, write, monkeypatch):
    model = load(labels_run)
    lines = [f"{first} {second}" for first in LABELED["de"] for second in LABELED["de"]]
    text = "".join(f"{label}: {line}\n" for line in lines for label in ("it", "de"))
    model.__dict__["_splits"] = {"valid": model.vocabulary.encode(f"\n{text}")}
    words = ["score", labels_run, write("de.txt", "\n".join(lines)), "--lines", "--label", "de"]
    bits = [float(row.split("\t")[0]) for row in cli(*words).out.splitlines()]
    for percent in (10, 50, 100):
        limit = Limit.parse(f"p{percent}").nats(model, "--above", "de") / math.log(2)
        assert limit == pytest.approx(np.percentile(bits, percent), abs=1e-4)
    monkeypatch.setattr(TrainedModel, "split", lambda self, name: self.vocabulary.encode("\nit: luca luca\n"))
    assert "cannot be found now (no validation line has the label)" in cli(*words, "--above", "p50").error
