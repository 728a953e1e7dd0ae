"""Recurrent layers on GPUs: the driver and a step in PyTorch's operators or in Triton's kernels."""
