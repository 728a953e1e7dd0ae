"""Names and texts that a terminal obeys or lacks: every command works; nothing is lost or comes out raw."""

import io
import json
import sys

import pytest

from charlm.config import load_config
from tests.conftest import train
from tests.stress.fuzz import COMMANDS
from tests.text import ESC, RTL


def test_characters_that_a_terminal_obeys(cli, tmp_path):
    folder = tmp_path / f"a{ESC}{RTL}\u2028\n"
    folder.mkdir()
    text, config, run = folder / f"text{folder.name}.txt", folder / "c.yaml", folder / "run"
    text.write_text(f"so{ESC}{RTL}\x9b\u2028\0 \x07" * 300, encoding="utf-8")
    options = "model: {cell: {hidden: 4}}\ntrain: {max_steps: 2, batch_size: 2, sample_every: 1}\nthreads: 1\n"
    config.write_text(f"data: {{source: {json.dumps(str(text))}}}\n{options}", encoding="utf-8")
    for command in (
        ["train", "--config", config, "--run-dir", run],
        ["train", "--resume", "--run-dir", run, "--set", "train.max_steps=3", "--json"],
        ["eval", run, "--file", text, "--novelty"],
        ["sample", run, "--json", "--prompt", f"{ESC}{RTL}"],
        ["data", "info", text],
        ["runs", folder],
        ["config", "show", config],
    ):
        result = cli(*command)
        assert result.code == 0, result
        assert not COMMANDS.search(result.out + result.err), command
    (tmp_path / "shown.yaml").write_text(result.out, encoding="utf-8")
    assert load_config(tmp_path / "shown.yaml") == load_config(config)


PROMPT = "süß’€😀"


@pytest.fixture(scope="module")
def accents_run(tmp_path_factory, compiled):
    """A model of labels whose characters most encodings lack."""
    text = "".join(f"é\t{PROMPT} {n}\n" for n in range(300))
    return train(
        tmp_path_factory.mktemp("é"), text, "data.split=[0.8,0.2,0]", r'data.records="\n"', "train.max_steps=2"
    )


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_a_pipe_gets_utf8_and_a_terminal_escapes_for_what_it_lacks(cli, accents_run, encoding, write, monkeypatch):
    def shown(*words, terminal=False):
        """The bytes on a stdout of this encoding, which would end lines as on Windows."""
        out = io.BytesIO()
        wrapped = io.TextIOWrapper(out, encoding=encoding, newline="\r\n")
        wrapped.isatty = lambda: terminal
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", wrapped)
            assert cli(*words).code == 0
        wrapped.flush()
        return out.getvalue()

    run, lines = accents_run, write("a.txt", f"{PROMPT}\n")
    for words in (["classify", run, lines, "--labels", "é"], ["score", run, lines]):
        assert shown(*words).decode().endswith(f"\t{PROMPT}\n")
        assert PROMPT in str(json.loads(shown(*words, "--json")))
    sample = ["sample", run, "--prompt", PROMPT, "--seed", 1]
    assert shown(*sample).decode().startswith(PROMPT)
    assert shown(*sample, terminal=True).startswith(PROMPT.encode(encoding, "backslashreplace"))


def test_a_prompt_is_read_in_the_form_that_the_model_knows(cli, accents_run):
    """Decomposed, and with a straight apostrophe."""
    for command in (["sample", "--seed", 1, "--stop", "ß'"], ["next"]):
        known, other = (cli(*command, accents_run, "--prompt", f"é\t{p}").out for p in ("süß’", "su\u0308ß'"))
        assert known == other != ""
    error = cli("next", accents_run, "--prompt", "Üne\u0300").error  # each as it was typed
    assert (
        "found 'e' (U+0065), 'n' (U+006E), 'Ü' (U+00DC), '\u0300' (U+0300, part of a letter in Unicode form NFD)"
        in error
    )
