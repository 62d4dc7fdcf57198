"""Distributions of initial weights, and the weights that a seed draws from them. Without torch: every engine uses it."""

import math
import numbers
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from cbp_ray.activations import GAINS
from cbp_ray.errors import InputError
from cbp_ray.randomness import Purpose, uniforms

PYTORCH = "pytorch"
MOST_SIZE = 10**7
"""Largest row of an orthogonal matrix."""
Kind = Literal["uniform", "normal", "truncated_normal", "orthogonal", "empirical"]


@dataclass(frozen=True)
class Distribution:
    """Initial weights of one layer.

    | kind | weights |
    |---|---|
    | `uniform` | in [-scale, scale] |
    | `normal` | with standard deviation `scale` |
    | `truncated_normal` | the same, cut off at ±`cutoff` standard deviations |
    | `orthogonal` | a row of a random orthogonal matrix with `size` rows or columns, whichever are more, times `scale` |
    | `empirical` | between neighbours in `quantiles`, which stand at equal distances of probability |

    Biases start at `bias_mean`, or uniform in [-bias_scale, bias_scale] around it.

    Example:
      >>> Distribution.uniform(0.5).weight(np.array([0.0, 0.75]))
      array([-0.5 ,  0.25])
    """

    kind: Kind
    scale: float
    bias_scale: float = 0.0
    bias_mean: float = 0.0
    cutoff: float = 0.0
    size: int = 0
    quantiles: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.kind, str) or self.kind not in get_args(Kind):
            raise InputError(f"Distribution: kind must be one of {', '.join(get_args(Kind))}, got {self.kind!r}; use one")
        for name in ("scale", "bias_scale", "bias_mean", "cutoff", "size"):
            value = getattr(self, name)
            # Of weights that are not numbers any more, the scale is none either.
            if not isinstance(value, numbers.Real) or (name != "bias_mean" and value < 0):
                raise InputError(f"Distribution: {name} must be a number, 0 or more, got {value!r}; use another")
        if self.size > MOST_SIZE:
            raise InputError(f"Distribution: size must be at most {MOST_SIZE:,}, got {self.size}; use less")
        if not isinstance(self.quantiles, tuple | list) or not all(isinstance(q, numbers.Real) for q in self.quantiles):
            raise InputError(f"Distribution: quantiles must be numbers, got {self.quantiles!r}; use another")
        if (self.kind == "empirical" and not self.quantiles) or (self.kind == "orthogonal" and not self.size):
            raise InputError(f"Distribution: {self.kind} must have quantiles or a size, got none; use another kind")
        object.__setattr__(self, "quantiles", tuple(self.quantiles))  # a list, where it was read from a file

    @classmethod
    def uniform(cls, bound: float, bias_bound: float = 0.0) -> "Distribution":
        return cls("uniform", bound, bias_bound)

    @classmethod
    def normal(cls, standard_deviation: float, bias_bound: float = 0.0) -> "Distribution":
        return cls("normal", standard_deviation, bias_bound)

    def width(self, fan_in: int) -> int:
        """Number of uniform draws that the `fan_in` weights of a unit are made from."""
        return max(fan_in, self.size)

    def weight(self, draws: NDArray[np.float64]) -> NDArray[np.float64]:
        """Weights from uniform draws in [0, 1); of an orthogonal distribution, rows of `size` from as many draws."""
        match self.kind:
            case "uniform":
                return (2 * draws - 1) * self.scale
            case "empirical":
                return np.interp(draws, np.linspace(0, 1, len(self.quantiles)), self.quantiles)
        from scipy.special import ndtr, ndtri  # imported on use: the paper's distributions are uniform

        if self.kind == "truncated_normal":
            low = ndtr(-self.cutoff)
            return np.asarray(ndtri(low + draws * (1 - 2 * low))) * self.scale
        # Half a step up, so that a draw of exactly 0 stays finite.
        normal = np.asarray(ndtri(draws + 2.0**-54))
        if self.kind == "orthogonal":
            normal = normal / np.linalg.norm(normal, axis=-1, keepdims=True)
        return normal * self.scale

    def single_weight(self, draws: NDArray[np.float64]) -> NDArray[np.float64]:
        """Weights by themselves, one from each draw; of an orthogonal distribution, normal ones of the same size."""
        if self.kind == "orthogonal":
            return Distribution("normal", self.scale / math.sqrt(self.size)).weight(draws)
        return self.weight(draws)

    def bias(self, draws: NDArray[np.float64]) -> NDArray[np.float64]:
        """Biases from uniform draws in [0, 1)."""
        biases = (2 * draws - 1) * self.bias_scale
        return biases + self.bias_mean if self.bias_mean else biases


def bound(fan_in: int, activation: str) -> float:
    """b of the Kaiming distribution U(-b, b), with b = gain·√(3 / fan_in) (He et al. 2015; section 3 of the paper).

    For `PYTORCH` instead of an activation, b of PyTorch's own weights.
    """
    if activation == PYTORCH:
        return 1 / math.sqrt(fan_in)
    return GAINS[activation] * math.sqrt(3 / fan_in)


def draw_initial(
    distribution: Distribution, units: int, fan_in: int, seed: int, layer: int, restart: int = 0
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """A layer's initial weights [units, fan_in] and biases [units], as a function of seed, layer and restart number alone."""
    width = distribution.width(fan_in)
    draws = uniforms(seed, Purpose.INITIAL_WEIGHTS, units * (width + 1), address=(layer, restart, 0))
    weights = distribution.weight(draws[: units * width].reshape(units, width))[:, :fan_in]
    return weights, distribution.bias(draws[units * width :])


def initial_weights(seed: int, layer: int, units: int, fan_in: int, activation: str, restart: int = 0) -> NDArray[np.float64]:
    """Weights [units, fan_in] of one layer, drawn from the Kaiming distribution for the activation behind it."""
    return draw_initial(Distribution.uniform(bound(fan_in, activation)), units, fan_in, seed, layer, restart)[0]
