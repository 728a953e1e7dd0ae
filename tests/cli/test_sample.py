"""`charlm sample` and `charlm next`."""

import json
import re

import pytest

from tests.conftest import train
from tests.text import ESC, RTL, words_text


@pytest.fixture(scope="module")
def bytes_run(tmp_path_factory, compiled):
    """A run of a model of bytes."""
    return train(tmp_path_factory.mktemp("bytes"), words_text(20_000), "data.level=byte")


def test_seeds_count_and_json(cli, trained_run):
    words = ["sample", trained_run, "--prompt", "a", "--length", 20]
    single = [cli(*words, "--seed", seed).out for seed in (4, 5, 6)]
    assert len(set(single)) == 3
    assert re.fullmatch(r"a[a-z .\n]{20}\n", single[0])
    result = cli(*words, "--seed", 4, "--count", 3)
    assert result.out == "".join(f"--- seed {s} ---\n{text}" for s, text in zip((4, 5, 6), single, strict=True))
    drawn = cli(*words)
    seed = drawn.err.removeprefix("seed     ").rstrip()
    assert cli(*words, "--seed", seed).out == drawn.out
    path = trained_run / "checkpoints" / "best.safetensors"
    value = json.loads(cli("sample", path, *words[2:], "--seed", 5, "--json").out)
    sample = {"seed": 5, "prompt": "a", "text": single[1][1:-1], "ended_by": "length"}
    assert value == {"checkpoint": str(path), "samples": [sample]}


def test_stop(cli, trained_run):
    words = ["sample", trained_run, "--seed", 1]
    whole = cli(*words).out
    stop = whole[50:52]
    assert cli(*words, "--stop", "rrrrr", "--stop", stop).out == whole[: whole.index(stop) + 2] + "\n"
    result = cli(*words, "--stop", stop, "--count", 40, "--length", 20, "--json")
    samples = json.loads(result.out)["samples"]
    assert [sample["ended_by"] == "stop" for sample in samples] == [stop in sample["text"] for sample in samples]
    lengths = sum(sample["ended_by"] == "length" for sample in samples)
    assert 0 < lengths < 40
    assert result.err == f"stop     {lengths} of 40 samples without a stop text\n"


def test_a_terminal_gets_no_control_characters(cli, bytes_run, monkeypatch):
    prompt = f"—a{ESC}\n\t\x9b{RTL}é"  # the value of an option may begin with a dash
    words = ["sample", bytes_run, "--length", 1, "--temperature", 0, "--prompt", prompt]
    assert cli(*words).out.startswith(prompt)
    monkeypatch.setattr("_pytest.capture.CaptureIO.isatty", lambda _: True)
    assert cli(*words).out.startswith("—a\\x1bc\n\t\\x9b\\u202eé")


def test_next(cli, trained_run, bytes_run):
    words = [trained_run, "--prompt", "so "]
    value = json.loads(cli("next", *words, "--top", 1000, "--json").out)
    assert list(value) == ["checkpoint", "prompt", "next"]
    characters, probabilities = zip(*(each.values() for each in value["next"]), strict=True)
    assert cli("next", *words, "--top", 2).out == "".join(
        f"{character!r}  {p:.4f}\n" for character, p in zip(characters[:2], probabilities[:2], strict=True)
    )
    assert f"so {characters[0]}\n" == cli("sample", *words, "--length", 1, "--temperature", 0).out
    assert cli("next", trained_run).out == cli("next", trained_run, "--prompt", "\n").out  # a line begins
    value = json.loads(cli("next", bytes_run, "--prompt", "é", "--top", 256, "--json").out)
    assert {each["byte"] for each in value["next"]} == set(range(256))


def test_samples_that_match(cli, trained_run):
    found = cli("sample", trained_run, "--match", r"e.*\.", "--count", 4, "--length", 30, "--seed", 1, "--json")
    texts = [row["text"] for row in json.loads(found.out)["samples"]]
    assert len(texts) == 4
    assert all(re.search(r"e.*\.", text, re.DOTALL) for text in texts)
    assert "for 4 of 4" in found.err
    none = cli("sample", trained_run, "--match", "Q", "--count", 2, "--length", 5, "--seed", 1)
    assert (none.code, none.out) == (3, "")
    assert "40 samples for 0 of 2" in none.err
    assert cli("sample", trained_run, "--prompts", "-", "--match", "Q", "--length", 5, stdin=b"te\n").code == 3
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
