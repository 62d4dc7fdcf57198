"""Confidence intervals, and means over runs with theirs."""

from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

Numbers = TypeVar("Numbers", float, NDArray[np.float64])


@dataclass(frozen=True)
class Interval(Generic[Numbers]):
    """An estimate with its confidence interval: three numbers, or three arrays."""

    estimate: Numbers
    low: Numbers
    high: Numbers


def mean_interval(values: NDArray[np.float64], confidence: float = 0.95) -> Interval[NDArray[np.float64]]:
    """Mean over the runs and Student's interval around it: mean ± t(confidence, n - 1)·s/√n.

    Args:
      values: [runs, bins].
      confidence: probability that the interval holds the true mean, for normal errors.

    Returns:
      Mean, lower and upper end, each [bins]; the ends are not a number for a single run.
    """
    # What `scipy.stats.t.ppf` calls; that module takes seconds to import.
    from scipy.special import stdtrit

    count, mean = len(values), np.asarray(values.mean(axis=0))
    if count < 2:
        nothing = np.full_like(mean, np.nan)
        return Interval(mean, nothing, nothing)
    half = stdtrit(count - 1, (1 + confidence) / 2) * values.std(axis=0, ddof=1) / np.sqrt(count)
    return Interval(mean, mean - half, mean + half)
