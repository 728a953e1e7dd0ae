"""What `import charlm` gives.

Functions import what takes long when they run, so that `import charlm` waits for neither torch nor pydantic.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from charlm.comparison.plan import Equal, Plan, comparison_folder
from charlm.errors import ConfigError
from charlm.new_run import TrainOptions, say_if_stopped, start
from charlm.runs import find_checkpoint
from charlm.system import lock
from charlm.system.host import limit_spinning, limit_threads
from charlm.training.run import Run

if TYPE_CHECKING:
    import torch

    from charlm.cells import Cell
    from charlm.inference.trained import TrainedModel


def load(path: str | Path, device: "str | torch.device" = "auto", precision: str = "auto") -> "TrainedModel":
    """Load a trained model from a run's folder (its best checkpoint) or from a checkpoint file.

    device: auto, cpu, cuda or cuda:N. precision: fp32, tf32 or bf16 for matrix products; auto: that of the training.
    CheckpointError if there is no usable checkpoint, DeviceError if there is no such GPU, or if it lacks the precision.
    `help(charlm.inference.trained.TrainedModel)` describes what the model can do.
    """
    find_checkpoint(Path(path))  # an error comes before torch is imported, which takes seconds
    _import_torch()
    from charlm.inference.loading import load

    return load(path, device, precision)


def train(
    text: str | Path | None = None,
    *,
    minutes: float | None = None,
    config: str | Path | None = None,
    cell: "Cell | type[Cell] | None" = None,
    overrides: Mapping[str, Any] = {},
    run_dir: str | Path | None = None,
    init_from: str | Path | None = None,
    on_log: Callable[[dict[str, Any]], object] | None = None,
) -> Run:
    """Train a new model, as `charlm train` does: the same settings, run folder and lines on stderr.

    Ctrl-C ends the training after the current step; the run is saved and returned, with the signal's name, SIGINT, as
    `reason`. So do SIGTERM, SIGQUIT, SIGHUP, SIGUSR1, SIGUSR2 and SIGXCPU. A second Ctrl-C raises KeyboardInterrupt.

    Args:
        text: a file, folder, glob, builtin:NAME, or - for stdin, which is saved in the run's folder.
        minutes: time limit of this call, loading included; 5 without a config.
        config: a YAML file or a shipped config, whose text and minutes `text` and `minutes` replace; None: charlm
            chooses settings for the text.
        cell: the recurrent cell: a class or an object, built in or your own. An object's options keep their values.
        overrides: options to set: {"seed": 2, "model.layers": 3}.
        run_dir: the run's folder; None: runs/<name of the config or text>-<time>.
        init_from: a run's folder or checkpoint whose weights and vocabulary to start from; without a config, also its
            model.
        on_log: called with each row of metrics.jsonl, a dict, when it is written. Its exception ends the run and is
            raised; the run can be resumed.

    Restores torch's random state, threads and precisions, the signal handlers and the environment. Threads that call
    it train one after another.

    ConfigError, DataError, DeviceError, RunError or VocabularyError before anything is written; later RunError if the
    folder cannot be written, DivergenceError if a loss is not finite.
    """
    began_s = time.perf_counter()
    from charlm.cells.file import registered as cell_options

    _check_text(text)
    if text is None and config is None:
        raise ConfigError("train: found neither text nor config; allowed: either, or both")
    with cell_options(cell) as options:
        asked = TrainOptions(
            text=None if text is None else str(text),
            minutes=minutes,
            config=None if config is None else Path(config),
            settings=_settings(options, overrides),
            init_from=None if init_from is None else Path(init_from),
            run_dir=None if run_dir is None else Path(run_dir),
        )
        asked.check_early()
        _import_torch()

        from charlm.system.device import own_settings
        from charlm.system.process_group import process_group

        loaded_s = time.perf_counter() - began_s
        with lock.one_training, own_settings(), process_group() as group:
            run = start(asked, group, time.perf_counter() - loaded_s, on_log)
    say_if_stopped(run)
    return run


def compare(
    text: str | Path,
    *,
    cells: Iterable[str] = Plan.cells,
    minutes: float = Plan.minutes,
    equal: Equal = Plan.equal,
    seeds: int = Plan.seeds,
    overrides: Mapping[str, Any] = {},
    plain: bool = Plan.plain,
    folder: str | Path | None = None,
) -> list[dict[str, Any]]:
    """Compare kinds of cells on a text, as `charlm compare` does: a table with a row for each, the best first.

    docs/compare.md describes the columns. folder: default comparisons/<text>. A stopped comparison continues in its
    folder, here or with the same `charlm compare`, which also writes the page.

    KeyboardInterrupt after a signal; ConfigError if the folder has another comparison; ValueError for fewer than two
    kinds, or other bad arguments. For more errors see `train`.
    """
    if isinstance(cells, str):
        raise TypeError("cells: found a string; allowed: a list of kinds")
    _check_text(text)
    plan = Plan(str(text), float(minutes), tuple(cells), equal, seeds, _settings(overrides), plain)
    plan.check_early()
    _import_torch()
    from charlm.comparison.compare import compare
    from charlm.system.device import own_settings

    with lock.one_training, own_settings():
        return [row for row, _, _ in compare(plan, Path(folder or comparison_folder(plan.text)))]


def _import_torch() -> None:
    """Import torch with settings that it reads from the environment then; the command line makes the same."""
    if "torch" not in sys.modules:
        unset = {"GOMP_SPINCOUNT", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"} - os.environ.keys()
        limit_spinning()
        limit_threads()
        try:
            import torch  # noqa: F401
        finally:
            for name in unset:
                os.environ.pop(name, None)


def _settings(*overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The overrides as one mapping with plain values; later ones win."""
    from charlm.config import merged

    def plain(value: Any) -> Any:
        """NumPy's numbers and arrays as Python's; other objects, such as paths, as text."""
        return value.tolist() if hasattr(value, "tolist") else str(value)

    settings = []
    for each in overrides:
        if not isinstance(each, Mapping):
            found = type(each).__name__
            raise TypeError(f'overrides: found {found}; allowed: a mapping, such as {{"train.max_steps": 500}}')
        # The text NaN, which an error can show, in place of the number.
        settings.append(json.loads(json.dumps(dict(each), default=plain), parse_constant=str))
    return merged(*settings)


def _check_text(text: str | Path | None) -> None:
    if not isinstance(text, str | Path | None):
        raise TypeError(f"text: found {type(text).__name__}; allowed: one path, of a file or a folder, or a glob")
