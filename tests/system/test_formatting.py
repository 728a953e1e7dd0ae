"""Text that a terminal can show without obeying it."""

import sys

from charlm.system import console
from charlm.system.formatting import one_line, printable
from tests.stress.fuzz import COMMANDS


def test_no_character_that_a_terminal_obeys_is_shown():
    text = "".join(map(chr, range(0x10000)))
    for shown in (printable(text), one_line(text)):
        assert not COMMANDS.search(shown)
    assert not set("\n\t") & set(one_line(text))


def test_on_a_terminal_a_message_is_wrapped_and_its_command_stays_whole(monkeypatch, capsys):
    command = "charlm train --resume --run-dir runs/a-long-name"
    console.say("stopped", "SIGINT at step 5; resume with:", command)
    assert capsys.readouterr().err == f"stopped  SIGINT at step 5; resume with: {command}\n"
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "40")
    console.say("stopped", "SIGINT at step 5; resume with:", command)
    console.say_error("lstm.yaml: found\tno such file; allowed: a YAML file")
    assert capsys.readouterr().err.splitlines() == [
        "stopped  SIGINT at step 5; resume with:",
        f"         {command}",
        r"error: lstm.yaml: found\tno such file;",
        "       allowed: a YAML file",
    ]
