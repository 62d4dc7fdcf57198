"""Means over runs, with confidence intervals."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Interval(NamedTuple):
    """A mean and its confidence interval, each [bins]."""

    mean: NDArray[np.float64]
    lower: NDArray[np.float64]
    upper: NDArray[np.float64]


def mean_interval(values: NDArray[np.float64], confidence: float = 0.95) -> Interval:
    """Mean over the runs and Student's interval around it: mean ± t(confidence, n - 1)·s/√n.

    Args:
      values: [runs, bins].
      confidence: probability that the interval holds the true mean, for normal errors.

    Returns:
      Mean, lower and upper end, each [bins]; the ends are not a number for a single run.
    """
    from scipy.stats import t

    count, mean = len(values), np.asarray(values.mean(axis=0))
    if count < 2:
        nothing = np.full_like(mean, np.nan)
        return Interval(mean, nothing, nothing)
    half = t.ppf((1 + confidence) / 2, count - 1) * values.std(axis=0, ddof=1) / np.sqrt(count)
    return Interval(mean, mean - half, mean + half)
