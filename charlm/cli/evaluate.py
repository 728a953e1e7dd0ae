"""charlm eval: how surprising a text is to a model."""

import csv
import io
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal

import typer

from charlm.cli import usage
from charlm.cli.common import open_model, print_json, print_table
from charlm.data.outputs import check_output, writing
from charlm.system.formatting import format_share, nats_to_bits


def evaluate(
    checkpoint: usage.Checkpoint,
    split: Annotated[
        Literal["train", "valid", "test"] | None,
        typer.Option(help="Which part of the run's own text.  [default: valid]"),
    ] = None,
    file: Annotated[Path | None, usage.option("FILE", "Score this text instead; - is stdin.")] = None,
    per_char: Annotated[
        Path | None, usage.option("FILE", "Also write the score of every character to a CSV file.")
    ] = None,
    dynamic: Annotated[
        bool, typer.Option("--dynamic", help="Also score the text while the model learns from it (Krause et al. 2018).")
    ] = False,
    novelty: Annotated[
        bool, typer.Option("--novelty", help="Also list what of the text is copied from all that the model has read.")
    ] = False,
    skip_unknown: usage.SkipUnknown = False,
    device: usage.Device = "auto",
    precision: usage.Precision = "auto",
    json: usage.Json = False,
) -> None:
    """Score a text with a trained model.

    Prints the mean cross-entropy in nats and bits per character: lower is better. Compare scores of the same text only;
    models of bytes and of characters have the same unit. The model predicts each character from all text before it; a
    model of records reads each record by itself, and nats per record are printed too.

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

    from charlm.inference.dynamic import DECAY, LR, STEPS

    if per_char:
        check_output(per_char, "--per-char", "scores of charlm eval")
    if dynamic or novelty:
        _ = trained.corpus  # fail now, not after the text is read
    text = trained.read(file, skip_unknown=skip_unknown) if file else trained.split(split or "valid")
    result = {"checkpoint": str(trained.path), "step": trained.progress.get("step")}
    result |= {"precision": trained.network.precision, "text": asdict(text.scored)}
    if dynamic:  # both scores read the text in one stream
        score = trained.evaluate_dynamically(text, per_symbol=bool(per_char))
        result |= _described(trained.evaluate(text, streams=1))
        result["dynamic"] = _described(score) | {"lr": LR, "decay": DECAY, "steps": STEPS}
    else:
        score = trained.evaluate(text, per_symbol=bool(per_char))
        result |= _described(score)
    if per_char:
        with writing(per_char, "--per-char") as out:
            _write_char_scores(out, text, score.symbol_nats)
    if novelty:
        begun = text.text[1:] if trained.network.reads_records else text.text  # records follow the end of one
        [(share, found)] = trained.novelty([begun])
        passages = [dict(zip(("start", "length", "text"), passage, strict=True)) for passage in found]
        _, unread = trained.seen
        result["novelty"] = {"windows_share": share, "passages": passages, "not_searched": unread}
    if json:
        print_json(result)
    else:
        _print_evaluation(result, f"{trained.vocabulary.unit}s")


def _write_char_scores(out: BinaryIO, text: Any, symbol_nats: Any) -> None:
    """Write a CSV row for each scored character of a text; symbol_nats: those of an `Evaluation`."""
    characters = text.text
    nats = text.vocabulary.sums_of_characters(symbol_nats.astype("float64"), characters[1:])
    file = io.TextIOWrapper(out, "utf-8", "backslashreplace", newline="")
    writer = csv.writer(file)
    writer.writerow(("position", "character", "nats", "bits"))
    for position, loss in enumerate(nats.tolist(), start=1):
        writer.writerow((position, characters[position], f"{loss:.6f}", f"{nats_to_bits(loss):.6f}"))
    file.detach()  # flushes, and leaves `out` open


def _described(score: Any) -> dict[str, Any]:
    names = (*_FORMATS, "records")
    return {name: getattr(score, name) for name in names if getattr(score, name) is not None}


_FORMATS = {
    "nats_per_char": ".4f",
    "bits_per_char": ".4f",
    "perplexity_per_char": ".4f",
    "bits_per_byte": ".4f",
    "nats_per_record": ".2f",
    "chars_per_s": ",.0f",
}
_PASSAGES, _SHOWN = 10, 200
"""Copied passages in the table at most, and characters of each."""


def _print_evaluation(result: dict[str, Any], symbols: str) -> None:
    """A table, with the dynamic score beside the static one."""
    text = result["text"]
    single = {key: value for key, value in result.items() if key not in ("dynamic", "novelty")}
    single |= {"text": text["name"], "characters": text["chars"], "unknown": text["unknown"]}
    if text["seen"]:
        single["trained_on"] = f"{format_share(text['seen'])} of the text"
    rows = {key: format(value, _FORMATS.get(key, "")) for key, value in single.items()}
    if dynamic := result.get("dynamic"):
        for key, form in _FORMATS.items():
            if key in dynamic:
                rows[key] = f"{rows[key]} static  {dynamic[key]:{form}} dynamic"
        rows["dynamic"] = ", ".join(f"{key} {dynamic[key]}" for key in ("lr", "decay", "steps"))
    if novelty := result.get("novelty"):
        share, passages = novelty["windows_share"], novelty["passages"]
        copied = f"{share or 0:.1%} of its windows of 20 {symbols} occur in the training texts"
        rows["copied"] = copied if share is not None else f"shorter than a window of 20 {symbols}"
        if novelty["not_searched"]:
            rows["not_searched"] = "; ".join(novelty["not_searched"])
        for passage in passages[:_PASSAGES]:
            cut = "…" if len(passage["text"]) > _SHOWN else ""
            shown = f"{passage['text'][:_SHOWN]!r}{cut}"
            rows[f"copy_at_{passage['start']}"] = f"{passage['length']:,} {symbols}: {shown}"
        if len(passages) > _PASSAGES:
            rows["copies"] = f"{len(passages):,}, all with --json; the longest are shown"
    print_table(rows)
