"""What a study has found: the best config, a table, a picture."""

import contextlib
import io
import shlex
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any

from charlm.config.commented import commented_yaml
from charlm.config.yaml import dump_flow
from charlm.system.files import replace_file
from charlm.system.formatting import counted
from charlm.tuning.space import DEFAULTS, SUGGESTED, Choices, Range, Space, is_chosen, short_names
from charlm.tuning.study import Record, Study, best

BEST, PICTURE = "best.yaml", "trials.png"


def ranked(records: Iterable[Record]) -> list[Record]:
    """The best first: those that trained to their end, then those that did not; without a score last."""
    return sorted(records, key=lambda record: (record.state != "complete", record.nats is None, record.nats or 0.0))


def write_best(study: Study) -> Path | None:
    """Write the config of the best trial, with the limits of the study's config; None if no trial is complete."""
    records = study.records()
    if not (found := best(records)):
        return None
    path, plan = study.folder / BEST, study.plan
    heading = (
        f"The best of {counted(len(records), 'trial')} of `charlm tune`: {found.nats:.4f} nats per character after "
        f"{found.minutes:.3g} minutes, in {Path(found.run_dir).name}.\n"
        f"Train with it: charlm train --config {shlex.quote(str(path))}"
    )
    comments = {key: f"searched {option}" for key, option in plan.space.items()}
    if is_chosen(found.options):
        comments = {}
        heading += (
            f"\nIt is charlm's own choice for {found.minutes:.3g} minutes. To train for longer, ask it again:\n"
            f"charlm config suggest {shlex.quote(plan.config.data.source)} --minutes M"
        )
    elif found.options.get(DEFAULTS) == SUGGESTED:
        comments |= dict.fromkeys(plan.suggested, "suggested by charlm")
    replace_file(path, commented_yaml(plan.tuned(found.options), heading, comments).encode())
    return path


def size_bytes(folder: Path) -> int:
    """Bytes of the files in a folder; of hard links once."""
    sizes: dict[tuple[int, int], int] = {}
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # removed by another process
            status = path.lstat()
            sizes[status.st_dev, status.st_ino] = status.st_size
    return sum(sizes.values())


# Picture


def draw(study: Study) -> Path | None:
    """Draw the score over each option into a file; None without scores. ModuleNotFoundError without matplotlib."""
    records = study.records()
    if not (found := best(records)):
        return None
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    space = study.plan.space
    columns = min(4, len(space))
    rows = -(-len(space) // columns)
    figure = Figure(figsize=(3.2 * columns, 2.6 * rows + 0.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False, sharey=True).flatten()
    top = _top([record.nats for record in records if record.nats is not None])
    for axis, key in zip(axes, space, strict=False):
        _draw_option(axis, key, space, records, found, top)
    for axis in axes[len(space) :]:
        axis.set_visible(False)
    figure.supylabel("nats per character")
    mark = "red line" if is_chosen(found.options) else "star"
    line = "; dashed: charlm's own choice" if any(is_chosen(record.options) for record in records) else ""
    title = f"{counted(len(records), 'trial')}; "
    title += f"best {found.nats:.4f} nats (trial {found.number}, {mark}); gray: pruned{line}"
    figure.suptitle(title, fontsize=10)
    path, picture = study.folder / PICTURE, io.BytesIO()
    figure.savefig(picture, dpi=120, format="png")
    replace_file(path, picture.getvalue())
    return path


def _top(scores: list[float]) -> float:
    """The highest score that the picture shows as it is, so that a hopeless trial does not flatten the others."""
    low = min(scores)
    return min(max(scores), low + max(5 * (median(scores) - low), 0.02 * low))


def _draw_option(axis: Any, key: str, space: Space, records: list[Record], found: Record, top: float) -> None:
    option = space[key]
    names = [dump_flow(value) for value in option.values] if isinstance(option, Choices) else []

    def place(record: Record) -> Any:
        value = record.options[key]
        return option.values.index(value) if isinstance(option, Choices) else value

    for record in records:
        if record.nats is None or record is found or is_chosen(record.options):
            continue
        color = "tab:blue" if record.state == "complete" else "silver"
        axis.plot(place(record), min(record.nats, top), marker="^" if record.nats > top else "o", ms=4, color=color)
    if not is_chosen(found.options):
        axis.plot(place(found), found.nats, marker="*", ms=12, color="tab:red")
    for record in records:
        if is_chosen(record.options) and record.nats is not None:  # its kind of cell or optimizer may be another
            axis.axhline(min(record.nats, top), color="tab:red" if record is found else "tab:green", ls="--", lw=1)
    if names:
        axis.set_xticks(range(len(names)), names)
        axis.set_xlim(-0.5, len(names) - 0.5)
    elif isinstance(option, Range) and option.log:
        axis.set_xscale("log")
    elif isinstance(option, Range) and option.whole:
        axis.xaxis.get_major_locator().set_params(integer=True)
    axis.set_xlabel(short_names(space)[key])
    axis.grid(alpha=0.3)
