"""charlm classify."""

from collections import Counter
from typing import Annotated

import typer

from charlm.cli import usage
from charlm.cli.common import on_one_line, open_model, print_exactly, print_json
from charlm.data.reading import text_name
from charlm.system.console import say
from charlm.system.formatting import readable


def classify(
    checkpoint: usage.Checkpoint,
    file: Annotated[str, typer.Argument(metavar="TEXT", help="The lines: a file, a folder or a glob; - is stdin.")],
    labels: Annotated[str, usage.option("A,B,…", "The labels, with commas between them.")],
    separator: Annotated[str, usage.option("TEXT", "Text between label and line in the training text.")] = r"\t",
    equal_priors: Annotated[
        bool, typer.Option("--equal-priors", help="Assume that all labels are equally frequent, unlike in training.")
    ] = False,
    none_below: Annotated[
        float,
        usage.option("P", "Answer none if the probability of the likeliest label, 0 to 1, is lower.", min=0, max=1),
    ] = 0.0,
    device: usage.Device = "auto",
    precision: usage.Precision = "auto",
    json: usage.Json = False,
) -> None:
    """Label each line with a model that was trained on lines such as label<TAB>record.

    Prints the likeliest label, its probability among these labels (0 to 1), and the line, separated by tabs. For each
    label the model scores label + separator + line, without unknown characters. Lines from a pipe are answered at once.
    A label with which no line of the training text begins is an error.

    \b
    Examples:
      charlm classify runs/titles titles.txt --labels horror,comedy,drama
      tail -f new.txt | charlm classify runs/titles - --labels horror,comedy --none-below 0.9 --json
    """
    trained = open_model(checkpoint, device, precision, file)

    from charlm.data.records import arriving_records
    from charlm.data.sources import text_files
    from charlm.data.vocabulary import never_seen
    from charlm.inference.labels import check_labels

    vocabulary, is_said = trained.vocabulary, False
    numbers: Counter[str] = Counter()  # lines of each file so far
    names, separator = [label.strip() for label in labels.split(",")], usage.unescaped(separator)
    if unknown := vocabulary.unknown(separator):
        raise vocabulary.unknown_error(unknown, "--separator")
    try:
        trained.classify([], names, separator, none_below=none_below)
    except ValueError as error:
        raise usage.error(f"--labels, --separator: {error}") from None
    check_labels(trained, names, separator)
    end = trained.config.data.records
    blocks = ((path, lines) for path in text_files(file) for lines in arriving_records(path, vocabulary, end))
    for path, lines in blocks:
        lines = [*map(vocabulary.canonical, lines)]
        for line in lines:
            numbers[path] += 1
            if not is_said and (unknown := vocabulary.unknown(line)):
                say("skipped", f"{text_name(path)}, line {numbers[path]:,}: {never_seen(unknown)}")
                is_said = True
        answers = trained.classify(
            lines, names, separator, equal_priors=equal_priors, none_below=none_below, skip_unknown=True
        )
        for line, (label, p) in zip(lines, answers, strict=True):
            if json:
                row = {"label": label and readable(label), "probability": p, "line": readable(line)}
                print_json(row | {"unknown": readable(vocabulary.unknown(line))})
            else:
                print_exactly(f"{label or 'none'}\t{p:.4f}\t{on_one_line(line)}\n")
