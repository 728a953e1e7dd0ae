"""`charlm sample` and `charlm next`."""

import ast
import json
import re

import pytest

from tests.text import ESC, RTL, SEEN


def test_seeds_count_and_json(cli, trained_run):
    words = ["sample", trained_run, "--prompt", "a", "--length", 20]
    single = [cli(*words, "--seed", seed).out for seed in (4, 5, 6)]
    assert len(set(single)) == 3
    assert re.fullmatch(r"a[a-z .\n]{20}\n", single[0])
    result = cli(*words, "--seed", 4, "--count", 3)
    assert (result.code, result.err) == (0, "")
    assert result.out == "".join(f"--- seed {s} ---\n{text}" for s, text in zip((4, 5, 6), single, strict=True))
    drawn = cli(*words)
    seed = re.fullmatch(r"seed     (\d+)\n", drawn.err)
    assert seed
    assert cli(*words, "--seed", seed[1]).out == drawn.out
    path = trained_run / "checkpoints" / "best.safetensors"
    result = cli("sample", path, *words[2:], "--seed", 4, "--count", 2, "--json")
    assert (result.code, result.err, result.out.count("\n")) == (0, "", 1)
    assert json.loads(result.out) == {
        "checkpoint": str(path),
        "samples": [{"seed": 4 + n, "prompt": "a", "text": single[n][1:-1], "ended_by": "length"} for n in range(2)],
    }
    assert cli(*words, "--seed", 2**63 - 1, "--count", 2).code == 0


def test_stop(cli, trained_run):
    words = ["sample", trained_run, "--length", 200, "--seed", 1]
    whole = cli(*words).out
    stop = whole[50:52]
    stopped = cli(*words, "--stop", "rrrrr", "--stop", stop)
    assert (stopped.out, stopped.err) == (whole[: whole.index(stop) + 2] + "\n", "")
    result = cli("sample", trained_run, "--seed", 1, "--stop", stop, "--count", 40, "--length", 20, "--json")
    samples = json.loads(result.out)["samples"]
    assert [sample["ended_by"] == "stop" for sample in samples] == [stop in sample["text"] for sample in samples]
    lengths = sum(sample["ended_by"] == "length" for sample in samples)
    assert 0 < lengths < 40
    assert result.err == f"stop     {lengths} of 40 samples without a stop text\n"


def test_novelty_is_told_apart_from_the_text(cli, trained_run):
    text = (trained_run.parent / "text.txt").read_text()[:18_000]  # the training split
    words = ["sample", trained_run, "--prompt", "so ", "--length", 60, "--seed", 4, "--count", 2]
    plain, result = cli(*words), cli(*words, "--novelty")
    assert (result.code, result.out) == (0, plain.out)
    told = [line for line in result.err.splitlines() if line.startswith("novelty")]
    for line, sample in zip(told, json.loads(cli(*words, "--novelty", "--json").out)["samples"], strict=True):
        assert list(sample["novelty"]) == ["longest", "stretch", "windows_share"]
        longest, stretch, share = sample["novelty"].values()
        copy = f"; the longest copy has {longest} characters: {stretch!r}" if longest else ""
        windows = f"{100 * share:.1f}% of its windows of 20 characters occur in the training text"
        assert line == f"novelty  seed {sample['seed']}; {windows}{copy}"
        assert stretch in text
        assert stretch in sample["text"]
        assert len(stretch) == longest
        assert share == pytest.approx(sum(sample["text"][at : at + 20] in text for at in range(41)) / 41)


def test_novelty_of_less_than_a_window_and_of_bytes(cli, trained_run, bytes_run):
    words = ["sample", trained_run, "--length", 19, "--seed", 1, "--novelty"]
    assert "seed 1; shorter than a window of 20 characters" in cli(*words).err
    assert json.loads(cli(*words, "--json").out)["samples"][0]["novelty"]["windows_share"] is None
    told = cli("sample", bytes_run, "--length", 40, "--temperature", 0, "--novelty").err
    assert re.search(r"[\d.]+% of its windows of 20 bytes occur in the training text", told)


def test_a_terminal_gets_no_control_characters(cli, bytes_run, monkeypatch):
    prompt = f"—a{ESC}\n\t\x9b{RTL}é"  # the value of an option may begin with a dash
    words = ["sample", bytes_run, "--length", 1, "--temperature", 0, "--prompt", prompt]
    assert cli(*words).out.startswith(prompt)
    monkeypatch.setattr("_pytest.capture.CaptureIO.isatty", lambda _: True)
    assert cli(*words).out.startswith("—a\\x1bc\n\t\\x9b\\u202eé")


# What may come next


def test_next(cli, trained_run):
    words = [trained_run, "--prompt", "so "]
    result = cli("next", *words, "--top", 3)
    assert (result.code, result.err, result.out.count("\n")) == (0, "", 3)
    rows = [(ast.literal_eval(name), float(p)) for name, p in (line.split("  ") for line in result.out.splitlines())]
    value = json.loads(cli("next", *words, "--top", 1000, "--json").out)
    assert list(value) == ["checkpoint", "prompt", "next"]
    assert (value["checkpoint"], value["prompt"]) == (str(trained_run / "checkpoints/best.safetensors"), "so ")
    assert len(value["next"]) == int(SEEN.split()[1])
    characters, probabilities = zip(*(each.values() for each in value["next"]), strict=True)
    assert rows == [(characters[n], pytest.approx(probabilities[n], abs=5e-5)) for n in range(3)]
    assert sum(probabilities) == pytest.approx(1)
    assert list(probabilities) == sorted(probabilities, reverse=True)
    assert cli("next", trained_run).out == cli("next", trained_run, "--prompt", "\n").out  # a line begins
    assert f"so {characters[0]}\n" == cli("sample", *words, "--length", 1, "--temperature", 0).out


def test_next_of_a_byte_model_lists_bytes(cli, bytes_run):
    lines = cli("next", bytes_run, "--prompt", "é", "--top", 256).out.splitlines()
    assert sorted(ast.literal_eval(line.split("  ")[0]) for line in lines) == [bytes([b]) for b in range(256)]
    value = json.loads(cli("next", bytes_run, "--prompt", "é", "--top", 256, "--json").out)
    assert value["prompt"] == "é"
    assert {each["byte"] for each in value["next"]} == set(range(256))
