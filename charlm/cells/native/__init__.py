"""The CPU kernels' common ground: compilation, calls, vectors, threads, matrix products."""
