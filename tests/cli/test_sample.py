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
