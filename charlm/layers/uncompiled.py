"""`RecurrentLayers.forward` outside of torch.compile's graphs. The import takes seconds, as torch.compile does."""

from typing import Any

import torch


@torch.compiler.disable(
    reason="charlm's kernels: found torch.compile; allowed: a call between its graphs, without fullgraph; or use the "
    "layers' forward_reference, which can be compiled"
)
def uncompiled(forward: Any, *args: Any, **options: Any) -> Any:
    """`forward(*args, **options)`, of layers."""
    return forward(*args, **options)
