"""charlm classify."""

from typing import Annotated

import typer

from charlm.cli import usage
from charlm.cli.common import open_model, print_exactly, print_json, without_unknown
from charlm.system.console import say

Labels = Annotated[str, usage.option("A,B,…", "The labels, with commas between them.")]
Separator = Annotated[str, usage.option("TEXT", r"What stands between label and line in the training text.")]
EqualPriors = Annotated[
    bool,
    typer.Option("--equal-priors", help="Take all labels for equally frequent, not for as frequent as in training."),
]
NoneBelow = Annotated[
    float,
    usage.number("P", "Answer none if the likeliest label has a lower probability: 0 to 1, among these labels.", max=1),
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
    skip_unknown: usage.SkipUnknown = False,
    device: usage.Device = "auto",
    precision: usage.Precision = "auto",
    json: usage.Json = False,
) -> None:
    """Find the label of each line, with a model that was trained on lines such as label<TAB>record.

    Prints the likeliest label, its probability among the labels given, 0 to 1, and the line, with tabs between them.
    The model scores label, separator and line together, for each label. Lines from a pipe are answered as they come,
    and without the characters that the model does not know.

    \b
    Examples:
      charlm classify runs/titles titles.txt --labels horror,comedy,drama
      tail -f new.txt | charlm classify runs/titles - --labels horror,comedy --none-below 0.9 --json
    """
    trained = open_model(checkpoint, device, precision, file)

    from charlm.data.reading import arriving_lines, is_pipe, text_name
    from charlm.data.vocabulary import never_seen, readable

    name, number, seen_unknown = text_name(file), 0, False
    skip_unknown = skip_unknown or is_pipe(file)
    names, separator = [label.strip() for label in labels.split(",")], separator.replace(r"\t", "\t")
    if unknown := trained.vocabulary.unknown(separator):
        raise trained.vocabulary.unknown_error(unknown, "--separator")
    try:
        trained.classify([], names, separator)
    except ValueError as error:
        raise usage.error(f"--labels, --separator: {error}") from None
    expected = zip(names, trained.separator_probabilities(names, separator), strict=True)
    if unexpected := [repr(label) for label, p in expected if p < _LEAST_P]:
        where = f"{separator!r} after {', '.join(unexpected)}"
        say(
            "labels",
            f"the model does not expect {where}; see --labels and --separator",
        )
    for lines in arriving_lines(file, trained.vocabulary, trained.config.data.unit):
        known = []
        for line in lines:
            number += 1
            where = f"{name}, line {number:,}"
            known.append(without_unknown(trained.vocabulary, line, where, skip_unknown))
            unknown = trained.vocabulary.unknown(line)
            if unknown and not seen_unknown:
                say("skipped", f"{where}: {never_seen(unknown)}")
            seen_unknown = seen_unknown or bool(unknown)
        answers = trained.classify(known, names, separator, equal_priors=equal_priors, none_below=none_below)
        for line, (label, p) in zip(lines, answers, strict=True):
            if json:
                shown = None if label is None else readable(label)
                print_json({"label": shown, "probability": p, "line": readable(line)})
            else:
                print_exactly(f"{'none' if label is None else label}\t{p:.4f}\t{line}\n")
