"""Learning curves of many runs."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pyarrow

PERFORMANCE = ("error", "accuracy", "episode_return")
"""The metric that a problem is judged by: the first of these that it has."""


@dataclass(frozen=True)
class Curves:
    """What `run_online` returns. Example: `curves.mean()` is the learning curve, `curves["saturated"]` a diagnostic."""

    seeds: tuple[int, ...]
    """Seeds of the runs."""
    examples: NDArray[np.int64]
    """Examples seen at each bin's end, [bins]."""
    metrics: dict[str, NDArray[np.float64]]
    """What the bins recorded, each [seeds, bins]; see `OnlineConfig.metrics`."""

    @classmethod
    def of(
        cls,
        seeds: Sequence[int],
        examples: Sequence[int],
        points: Sequence[Mapping[str, NDArray[np.float64]]],
        metrics: Iterable[str],
    ) -> "Curves":
        """Curves from the points of successive bins.

        Args:
          seeds: one run each.
          examples: examples seen at each bin's end.
          points: the metrics of each bin, each [seeds].
          metrics: names of the metrics to take, in the order of the results' columns.
        """
        none = np.empty((len(seeds), 0))
        stacked = {name: np.stack([point[name] for point in points], axis=1) if points else none for name in metrics}
        return cls(tuple(seeds), np.array(examples, dtype=np.int64), stacked)

    def points(self) -> list[dict[str, NDArray[np.float64]]]:
        """The metrics bin by bin, each [seeds]: what `of` was given."""
        return [{name: values[:, index] for name, values in self.metrics.items()} for index in range(len(self.examples))]

    def __getitem__(self, metric: str) -> NDArray[np.float64]:
        return self.metrics[metric]

    @property
    def performance(self) -> str:
        """Name of the metric that the problem is judged by."""
        return next((name for name in PERFORMANCE if name in self.metrics), next(iter(self.metrics)))

    @property
    def error(self) -> NDArray[np.float64]:
        """The squared error, [seeds, bins]."""
        return self.metrics["error"]

    @property
    def accuracy(self) -> NDArray[np.float64]:
        """The accuracy, [seeds, bins]."""
        return self.metrics["accuracy"]

    def mean(self, metric: str | None = None) -> NDArray[np.float64]:
        """Mean over the seeds, [bins]; without a name, of the metric that the problem is judged by."""
        return np.asarray(self.metrics[metric or self.performance].mean(axis=0))

    def standard_error(self, metric: str | None = None) -> NDArray[np.float64]:
        """Standard error of that mean, [bins]; not a number for a single seed."""
        values, count = self.metrics[metric or self.performance], len(self.seeds)
        if count < 2:
            return np.full(values.shape[1], np.nan)
        return np.asarray(values.std(axis=0, ddof=1) / np.sqrt(count))

    def to_table(self) -> "pyarrow.Table":
        """One row per run and bin: seed, bin, examples, and a column per metric."""
        import pyarrow

        count, bins = len(self.seeds), len(self.examples)
        columns = {
            "seed": np.repeat(np.array(self.seeds, dtype=np.uint64), bins),
            "bin": np.tile(np.arange(bins), count),
            "examples": np.tile(self.examples, count),
        }
        return pyarrow.table(columns | {name: values.ravel() for name, values in self.metrics.items()})
