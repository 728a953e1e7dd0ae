"""stdout in every locale: nothing is lost, and JSON stays JSON."""

import io
import json
import sys

import pytest

from charlm.cli.common import EXACT

LINES = "".join(f"é: süß’€😀 {n}\n" for n in range(300))
ENCODINGS = ("utf-8", "latin-1", "cp1252", "ascii")


@pytest.fixture(scope="module")
def run(tmp_path_factory, compiled):
    """A model of labels whose characters most encodings lack."""
    from typer.testing import CliRunner

    from charlm.cli import app

    folder = tmp_path_factory.mktemp("encodings")
    (folder / "é.txt").write_text(LINES, encoding="utf-8")
    settings = [
        "data.split=[0.8,0.2,0]",
        "model.cell.hidden=8",
        "train.batch_size=2",
        "train.bptt=8",
        "train.max_steps=2",
        "device=cpu",
    ]
    words = [word for setting in settings for word in ("--set", setting)]
    words += ["--lines", "--labels", ": ", "--run-dir", str(folder / "run")]
    done = CliRunner().invoke(app, ["train", "--config", "lstm", str(folder / "é.txt"), *words], catch_exceptions=False)
    assert done.exit_code == 0
    return folder / "run"


@pytest.fixture
def shown(cli, monkeypatch):
    """Runs a command with a stdout of this encoding; returns its bytes."""

    def shown(encoding, *words, terminal=False, **kwargs):
        out = io.BytesIO()
        wrapped = io.TextIOWrapper(out, encoding=encoding)
        wrapped.isatty = lambda: terminal
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", wrapped)
            result = cli(*words, **kwargs)
        assert result.code == 0, result
        wrapped.flush()
        return out.getvalue()

    return shown


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_pipe_gets_utf8_and_json_its_own_escapes(shown, run, encoding, write):
    lines = write("a.txt", "süß’€😀\n")
    out = shown(encoding, "sample", run, "--prompt", "süß’€😀", "--label", "é", "--seed", 1).decode()
    assert out.startswith("süß’€😀")
    assert shown(encoding, "classify", run, lines).decode().endswith("\tsüß’€😀\n")
    assert shown(encoding, "score", run, lines, "--lines").decode().endswith("\tsüß’€😀\n")
    assert "€" in shown(encoding, "score", run, lines, "--per-char").decode()
    assert "é.txt" in shown(encoding, "config", "show", run / "config.yaml").decode()
    for words in (
        ["sample", run, "--prompt", "süß’€😀", "--seed", 1, "--json"],
        ["classify", run, lines, "--json"],
        ["score", run, lines, "--lines", "--json"],
        ["next", run, "--prompt", "süß’€😀", "--json"],
    ):
        found = shown(encoding, *words)
        assert found.isascii() == (encoding != "utf-8")
        assert "süß’€😀" in str(json.loads(found))


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_terminal_gets_escapes_for_what_it_lacks(shown, run, encoding):
    prompt = "süß’€😀"
    found = shown(encoding, "sample", run, "--prompt", prompt, "--seed", 1, terminal=True)
    # An ASCII locale says nothing about the terminal.
    assert found.startswith(prompt.encode("utf-8" if encoding == "ascii" else encoding, "backslashreplace"))
    json.loads(
        shown(encoding, "sample", run, "--prompt", prompt, "--seed", 1, "--json", terminal=True).decode(encoding)
    )


def test_bytes_stay_and_lone_surrogates_are_escaped():
    assert "é\udcff\ud800".encode("utf-8", EXACT) == "é\\udcff\\ud800".encode()
    assert "é\udcff a\ud800".encode("utf-8", EXACT) == b"\xc3\xa9\xff a\\ud800"
