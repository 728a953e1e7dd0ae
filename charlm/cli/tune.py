"""charlm tune."""

import math
import shlex
import time
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from charlm.cli.common import CONFIG_HELP, Json, Overrides, check_minutes, print_json, usage_error
from charlm.cli.completion import complete_config
from charlm.errors import StudyError
from charlm.system.console import say

if TYPE_CHECKING:
    from charlm.tuning.study import Record, Study

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="CONFIG",
        help=f"{CONFIG_HELP} Not needed to continue a study.",
        autocompletion=complete_config,
    ),
]
Hours = Annotated[
    float | None,
    typer.Option(
        "--hours",
        metavar="H",
        help="Hours from the start of the command to its end. Leave it out to continue a study until its time is over.",
    ),
]
TrialMinutes = Annotated[
    float | None,
    typer.Option(
        "--minutes",
        metavar="M",
        help="Minutes that each trial trains.  [default: the config's limits, at most a tenth of the hours]",
    ),
]
Over = Annotated[
    list[str] | None,
    typer.Option(
        "--over",
        metavar="KEY=VALUES",
        help="Search over LOW..HIGH, LOW..HIGH:log, LOW..HIGH:STEP or A,B,C; a single value fixes an option; "
        "repeatable.",
    ),
]
StudyFolder = Annotated[
    Path | None,
    typer.Option(
        "--study",
        metavar="DIR",
        help="The study's folder; an existing study goes on.  [default: tunings/<config name>-<time>]",
    ),
]


def tune(
    context: typer.Context,
    config: ConfigOption = None,
    overrides: Overrides = None,
    hours: Hours = None,
    minutes: TrialMinutes = None,
    trials: Annotated[
        int | None,
        typer.Option(
            "--trials", metavar="N", min=1, help="End with this many trials, those of earlier calls included."
        ),
    ] = None,
    over: Over = None,
    study: StudyFolder = None,
    json: Json = False,
) -> None:
    """Search for better settings around a config.

    Trains trials, ordinary runs in the study's folder, one after another. The first one is the config as it is. The
    second has what charlm would choose for the searched options. The third is charlm's own choice of all options, if it
    differs in others than those searched. Optuna chooses the rest. A trial that falls behind ends early. At the end
    there are a table, the best config as best.yaml, and trials.png. Without --over it searches learning rate, size,
    dropout and a few more around the config's values.

    Ctrl-C prints how to continue. Several processes, also on several machines, may work on one study at a time.

    \b
    Examples:
      charlm tune --config lstm --set data.source=my.txt --hours 2
      charlm tune --config lstm --hours 2 --minutes 5 --over optimizer.lr=1e-3..3e-2:log --over model.layers=1,2
      charlm tune --study tunings/lstm-20260102-030405 --hours 1
    """
    _check_usage(config, overrides, hours, minutes, study)
    began_s = time.perf_counter() if context.obj is None else context.obj

    _check_there(config, overrides or [], study)

    from charlm.system.device import keep_freed_memory
    from charlm.tuning.search import Search

    keep_freed_memory()
    opened = _open(config, overrides or [], hours, minutes, over or [], study)
    ends_s = _end(opened, began_s, hours)
    _print_start(opened)
    signal = Search(opened, ends_s, trials).run()
    try:
        _print_result(opened, json, picture=not signal)
    finally:  # said in any case: stderr may be a file, when a terminal that was closed takes no result
        if signal:
            left = f"{max(ends_s - time.perf_counter(), 36) / 3600:.2f}"
            again = f"charlm tune --study {shlex.quote(str(opened.folder))} --hours {left}"
            again += f" --trials {trials}" if trials else ""
            say("stopped", f"{signal}; continue with: {again}")
    if signal:
        from charlm.training.signals import SIGNALS

        raise typer.Exit(SIGNALS[signal])


def _check_usage(
    config: Path | None, overrides: list[str] | None, hours: float | None, minutes: float | None, study: Path | None
) -> None:
    if config is None and study is None:
        raise usage_error("--config is needed, for example --config lstm; or --study, to continue one")
    if config is None and overrides:
        raise usage_error("--set changes the config of a new study; it needs --config")
    if study is None and hours is None:
        raise usage_error("--hours is needed, for example --hours 2")
    if hours is not None and not 0 < hours < float("inf"):
        raise usage_error(f"--hours: found {hours:g}; allowed: a number above 0")
    check_minutes(minutes, [], chosen=False)
    if hours is not None and minutes is not None and minutes > 60 * hours:
        raise usage_error(f"--minutes: found {minutes:g}; allowed: at most the {60 * hours:g} minutes of --hours")


def _check_there(config: Path | None, overrides: list[str], study: Path | None) -> None:
    """Errors for a study, config or text that is not there, before torch is imported."""
    from charlm.api import check_there
    from charlm.config import load_config

    if config is not None:
        check_there(config=load_config(config, overrides))
    elif study is not None and not study.is_dir():
        raise _no_study(study)


def _no_study(folder: Path | None) -> StudyError:
    return StudyError(f"{folder}: holds no study; allowed: the folder of one; --config and --hours begin one")


def _open(
    config: Path | None,
    overrides: list[str],
    hours: float | None,
    minutes: float | None,
    over: list[str],
    folder: Path | None,
) -> "Study":
    """Open the study in the folder, or make one."""
    from charlm.config import load_config
    from charlm.training.folder import new_folder
    from charlm.tuning.plan import Plan, check_same, make_plan
    from charlm.tuning.study import Study

    given = load_config(config, overrides) if config else None

    def make() -> tuple[Plan, list[dict[str, Any]]]:
        if given is None or hours is None:
            raise _no_study(folder)
        return make_plan(given, over, hours, minutes)

    if folder is None:
        assert config is not None
        made = make()
        return Study(new_folder(config.stem, "tunings"), lambda: made)
    study = Study(folder, make)
    check_same(study.plan, given, over, minutes)
    return study


def _end(study: "Study", began_s: float, hours: float | None) -> float:
    """When this process ends, as time.perf_counter() tells it; by default when the one before it does.

    Processes share the time of day. It is read only here, because it may be set while they run.
    """
    now_s = time.perf_counter()
    if hours is not None:
        left_s = began_s + 3600 * hours - now_s
        study.note("ends_s", time.time() + left_s)
        study.note("hours", hours)
        if left_s <= 0:
            raise usage_error(f"--hours: found {hours:g}; allowed: more than the {now_s - began_s:.0f} s to start")
    else:
        ends_s, most = study.noted("ends_s"), study.noted("hours")
        left_s = min(ends_s - time.time(), 3600 * most or math.inf)
        if left_s <= 0:
            raise usage_error("--hours is needed, for example --hours 2: the time of the study is over")
    return now_s + left_s


def _print_start(study: "Study") -> None:
    say("study", f"{study.folder}; see it with: tensorboard --logdir {shlex.quote(str(study.folder))}")
    for key, option in study.plan.space.items():
        say("search", f"{key}: {option}")


def _print_result(study: "Study", json: bool, picture: bool) -> None:
    from charlm.system.formatting import format_bytes, nats_to_bits
    from charlm.tuning.report import ranked, size_bytes, write_best
    from charlm.tuning.space import short_names
    from charlm.tuning.study import best

    records = study.records()
    found, path, drawn = best(records), write_best(study), _draw(study) if picture else None
    used_bytes = size_bytes(study.folder)
    if json:
        print_json(
            {
                "study": str(study.folder),
                "best": vars(found) if found else None,
                "config": str(path) if path else None,
                "trials": [vars(record) for record in ranked(records)],
                "bytes": used_bytes,
            }
        )
    else:
        _print_table(ranked(records)[:10], short_names(study.plan.space))
    if drawn:
        say("picture", str(drawn))
    say("disk", f"{format_bytes(used_bytes)} in {study.folder}; the folders of trials that have ended may be deleted")
    if found and found.nats is not None:
        say("best", f"{found.nats:.4f} nats ({nats_to_bits(found.nats):.4f} bits) per character: trial {found.number}")
        say("train", f"charlm train --config {shlex.quote(str(path))}")
    else:
        say("best", "none: no trial is complete")


def _draw(study: "Study") -> Path | None:
    from charlm.tuning.report import draw

    try:
        return draw(study)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        say("picture", f"none: {package} is not installed; pip install matplotlib")
        return None


def _print_table(records: "list[Record]", names: dict[str, str]) -> None:
    from charlm.config.yaml import dump_flow
    from charlm.tuning.space import is_chosen

    rows = [("trial", "nats", "minutes", "state", *names.values())]
    for record in records:
        nats = "—" if record.nats is None else f"{record.nats:.4f}"
        minutes = "—" if record.minutes is None else f"{record.minutes:.3g}"
        options = [dump_flow(record.options[key]) if key in record.options else "—" for key in names if record.options]
        state = f"{record.state}, chosen" if is_chosen(record.options) else record.state
        rows.append((str(record.number), nats, minutes, state, *options))
    widths = [max(map(len, column)) for column in zip_longest(*rows, fillvalue="")]
    for row in rows:
        typer.echo("  ".join(f"{text:>{width}}" for text, width in zip(row, widths, strict=False)))
