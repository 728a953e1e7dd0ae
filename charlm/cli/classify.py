"""charlm classify."""

import math
from collections import Counter
from collections.abc import Container
from typing import Annotated, Any

import typer

from charlm.cli import usage
from charlm.cli.common import open_model, print_exactly, print_json
from charlm.system.console import say
from charlm.system.formatting import counted

Top = Annotated[
    int | None, usage.option("K", "Print the K likeliest labels with their probabilities, and no margin.", min=1)
]
Labeled = Annotated[
    bool, typer.Option("--labeled", help="The lines begin with their labels, as in training: say how many are right.")
]
_SHOWN = 5
"""Other labels that are listed for a label."""


def classify(
    checkpoint: usage.Checkpoint,
    file: Annotated[str, typer.Argument(metavar="FILE", help="The lines; - is stdin.")],
    top: Top = None,
    labeled: Labeled = False,
    skip_unknown: usage.SkipUnknown = False,
    device: usage.Device = "auto",
    precision: usage.Precision = "auto",
    json: usage.Json = False,
) -> None:
    """Find the label of each line, with a model that was trained with data.label_separator.

    Prints the likeliest label, by how many bits it is likelier than the second, and the line, with tabs between them.
    Lines from a pipe are answered as they come. With --json it prints an object for each line.

    \b
    Examples:
      charlm classify runs/titles titles.txt
      charlm classify runs/titles - --json < titles.txt
      charlm classify runs/titles held-out.txt --labeled > found.txt
    """
    trained = open_model(checkpoint, device, precision, file)
    trained.check_labels()

    from charlm.data.reading import arriving_lines
    from charlm.data.vocabulary import describe_characters
    from charlm.inference.lines import classify_lines

    name = "stdin" if file == "-" else file
    blocks = arriving_lines(file, trained.vocabulary.level, trained.config.data.unit)
    unknown, pairs = set[str](), Counter[tuple[str, str]]()
    for answers in classify_lines(trained, blocks, name, labeled=labeled, skip_unknown=skip_unknown):
        unknown |= set(answers.unknown)
        pairs.update(zip(answers.true or [], answers.predicted.best, strict=False))
        if json:
            _print_objects(answers, top)
        else:
            print_exactly("".join("\t".join(row) + "\n" for row in _rows(answers, top)))
    if unknown:
        say("skipped", f"{name}: {describe_characters(sorted(unknown))}")
    if labeled:
        _report(pairs, trained.labels, json)


def _rows(answers: Any, top: int | None) -> list[list[str]]:
    """The columns of each line."""
    predicted = answers.predicted
    if top is None:
        begins = [[label, f"{bits:.2f}"] for label, bits in zip(predicted.best, predicted.margin_bits, strict=True)]
    else:
        begins = [[text for label, p in row for text in (label, f"{p:.4f}")] for row in predicted.top(top)]
    true = [[label] for label in answers.true] if answers.true else [[]] * len(begins)
    return [[*first, *label, line] for first, label, line in zip(begins, true, answers.lines, strict=True)]


def _print_objects(answers: Any, top: int | None) -> None:
    from charlm.data.vocabulary import readable

    predicted = answers.predicted
    likeliest = predicted.top(top or 1)
    for n, (line, label, bits) in enumerate(
        zip(answers.lines, predicted.best, predicted.margin_bits.tolist(), strict=True)
    ):
        row = {"label": readable(label), "margin_bits": bits if math.isfinite(bits) else None, "line": readable(line)}
        if answers.true:
            row["true"] = readable(answers.true[n])
        if top:
            row["labels"] = [{"label": readable(name), "probability": p} for name, p in likeliest[n]]
        print_json(row)


def _report(pairs: Counter[tuple[str, str]], labels: Container[str], json: bool) -> None:
    """How many labels were right, and what was predicted for the others; pairs: (true, predicted label) → lines."""
    lines, right = pairs.total(), sum(count for (true, label), count in pairs.items() if true == label)
    totals = Counter[str]()
    for (true, _), count in pairs.items():
        totals[true] += count
    table: dict[str, dict[str, int]] = {true: {} for true, _ in totals.most_common() if true in labels}
    for (true, label), count in pairs.most_common():
        if true in table:
            table[true][label] = count
    unseen = sum(count for true, count in totals.items() if true not in table)
    if json:
        accuracy = right / lines if lines else None
        print_json({"accuracy": accuracy, "lines": lines, "unseen_labels": unseen, "confusion": table})
        return
    say("right", f"{right / lines:.1%} of {counted(lines, 'line')}" if lines else "found no line")
    for true, row in table.items():
        wrong = [f"{label!r} × {count:,}" for label, count in row.items() if label != true]
        shown = f"; found {', '.join(wrong[:_SHOWN])}{' …' if len(wrong) > _SHOWN else ''}" if wrong else ""
        say("label", f"{true!r}: {row.get(true, 0) / totals[true]:.1%} of {counted(totals[true], 'line')}{shown}")
    if unseen:
        say("unseen", f"{counted(unseen, 'line')} with a label that the model has never seen")
