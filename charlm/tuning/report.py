"""What came of a study: the best config, and a picture."""

import io
import shlex
from pathlib import Path
from statistics import median

from charlm.config.commented import commented_yaml
from charlm.config.yaml import dump_flow
from charlm.system.files import replace_file
from charlm.system.formatting import counted
from charlm.tuning.space import OneOf, as_text, short_names
from charlm.tuning.study import Study, Trial, best


def ranked(trials: list[Trial]) -> list[Trial]:
    """The best first: those that trained to their end, then those that did not; without a score last."""
    return sorted(trials, key=lambda trial: (trial.state != "complete", trial.nats is None, trial.nats or 0.0))


def write_best(study: Study) -> Path | None:
    """Write the config of the best trial, with the limits of the study's config; None if no trial is complete."""
    trials, settings = study.trials(), study.settings
    if not (leader := best(trials)):
        return None
    path = study.folder / "best.yaml"
    heading = (
        f"The best of {counted(len(trials), 'trial')} of `charlm tune`: {leader.nats:.4f} nats per character after "
        f"{leader.minutes:.3g} minutes, in {Path(leader.run_dir).name}.\n"
        f"Train with it: charlm train --config {shlex.quote(str(path))}"
    )
    comments = {key: f"searched {as_text(option)}" for key, option in settings.space.items()}
    if leader.chosen:
        comments = {}
        heading += (
            f"\nIt is charlm's own choice for {leader.minutes:.3g} minutes. To train for longer, ask it again:\n"
            f"charlm config suggest {shlex.quote(settings.config.data.source)} --minutes M"
        )
    replace_file(path, commented_yaml(study.tuned(leader.number), heading, comments).encode())
    return path


def draw(study: Study) -> Path | None:
    """Draw the score over each option into a file; None without scores. ModuleNotFoundError without matplotlib."""
    scored, space = [trial for trial in study.trials() if trial.nats is not None], study.settings.space
    if not (leader := best(scored)):
        return None
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = min(4, len(space))
    rows = -(-len(space) // columns)
    figure = Figure(figsize=(3.2 * columns, 2.6 * rows + 0.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False, sharey=True).flatten()
    scores = [trial.nats or 0.0 for trial in scored]
    top = min(scores) + max(5 * (median(scores) - min(scores)), 0.02 * min(scores))  # hopeless trials are drawn here
    for axis, (key, option) in zip(axes, space.items(), strict=False):
        for trial, nats in zip(scored, scores, strict=True):
            color = "tab:red" if trial is leader else "tab:blue" if trial.state == "complete" else "silver"
            if trial.chosen:  # may have another kind of cell or optimizer, without this option
                axis.axhline(nats, color=color, ls="--", lw=1)
                continue
            value = trial.options[key]
            x = option.choices.index(value) if isinstance(option, OneOf) else value
            axis.scatter(x, min(nats, top), c=color, zorder=3 if trial is leader else 2)
        if isinstance(option, OneOf):
            axis.set_xticks(range(len(option.choices)), map(dump_flow, option.choices))
        elif option.log:
            axis.set_xscale("log")
        axis.set_xlabel(short_names(space)[key])
    for axis in axes[len(space) :]:
        axis.set_visible(False)
    figure.supylabel("nats per character")
    title = f"best {leader.nats:.4f} nats (trial {leader.number}, red); gray: pruned; dashed: charlm's own choice"
    figure.suptitle(title, fontsize=10)
    path, picture = study.folder / "trials.png", io.BytesIO()
    figure.savefig(picture, dpi=120, format="png")
    replace_file(path, picture.getvalue())
    return path
