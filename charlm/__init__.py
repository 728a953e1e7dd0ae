"""charlm: a command-line trainer of character-level language models.

    import charlm

    run = charlm.train("my.txt", minutes=1)
    model = run.load()  # or charlm.load("runs/mine"): a run's folder or a checkpoint file
    print(model.sample("Once upon", length=300, temperature=0.7, seed=1))  # what follows the prompt

Imports torch only when a function is called.
"""

import time as _time

from charlm.version import __version__

TYPE_CHECKING = False  # as in typing, whose import takes as long as all of Python's start
if TYPE_CHECKING:
    from charlm.api import Run, compare, load, train

__all__ = ["Run", "__version__", "compare", "load", "train"]

IMPORTED_S = _time.perf_counter()
"""When this process began to import charlm, before the slow imports: `charlm train --minutes` counts from here."""


def __getattr__(name: str) -> object:
    """The functions of `charlm.api`, imported at first use: `charlm.__main__` heeds Ctrl-C before."""
    if name not in __all__:
        raise AttributeError(f"module 'charlm' has no attribute {name!r}")
    from charlm import api

    return getattr(api, name)
