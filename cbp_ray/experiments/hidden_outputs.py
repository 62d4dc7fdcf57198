"""What a hidden layer's outputs on held examples say about it: dead units, and three kinds of rank."""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from cbp_ray.problems.problem import CUMULATED

RANK_TOLERANCE = 1e-12
"""Squares of singular values below this part of the largest are rounding errors of the Gram matrix."""


class Representation(NamedTuple):
    """What one layer's outputs say about it."""

    dead: float
    """Fraction of units whose output is 0 on every held example."""
    stable_rank: float
    """Σσ² / max σ² of the outputs' singular values σ."""
    effective_rank: float
    """exp of the entropy of σ / Σσ (Roy and Vetterli 2007)."""
    srank: float
    """The fewest σ that make up 99% of Σσ (Kumar et al. 2021)."""


def describe(outputs: NDArray[Any]) -> Representation:
    """Describes outputs [examples, units]. A layer of dead units has rank 0; one that is not finite, not-a-number."""
    h = outputs.astype(np.float64)
    dead = float((h == 0).all(axis=0).mean())
    if not np.isfinite(h).all():
        return Representation(dead, np.nan, np.nan, np.nan)
    gram = matrix_product(h.T, h) if h.shape[1] <= h.shape[0] else matrix_product(h, h.T)
    squares = eigenvalues(gram)
    largest = squares[-1]
    if largest <= 0:
        return Representation(dead, 0.0, 0.0, 0.0)
    squares = squares[squares > RANK_TOLERANCE * largest] / largest
    share = np.sqrt(squares) / np.sqrt(squares).sum()
    # The largest come last.
    srank = 1 + int(np.searchsorted(np.cumsum(share[::-1]), CUMULATED))
    return Representation(dead, float(squares.sum()), float(np.exp(-(share * np.log(share)).sum())), float(srank))


def layer_metrics(magnitudes: Sequence[float], layers: Sequence[Representation]) -> dict[str, float]:
    """The metrics of one run of Permuted MNIST that are about its state at a bin's end.

    Args:
      magnitudes: mean |w| of every layer, the output layer last.
      layers: what the outputs of the hidden layers say.
    """
    found = {f"weight_magnitude_{number}": magnitude for number, magnitude in enumerate(magnitudes[:-1], 1)}
    found["output_weight_magnitude"] = magnitudes[-1]
    for field in ("dead", "stable_rank", "effective_rank"):
        found |= {f"{field}_{number}": getattr(layer, field) for number, layer in enumerate(layers, 1)}
    return found


def matrix_product(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    """a @ b on one thread: the order of additions, and with it the last bits, must not depend on the number of cores."""
    with _libraries().limit(limits=1, user_api="blas"):
        return np.asarray(a @ b)


def eigenvalues(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """Those of a symmetric matrix, ascending, on one thread."""
    with _libraries().limit(limits=1, user_api="blas"):
        return np.asarray(np.linalg.eigvalsh(matrix), dtype=np.float64)


@functools.cache
def _libraries() -> ThreadpoolController:
    return ThreadpoolController()
