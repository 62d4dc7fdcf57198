"""Numba kernels for learning from one example at a time on CPUs. Imports neither torch nor Ray."""

WIDTH = 32
"""Runs per block of the lane kernel. Two AVX-512 registers per float32 value: the second hides the latency of the first."""
