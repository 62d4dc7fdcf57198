"""The generator's arithmetic: how many units to replace, which, and what a new unit looks like. Pure functions."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cbp_ray.initial_weights import Distribution
from cbp_ray.randomness import Purpose, uniforms


def count_accumulated(replacement_rate: float, exposure: int, replaced: int) -> int:
    """Units due, when the fraction of n·ρ is carried from step to step.

    `exposure` is Σ over the steps so far of the units that ρ applies to: all n of the layer in every step in which some unit
    is eligible (`preset="paper"`), or the eligible ones (`preset="nature2024"`). An integer, so nothing drifts.
    """
    return math.floor(replacement_rate * exposure) - replaced


def count_bernoulli(replacement_rate: float, exposed: int, seed: int, step: int, layer: int) -> int:
    """Units due in this step alone: n·ρ rounded up with the probability of its fraction."""
    expected = replacement_rate * exposed
    whole = math.floor(expected)
    draw = uniforms(seed, Purpose.BERNOULLI, 1, address=(step, layer, 0))[0]
    return whole + int(draw < expected - whole)


def select(utility: NDArray[Any], eligible: NDArray[np.bool_], count: int) -> tuple[NDArray[np.int64], int]:
    """Indices of the `count` eligible units with the smallest finite utility, smallest first; of equals, the first.

    Fewer, if there are fewer. A unit whose utility is not finite is never selected; the second result is how many eligible
    units these are.
    """
    candidates = eligible & np.isfinite(utility)
    finite = int(candidates.sum())
    order = np.argsort(np.where(candidates, utility, np.inf), kind="stable")
    return order[: min(count, finite)], int(eligible.sum()) - finite


def random_utility(units: int, seed: int, layer: int, replaced: int) -> NDArray[np.float64]:
    """Appendix C's random utility, drawn again after every replacement, because only then it matters."""
    return uniforms(seed, Purpose.RANDOM_UTILITY, units, address=(replaced, layer, 0))


def new_units(distribution: Distribution, fan_in: int, seed: int, layer: int, numbers: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Input weights [len(numbers), fan_in] and biases [len(numbers)] of new units, float64 on the CPU.

    Each is a function of its number among the layer's new units and comes from the layer's own initial distribution.
    """
    draws = np.stack([uniforms(seed, Purpose.NEW_UNIT, fan_in + 1, address=(number, layer, 0)) for number in numbers])
    return torch.from_numpy(distribution.weight(draws[:, :-1])), torch.from_numpy(distribution.bias(draws[:, -1]))
