"""Adam with per-weight time steps (Algorithm 2 of the paper) in one pass over each parameter; see `cbp_ray.algorithm.adam`."""

import math
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cbp_ray.algorithm.adam import RESETS
from cbp_ray.kernels.compilation import compile_cached

Vector = NDArray[np.float32]
Matrix = NDArray[np.float32]

FEWEST_AGES = 2**15
"""Length of a table of corrections: more steps than it takes with the usual betas until the corrections are 1."""


@compile_cached
def corrections_by_age(beta1: float, beta2: float, table: Matrix) -> None:
    """Writes 1 / (1 - β₁ᵗ) and 1 / √(1 - β₂ᵗ) for t = 0, 1, 2, … into the two rows of `table`; what has no number has zero."""
    table[:, 0] = 0
    for age in range(1, table.shape[1]):
        table[0, age] = np.float32(1 / (1 - math.exp(age * math.log(beta1)))) if beta1 > 0 else np.float32(1)
        table[1, age] = np.float32(1 / math.sqrt(1 - math.exp(age * math.log(beta2)))) if beta2 > 0 else np.float32(1)


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
      rows_1: 1 / (1 - β₁ᵗ) of the rows.
      rows_2: 1 / √(1 - β₂ᵗ) of the rows.
      columns_1: 1 / (1 - β₁ᵗ) of the columns; a weight's is the larger of its row's and its column's.
      columns_2: 1 / √(1 - β₂ᵗ) of the columns.
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
            correction_1 = row_1 if row_1 > column_1 else column_1
            correction_2 = row_2 if row_2 > column_2 else column_2
            weights[i, j] -= lr * (correction_1 * first_moments[i, j]) / (correction_2 * np.sqrt(second_moments[i, j]) + eps)


class CompiledAdam:
    """The step of `cbp_ray.Adam` for float32 parameters on a CPU: the same state, and the same result to rounding.

    At the sizes of the paper's networks, torch's operations read and write all weights a dozen times, and cost more than the
    gradient of a layer.
    """

    def __init__(self) -> None:
        self._views: dict[tuple[int, ...], Views] = {}
        self._tables: dict[tuple[float, float], Matrix] = {}

    def forget_resets(self) -> None:
        """Must be called after a reset of weights, whose new time steps are read before the next update."""
        self._views.clear()

    def update(self, group: dict[str, Any], params: list[Tensor], states: list[dict[str, Any]]) -> bool:
        """Updates the parameters of one dtype on one device, unless it was not made for them. Returns whether it did."""
        step: int = states[0]["time_step"]
        if any(state["time_step"] != step for state in states) or not all(_suits(p) for p in params):
            return False
        key = tuple(p.data_ptr() for p in params)
        views = self._views.get(key)
        if views is None:
            views = self._views[key] = Views(params, states)
        beta1, beta2 = group["betas"]
        corrections(step, views.resets, self.table(beta1, beta2, step), views.first, views.second)
        scalars = [np.float32(x) for x in (group["lr"], 1 - beta1, beta2, 1 - beta2, group["eps"], group["weight_decay"])]
        for p, (shape, arrays) in zip(params, views.of_params, strict=True):
            assert p.grad is not None
            gradient = p.grad.numpy()
            adam_step(*arrays, gradient if gradient.ndim == 2 else gradient.reshape(shape), *scalars)
        return True

    def table(self, beta1: float, beta2: float, oldest: int) -> Matrix:
        """Corrections by age, up to `oldest` or until they are 1: where units are replaced, every row has an age of its own."""
        table = self._tables.get((beta1, beta2))
        if table is None or (oldest >= table.shape[1] and table[:, -1].max() > 1):
            table = self._tables[beta1, beta2] = np.empty((2, max(FEWEST_AGES, 2 * oldest)), np.float32)
            corrections_by_age(beta1, beta2, table)
        return table


class Views:
    """Parameters, moments and corrections as NumPy arrays, which cost more to make than a small parameter's step."""

    def __init__(self, params: list[Tensor], states: list[dict[str, Any]]) -> None:
        # A vector is one long row: its resets along dimension 0 are those of the columns.
        shapes = [(p.shape[0], p.shape[1]) if p.ndim == 2 else (1, p.numel()) for p in params]
        names = [RESETS if p.ndim == 2 else ("", RESETS[0]) for p in params]
        self._places = [
            (state, name, size)
            for state, of_param, shape in zip(states, names, shapes, strict=True)
            for name, size in zip(of_param, shape, strict=True)
        ]
        vectors = self.read_resets()
        self.first, self.second = np.empty((2, len(self.resets)), np.float32)
        ends = np.cumsum([len(vector) for vector in vectors])
        self.starts = ends - [len(vector) for vector in vectors]
        pieces = [
            (part[end - len(v) : end]) for v, end in zip(vectors, ends, strict=True) for part in (self.first, self.second)
        ]
        self.of_params = []
        for number, (p, state, shape) in enumerate(zip(params, states, shapes, strict=True)):
            tensors = (p.detach(), state["exp_avg"], state["exp_avg_sq"])
            arrays = [tensor.numpy().reshape(shape) for tensor in tensors]
            self.of_params.append((shape, [*arrays, *pieces[4 * number : 4 * number + 4]]))

    def read_resets(self) -> list[NDArray[np.int64]]:
        """Reads the time steps at which rows and columns were made anew, which change with every reset."""
        vectors = [
            state[name].numpy().ravel() if name in state else np.zeros(size, np.int64) for state, name, size in self._places
        ]
        self.resets: NDArray[np.int64] = np.concatenate(vectors)
        return vectors

    def write_resets(self) -> None:
        """Writes changed `resets` back to where they were read."""
        for (state, name, size), start in zip(self._places, self.starts, strict=True):
            found = torch.from_numpy(self.resets[start : start + size].copy())
            if name in state:
                state[name] = found.view(state[name].shape)
            elif found.any():
                shape = {RESETS[0]: (size, 1), RESETS[1]: (1, size)}[name] if state["exp_avg"].ndim == 2 else (size,)
                state[name] = found.view(shape)


def _suits(p: Tensor) -> bool:
    """Whether a parameter is a matrix or a vector; the resets of a convolution are not those of a matrix's rows and columns."""
    place = p.dtype is torch.float32 and p.is_cpu and p.ndim <= 2
    return place and p.is_contiguous() and p.grad is not None and p.grad.is_contiguous()
