"""The tester: how much a unit is worth (section 4 and appendix C of the paper). Pure functions of tensors.

| paper | here |
|---|---|
| h | a unit's output; the average of \\|h\\| or \\|h - f̂\\| over the examples of a step comes in as `activity` |
| f̂ | `estimate(f, correction)` |
| Σₖ\\|w_{l,i,k}\\| | `magnitude_out` |
| Σⱼ\\|w_{l-1,j,i}\\| | `magnitude_in` |
| η | `decay_rate` |
| 1 - ηᵃ | `correction`: the running average of a constant 1, from 0 at age 0; unlike the formula it never cancels |

Every utility is a running average with the same bias correction, also those of appendix C, where the paper prints none;
otherwise units of different age could not be compared.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from cbp_ray.presets import Utility


def identity(of_units: Tensor) -> Tensor:
    """Every unit is measured at one place."""
    return of_units


def instantaneous(
    utility: Utility,
    activity: Tensor,
    magnitude_out: Tensor,
    magnitude_in: Tensor,
    by_unit: Callable[[Tensor], Tensor] = identity,
) -> Tensor:
    """What a step adds to each unit's running average, before (1 - η); `random` has none.

    `activity` is averaged over the step's examples: |h| for `contribution`, |h - f̂| for the two that are corrected by it.
    `magnitude_in` is without the bias. Where consumers read different functions of a unit, `activity` and `magnitude_out` are
    those at each of these places, and `by_unit` adds up what belongs to one unit.
    """
    match utility:
        case "weight_magnitude":
            return by_unit(magnitude_out)
        case "contribution" | "mean_corrected_contribution":  # equations 1 and 4
            return by_unit(activity * magnitude_out)
        case "adaptation":
            return magnitude_in.reciprocal()
        case "overall":  # equation 5
            return by_unit(activity * magnitude_out) / magnitude_in
        case "random":
            raise ValueError("the random utility has no running average")


def running_average(average: Tensor, value: Tensor, decay_rate: float) -> Tensor:
    """(1 - η) value + η average: equations 2 and 6."""
    return torch.lerp(average, value, 1 - decay_rate)


def estimate(average: Tensor, correction: Tensor, out: Tensor | None = None) -> Tensor:
    """f̂ and û from f and u: equations 3 and 7."""
    return torch.div(average, correction, out=out)
