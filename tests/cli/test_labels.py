"""Models of lines with labels: `charlm train --labels`, `sample --label`, `score --label` and `classify`."""

import json
import math
import shutil

import numpy as np
import pytest

from charlm.checkpoint import read_checkpoint
from charlm.config import load_config
from charlm.errors import LabelError
from charlm.inference import TrainedModel, load
from charlm.inference.lines import limit_nats
from charlm.inference.options import Limit
from tests.cli.conftest import LABELED


@pytest.fixture(scope="module")
def model(labels_run) -> TrainedModel:
    return load(labels_run)


@pytest.fixture(scope="module")
def training_lines(model) -> list[str]:
    return model.vocabulary.decode(model.split("train")).split("\n")[1:-1]


def test_samples_with_a_label(cli, labels_run, model, training_lines):
    words = ["sample", labels_run, "--seed", 1, "--temperature", 0.3]
    lines = cli(*words, "--label", "de", "--count", 20).out.splitlines()
    assert len(lines) == 20
    assert sum(set(line.split()) <= set(LABELED["de"]) for line in lines) > 15
    assert not any(":" in line for line in lines)
    prompted = cli(*words, "--label", "de", "--prompt", "ul", "--count", 5).out.splitlines()
    assert all(line.startswith("ul") for line in prompted)
    value = json.loads(cli(*words, "--label", "de", "--prompt", "ul", "--count", 5, "--json").out)
    assert value["label"] == "de"
    assert [each["prompt"] + each["text"] for each in value["samples"]] == prompted
    assert model.sample("ul", label="de", temperature=0.3, seed=1) == prompted[0].removeprefix("ul")
    assert cli(*words, "--label", "de", "--prompt", "ul", "--novelty").out.startswith("ul")
    free = cli(*words, "--count", 20).out.splitlines()
    assert sum(line.split(": ")[0] in LABELED for line in free) > 15
    error = cli("sample", labels_run, "--label", "fr").error
    assert error.startswith("label: found 'fr', which the model has never seen; allowed: ")
    assert {repr(label) for label in LABELED} == set(error.split("allowed: ")[1].split(", "))

    words = ["sample", labels_run, "--seed", 1, "--novel"]  # a novel line stands under no label
    novel = cli(*words, "--label", "it", "--count", 5, "--temperature", 3, "--unique").out.split("\n")[:-1]
    assert len(set(novel)) == len(novel) == 5
    assert not set(novel) & {line.split(": ", 1)[1] for line in training_lines}
    copied = cli(*words, "--label", "de", "--temperature", 0)
    assert (copied.out, "20 lines of the training text" in copied.err) == ("", True)


def test_lines_get_labels(cli, labels_run, model, write):
    lines = ["maria luca", "hans", "gerd hans", "luca", "", "maria"]
    file, scores = write("a.txt", "\n".join(lines)), model.classify(iter(lines))
    result = cli("classify", labels_run, file)
    rows = [line.split("\t") for line in result.out.splitlines()]
    assert [row[0] for row in rows[:4]] == ["it", "de", "de", "it"]
    margins = [f"{margin:.2f}" for margin in scores.margin_bits]
    assert rows == [list(row) for row in zip(scores.best, margins, lines, strict=True)]
    assert cli("classify", labels_run, "-", stdin="\n".join(lines).encode()).out == result.out
    top = [line.split("\t") for line in cli("classify", labels_run, file, "--top", 2).out.splitlines()]
    expected = [[text for label, p in row for text in (label, f"{p:.4f}")] for row in scores.top(2)]
    assert top == [[*row, line] for row, line in zip(expected, lines, strict=True)]
    values = list(map(json.loads, cli("classify", labels_run, file, "--top", 9, "--json").out.splitlines()))
    assert [list(value) for value in values] == [["label", "margin_bits", "line", "labels"]] * len(lines)
    assert [[tuple(each.values()) for each in value["labels"]] for value in values] == scores.top(3)
    assert values[0]["margin_bits"] == pytest.approx(scores.margin_bits[0])
    assert (len(model.classify([])), model.classify([]).best) == (0, [])
    with pytest.raises(ValueError, match="lines: found a line end within a line"):
        model.classify(["hans\nhans"])

    file = write("a.txt", "hans\nluca é\nZ\n")
    fault = cli("classify", labels_run, file).error
    assert fault.startswith(f"{file}: line 2: found 'é' (U+00E9), which the model has never seen; allowed: ")
    result = cli("classify", labels_run, file, "--skip-unknown")
    assert [line.split("\t")[2] for line in result.out.splitlines()] == ["hans", "luca é", "Z"]
    assert result.err == f"skipped  {file}: 'Z' (U+005A), 'é' (U+00E9)\n"


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


def test_scores_of_lines_given_their_label(cli, labels_run, model, write, monkeypatch):
    """The score of the label and the line, without that of the label: what classify compares, up to p(label)."""
    lines = ["paola", "", "hans luca"]
    words = ["score", labels_run, write("a.txt", "\n".join(lines)), "--lines"]

    def bits(*options):
        rows = map(json.loads, cli(*words, "--json", *options).out.splitlines())
        texts, chars, bits = zip(*((row["text"], row["chars"], row["bits"]) for row in rows), strict=True)
        assert (list(texts), list(chars)) == (lines, [len(line) + 1 for line in lines])
        return np.array(bits)

    scores = model.classify(lines)
    given = np.stack([bits("--label", label) for label in scores.labels], axis=1)
    prior = (scores.nats / math.log(2) - given).mean(0)
    np.testing.assert_allclose(given + prior, scores.nats / math.log(2), atol=1e-3)
    np.testing.assert_allclose(bits("--label", scores.labels[0], "--per-char"), given[:, 0], atol=1e-9)
    assert "never seen" in cli(*words, "--label", "none").error

    lines = [f"{first} {second}" for first in LABELED["de"] for second in LABELED["de"]]
    words = ["score", labels_run, write("de.txt", "\n".join(lines)), "--lines", "--label", "de"]
    of_validation = "".join(f"{label}: {line}\n" for line in lines for label in ("it", "de"))
    monkeypatch.setattr(TrainedModel, "split", lambda self, name: self.vocabulary.encode(f"\n{of_validation}"))
    per_char = [float(row.split("\t")[0]) for row in cli(*words).out.splitlines()]
    for percent in (10, 50, 100):
        limit = limit_nats(Limit.parse(f"p{percent}"), model, "--above", "de") / math.log(2)
        assert limit == pytest.approx(np.percentile(per_char, percent), abs=1e-4)
    of_validation = "it: luca luca\n"
    assert "cannot be found now (no validation line has the label)" in cli(*words, "--above", "p50").error


@pytest.mark.usefixtures("quick")
def test_where_labels_come_from_and_go(cli, labels_run, trained_run, model, training_lines, write, tmp_path):
    labels = model.labels
    assert labels == {label: sum(line.startswith(f"{label}:") for line in training_lines) for label in LABELED}
    assert list(labels.values()) == sorted(labels.values(), reverse=True)
    with pytest.raises(LabelError):
        load(trained_run).classify(["so"])
    run = shutil.copytree(labels_run, tmp_path / "run")
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

    more = write("more.txt", "luca: it\nhans: de\n" * 60 + "gerd: de\n" * 3)
    words = ["train", "--config", labels_run / "config.yaml", more, "--init-from", labels_run]
    words += ["--set", "train.max_steps=2", "--set", "data.split=[1,0,0]"]
    assert cli(*words, "--run-dir", tmp_path / "other").code == 0
    assert load(tmp_path / "other").labels == {"hans": 60, "luca": 60, "gerd": 3}
    assert cli(*words, "--set", "data.label_separator=null", "--run-dir", tmp_path / "plain").code == 0
    assert read_checkpoint(tmp_path / "plain/checkpoints/last.safetensors").labels == {}

    words = [text, "--lines", "--minutes", 0.01]
    assert r'  label_separator: "\t"' in cli("config", "suggest", *words, "--labels", r"\t").out
    assert cli("train", *words, "--labels", ": ", "--run-dir", tmp_path / "chosen").code == 0
    assert load_config(tmp_path / "chosen/config.yaml").data.label_separator == ": "
    assert load(tmp_path / "chosen").labels.keys() == LABELED.keys()
