"""`charlm sample`."""

import ast
import json
import re
import sys

from tests.text import SEEN, words_text


def test_the_same_seed_gives_the_same_text(cli, trained_run):
    first, again, other = (cli("sample", trained_run, "--length", 60, "--seed", seed).out for seed in (1, 1, 2))
    assert first == again != other
    assert len(first) == 61


def test_a_seed_drawn_is_told_and_gives_the_text_again(cli, trained_run):
    result = cli("sample", trained_run, "--length", 40)
    seed = re.fullmatch(r"seed     (\d+)\n", result.err).group(1)
    assert cli("sample", trained_run, "--length", 40, "--seed", seed).out == result.out


def test_file_of_the_checkpoint(cli, trained_run):
    path = trained_run / "checkpoints" / "best.safetensors"
    words = ["--length", 20, "--seed", 1]
    assert cli("sample", path, *words).out == cli("sample", trained_run, *words).out


def test_count(cli, trained_run):
    single = [cli("sample", trained_run, "--prompt", "a", "--length", 20, "--seed", seed).out for seed in (4, 5, 6)]
    result = cli("sample", trained_run, "--prompt", "a", "--length", 20, "--seed", 4, "--count", 3)
    assert result.out == "".join(f"--- seed {seed} ---\n{text}" for seed, text in zip((4, 5, 6), single, strict=True))


def test_json(cli, trained_run):
    plain = cli("sample", trained_run, "--prompt", "a", "--length", 20, "--seed", 4)
    result = cli("sample", trained_run, "--prompt", "a", "--length", 20, "--seed", 4, "--count", 2, "--json")
    assert (result.code, result.err, result.out.count("\n")) == (0, "", 1)
    value = json.loads(result.out)
    assert list(value) == ["checkpoint", "samples"]
    assert value["checkpoint"] == str(trained_run / "checkpoints" / "best.safetensors")
    assert [list(sample) for sample in value["samples"]] == [["seed", "prompt", "text"]] * 2
    assert [(sample["seed"], sample["prompt"]) for sample in value["samples"]] == [(4, "a"), (5, "a")]
    assert "a" + value["samples"][0]["text"] + "\n" == plain.out


def test_stop(cli, trained_run):
    whole = cli("sample", trained_run, "--length", 200, "--seed", 1).out
    stop = whole[50:52]
    stopped = cli("sample", trained_run, "--length", 200, "--seed", 1, "--stop", stop).out
    assert stopped == whole[: whole.index(stop) + 2] + "\n"
    assert len(stopped) < len(whole)


def test_temperature_zero_needs_no_luck(cli, trained_run):
    words = ["sample", trained_run, "--length", 30, "--temperature", 0]
    greedy = cli(*words, "--seed", 1).out
    assert greedy == cli(*words, "--seed", 2).out
    assert greedy == cli("sample", trained_run, "--length", 30, "--top-k", 1, "--seed", 3).out
    assert greedy == cli("sample", trained_run, "--length", 30, "--top-p", 0, "--seed", 4).out
    assert greedy == cli("sample", trained_run, "--length", 30, "--min-p", 1, "--seed", 5).out


def test_largest_seed(cli, trained_run):
    assert cli("sample", trained_run, "--length", 5, "--seed", 2**63 - 1, "--count", 2).code == 0


def test_novelty_is_told_apart_from_the_text(cli, trained_run):
    text = (trained_run.parent / "text.txt").read_text()[:18_000]
    words = ["sample", trained_run, "--prompt", "so ", "--length", 60, "--seed", 4, "--count", 2]
    plain, result = cli(*words), cli(*words, "--novelty")
    assert (result.code, result.out) == (0, plain.out)
    told = [line for line in result.err.splitlines() if line.startswith("novelty")]
    samples = [sample.removeprefix("so ") for sample in re.split(r"--- seed \d+ ---\n", plain.out)[1:]]
    for seed, line, sample in zip((4, 5), told, samples, strict=True):
        found = re.fullmatch(
            rf"novelty  seed {seed}; verbatim in the training text: (\d+\.\d)% of its windows of 20 characters; "
            r"at most (\d+) characters in a row: ('.*')",
            line,
        )
        stretch = ast.literal_eval(found[3])
        assert stretch in text
        assert stretch in sample
        assert len(stretch) == int(found[2])
        longer = (sample[at : at + len(stretch) + 1] for at in range(60 - len(stretch)))
        assert not any(other in text for other in longer)
        share = sum(sample[at : at + 20] in text for at in range(41)) / 41
        assert found[1] == f"{100 * share:.1f}"


def test_novelty_is_against_the_training_text(cli, trained_run, monkeypatch):
    from charlm.inference import novelty as module

    asked, found = [], module.novelty
    monkeypatch.setattr(module, "novelty", lambda samples, corpus: asked.append(corpus) or found(samples, corpus))
    for words in ([], ["--json"]):
        assert cli("sample", trained_run, "--length", 30, "--seed", 4, "--novelty", *words).code == 0
    vocabulary = sorted(set(words_text(20_000)))
    assert ["".join(vocabulary[index] for index in ids) for ids in asked] == [words_text(20_000)[:18_000]] * 2


def test_novelty_in_json(cli, trained_run):
    words = ["sample", trained_run, "--prompt", "a", "--length", 30, "--seed", 4, "--count", 2]
    samples = json.loads(cli(*words, "--json", "--novelty").out)["samples"]
    assert [list(sample) for sample in samples] == [["seed", "prompt", "text", "novelty"]] * 2
    assert [list(sample["novelty"]) for sample in samples] == [["longest", "stretch", "windows_share"]] * 2
    for sample in samples:
        assert sample["novelty"]["stretch"] in sample["text"]
        assert len(sample["novelty"]["stretch"]) == sample["novelty"]["longest"] > 0
    told = cli(*words, "--novelty").err
    assert all(repr(sample["novelty"]["stretch"]) in told for sample in samples)


def test_novelty_of_less_than_a_window(cli, trained_run):
    words = ["sample", trained_run, "--length", 19, "--seed", 1, "--novelty"]
    assert "verbatim in the training text: shorter than 20 characters; at most " in cli(*words).err
    assert json.loads(cli(*words, "--json").out)["samples"][0]["novelty"]["windows_share"] is None


def test_novelty_of_bytes(cli, tiny_config, tmp_path):
    from charlm.cli.sample import _novelty_line
    from charlm.inference import Verbatim

    run = tmp_path / "bytes"
    assert cli("train", "--config", tiny_config, "--run-dir", run, "--set", "data.level=byte").code == 0
    result = cli("sample", run, "--length", 40, "--seed", 1, "--novelty", "--json")
    [sample] = json.loads(result.out)["samples"]
    assert sample["novelty"]["longest"] >= 1
    assert sample["novelty"]["windows_share"] == 0
    assert _novelty_line(7, Verbatim(longest=2, stretch="é\n", windows_share=0.25), "byte") == (
        "seed 7; verbatim in the training text: 25.0% of its windows of 20 bytes; "
        r"at most 2 bytes in a row: 'é\n'"
    )


def test_unknown_characters_of_the_prompt(cli, trained_run):
    result = cli("sample", trained_run, "--prompt", "aZbé", "--length", 5, "--seed", 1)
    assert result.error == (
        "--prompt: found 'Z' (U+005A), 'b' (U+0062), 'é' (U+00E9), which the model has never seen; "
        f"allowed: {SEEN}; --skip-unknown leaves others out"
    )
    skipped = cli("sample", trained_run, "--prompt", "aZbés", "--length", 5, "--seed", 1, "--skip-unknown")
    assert (skipped.code, skipped.err) == (0, "skipped  --prompt: 'Z' (U+005A), 'b' (U+0062), 'é' (U+00E9)\n")
    assert skipped.out == cli("sample", trained_run, "--prompt", "as", "--length", 5, "--seed", 1).out


def test_prompt_file_and_stdin(cli, trained_run, tmp_path):
    words = ["sample", trained_run, "--length", 5, "--seed", 1]
    expected = cli(*words, "--prompt", "so\ntee").out
    file = tmp_path / "prompt.txt"
    file.write_bytes(b"so\ntee")
    assert cli(*words, "--prompt-file", file).out == expected
    assert cli(*words, "--prompt-file", "-", stdin=b"so\ntee").out == expected


def test_prompt_file_that_cannot_be_used(cli, trained_run, tmp_path):
    words = ["sample", trained_run, "--seed", 1, "--prompt-file"]
    file = tmp_path / "prompt.txt"
    assert cli(*words, file).error == (
        f"--prompt-file {file}: no such file or folder; allowed: a text file, or - for stdin"
    )
    assert cli(*words, tmp_path).error == (
        f"--prompt-file {tmp_path}: Is a directory; allowed: a text file, or - for stdin"
    )
    file.write_bytes(b"\xef\xbb\xbfso")
    assert cli(*words, file, "--length", 1).out.startswith("so")
    file.write_bytes(b"abc\xff")
    assert cli(*words, file).error == f"--prompt-file {file}: found no UTF-8 at byte offset 3; allowed: UTF-8"
    assert cli(*words, "-", stdin=b"\xff").error == "--prompt-file -: found no UTF-8 at byte offset 0; allowed: UTF-8"
    file.write_text("Z")
    assert cli(*words, file).error.startswith(f"--prompt-file {file}: found 'Z' (U+005A), which the model has never ")


def test_control_characters_are_shown_as_such_on_a_terminal(capsys, monkeypatch):
    from charlm.cli.sample import _print

    _print("a\x1b[2J", [["\n\t\x07"]], backward=False)
    assert capsys.readouterr().out == "a\x1b[2J\n\t\x07\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    _print("a\x1b[2J", [["\n\t\x07\x9bé"]], backward=False)
    assert capsys.readouterr().out == "a\\x1b[2J\n\t\\x07\\x9bé\n"
