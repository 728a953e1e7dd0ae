"""Recurrent layers on GPUs: the driver, a step in PyTorch's operators or in Triton's kernels, matrix products."""
