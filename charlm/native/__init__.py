"""C++ for the CPU: compilation, calls, and the kernels that all kinds of cells share."""
