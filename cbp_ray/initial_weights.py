"""Distributions of initial weights, and the weights that a seed draws from them. Without torch: every engine uses it."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from cbp_ray.activations import GAINS
from cbp_ray.randomness import Purpose, uniforms


@dataclass(frozen=True)
class Distribution:
    """Initial weights of one layer: uniform in [-scale, scale], or normal with standard deviation `scale`.

    Biases start at zero, or uniform in [-bias_scale, bias_scale].

    Example:
      >>> Distribution.uniform(0.5).weight(np.array([0.0, 0.75]))
      array([-0.5 ,  0.25])
    """

    kind: Literal["uniform", "normal"]
    scale: float
    bias_scale: float = 0.0

    @classmethod
    def uniform(cls, bound: float, bias_bound: float = 0.0) -> "Distribution":
        return cls("uniform", bound, bias_bound)

    @classmethod
    def normal(cls, standard_deviation: float, bias_bound: float = 0.0) -> "Distribution":
        return cls("normal", standard_deviation, bias_bound)

    def weight(self, draws: NDArray[np.float64]) -> NDArray[np.float64]:
        """Weights from uniform draws in [0, 1)."""
        if self.kind == "normal":
            from scipy.special import ndtri  # imported on use: the paper's distributions are uniform

            # Half a step up, so that a draw of exactly 0 stays finite.
            return np.asarray(ndtri(draws + 2.0**-54)) * self.scale
        return (2 * draws - 1) * self.scale

    def bias(self, draws: NDArray[np.float64]) -> NDArray[np.float64]:
        """Biases from uniform draws in [0, 1)."""
        return (2 * draws - 1) * self.bias_scale


def bound(fan_in: int, activation: str) -> float:
    """b of the Kaiming distribution U(-b, b), with b = gain·√(3 / fan_in) (He et al. 2015; section 3 of the paper)."""
    return GAINS[activation] * math.sqrt(3 / fan_in)


def draw_initial(
    distribution: Distribution, units: int, fan_in: int, seed: int, layer: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """A layer's initial weights [units, fan_in] and biases [units], as a function of seed and layer number alone."""
    draws = uniforms(seed, Purpose.INITIAL_WEIGHTS, units * (fan_in + 1), address=(layer, 0, 0))
    weights = distribution.weight(draws[: units * fan_in]).reshape(units, fan_in)
    return weights, distribution.bias(draws[units * fan_in :])


def initial_weights(seed: int, layer: int, units: int, fan_in: int, activation: str) -> NDArray[np.float64]:
    """Weights [units, fan_in] of one layer, drawn from the Kaiming distribution for the activation behind it."""
    return draw_initial(Distribution.uniform(bound(fan_in, activation)), units, fan_in, seed, layer)[0]
