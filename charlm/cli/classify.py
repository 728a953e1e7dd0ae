"""charlm classify."""

from typing import Annotated, Any

import typer

from charlm.cli import usage
from charlm.cli.common import on_one_line, open_model, print_exactly, print_json
from charlm.system.console import say
from charlm.system.number import LARGEST

Labels = Annotated[str, usage.option("A,B,…", "The labels, with commas between them.")]
Separator = Annotated[str, usage.option("TEXT", "Text between label and line in the training text.")]
EqualPriors = Annotated[
    bool, typer.Option("--equal-priors", help="Assume that all labels are equally frequent, unlike in training.")
]
NoneBelow = Annotated[
    float,
    usage.option("P", "Answer none if the probability of the likeliest label, 0 to 1, is lower.", min=0, max=1),
]

_LEAST_P = 0.01
"""Where the training text has the separator after a label, its probability there is far higher."""


def classify(
    checkpoint: usage.Checkpoint,
    file: Annotated[str, typer.Argument(metavar="FILE", help="The lines; - is stdin.")],
    labels: Labels,
    separator: Separator = r"\t",
    equal_priors: EqualPriors = False,
    none_below: NoneBelow = 0.0,
    device: usage.Device = "auto",
    precision: usage.Precision = "auto",
    json: usage.Json = False,
) -> None:
    """Label each line with a model that was trained on lines such as label<TAB>record.

    Prints the likeliest label, its probability among these labels (0 to 1), and the line, separated by tabs. For each
    label the model scores label + separator + line, without unknown characters. Lines from a pipe are answered at once.

    \b
    Examples:
      charlm classify runs/titles titles.txt --labels horror,comedy,drama
      tail -f new.txt | charlm classify runs/titles - --labels horror,comedy --none-below 0.9 --json
    """
    trained = open_model(checkpoint, device, precision, file)

    from charlm.data.reading import text_name
    from charlm.data.records import arriving_records
    from charlm.data.vocabulary import never_seen, readable

    vocabulary, number, is_said = trained.vocabulary, 0, False
    names, separator = [label.strip() for label in labels.split(",")], usage.unescaped(separator)
    if unknown := vocabulary.unknown(separator):
        raise vocabulary.unknown_error(unknown, "--separator")
    try:
        trained.classify([], names, separator, none_below=none_below)
    except ValueError as error:
        raise usage.error(f"--labels, --separator: {error}") from None
    if unexpected := [repr(name) for name in names if not _is_expected(trained, name, separator)]:
        where = f"{separator!r} after {', '.join(unexpected)}"
        say("labels", f"the model does not expect {where}; see --labels and --separator")
    for lines in arriving_records(file, vocabulary, trained.config.data.records):
        lines, known = [*map(vocabulary.canonical, lines)], []
        for line in lines:
            number += 1
            unknown = vocabulary.unknown(line)
            if unknown and not is_said:
                say("skipped", f"{text_name(file)}, line {number:,}: {never_seen(unknown)}")
                is_said = True
            known.append("".join(character for character in line if character not in unknown))
        answers = trained.classify(known, names, separator, equal_priors=equal_priors, none_below=none_below)
        for line, (label, p) in zip(lines, answers, strict=True):
            if json:
                row = {"label": None if label is None else readable(label), "probability": p, "line": readable(line)}
                print_json(row | {"unknown": readable(vocabulary.unknown(line))})
            else:
                print_exactly(f"{'none' if label is None else label}\t{p:.4f}\t{on_one_line(line)}\n")


def _is_expected(trained: Any, label: str, separator: str) -> bool:
    """Whether the model expects the first character of the separator after the label at the start of a line."""
    beginning = "" if trained.network.reads_records else "\n"
    likely = [character for character, p in trained.next(beginning + label, k=LARGEST) if p > _LEAST_P]
    first = trained.vocabulary.encode(separator)[:1]
    return trained.vocabulary.decode(first, "surrogateescape") in ["", *likely]
