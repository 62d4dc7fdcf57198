"""Initial weights without torch. `algorithm.initialization` draws the same numbers; a test compares them."""

import math

import numpy as np
from numpy.typing import NDArray

from cbp_ray.randomness import Purpose, uniforms

GAINS = {
    "linear": 1.0,
    "tanh": 5 / 3,
    "sigmoid": 1.0,
    "relu": math.sqrt(2),
    "leaky_relu": math.sqrt(2 / (1 + 0.01**2)),
    "elu": math.sqrt(2),
    "swish": math.sqrt(2),
}
"""Section 3 of the paper; the output layer is linear."""


def bound(fan_in: int, activation: str) -> float:
    """b of the Kaiming distribution U(-b, b)."""
    return GAINS[activation] * math.sqrt(3 / fan_in)


def initial_weights(seed: int, layer: int, units: int, fan_in: int, activation: str) -> NDArray[np.float64]:
    """Weights [units, fan_in] of one layer."""
    draws = uniforms(seed, Purpose.INITIAL_WEIGHTS, units * fan_in, address=(layer, 0, 0))
    return (2 * draws - 1).reshape(units, fan_in) * bound(fan_in, activation)
