"""charlm tune."""

import math
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from charlm.cli import usage
from charlm.cli.common import print_json, print_rows
from charlm.errors import StudyError
from charlm.new_run import check_there
from charlm.system.console import say
from charlm.system.files import folder_bytes
from charlm.system.formatting import format_bytes, nats_to_bits
from charlm.training.signals import SIGNALS

if TYPE_CHECKING:
    from charlm.config import Config
    from charlm.tuning.study import Study

Over = Annotated[
    list[str] | None,
    usage.option(
        "KEY=VALUES",
        "Search over LOW..HIGH, LOW..HIGH:log, LOW..HIGH:STEP or A,B,C; a single value fixes an option; repeatable.",
        "--over",
    ),
]
Hours = Annotated[
    float | None,
    usage.option(
        "H",
        "Hours from the start of the command to its end. Leave it out to continue a study until its time is over.",
        callback=usage.checked(lambda hours: 0 < hours < math.inf, "a number above 0"),
    ),
]
TrialMinutes = Annotated[
    float | None,
    usage.option(
        "M",
        "Minutes that each trial trains.  [default: the config's limits, at most a tenth of the hours]",
        callback=usage.finite,
    ),
]
StudyFolder = Annotated[
    Path | None,
    usage.option("DIR", "The study's folder; an existing study goes on.  [default: tunings/<config name>-<time>]"),
]


def tune(
    context: typer.Context,
    config: Annotated[Path | None, usage.config_option("Not needed to continue a study.")] = None,
    overrides: usage.Overrides = None,
    hours: Hours = None,
    minutes: TrialMinutes = None,
    trials: Annotated[int | None, usage.option("N", "End with this many trials in all.", min=1)] = None,
    over: Over = None,
    study: StudyFolder = None,
    json: usage.Json = False,
) -> None:
    """Search for better settings around a config.

    Trains trials, ordinary runs in the study's folder: the config as it is, what charlm would choose, then what Optuna
    chooses. A trial that falls behind ends early. At the end there are a table, the best config as best.yaml, and
    trials.png. Without --over it searches learning rate, size, dropout and a few more around the config's values.

    Ctrl-C prints how to continue. Several processes, also on several machines, may work on one study at a time.

    \b
    Examples:
      charlm tune --config lstm --set data.source=my.txt --hours 2
      charlm tune --config lstm --hours 2 --minutes 5 --over optimizer.lr=1e-3..3e-2:log --over model.layers=1,2
      charlm tune --study tunings/lstm-20260102-030405 --hours 1
    """
    usage.refuse_if(not (config or study), "--config is needed, for example --config lstm; or --study, to continue one")
    usage.refuse_if(config is None and overrides, "--set changes the config of a new study; it needs --config")
    usage.refuse_if(study is None and hours is None, "--hours is needed, for example --hours 2")
    if hours is not None and minutes is not None and minutes > 60 * hours:
        raise usage.error(f"--minutes: found {minutes:g}; allowed: at most the {60 * hours:g} minutes of --hours")
    began_s = time.perf_counter() if context.obj is None else context.obj

    from charlm.config import load_config

    given = load_config(config, overrides or []) if config else None
    check_there(config=given)
    if given is None and study is not None and not study.is_dir():
        raise _no_study(study)

    from charlm.tuning.search import Search
    from charlm.tuning.space import as_text

    opened = _open(study, config, given, over or [], hours, minutes)
    ends_s = _end(opened, began_s, hours)
    say("study", f"{opened.folder}; see it with: tensorboard --logdir {shlex.quote(str(opened.folder))}")
    for key, option in opened.settings.space.items():
        say("search", f"{key}: {as_text(option)}")
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
        raise typer.Exit(SIGNALS[signal])


def _open(
    folder: Path | None, file: Path | None, config: "Config | None", over: list[str], hours: float | None,
    minutes: float | None,
) -> "Study":  # fmt: skip
    """The study in the folder; without one, a new study in a new folder that has the name of the config's file."""
    from charlm.training.folder import new_folder
    from charlm.tuning.settings import FirstTrial, StudySettings, choose_settings
    from charlm.tuning.study import Study

    def choose() -> tuple[StudySettings, list[FirstTrial]]:
        if config is None or hours is None:
            raise _no_study(folder)
        return choose_settings(config, over, hours, minutes)

    if folder is None:
        assert file is not None
        chosen = choose()  # before the folder is made
        return Study(new_folder(file.stem, "tunings"), lambda: chosen)
    study = Study(folder, choose)
    study.settings.check_same(config, over, minutes)
    return study


def _no_study(folder: Path | None) -> StudyError:
    return StudyError(f"{folder}: holds no study; allowed: the folder of one; --config and --hours begin one")


def _end(study: "Study", began_s: float, hours: float | None) -> float:
    """When this process ends, as time.perf_counter() tells it; by default when the one before it does.

    Processes share the time of day. It is read only here, because it may be set while they run.
    """
    now_s = time.perf_counter()
    left_s = study.left_s() if hours is None else began_s + 3600 * hours - now_s
    if left_s <= 0 and hours is None:
        raise usage.error("--hours is needed, for example --hours 2: the time of the study is over")
    if left_s <= 0:
        raise usage.error(f"--hours: found {hours:g}; allowed: more than the {now_s - began_s:.0f} s to start")
    if hours is not None:
        study.set_left(left_s)
    return now_s + left_s


def _print_result(study: "Study", json: bool, picture: bool) -> None:
    from charlm.config.yaml import dump_flow
    from charlm.tuning.report import draw, ranked, write_best
    from charlm.tuning.space import short_names
    from charlm.tuning.study import best

    trials = ranked(study.trials())
    leader, path = best(trials), write_best(study)
    if picture:
        try:
            if drawn := draw(study):
                say("picture", str(drawn))
        except ModuleNotFoundError as error:
            say("picture", f"none: {(error.name or '').partition('.')[0]} is not installed; pip install matplotlib")
    used_bytes = folder_bytes(study.folder)
    if json:
        print_json(
            {
                "study": str(study.folder),
                "best": vars(leader) if leader else None,
                "config": str(path) if path else None,
                "trials": [vars(trial) for trial in trials],
                "bytes": used_bytes,
            }
        )
    else:
        names = short_names(study.settings.space)
        rows = [("trial", "nats", "minutes", "state", *names.values())]
        for trial in trials[:10]:
            nats = "—" if trial.nats is None else f"{trial.nats:.4f}"
            minutes = "—" if trial.minutes is None else f"{trial.minutes:.3g}"
            state = f"{trial.state}, chosen" if trial.chosen else trial.state
            options = (dump_flow(trial.options[key]) if key in trial.options else "—" for key in names)
            rows.append((str(trial.number), nats, minutes, state, *options))
        print_rows(rows, right=range(len(rows[0])))
    say("disk", f"{format_bytes(used_bytes)} in {study.folder}; the folders of trials that have ended may be deleted")
    if leader and leader.nats is not None:
        bits = f"({nats_to_bits(leader.nats):.4f} bits)"
        say("best", f"{leader.nats:.4f} nats {bits} per character: trial {leader.number}")
        say("train", f"charlm train --config {shlex.quote(str(path))}")
    else:
        say("best", "none: no trial is complete")
