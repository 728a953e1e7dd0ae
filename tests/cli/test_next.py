"""`charlm next`."""

import ast
import json

import pytest

from tests.text import SEEN


@pytest.fixture
def byte_run(cli, tiny_config, tmp_path):
    run = tmp_path / "bytes"
    assert cli("train", "--config", tiny_config, "--run-dir", run, "--set", "data.level=byte").code == 0
    return run


def test_a_table(cli, trained_run):
    result = cli("next", trained_run, "--prompt", "so ", "--top", 3)
    assert (result.code, result.err, result.out.count("\n")) == (0, "", 3)
    value = json.loads(cli("next", trained_run, "--prompt", "so ", "--top", 3, "--json").out)
    rows = [(ast.literal_eval(name), float(p)) for name, p in (line.split("  ") for line in result.out.splitlines())]
    assert rows == [(each["character"], pytest.approx(each["probability"], abs=5e-5)) for each in value["next"]]


def test_json(cli, trained_run):
    result = cli("next", trained_run, "--prompt", "so ", "--top", 1000, "--json")
    assert (result.code, result.err, result.out.count("\n")) == (0, "", 1)
    value = json.loads(result.out)
    assert list(value) == ["checkpoint", "prompt", "next"]
    assert value["checkpoint"] == str(trained_run / "checkpoints" / "best.safetensors")
    assert value["prompt"] == "so "
    found = value["next"]
    assert [list(each) for each in found] == [["character", "probability"]] * int(SEEN.split()[1])
    assert sum(each["probability"] for each in found) == pytest.approx(1)
    assert [each["probability"] for each in found] == sorted((each["probability"] for each in found), reverse=True)


def test_the_likeliest_is_what_a_greedy_sample_writes(cli, trained_run):
    for prompt in ("so ", "e", ""):
        words = [trained_run, "--prompt", prompt]
        written = cli("sample", *words, "--length", 1, "--temperature", 0, "--seed", 1).out
        [first] = json.loads(cli("next", *words, "--top", 1, "--json").out)["next"]
        assert f"{prompt}{first['character']}\n" == written


def test_without_a_prompt_it_is_the_start_of_a_line(cli, trained_run):
    assert cli("next", trained_run).out == cli("next", trained_run, "--prompt", "\n").out
    assert cli("next", trained_run).out.count("\n") == 5


def test_control_characters_are_shown_as_such(cli, trained_run):
    assert r"'\n'  0." in cli("next", trained_run, "--top", 1000).out


def test_a_byte_model_lists_bytes(cli, byte_run):
    lines = cli("next", byte_run, "--prompt", "é", "--top", 256).out.splitlines()
    assert sorted(ast.literal_eval(line.split("  ")[0]) for line in lines) == [bytes([b]) for b in range(256)]
    value = json.loads(cli("next", byte_run, "--prompt", "é", "--top", 256, "--json").out)
    assert value["prompt"] == "é"
    assert [list(each) for each in value["next"]] == [["byte", "probability"]] * 256
    assert {each["byte"] for each in value["next"]} == set(range(256))


def test_unknown_characters_of_the_prompt(cli, trained_run):
    result = cli("next", trained_run, "--prompt", "aZ")
    assert result.error == (
        f"--prompt: found 'Z' (U+005A), which the model has never seen; allowed: {SEEN}; "
        "--skip-unknown leaves others out"
    )
    skipped = cli("next", trained_run, "--prompt", "aZ", "--skip-unknown")
    assert (skipped.code, skipped.err) == (0, "skipped  --prompt: 'Z' (U+005A)\n")
    assert skipped.out == cli("next", trained_run, "--prompt", "a").out
