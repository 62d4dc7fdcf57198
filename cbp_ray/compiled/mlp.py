"""Forward and backward pass of an MLP over a mini-batch, written into memory that is kept; products are BLAS's.

Weights are [outputs, inputs] and biases [1, outputs]. Outputs of level l are `levels[l]`, [examples, units]; level 0 is the
input. The Linear layer between levels l and l + 1 has parameters 2 l (weights) and 2 l + 1 (bias).
"""

from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cbp_ray.kernels.activations import activate
from cbp_ray.kernels.compilation import INNER, compile_cached
from cbp_ray.kernels.vectors import VECTOR, load_at, store_at

Matrix = NDArray[np.float32]
Matrices = tuple[Matrix, ...]

# A division that may raise an exception can't be vectorised.
compiled = partial(compile_cached, error_model="numpy", nogil=True)
part = partial(compiled, **INNER)


class Workspace(NamedTuple):
    """Memory for one mini-batch."""

    levels: Matrices
    """Outputs of all levels, [examples, units]."""
    slopes: Matrices
    """Derivatives of the hidden units' activations at their inputs, [examples, units], from level 1 on."""
    deltas: Matrices
    """Gradient of the loss by the inputs of the units, [examples, units], from level 1 on."""
    gradients: Matrices
    """Gradient of the loss by each parameter, in the shape that `adam_step` takes it."""
    tail: NDArray[np.float32]
    """Three vectors, for the units that don't fill one."""


def workspace(sizes: list[int], examples: int, extra: int) -> Workspace:
    """Memory for a network with `sizes` units per level and a last parameter of `extra` numbers besides its layers'."""

    def empty(*shape: int) -> Matrix:
        return np.zeros(shape, np.float32)

    gradients = [empty(*shape) for a, b in pairwise(sizes) for shape in ((b, a), (1, b))]
    return Workspace(
        tuple(empty(examples, units) for units in sizes),
        tuple(empty(examples, units) for units in sizes[1:-1]),
        tuple(empty(examples, units) for units in sizes[1:]),
        (*gradients, empty(1, extra)),
        np.zeros(3 * VECTOR, np.float32),
    )


@part
def copy_rows(rows: Matrix, target: Matrix) -> None:
    """Writes rows into the first rows of `target`; Numba takes seconds to compile such an assignment between slices."""
    for i in range(rows.shape[0]):
        for j in range(rows.shape[1]):
            target[i, j] = rows[i, j]


@part
def add_bias(x: Matrix, bias: Matrix) -> None:
    """Adds a bias to every row."""
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            x[i, j] += bias[0, j]


@part
def activate_rows(x: Matrix, bias: Matrix, slopes: Matrix, tail: NDArray[np.float32], activation: int) -> None:
    """Turns x [examples, units] into the outputs of units with these biases, and writes the derivatives into `slopes`."""
    units = x.shape[1]
    whole = units // VECTOR * VECTOR
    rest = units - whole
    for j in range(rest):
        tail[VECTOR + j] = bias[0, whole + j]
    for i in range(x.shape[0]):
        for j in range(i * units, i * units + whole, VECTOR):
            h, slope = activate(load_at(x, j) + load_at(bias, j - i * units), activation)
            store_at(x, j, h)
            store_at(slopes, j, slope)
        if rest > 0:
            for j in range(rest):
                tail[j] = x[i, whole + j]
            h, slope = activate(load_at(tail, 0) + load_at(tail, VECTOR), activation)
            store_at(tail, 0, h)
            store_at(tail, 2 * VECTOR, slope)
            for j in range(rest):
                x[i, whole + j], slopes[i, whole + j] = tail[j], tail[2 * VECTOR + j]


@part
def sum_rows(deltas: Matrix, sums: Matrix) -> None:
    """Writes the sum over examples into `sums`, [1, units]."""
    sums[:] = 0
    for i in range(deltas.shape[0]):
        for j in range(deltas.shape[1]):
            sums[0, j] += deltas[i, j]


@part
def multiply_and_sum(deltas: Matrix, slopes: Matrix, sums: Matrix) -> None:
    """Multiplies `deltas` by `slopes`, number by number, and writes the sum over examples into `sums`, [1, units]."""
    sums[:] = 0
    for i in range(deltas.shape[0]):
        for j in range(deltas.shape[1]):
            deltas[i, j] *= slopes[i, j]
            sums[0, j] += deltas[i, j]


@part
def forward_level(level: int, params: Any, space: Workspace, activation: int) -> None:
    """The outputs of a level from those of the one below; the last level is linear."""
    x = space.levels[level]
    np.dot(space.levels[level - 1], params[2 * level - 2][0].T, x)
    bias = params[2 * level - 1][0]
    if level < len(space.levels) - 1:
        activate_rows(x, bias, space.slopes[level - 1], space.tail, activation)
    else:
        add_bias(x, bias)


@part
def backward(params: Any, space: Workspace) -> None:
    """Gradients of all layers from the last of `deltas`."""
    last = len(space.levels) - 1
    sum_rows(space.deltas[last - 1], space.gradients[2 * last - 1])
    for level in range(last, 0, -1):
        deltas = space.deltas[level - 1]
        np.dot(deltas.T, space.levels[level - 1], space.gradients[2 * level - 2])
        if level > 1:
            np.dot(deltas, params[2 * level - 2][0], space.deltas[level - 2])
            multiply_and_sum(space.deltas[level - 2], space.slopes[level - 2], space.gradients[2 * level - 3])


@compiled
def outputs_of(inputs: Matrix, params: Any, space: Workspace, activation: int, outputs: Matrix) -> None:
    """Writes the network's outputs for any number of rows into `outputs`, as many rows at a time as the workspace has."""
    size = space.levels[0].shape[0]
    for start in range(0, inputs.shape[0], size):
        rows = min(size, inputs.shape[0] - start)
        copy_rows(inputs[start : start + rows], space.levels[0])
        for level in range(1, len(space.levels)):
            forward_level(level, params, space, activation)
        copy_rows(space.levels[-1][:rows], outputs[start : start + rows])
