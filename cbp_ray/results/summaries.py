"""What is told of a configuration in a table: its runs' performance, whole and late, with intervals, and diagnostics."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cbp_ray.experiments.config import OnlineConfig
from cbp_ray.experiments.curves import Curves
from cbp_ray.results.intervals import mean_interval

LATE_BINS = 10
"""The end of a run: its last 10 bins, that is 200,000 examples of Bit-Flipping, 10 tasks of Permuted MNIST."""

DIVERGED_BY = ("loss", "error")
"""The metric that shows whether a run stayed finite: the first of these that it has. A return may be not a number."""

Array = NDArray[np.float64]


def late_bins(bins: int) -> int:
    """How many of a run's bins are its end."""
    return min(LATE_BINS, math.ceil(bins / 5))


@dataclass(frozen=True)
class Summary:
    """Numbers about the runs of one configuration, from their curves."""

    performance: Array
    """Mean over the whole run of what the problem is judged by, [runs]; not a number for a diverged one."""
    late: Array
    """The same over the last bins, [runs]."""
    diverged: NDArray[np.bool_]
    """Which runs did not stay finite, [runs]."""
    curve: Array
    """Mean over the runs, [bins]."""
    row: dict[str, Any]
    """Columns of a table of configurations."""

    @classmethod
    def of(cls, config: OnlineConfig, curves: Curves) -> "Summary":
        """The summary of some runs of a configuration."""
        metric, first = config.problem.performance, len(curves.examples) - late_bins(len(curves.examples))
        sign = next((name for name in DIVERGED_BY if name in curves.metrics), None)
        finite = np.asarray(np.isfinite(curves[sign]).all(axis=1) if sign else np.ones(len(curves.seeds), dtype=bool))
        whole = np.where(finite, _mean(curves, metric, 0), np.nan)
        late = np.where(finite, _mean(curves, metric, first), np.nan)
        with np.errstate(invalid="ignore", over="ignore"):
            last = {name: float(values[:, first:].mean()) for name, values in curves.metrics.items() if name != metric}
            curve = curves.mean(metric)
        row = {"metric": metric, **_columns("performance", whole), **_columns("late", late), "diverged": int((~finite).sum())}
        return cls(whole, late, np.logical_not(finite), curve, row | last)


def _mean(curves: Curves, metric: str, first: int) -> Array:
    """Mean of each run from a bin on, [runs]; bins count by their length, those without a number not at all."""
    values, lengths = curves[metric][:, first:], np.diff(curves.examples, prepend=0)[first:]
    # A bin without a number: no episode ended in it.
    known = ~np.isnan(values)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray((np.where(known, values, 0.0) @ lengths) / (known @ lengths))


def _columns(name: str, values: Array) -> dict[str, float]:
    found = mean_interval(values[:, None])
    return {name: float(found.estimate[0]), f"{name}_low": float(found.low[0]), f"{name}_high": float(found.high[0])}


def plain_settings(settings: OnlineConfig | Mapping[str, Any]) -> dict[str, Any]:
    """`{"algorithm.replacement_rate": 1e-4, …}`, from a config or from what it dumps; a list is text such as `5x10`."""
    flat: dict[str, Any] = {}

    def visit(prefix: str, value: Any) -> None:
        if isinstance(value, Mapping):
            for name, inner in value.items():
                visit(f"{prefix}.{name}" if prefix else name, inner)
        else:
            flat[prefix] = "x".join(map(str, value)) if isinstance(value, list | tuple) else value

    visit("", settings.model_dump(mode="json") if isinstance(settings, OnlineConfig) else settings)
    return flat
