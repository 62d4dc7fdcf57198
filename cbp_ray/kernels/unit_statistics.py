"""What generate-and-test measures in every step, each in one pass; see `cbp_ray.algorithm.units` and `magnitudes`."""

from functools import partial

import numpy as np
from numpy.typing import NDArray

from cbp_ray.kernels.compilation import compile_cached

Vector = NDArray[np.float32]
Matrix = NDArray[np.float32]

# Sums may be taken in any order, or they can't be vectorised.
compiled = partial(compile_cached, fastmath={"reassoc", "nsz"}, error_model="numpy")


@compiled
def averages(h: Matrix, f_hat: Vector, mean: Vector, activity: Vector) -> None:
    """Writes the averages over examples of h [examples, units] into `mean` and of |h - f̂| into `activity`."""
    mean[:] = 0
    activity[:] = 0
    for example in range(h.shape[0]):
        for i in range(h.shape[1]):
            mean[i] += h[example, i]
            activity[i] += abs(h[example, i] - f_hat[i])
    share = np.float32(1 / h.shape[0])
    for i in range(h.shape[1]):
        mean[i] *= share
        activity[i] *= share


@compiled
def magnitudes(weights: Matrix, rows: Vector, columns: Vector) -> None:
    """Writes Σ|w| over each row into `rows` and over each column into `columns`, either of which may be empty: not wanted."""
    columns[:] = 0
    for i in range(weights.shape[0]):
        if len(columns):
            for j in range(weights.shape[1]):
                columns[j] += abs(weights[i, j])
        if len(rows):
            total = np.float32(0)
            for j in range(weights.shape[1]):
                total += abs(weights[i, j])
            rows[i] = total
