"""What a step of generate-and-test measures, for compiled code that makes many steps in one call."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from cbp_ray.algorithm.watched_layer import Population


class Measurements(NamedTuple):
    """What steps of generate-and-test change, of the units of all layers, end to end."""

    populations: dict[Tensor, Population]
    """The units of a layer, by its input weights."""
    birth: NDArray[np.int64]
    """Step in which each unit was made."""
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
