"""Triton functions and kernels that are the same for every variant."""
