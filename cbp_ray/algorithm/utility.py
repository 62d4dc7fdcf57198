"""The tester: how much a unit is worth (section 4 and appendix C of the paper). Pure functions of tensors.

| paper | here |
|---|---|
| h | a unit's output; its averages over the examples of a step come in as `mean_absolute` and `mean_deviation` |
| f̂ | `estimate(f, correction)` |
| Σₖ\\|w_{l,i,k}\\| | `magnitude_out` |
| Σⱼ\\|w_{l-1,j,i}\\| | `magnitude_in` |
| η | `decay_rate` |
| a | `age` |

Every utility is a running average with the same bias correction, also those of appendix C, where the paper prints none;
otherwise units of different age could not be compared.
"""

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor

Utility = Literal["random", "weight_magnitude", "contribution", "mean_corrected_contribution", "adaptation", "overall"]


class Needs(NamedTuple):
    """What a utility is made from; nothing else is computed."""

    absolute: bool = False
    deviation: bool = False
    magnitude_out: bool = False
    magnitude_in: bool = False


NEEDS: dict[Utility, Needs] = {
    "random": Needs(),
    "weight_magnitude": Needs(magnitude_out=True),
    "contribution": Needs(absolute=True, magnitude_out=True),
    "mean_corrected_contribution": Needs(deviation=True, magnitude_out=True),
    "adaptation": Needs(magnitude_in=True),
    "overall": Needs(deviation=True, magnitude_out=True, magnitude_in=True),
}


def instantaneous(
    utility: Utility,
    mean_absolute: Tensor | None,
    mean_deviation: Tensor | None,
    magnitude_out: Tensor | None,
    magnitude_in: Tensor | None,
) -> Tensor:
    """What a step adds to a unit's running average, before (1 - η).

    Args:
      utility: which one; `random` has no running average.
      mean_absolute: |h| averaged over the step's examples.
      mean_deviation: |h - f̂| averaged over the step's examples.
      magnitude_out: Σₖ|w_{l,i,k}| over all outgoing weights.
      magnitude_in: Σⱼ|w_{l-1,j,i}| over all incoming weights, without the bias.

    Returns:
      One number per unit.
    """
    match utility:
        case "weight_magnitude":
            assert magnitude_out is not None
            return magnitude_out
        case "contribution":  # equation 1
            assert mean_absolute is not None and magnitude_out is not None
            return mean_absolute * magnitude_out
        case "mean_corrected_contribution":  # equation 4
            assert mean_deviation is not None and magnitude_out is not None
            return mean_deviation * magnitude_out
        case "adaptation":
            assert magnitude_in is not None
            return magnitude_in.reciprocal()
        case "overall":  # equation 5
            assert mean_deviation is not None and magnitude_out is not None and magnitude_in is not None
            return mean_deviation * magnitude_out / magnitude_in
        case "random":
            raise ValueError("the random utility has no running average")


def running_average(average: Tensor, value: Tensor, decay_rate: float) -> Tensor:
    """(1 - η) value + η average: equations 2 and 6."""
    return torch.lerp(average, value, 1 - decay_rate)


def bias_correction(age: Tensor, decay_rate: float, dtype: torch.dtype) -> Tensor:
    """1 - ηᵃ, without cancellation at small ages. `age` holds integers of 1 or more."""
    if decay_rate == 0:
        return torch.ones_like(age, dtype=dtype)
    return torch.expm1(age.to(dtype) * math.log(decay_rate)).neg_()


def estimate(average: Tensor, correction: Tensor) -> Tensor:
    """f̂ and û from f and u: equations 3 and 7."""
    return average / correction
