"""charlm: a command-line trainer of character-level language models.

    import charlm

    run = charlm.train("my.txt", minutes=1)
    model = run.load()  # or charlm.load("runs/mine"): a run's folder or a checkpoint file
    print(model.sample("Once upon", length=300, temperature=0.7, seed=1))  # what follows the prompt

Imports torch only when a function is called.
"""

__version__ = "0.2.0"

import time as _time

from charlm.api import Run, compare, load, train

__all__ = ["Run", "__version__", "compare", "load", "train"]

IMPORTED_S = _time.perf_counter()
"""When this process began to import charlm, before the slow imports: `charlm train --minutes` counts from here."""
