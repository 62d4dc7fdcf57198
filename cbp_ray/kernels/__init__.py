"""Numba kernels for learning from one example at a time on CPUs. Imports neither torch nor Ray."""
