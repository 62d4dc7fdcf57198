"""What a step of generate-and-test measures, for compiled code that makes many steps in one call."""

from typing import NamedTuple

from torch import Tensor


class Measurements(NamedTuple):
    """What every step of generate-and-test changes, of the units of all layers, end to end."""

    places: dict[Tensor, slice]
    """By input weights of a layer: where its units are."""
    average_activation: Tensor
    """f."""
    average_utility: Tensor
    """u."""
    utility_tm1: Tensor
    """u before the present step."""
    correction: Tensor
    """1 - ηᵃ."""
    f_hat: Tensor
    """f̂."""
    mean: Tensor
    """Average of h over the examples of the step."""
    activity: Tensor
    """Average of |h| or |h - f̂|."""
    incoming: Tensor
    """Σ|w| into each unit, or its mean."""
    outgoing: Tensor
    """Σ|w| out of each unit, or its mean."""
