"""Labels as text: `charlm classify`."""

import json
import math
import random

import numpy as np
import pytest

from charlm.inference.loading import load
from charlm.inference.trained import TrainedModel
from tests.conftest import LEARNS_SOON, train

LINES = ["maria luca", "hans", "gerd hans", "luca", "", "maria"]
NAMES = {"it": ["maria", "luca", "paola"], "de": ["hans", "ulrich", "gerd"]}


@pytest.fixture(scope="module")
def labels_run(tmp_path_factory, compiled):
    """A run on lines of a label, a tab and two of its names; "it" is three times as frequent as "de"."""
    draw = random.Random(1)
    labels = draw.choices(["it", "de"], [3, 1], k=400)
    text = "".join(f"{label}\t{' '.join(draw.choices(NAMES[label], k=2))}\n" for label in labels)
    settings = [*LEARNS_SOON, r'data.records="\n"', "data.split=[0.8,0.2,0]", "train.max_steps=200"]
    return train(tmp_path_factory.mktemp("labels"), text, *settings)


@pytest.fixture(scope="module")
def model(labels_run) -> TrainedModel:
    return load(labels_run)


@pytest.mark.parametrize("equal_priors", [False, True])
def test_the_probability_is_that_of_the_whole_line(model, equal_priors):
    labels = ["it", "de", "i"]
    for line, (label, p) in zip(LINES, model.classify(iter(LINES), labels, equal_priors=equal_priors), strict=True):
        bits = np.array([model.char_surprise([f"{each}\t{line}"])[0].sum() for each in labels])
        if equal_priors:  # without the score of the label
            bits -= [model.char_surprise([f"{each}\t"])[0][:-1].sum() for each in labels]
        expected = np.exp2(-bits) / np.exp2(-bits).sum()
        assert (label, p) == (labels[expected.argmax()], pytest.approx(expected.max(), rel=1e-4))


def test_lines_get_labels_or_none(cli, labels_run, model, write):
    file = write("a.txt", "\n".join(LINES))
    answers = model.classify(LINES, ["it", "de"])
    assert [label for label, _ in answers[:4]] == ["it", "de", "de", "it"]
    limit = sorted(p for _, p in answers)[2]
    words = ["classify", labels_run, file, "--labels", "it,de", "--none-below", limit]
    result = cli(*words)
    labels = [label if p >= limit else None for label, p in answers]
    assert result.out.splitlines() == [
        f"{label or 'none'}\t{p:.4f}\t{line}" for label, (_, p), line in zip(labels, answers, LINES, strict=True)
    ]
    values = [json.loads(row) for row in cli(*words, "--json").out.splitlines()]
    assert list(values[0]) == ["label", "probability", "line", "unknown"]
    assert [value["label"] for value in values] == labels
    assert cli(*words, "--separator", r"\t", "--equal-priors").out != result.out


@pytest.mark.parametrize(
    ("labels", "separator", "found", "said"),
    [
        ("it,ed", r"\t", "'ed'", ""),  # one that is known hides it
        ("it,de", " ", "'it', 'de'", "does not expect ' ' after 'it', 'de'"),
        ("e,t", r"\t", "'e', 't'", "their probability at the start of a line is"),
    ],
)
def test_labels_that_no_training_line_has(cli, labels_run, write, labels, separator, found, said):
    """An error that names its labels; where the text has gone, the model knows what it does not expect."""
    words = ["classify", labels_run, write("a.txt", "hans"), "--labels", labels, "--separator", separator]
    error = cli(*words).error
    before = repr(separator.replace(r"\t", "\t"))
    start = f"--labels: found {found} before {before}; no record of the training text begins so; allowed: "
    assert error.startswith(start)
    assert separator == " " or error == f"{start}'it', 'de'"
    text = labels_run.parent / "text.txt"
    moved = text.rename(text.with_name("moved.txt"))
    try:
        assert said in cli(*words).err
    finally:
        moved.rename(text)


def test_the_files_of_a_folder(cli, labels_run, write, tmp_path):
    files = [write("lines/a.txt", "hans\nmaria"), write("lines/b.txt", "Zhans\n")]
    alone = [cli("classify", labels_run, file, "--labels", "it,de").out for file in files]
    result = cli("classify", labels_run, tmp_path / "lines", "--labels", "it,de")
    assert (result.out, f"{files[1]}, line 1: 'Z'" in result.err) == ("".join(alone), True)


def test_unknown_characters(cli, labels_run, write):
    file = write("a.txt", "hans\nluca é\nZ\n")
    result = cli("classify", labels_run, file, "--labels", "it,de")
    assert [line.split("\t")[2] for line in result.out.splitlines()] == ["hans", "luca é", "Z"]
    assert result.err.endswith(f"skipped  {file}, line 2: 'é' (U+00E9), which the model has never seen\n")
    piped = cli("classify", labels_run, "-", "--labels", "it,de", stdin="hans\r\nluca é\nZ".encode())
    assert piped.out == result.out
    rows = cli("classify", labels_run, file, "--labels", "it,de", "--json").out.splitlines()
    assert [json.loads(row)["unknown"] for row in rows] == ["", "é", "Z"]


def test_a_model_of_running_text_scores_lines_too(trained_run):
    text = load(trained_run, device="cpu")
    [(label, p)] = text.classify(["so tee"], ["so", "tee"], " ")
    nats = {each: text.evaluate(f"\n{each} so tee\n", streams=1).nats_sum for each in ("so", "tee")}
    assert label == min(nats, key=nats.get)
    assert p == pytest.approx(1 / (1 + math.exp(-abs(nats["so"] - nats["tee"]))), rel=1e-4)
