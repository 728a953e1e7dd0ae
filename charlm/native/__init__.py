"""C++ for the CPU: compilation, calls, and the kernels shared by all kinds of cells."""
