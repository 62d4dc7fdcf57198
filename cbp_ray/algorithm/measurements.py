"""What a step of generate-and-test measures, for compiled code that makes many steps in one call."""

from typing import NamedTuple

from torch import Tensor


class Measurements(NamedTuple):
    """What every step of generate-and-test changes, of the units of all layers, end to end."""

    places: dict[Tensor, slice]
    """By input weights of a layer: where its units are."""
    average_activation: Tensor
    """Running average f of the output h, equation 2."""
    average_utility: Tensor
    """Running average u of the utility, equation 6."""
    utility_tm1: Tensor
    """u before the present step."""
    correction: Tensor
    """Correction 1 - ηᵃ of both averages at age a."""
    f_hat: Tensor
    """Average output f̂, corrected for the age."""
    mean: Tensor
    """Average of h over the examples of the step."""
    activity: Tensor
    """Average of |h| or |h - f̂|."""
    incoming: Tensor
    """Σ|w| into each unit, or its mean."""
    outgoing: Tensor
    """Σ|w| out of each unit, or its mean."""
