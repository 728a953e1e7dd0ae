"""stdout in every locale: nothing is lost, and JSON stays JSON."""

import io
import json
import sys

import pytest

from tests.cli.conftest import train

PROMPT = "süß’€😀"
ENCODINGS = ("utf-8", "latin-1", "cp1252", "ascii")


@pytest.fixture(scope="module")
def run(tmp_path_factory, compiled):
    """A model of labels whose characters most encodings lack."""
    folder = tmp_path_factory.mktemp("é")
    settings = ["data.split=[0.8,0.2,0]", "data.unit=line", "train.max_steps=2"]
    return train(folder, "".join(f"é\t{PROMPT} {n}\n" for n in range(300)), *settings)


@pytest.fixture
def shown(cli, monkeypatch):
    """Runs a command with a stdout of this encoding; returns its bytes."""

    def shown(encoding, *words, terminal=False, newline="\n", **kwargs):
        out = io.BytesIO()
        wrapped = io.TextIOWrapper(out, encoding=encoding, newline=newline)
        wrapped.isatty = lambda: terminal
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", wrapped)
            result = cli(*words, **kwargs)
        assert result.code == 0, result
        wrapped.flush()
        return out.getvalue()

    return shown


def test_line_ends_are_the_texts_own_where_streams_write_others(shown, run, write):
    """As Python's stdout does on Windows."""
    score = ["score", run, write("a.txt", f"{PROMPT}\n")]
    assert shown("cp1252", *score, newline="\r\n") == shown("cp1252", *score)
    assert b"\r" not in shown("cp1252", "sample", run, "--prompt", "é\t", "--seed", 1, newline="\r\n")


def test_a_prompt_is_read_in_the_form_that_the_model_knows(cli, run):
    """Decomposed, and with a straight apostrophe."""
    for command in (["sample", "--seed", 1, "--stop", "ß'"], ["next"]):
        results = {cli(*command, run, "--prompt", prompt, "--json").out for prompt in ("é\tsu\u0308ß'", "é\tsüß’")}
        assert len(results) == 1
        assert all(results)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_pipe_gets_utf8_and_json_its_own_escapes(shown, run, encoding, write):
    lines = write("a.txt", f"{PROMPT}\n")
    out = shown(encoding, "sample", run, "--prompt", PROMPT, "--seed", 1).decode()
    assert out.startswith(PROMPT)
    assert shown(encoding, "classify", run, lines, "--labels", "é").decode().endswith(f"\t{PROMPT}\n")
    assert shown(encoding, "score", run, lines).decode().endswith(f"\t{PROMPT}\n")
    assert "é" in shown(encoding, "config", "show", run / "config.yaml").decode()
    for words in (
        ["sample", run, "--prompt", PROMPT, "--seed", 1, "--json"],
        ["classify", run, lines, "--labels", "é", "--json"],
        ["score", run, lines, "--json"],
        ["next", run, "--prompt", PROMPT, "--json"],
    ):
        assert PROMPT in str(json.loads(shown(encoding, *words)))


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_terminal_gets_escapes_for_what_it_lacks(shown, run, encoding):
    found = shown(encoding, "sample", run, "--prompt", PROMPT, "--seed", 1, terminal=True)
    assert found.startswith(PROMPT.encode(encoding, "backslashreplace"))
