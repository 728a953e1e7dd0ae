"""charlm eval: how surprising a text is to a model."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from charlm.cli import usage
from charlm.cli.common import encode_text, open_model, print_json, print_table, write_char_scores

Split = Annotated[
    Literal["train", "valid", "test"] | None,
    typer.Option("--split", help="Which part of the run's own text.  [default: valid]"),
]
File = Annotated[Path | None, usage.option("FILE", "Score this text instead; - is stdin.")]
PerCharFile = Annotated[Path | None, usage.option("FILE", "Also write the score of every character to a CSV file.")]
Novelty = Annotated[
    bool, typer.Option("--novelty", help="Also say how much of the text was copied from the training text.")
]
Dynamic = Annotated[
    bool, typer.Option("--dynamic", help="Also score the text while the model learns from it (Krause et al. 2018).")
]


def evaluate(
    checkpoint: usage.Checkpoint,
    split: Split = None,
    file: File = None,
    per_char: PerCharFile = None,
    dynamic: Dynamic = False,
    novelty: Novelty = False,
    skip_unknown: usage.SkipUnknown = False,
    device: usage.Device = "auto",
    precision: usage.Precision = "auto",
    json: usage.Json = False,
) -> None:
    """Score a text with a trained model.

    Prints the mean cross-entropy in nats and bits per character: lower is better. The model predicts each character
    from all text before it; a model of records reads each record by itself, and nats per record are printed too.

    \b
    Examples:
      charlm eval runs/mine
      charlm eval runs/mine --split test --json
      charlm eval runs/mine --file other.txt --per-char scores.csv
      charlm eval runs/mine --split test --dynamic
      charlm eval runs/mine --file sample.txt --novelty
    """
    usage.refuse_if(split is not None and file is not None, "--split and --file exclude one another")
    trained = open_model(checkpoint, device, precision, file)

    from charlm.data.outputs import check_output, writing
    from charlm.inference.dynamic import DECAY, LR, STEPS

    if per_char:
        check_output(per_char, "--per-char", "scores of charlm eval")
    if dynamic or novelty:
        _ = trained.training_splits  # fail now, not after the text is read
    name = str(file or split or "valid")
    ids = trained.scored_ids(encode_text(trained, file, skip_unknown)) if file else trained.split(name)
    step = trained.progress.get("step")
    result = {"checkpoint": str(trained.path), "step": step, "text": name, "precision": trained.network.precision}
    if dynamic:  # both scores read the text in one stream
        score = trained.evaluate_dynamically(ids, per_char=bool(per_char))
        result |= _described(trained.evaluate(ids, streams=1))
        result["dynamic"] = _described(score) | {"lr": LR, "decay": DECAY, "steps": STEPS}
    else:
        score = trained.evaluate(ids, per_char=bool(per_char))
        result |= _described(score)
    if per_char:
        with writing(per_char, "--per-char") as out:
            write_char_scores(out, trained.vocabulary, ids, score.per_char_nats)
    if novelty:
        [(longest, stretch, share)] = trained.novelty([trained.vocabulary.decode(ids, "surrogateescape")])
        result["novelty"] = {"longest": longest, "stretch": stretch, "windows_share": share}
    if json:
        print_json(result)
    else:
        _print_evaluation(result, "bytes" if trained.vocabulary.level == "byte" else "characters")


def _described(score: Any) -> dict[str, Any]:
    names = ("nats_per_char", "bits_per_char", "nats_per_record", "targets", "records", "chars_per_s")
    return {name: getattr(score, name) for name in names if getattr(score, name) is not None}


def _print_evaluation(result: dict[str, Any], symbols: str) -> None:
    """A table, with the dynamic score beside the static one."""
    formats = {"nats_per_char": ".4f", "bits_per_char": ".4f", "nats_per_record": ".2f", "chars_per_s": ",.0f"}
    single = {key: value for key, value in result.items() if key not in ("dynamic", "novelty")}
    rows = {key: format(value, formats.get(key, "")) for key, value in single.items()}
    if dynamic := result.get("dynamic"):
        for key, form in formats.items():
            if key in dynamic:
                rows[key] = f"{rows[key]} static  {dynamic[key]:{form}} dynamic"
        rows["dynamic"] = ", ".join(f"{key} {dynamic[key]}" for key in ("lr", "decay", "steps"))
    if novelty := result.get("novelty"):
        share = novelty["windows_share"]
        copied = f"{share or 0:.1%} of its windows of 20 {symbols} occur in the training text"
        rows["copied"] = copied if share is not None else f"shorter than a window of 20 {symbols}"
        rows["longest_copy"] = f"{novelty['longest']} {symbols}: {novelty['stretch']!r}"
    print_table(rows)
