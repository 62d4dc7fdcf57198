"""What the claims are computed with: bootstrap over runs, and summaries of learning curves.

All algorithms see the same data in the run of a given seed, so runs are resampled jointly: one resample takes the same
seeds from every setting. A statistic is computed once on all runs and once on every resample; both travel together in
one array `[1 + RESAMPLES]`, the estimate first.
"""

import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

RESAMPLES = 10_000
"""Number of bootstrap resamples; enough for the tails of a simultaneous interval over some twenty comparisons."""

BOOTSTRAP_SEED = 2021
"""Seed of the resamples, fixed so that findings are a function of the results alone."""

FEW_RUNS = 20
"""With fewer runs, the percentiles of resamples lie too close together: the interval is Student's."""

WINDOW_BINS = 5
"""The low point of a run: 5 successive bins, that is 100,000 examples or 5 tasks."""

DIVERGED = 1e6
"""The error that counts for a bin in which a run's error was not a number or infinite."""


def resampling_weights(runs: int, resamples: int = RESAMPLES, seed: int = BOOTSTRAP_SEED) -> Array:
    """Weights [1 + resamples, runs] whose product with per-run values gives means: of all runs, then of resamples."""
    rng = np.random.default_rng(seed)
    counts = rng.multinomial(runs, np.full(runs, 1 / runs), size=resamples)
    return np.concatenate([np.full((1, runs), 1 / runs), counts / runs])


def interval(statistic: Array, level: float, runs: int) -> tuple[float, float]:
    """Both ends of the confidence interval of a statistic [1 + resamples].

    They are percentiles of the resamples or, if runs are few, Student's t times the standard error. For a mean, the
    standard deviation of its resamples times √(n / (n - 1)) is its standard error, so that Student's interval is then the
    textbook's. A single run has no interval, and so the widest.
    """
    if runs == 1:
        return -math.inf, math.inf
    estimate, tail = float(statistic[0]), (1 - level) / 2
    if 1 < runs < FEW_RUNS:
        from scipy.special import stdtrit

        error = float(statistic[1:].std()) * math.sqrt(runs / (runs - 1))
        reach = float(stdtrit(runs - 1, 1 - tail)) * error
        return estimate - reach, estimate + reach
    low, high = np.quantile(statistic[1:], [tail, 1 - tail])
    return float(low), float(high)


def finite(error: Array) -> Array:
    """The error with diverged bins made large and finite, so that they lose every comparison and spoil no mean."""
    return np.minimum(np.nan_to_num(error, nan=DIVERGED, posinf=DIVERGED), DIVERGED)


def total(error: Array, examples: NDArray[np.int64]) -> Array:
    """Mean error per example of each run, [runs]; bins [runs, bins] count by their length."""
    lengths = np.diff(examples, prepend=0)
    return np.asarray(finite(error) @ (lengths / lengths.sum()))


def standard_error(per_run: Array) -> float:
    """Standard error of the mean over the runs; not a number for a single run."""
    return float(per_run.std(ddof=1) / math.sqrt(len(per_run))) if len(per_run) > 1 else math.nan


def late(curve: Array) -> Array:
    """Mean of each run's last bins, [runs]."""
    return np.asarray(curve[:, -_late_bins(curve.shape[1]) :].mean(axis=1))


def middle(curve: Array) -> Array:
    """Mean of as many bins as `late` has, [runs]; the last of them ends at half of the run."""
    half = curve.shape[1] // 2
    return np.asarray(curve[:, max(half - _late_bins(curve.shape[1]), 0) : max(half, 1)].mean(axis=1))


def early(curve: Array, bins: int = WINDOW_BINS) -> Array:
    """Mean of each run's first bins, [runs]."""
    return np.asarray(curve[:, : min(bins, curve.shape[1])].mean(axis=1))


def low_point(curve: Array, reference: Array | None = None) -> tuple[Array, Array]:
    """Each run's mean, [runs], over the window in which the average curve is lowest relative to the reference.

    The window is chosen on one half of the runs (even or odd position) and read off on the other half. The lowest of many
    noisy means is too low; chosen on other runs it is not, so a flat curve is not mistaken for one that rises.

    Args:
      curve: [runs, bins].
      reference: [runs, bins], the error of another learner on the same data; None for a constant.

    Returns:
      Means of the curve and of the reference over the window, which lies before the late bins.
    """
    runs, bins = curve.shape
    window = min(WINDOW_BINS, -(-bins // 10))
    before = max(bins - _late_bins(bins), window)
    reference = np.ones_like(curve) if reference is None else reference
    means, references = (_window_means(values[:, :before], window) for values in (curve, reference))
    half = np.arange(runs) % 2
    chosen = np.empty(runs, dtype=np.intp)
    for this in (0, 1):
        others = half != this if runs > 1 else half == this
        chosen[half == this] = (means[others].mean(axis=0) / references[others].mean(axis=0)).argmin()
    rows = np.arange(runs)
    return means[rows, chosen], references[rows, chosen]


def _window_means(curve: Array, window: int) -> Array:
    """Means over every window of successive bins, [runs, windows]."""
    sums = np.cumsum(np.pad(curve, ((0, 0), (1, 0))), axis=1)
    return np.asarray((sums[:, window:] - sums[:, :-window]) / window)


def _late_bins(bins: int) -> int:
    # Inside: listing the figures needs this module, and not pydantic.
    from cbp_ray.results.summaries import late_bins

    return late_bins(bins)
