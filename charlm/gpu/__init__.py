"""Recurrent layers on GPUs: windows whose steps are computed in PyTorch or in Triton."""
