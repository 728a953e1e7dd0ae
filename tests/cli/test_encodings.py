"""stdout in every locale: nothing is lost, and JSON stays JSON."""

import io
import json
import sys

import pytest

from tests.cli.conftest import train

PROMPT = "süß’€😀"


@pytest.fixture(scope="module")
def run(tmp_path_factory, compiled):
    """A model of labels whose characters most encodings lack."""
    folder = tmp_path_factory.mktemp("é")
    settings = ["data.split=[0.8,0.2,0]", r'data.records="\n"', "train.max_steps=2"]
    return train(folder, "".join(f"é\t{PROMPT} {n}\n" for n in range(300)), *settings)


@pytest.fixture
def shown(cli, monkeypatch):
    """Runs a command with a stdout of this encoding, which would end lines as on Windows; returns its bytes."""

    def shown(encoding, *words, terminal=False):
        out = io.BytesIO()
        wrapped = io.TextIOWrapper(out, encoding=encoding, newline="\r\n")
        wrapped.isatty = lambda: terminal
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", wrapped)
            result = cli(*words)
        assert result.code == 0, result
        wrapped.flush()
        return out.getvalue()

    return shown


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_a_pipe_gets_utf8_and_a_terminal_escapes_for_what_it_lacks(shown, run, encoding, write):
    lines = write("a.txt", f"{PROMPT}\n")
    for words in (["classify", run, lines, "--labels", "é"], ["score", run, lines]):
        assert shown(encoding, *words).decode().endswith(f"\t{PROMPT}\n")
        assert PROMPT in str(json.loads(shown(encoding, *words, "--json")))
    assert "é" in shown(encoding, "config", "show", run / "config.yaml").decode()
    sample = ["sample", run, "--prompt", PROMPT, "--seed", 1]
    assert shown(encoding, *sample).decode().startswith(PROMPT)
    assert shown(encoding, *sample, terminal=True).startswith(PROMPT.encode(encoding, "backslashreplace"))
    assert PROMPT in str(json.loads(shown(encoding, *sample, "--json")))


def test_a_prompt_is_read_in_the_form_that_the_model_knows(cli, run):
    """Decomposed, and with a straight apostrophe."""
    for command in (["sample", "--seed", 1, "--stop", "ß'"], ["next"]):
        results = {cli(*command, run, "--prompt", prompt, "--json").out for prompt in ("é\tsu\u0308ß'", "é\tsüß’")}
        assert len(results) == 1
        assert all(results)
