"""Labels as text: `charlm classify`, and samples of a label."""

import json
import math

import numpy as np
import pytest

from charlm.inference.trained import TrainedModel, load
from tests.cli.conftest import LABELED

LINES = ["maria luca", "hans", "gerd hans", "luca", "", "maria"]


@pytest.fixture(scope="module")
def model(labels_run) -> TrainedModel:
    return load(labels_run)


@pytest.fixture
def file(write) -> str:
    return write("a.txt", "\n".join(LINES))


def probabilities(model, line, labels, *, equal_priors):
    """From the scores of whole lines, with and without that of the label."""
    bits = np.array([model.char_scores([f"{label}\t{line}"])[0].sum() for label in labels])
    if equal_priors:
        bits -= [model.char_scores([f"{label}\t"])[0][:-1].sum() for label in labels]
    return np.exp2(-bits) / np.exp2(-bits).sum()


def test_samples_of_a_label(cli, labels_run):
    lines = cli("sample", labels_run, "--prompt", "de\t", "--seed", 1, "--temperature", 0.3, "--count", 20).out
    words = [line.removeprefix("de\t").split() for line in lines.splitlines()]
    assert sum(set(names) <= set(LABELED["de"]) for names in words) > 15


@pytest.mark.parametrize("equal_priors", [False, True])
def test_the_probability_is_that_of_the_whole_line(model, equal_priors):
    labels = ["it", "de", "i"]
    answers = model.classify(iter(LINES), labels, equal_priors=equal_priors)
    for line, (label, p) in zip(LINES, answers, strict=True):
        expected = probabilities(model, line, labels, equal_priors=equal_priors)
        assert (label, p) == (labels[expected.argmax()], pytest.approx(expected.max(), rel=1e-4))
    assert model.classify([], labels) == []
    assert model.classify(["hans"], ["it"]) == [("it", 1.0)]


def test_lines_get_labels(cli, labels_run, model, file):
    words = ["--labels", "it,de"]
    answers = model.classify(LINES, ["it", "de"])
    assert [label for label, _ in answers[:4]] == ["it", "de", "de", "it"]
    result = cli("classify", labels_run, file, *words)
    assert (result.code, result.err) == (0, "")
    expected = [f"{label}\t{p:.4f}\t{line}" for (label, p), line in zip(answers, LINES, strict=True)]
    assert result.out.splitlines() == expected
    assert cli("classify", labels_run, "-", *words, stdin="\n".join(LINES).encode()).out == result.out
    assert cli("classify", labels_run, file, *words, "--separator", r"\t", "--equal-priors").out != result.out
    unexpected = cli("classify", labels_run, file, *words, "--separator", " ")
    assert unexpected.code == 0
    assert unexpected.err == "labels   the model does not expect ' ' after 'it', 'de'; see --labels and --separator\n"


def test_none_below(cli, labels_run, model, file):
    answers = model.classify(LINES, ["it", "de"])
    limit = sorted(p for _, p in answers)[2]
    words = ["classify", labels_run, file, "--labels", "it,de", "--none-below", limit]
    rows = [row.split("\t") for row in cli(*words).out.splitlines()]
    assert [row[0] == "none" for row in rows] == [p < limit for _, p in answers]
    values = [json.loads(row) for row in cli(*words, "--json").out.splitlines()]
    assert list(values[0]) == ["label", "probability", "line"]
    assert [value["label"] for value in values] == [label if p >= limit else None for label, p in answers]


def test_unknown_characters(cli, labels_run, write):
    file = write("a.txt", "hans\nluca é\nZ\n")
    result = cli("classify", labels_run, file, "--labels", "it,de")
    assert [line.split("\t")[2] for line in result.out.splitlines()] == ["hans", "luca é", "Z"]
    assert result.err == f"skipped  {file}, line 2: 'é' (U+00E9), which the model has never seen\n"
    piped = cli("classify", labels_run, "-", "--labels", "it,de", stdin="hans\r\nluca é\nZ".encode())
    assert (piped.code, piped.out) == (0, result.out)


def test_mistakes(model):
    for lines, labels, separator in ((["a\nb"], ["it"], "\t"), (["a"], ["i\nt"], "\t"), (["a"], ["it"], "\n")):
        with pytest.raises(ValueError, match="a line end"):
            model.classify(lines, labels, separator)


@pytest.mark.parametrize("members", [1, 2])
def test_a_model_of_running_text_scores_lines_too(trained_run, members_run, members):
    text = load(trained_run if members == 1 else members_run, device="cpu")
    [(label, p)] = text.classify(["so tee"], ["so", "tee"], " ")
    nats = {each: text.evaluate(f"\n{each} so tee\n", streams=1).nats_sum for each in ("so", "tee")}
    assert label == min(nats, key=nats.get)
    assert p == pytest.approx(1 / (1 + math.exp(-abs(nats["so"] - nats["tee"]))), rel=1e-4)
