"""The generator's arithmetic: how many units to replace, which, and what a new unit looks like. Pure functions."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cbp_ray.initial_weights import Distribution
from cbp_ray.randomness import Purpose, uniforms


def count_accumulated(replacement_rate: float, exposure: int, replaced: int) -> int:
    """Units due, when the fraction of n·ρ is carried from step to step.

    Args:
      replacement_rate: ρ.
      exposure: Σ over the steps so far of the units that ρ applies to: all n of the layer in every step in which some unit is
        eligible (`preset="paper"`), or the eligible ones (`preset="nature2024"`). An integer, so nothing drifts.
      replaced: units replaced so far.
    """
    return math.floor(replacement_rate * exposure) - replaced


def count_bernoulli(replacement_rate: float, exposed: int, seed: int, step: int, layer: int) -> int:
    """Units due in this step alone: n·ρ rounded up with the probability of its fraction."""
    expected = replacement_rate * exposed
    whole = math.floor(expected)
    draw = uniforms(seed, Purpose.BERNOULLI, 1, address=(step, layer, 0))[0]
    return whole + int(draw < expected - whole)


def select(utility: Tensor, eligible: Tensor, count: int) -> Tensor:
    """Indices of the `count` eligible units with the smallest finite utility, smallest first; of equals, the first.

    Fewer, if there are fewer. A unit whose utility is not finite is never selected.
    """
    candidates = eligible & utility.isfinite()
    available = int(candidates.sum())
    order = torch.where(candidates, utility, torch.inf).argsort(stable=True)
    return order[: min(count, available)]


def random_utility(units: int, seed: int, layer: int, replaced: int) -> NDArray[np.float64]:
    """Appendix C's random utility, drawn anew after every replacement: only then can anyone tell."""
    return uniforms(seed, Purpose.RANDOM_UTILITY, units, address=(replaced, layer, 0))


def new_unit(distribution: Distribution, fan_in: int, seed: int, layer: int, number: int) -> tuple[NDArray[np.float64], float]:
    """Input weights and bias of the layer's `number`-th new unit, from the layer's own initial distribution."""
    draws = uniforms(seed, Purpose.NEW_UNIT, fan_in + 1, address=(number, layer, 0))
    return distribution.weight(draws[:fan_in]), float(distribution.bias(draws[fan_in:])[0])


def new_units(distribution: Distribution, fan_in: int, seed: int, layer: int, numbers: Sequence[int]) -> tuple[Tensor, Tensor]:
    """`new_unit` for several: weights [len(numbers), fan_in] and biases [len(numbers)], float64 on the CPU."""
    units = [new_unit(distribution, fan_in, seed, layer, number) for number in numbers]
    weights = np.stack([weight for weight, _ in units])
    return torch.from_numpy(weights), torch.tensor([bias for _, bias in units], dtype=torch.float64)
