"""Adam with per-weight time steps (Algorithm 2 of the paper) in one pass over each parameter; see `cbp_ray.algorithm.adam`."""

import math
from functools import partial

import numpy as np
from numpy.typing import NDArray

from cbp_ray.kernels.compilation import compile_cached

Vector = NDArray[np.float32]
Matrix = NDArray[np.float32]


@compile_cached
def corrections_by_age(beta1: float, beta2: float, table: Matrix) -> None:
    """Writes 1 - β₁ᵗ and √(1 - β₂ᵗ) for t = 0, 1, 2, … into the two rows of `table`."""
    for age in range(table.shape[1]):
        table[0, age] = np.float32(1 - math.exp(age * math.log(beta1))) if beta1 > 0 else np.float32(1)
        table[1, age] = np.float32(math.sqrt(1 - math.exp(age * math.log(beta2)))) if beta2 > 0 else np.float32(1)


@compile_cached
def corrections(time_step: int, resets: NDArray[np.int64], table: Matrix, first: Vector, second: Vector) -> None:
    """Writes what `table` has for the age of every row or column into `first` and `second`. Older ones get its last entry."""
    last = table.shape[1] - 1
    for i in range(len(resets)):
        age = min(time_step - resets[i], last)
        first[i], second[i] = table[0, age], table[1, age]


@partial(compile_cached, error_model="numpy")  # a division that may raise an exception can't be vectorised
def adam_step(
    weights: Matrix,
    first_moments: Matrix,
    second_moments: Matrix,
    rows_1: Vector,
    rows_2: Vector,
    columns_1: Vector,
    columns_2: Vector,
    gradients: Matrix,
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
      first_moments: m.
      second_moments: v.
      rows_1: 1 - β₁ᵗ of the rows.
      rows_2: √(1 - β₂ᵗ) of the rows.
      columns_1: 1 - β₁ᵗ of the columns; a weight's is the smaller of its row's and its column's.
      columns_2: √(1 - β₂ᵗ) of the columns.
      gradients: g, without weight decay.
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
        row_1, row_2 = rows_1[i], rows_2[i]
        for j in range(weights.shape[1]):
            column_1, column_2 = columns_1[j], columns_2[j]
            correction_1 = row_1 if row_1 < column_1 else column_1
            correction_2 = row_2 if row_2 < column_2 else column_2
            weights[i, j] -= lr * first_moments[i, j] / (correction_1 * (np.sqrt(second_moments[i, j]) / correction_2 + eps))
