"""The command line: parse, call, print.

Each command imports what it needs when it runs, so that --help never waits for torch.

    train.py     train, plan            evaluate.py  eval
    sample.py    sample, next           data.py      data …
    score.py     score                  look.py      look
    classify.py  classify               runs.py      runs, report
    export.py    export                 compare.py   compare
    config.py    config …               cells.py     cells …
    doctor.py    doctor
    commands.py  the commands together, and how errors end one
    usage.py     the options that several commands share, and usage errors
    common.py    what several commands do: open a model, read a text, print a result
"""

from charlm.cli.commands import app, main

__all__ = ["app", "main"]
