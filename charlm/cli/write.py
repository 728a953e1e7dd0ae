"""charlm write."""

import os
import sys
from pathlib import Path
from typing import Annotated

from charlm.cli import usage
from charlm.cli.common import EXACT, open_model, print_exactly
from charlm.errors import CheckpointError, RunError
from charlm.inference.options import SamplingOptions
from charlm.new_run import check_there
from charlm.system.console import say
from charlm.system.files import replace_file

Out = Annotated[Path | None, usage.option("FILE", "Write the text to this new file, not to stdout.")]
Temperature = Annotated[
    float, usage.number("X", "Below 1 is safer, above 1 is wilder; 0 offers only the likeliest continuation.")
]
Label = Annotated[str | None, usage.option("TEXT", "With a model of labels: the label of every line, not shown.")]
Length = Annotated[int, usage.option("N", "Characters of a continuation.", min=1, max=1000)]


def write(
    checkpoint: usage.Checkpoint,
    out: Out = None,
    label: Label = None,
    temperature: Temperature = 0.5,
    length: Length = 40,
    device: usage.Device = "auto",
    precision: usage.Precision = "auto",
) -> None:
    """Write a text with a model's help. Needs `pip install prompt_toolkit`.

    Type: the model's continuation stands in gray behind the cursor. Tab takes a word of it, → or End all of it, and
    Alt-↑ and Alt-↓ show others. Ctrl-S or Ctrl-D ends, and prints the text. Ctrl-C and SIGTERM do too, with exit code
    130 or 143. A terminal that is closed (SIGHUP, 129) takes no text: --out keeps it.

    \b
    Examples:
      charlm write runs/mine
      charlm write runs/mine --out story.txt --temperature 0.8
    """
    check_there(runs=[checkpoint])

    from charlm.cli.editor import Editor
    from charlm.data.outputs import check_output
    from charlm.data.vocabulary import describe_characters
    from charlm.inference.continuing import Continuer

    _check_terminal()
    if out is not None:
        if os.path.lexists(out):
            raise RunError(f"--out {out}: exists already; allowed: a new file")
        check_output(out, "--out", "a text of charlm write")
    trained = open_model(checkpoint, device, precision, samples=True)
    if trained.vocabulary.backward:
        raise CheckpointError(f"{trained.path}: the model reads backward; allowed: one that continues a text (forward)")
    prefix = "" if label is None else trained.label_prefix(label)
    reported = set[str]()

    def note(text: str) -> str:
        """Name each character that the model does not know once."""
        unknown = trained.vocabulary.unknown(trained.vocabulary.normalized(text))
        new = [character for character in unknown if character not in reported]
        reported.update(new)
        return f"the model skips {describe_characters(new, limit=3)}" if new else ""

    options = SamplingOptions(length=length, temperature=temperature)
    editor = Editor(Continuer(trained, options, prefix), note)
    try:
        editor.run()
    finally:  # what was written is kept in any case
        if text := editor.buffer.text:
            _keep(text if text.endswith("\n") else f"{text}\n", out)
    sys.exit(editor.exit_code)


def _check_terminal() -> None:
    if not sys.stdin.isatty() or not (sys.stdout.isatty() or sys.stderr.isatty()):
        raise RunError("write: found no terminal; allowed: a terminal to type in; charlm sample works without one")


def _keep(text: str, out: Path | None) -> None:
    """Write the text to the file, or to stdout; to stdout too if the file cannot be written."""
    fault = None
    if out is not None:
        try:
            if os.path.lexists(out):  # made while the text was written
                raise FileExistsError(17, "exists already")
            replace_file(out, text.encode("utf-8", EXACT))
            say("written", str(out))
            return
        except OSError as error:
            fault = RunError(f"--out {out}: {error.strerror}; the text is on stdout")
    try:
        print_exactly(text)
    except OSError as error:
        say("lost", f"stdout: {error.strerror}; the text is lost; --out FILE keeps it next time")
        raise
    if fault:
        raise fault
