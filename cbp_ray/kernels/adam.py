"""Adam with per-weight time steps (Algorithm 2 of the paper) in one pass over each parameter; see `cbp_ray.algorithm.adam`."""

import math
from functools import partial

import numpy as np
from numpy.typing import NDArray

from cbp_ray.kernels.compilation import compile_cached

Matrix = NDArray[np.float32]


@compile_cached
def corrections(time_step: int, resets: NDArray[np.int64], beta1: float, beta2: float) -> Matrix:
    """1 - β₁ᵗ and √(1 - β₂ᵗ) of every row or column, float32 [2, n]; those of equal age are computed once."""
    result = np.empty((2, len(resets)), np.float32)
    age, first, second = np.int64(-1), np.float32(0), np.float32(0)
    for i in range(len(resets)):
        if time_step - resets[i] != age:
            age = time_step - resets[i]
            first = np.float32(1 - math.exp(age * math.log(beta1))) if beta1 > 0 else np.float32(1)
            second = np.float32(math.sqrt(1 - math.exp(age * math.log(beta2)))) if beta2 > 0 else np.float32(1)
        result[0, i], result[1, i] = first, second
    return result


@partial(compile_cached, error_model="numpy")  # a division that may raise an exception can't be vectorised
def adam_step(
    weights: Matrix,
    gradients: Matrix,
    first_moments: Matrix,
    second_moments: Matrix,
    rows: Matrix,
    columns: Matrix,
    lr: np.float32,
    rest1: np.float32,
    beta2: np.float32,
    rest2: np.float32,
    eps: np.float32,
    weight_decay: np.float32,
) -> None:
    """One update of a matrix [n, m] in place.

    Args:
      weights: w.
      gradients: g, without weight decay.
      first_moments: m.
      second_moments: v.
      rows: `corrections` of the rows, [2, n].
      columns: `corrections` of the columns, [2, m]. A weight's correction is the smaller of the two.
      lr: α.
      rest1: 1 - β₁.
      beta2: β₂.
      rest2: 1 - β₂.
      eps: ε.
      weight_decay: λ.
    """
    for i in range(weights.shape[0]):
        # Two loops over a row, which stays in the cache: LLVM vectorises neither if one loop touches all arrays, because it
        # would have to make sure of too many pairs that they don't overlap.
        for j in range(weights.shape[1]):
            g = gradients[i, j] + weight_decay * weights[i, j]
            first_moments[i, j] += rest1 * (g - first_moments[i, j])
            second_moments[i, j] = beta2 * second_moments[i, j] + rest2 * (g * g)
        row_1, row_2 = rows[0, i], rows[1, i]
        for j in range(weights.shape[1]):
            column_1, column_2 = columns[0, j], columns[1, j]
            correction_1 = row_1 if row_1 < column_1 else column_1
            correction_2 = row_2 if row_2 < column_2 else column_2
            weights[i, j] -= lr * first_moments[i, j] / (correction_1 * (np.sqrt(second_moments[i, j]) / correction_2 + eps))
