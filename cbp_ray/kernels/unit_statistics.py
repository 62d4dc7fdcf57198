"""What generate-and-test measures in every step, each in one pass; see `cbp_ray.algorithm.units` and `magnitudes`."""

from functools import partial

import numpy as np
from numpy.typing import NDArray

from cbp_ray.kernels.compilation import compile_cached

Vector = NDArray[np.float32]
Matrix = NDArray[np.float32]

# A division that may raise an exception can't be vectorised.
compiled = partial(compile_cached, error_model="numpy")


@compiled
def averages(h: Matrix, f_hat: Vector, mean: Vector, activity: Vector) -> None:
    """Writes the averages over examples of h [examples, units] into `mean` and of |h - f̂| into `activity`."""
    mean[:] = 0
    activity[:] = 0
    # Four examples at a time: the sums, which are not in registers, are read and written for each group.
    grouped = h.shape[0] // 4 * 4
    for first in range(0, grouped, 4):
        h_0, h_1, h_2, h_3 = h[first], h[first + 1], h[first + 2], h[first + 3]
        for i in range(h.shape[1]):
            f = f_hat[i]
            mean[i] += (h_0[i] + h_1[i]) + (h_2[i] + h_3[i])
            activity[i] += (abs(h_0[i] - f) + abs(h_1[i] - f)) + (abs(h_2[i] - f) + abs(h_3[i] - f))
    for example in range(grouped, h.shape[0]):
        for i in range(h.shape[1]):
            mean[i] += h[example, i]
            activity[i] += abs(h[example, i] - f_hat[i])
    share = np.float32(1 / h.shape[0])
    for i in range(h.shape[1]):
        mean[i] *= share
        activity[i] *= share


# The sum over a row may be taken in any order, or it can't be vectorised. It is the same order in every call, because nothing
# is written in that loop: where something is, LLVM has two loops, for arrays that overlap and others, that round differently.
@partial(compiled, fastmath={"reassoc", "nsz"})
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
