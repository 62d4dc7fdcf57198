"""Initial weights without torch. `algorithm.initialization` draws the same numbers; a test compares them."""

import math

import numpy as np
from numpy.typing import NDArray

from cbp_ray.gains import GAINS
from cbp_ray.randomness import Purpose, uniforms


def bound(fan_in: int, activation: str) -> float:
    """b of the Kaiming distribution U(-b, b)."""
    return GAINS[activation] * math.sqrt(3 / fan_in)


def initial_weights(seed: int, layer: int, units: int, fan_in: int, activation: str) -> NDArray[np.float64]:
    """Weights [units, fan_in] of one layer."""
    draws = uniforms(seed, Purpose.INITIAL_WEIGHTS, units * fan_in, address=(layer, 0, 0))
    return (2 * draws - 1).reshape(units, fan_in) * bound(fan_in, activation)
