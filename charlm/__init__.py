"""charlm: a command-line trainer of character-level language models."""

__version__ = "0.1.0"

import time as _time

IMPORTED_S = _time.perf_counter()
"""When this process began to import charlm, before the slow imports: `charlm train --minutes` counts from here."""
