"""`charlm sample`: which samples are drawn, and of which characters."""

import json
import re

import pytest

from tests.conftest import train
from tests.text import words_text


def test_samples_that_match(cli, trained_run):
    found = cli("sample", trained_run, "--match", r"e.*\.", "--count", 4, "--length", 30, "--seed", 1, "--json")
    texts = [row["text"] for row in json.loads(found.out)["samples"]]
    assert len(texts) == 4
    assert all(re.search(r"e.*\.", text, re.DOTALL) for text in texts)
    assert "for 4 of 4" in found.err
    none = cli("sample", trained_run, "--match", "Q", "--count", 2, "--length", 5, "--seed", 1)
    assert none.out == ""
    assert "40 samples for 0 of 2" in none.err
    assert "--match: found '('" in cli("sample", trained_run, "--match", "(").usage_error


@pytest.mark.parametrize("kernels", ["kernels", "no_kernels"])
def test_banned_characters_are_never_drawn(cli, trained_run, request, kernels):
    request.getfixturevalue(kernels)
    words = ["sample", trained_run, "--length", 400, "--seed", 1, "--temperature", 5]
    plain = cli(*words).out
    banned = cli(*words, "--ban", "ae\nQ").out
    assert {"a", "e", "\n"} <= {*plain}
    assert {*banned} == {*plain} - {"a", "e"}  # a line end follows the sample
    assert banned.count("\n") == 1
    assert "all characters" in cli("sample", trained_run, "--ban", "".join({*plain})).error


def test_a_stop_text_counts_after_the_least_length(cli, trained_run):
    def length(*words: object) -> int:
        row = json.loads(cli("sample", trained_run, "--seed", 3, "--stop", " ", "--json", *words).out)["samples"][0]
        return len(row["text"])

    assert length("--length", "300") < 50 <= length("--length", "50-300") < 300
    for wrong in ("50-2", "-3", "a", "1-2-3"):
        assert cli("sample", trained_run, f"--length={wrong}").usage_error.startswith("Invalid value: --length: found")


def test_prompts_from_a_pipe(cli, trained_run):
    done = cli("sample", trained_run, "--prompts", "-", "--length", 9, "--seed", 1, stdin=b"te\nse\n")
    rows = [json.loads(line) for line in done.out.splitlines()]
    assert [row["prompt"] for row in rows] == ["te", "se"]
    for row in rows:
        alone = cli("sample", trained_run, "--prompt", row["prompt"], "--length", 9, "--seed", 1).out
        assert alone == f"{row['prompt']}{row['text']}\n"


def test_rare_characters_are_one_symbol(cli, tmp_path):
    run = train(tmp_path, words_text(20_000) + "éüß", "data.min_count=5")
    assert cli("score", run, "-", stdin="漢 é\n".encode()).out.endswith("漢 é\n")
    rare = [cli("sample", run, "--prompt", f"so {prompt}", "--length", 30, "--seed", 1).out for prompt in ("é", "漢")]
    assert rare[0].replace("é", "漢") == rare[1]
    assert rare[1].startswith("so 漢")
    sample = cli("sample", run, "--length", 2000, "--temperature", 9, "--seed", 1).out
    assert not {"\ufffd", "é"} & {*sample}


def test_lines_around_those_that_surprise(cli, trained_run, tmp_path):
    lines = ["se te.", "te se.", "so te.", "se te.", "te te."]
    text = "\n".join(lines).encode()
    scores = [float(row.split("\t")[0]) for row in cli("score", trained_run, "-", stdin=text).out.splitlines()]
    limit = max(scores) - 0.01
    done = cli("score", trained_run, "-", "--above", limit, "--context", 1, stdin=text)
    first = scores.index(max(scores))
    assert first > 0
    assert [int(row.split("\t")[2]) for row in done.out.splitlines()] == [first, first + 1, first + 2]
    assert cli("score", trained_run, "-", "--context", 1, stdin=text).usage_error.endswith("--context needs --above")
