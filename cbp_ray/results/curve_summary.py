"""Learning curves summed up over seeds, bin by bin: what is drawn of a configuration, finished or not.

Summaries of different seeds are put together without the curves themselves. They may end at different bins: a bin counts the
seeds that have come so far.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cbp_ray.errors import InputError
from cbp_ray.experiments.checkpoint import Checkpoint
from cbp_ray.experiments.curves import Curves
from cbp_ray.results.intervals import Interval

Array = NDArray[np.float64]
MEAN = "mean/"


@dataclass(frozen=True)
class CurveSummary:
    """Means over some seeds of all that bins record, and how far the seeds differ in the metric that they are judged by."""

    performance: str
    """Name of the metric that the problem is judged by."""
    examples: NDArray[np.int64]
    """Examples seen at each bin's end, [bins]."""
    seeds: Array
    """Number of seeds that have come to the bin, [bins]."""
    squares: Array
    """Sum over these seeds of (performance - its mean)², [bins]."""
    means: dict[str, Array]
    """Mean over these seeds of each metric, [bins]; not a number where nothing is known of it."""

    @classmethod
    def of(cls, curves: Curves, performance: str | None = None) -> "CurveSummary":
        """Sums up curves."""
        judged, count = performance or curves.performance, len(curves.seeds)
        # In a run that diverged, the numbers are infinite.
        with np.errstate(invalid="ignore", over="ignore"):
            means = {name: np.asarray(values.mean(axis=0)) for name, values in curves.metrics.items()}
            squares = np.square(curves.metrics[judged] - means[judged]).sum(axis=0)
        return cls(judged, curves.examples, np.full(len(curves.examples), float(count)), squares, means)

    @classmethod
    def together(cls, parts: Iterable["CurveSummary"]) -> "CurveSummary":
        """One summary of different seeds' summaries (Chan, Golub and LeVeque 1979); at least one."""
        first, *others = sorted(parts, key=lambda part: -len(part.examples))
        for other in others:
            first = first._joined(other)
        return first

    def _joined(self, other: "CurveSummary") -> "CurveSummary":
        """With the seeds of another that is no longer."""
        bins, ours = len(other.examples), self.seeds
        theirs = np.zeros_like(ours)
        theirs[:bins] = other.seeds
        seeds, share = ours + theirs, theirs / np.maximum(ours + theirs, 1)
        means, squares = {}, self.squares.copy()
        with np.errstate(invalid="ignore", over="ignore"):
            for name in dict.fromkeys((*self.means, *other.means)):
                a, b = self.means.get(name), np.full(len(ours), np.nan)
                b[:bins] = other.means.get(name, np.nan)
                # What only one of them has at all is the mean over its seeds.
                both = a is not None and name in other.means
                means[name] = a + np.where(theirs > 0, (b - a) * share, 0.0) if both else b if a is None else a
            difference = other.means[self.performance] - self.means[self.performance][:bins]
            squares[:bins] += other.squares + np.square(difference) * (ours * share)[:bins]
        return CurveSummary(self.performance, self.examples, seeds, squares, means)

    def followed_by(self, later: "CurveSummary", first: int) -> "CurveSummary":
        """With the bins from number `first` on that a later report of the same seeds has; what it repeats is the same."""
        if first > len(self.examples):
            raise ValueError(f"a report from bin {first} on after one of {len(self.examples)} bins")
        end = first + len(later.examples)

        def put(ours: NDArray[Any], theirs: NDArray[Any]) -> NDArray[Any]:
            return np.concatenate([ours[:first], theirs, ours[end:]])

        none, new = np.full(len(self.examples), np.nan), np.full(len(later.examples), np.nan)
        means = {}
        for name in dict.fromkeys((*self.means, *later.means)):
            ours, theirs = self.means.get(name, none), later.means.get(name, new).copy()
            # A worker that went on from a checkpoint does not know again what only reports hold.
            known = ours[first:end]
            theirs[: len(known)] = np.where(np.isnan(theirs[: len(known)]), known, theirs[: len(known)])
            means[name] = put(ours, theirs)
        examples, seeds = put(self.examples, later.examples), put(self.seeds, later.seeds)
        return CurveSummary(self.performance, examples, seeds, put(self.squares, later.squares), means)

    def beside(self, others: Mapping[str, Array]) -> "CurveSummary":
        """With further means of the same bins; shorter ones are filled up with not-a-number."""
        filled = {name: np.full(len(self.examples), np.nan) for name in others}
        for name, values in others.items():
            filled[name][: len(values)] = values[: len(self.examples)]
        return CurveSummary(self.performance, self.examples, self.seeds, self.squares, self.means | filled)

    def part(self, first: int, last: int | None = None) -> "CurveSummary":
        """The bins from number `first` on, before number `last`."""
        at, means = slice(first, last), {name: values[first:last] for name, values in self.means.items()}
        return CurveSummary(self.performance, self.examples[at], self.seeds[at], self.squares[at], means)

    @property
    def mean(self) -> Array:
        """Mean of the metric that the problem is judged by, [bins]."""
        return self.means[self.performance]

    @property
    def standard_error(self) -> Array:
        """Standard error of that mean, [bins]; not a number for a single seed."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(self.seeds > 1, np.sqrt(self.squares / (self.seeds - 1) / self.seeds), np.nan)

    def interval(self, confidence: float = 0.95) -> Interval[Array]:
        """That mean with Student's interval around it, as `mean_interval` gives it."""
        # What `scipy.stats.t.ppf` calls; that module takes seconds to import.
        from scipy.special import stdtrit

        counts, where = np.unique(self.seeds, return_inverse=True)
        with np.errstate(invalid="ignore"):
            factors = np.where(counts > 1, stdtrit(counts - 1, (1 + confidence) / 2), np.nan)
            half = factors[where] * self.standard_error if len(counts) else self.standard_error
            return Interval(self.mean, self.mean - half, self.mean + half)

    def as_arrays(self) -> Checkpoint:
        """Plain arrays for a file."""
        arrays = {"examples": self.examples, "seeds": self.seeds, "squares": self.squares}
        return {**arrays, "performance": np.array(self.performance), **{MEAN + n: v for n, v in self.means.items()}}

    @classmethod
    def from_arrays(cls, arrays: Checkpoint) -> "CurveSummary":
        """The inverse of `as_arrays`.

        Raises:
          InputError: if something is missing.
        """
        means = {name.removeprefix(MEAN): values for name, values in arrays.items() if name.startswith(MEAN)}
        try:
            performance = str(arrays["performance"])
            found = cls(performance, arrays["examples"], arrays["seeds"], arrays["squares"], means)
            _ = found.mean
        except KeyError as error:
            raise InputError(f"summary of curves: must be whole, got one without {error}; remove it") from None
        return found
