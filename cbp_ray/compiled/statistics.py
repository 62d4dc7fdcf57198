"""What generate-and-test measures in every step, each in one pass: torch's operations read everything several times."""

from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

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
    """Writes Σ|w| over each row into `rows` and over each column into `columns`; one that is not wanted may be empty."""
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


EMPTY = np.empty(0, np.float32)


class CompiledStatistics:
    """Measures what it can, float32 matrices on a CPU, and leaves the rest to torch; equal to torch to rounding.

    It implements `cbp_ray.algorithm.watched_layer.Statistics`.
    """

    def __init__(self) -> None:
        self._views: dict[int, tuple[int, tuple[NDArray[np.float32], ...], Tensor | None]] = {}
        self._vectors: dict[int, tuple[tuple[Tensor, ...], list[NDArray[np.float32]]]] = {}

    def averages(self, h: Tensor, f_hat: Tensor, mean: Tensor, activity: Tensor) -> bool:
        if not _suits(h):
            return False
        vectors = f_hat, mean, activity
        # Making a view takes a tenth of the averages' time, and these three are mostly those of the last step.
        known, views = self._vectors.get(id(mean), ((), []))
        if not known or known[0] is not f_hat or known[1] is not mean or known[2] is not activity:
            views = [vector.numpy() for vector in vectors]
            self._vectors[id(mean)] = vectors, views
        averages(h.numpy(), *views)
        return True

    def magnitudes(self, weight: Tensor, rows: Tensor | None, columns: Tensor | None) -> bool:
        sums = columns if rows is None else rows
        address, views, _ = self._views.get(id(sums), (0, (), None))
        if not views or address != weight.data_ptr():
            if not _suits(weight):
                return False
            views = tuple(EMPTY if t is None else t.detach().numpy() for t in (weight, rows, columns))
            # The tensor is kept too: while it lives, no other has its identity.
            self._views[id(sums)] = weight.data_ptr(), views, sums
        magnitudes(*views)
        return True


def _suits(matrix: Tensor) -> bool:
    return matrix.dtype is torch.float32 and matrix.is_cpu and matrix.ndim == 2 and matrix.is_contiguous()
