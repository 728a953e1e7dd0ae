"""Recurrent layers on GPUs: the driver, a micro-step in PyTorch or in Triton, matrix products."""
