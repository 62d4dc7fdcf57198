"""A claim of the paper as something that can fail: cells, each a statistic that is above zero if the claim is right.

A claim says that something is so *for all* of its cells (every activation, say). Cells get simultaneous intervals of 95%,
by Bonferroni, from bootstrap resamples of the runs (`statistics.interval`). The claim

- **holds** if every interval lies above zero,
- **fails** if some interval lies below zero,
- is **undecided** otherwise, and always with fewer than `LEAST_RUNS` runs.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Concatenate, ParamSpec

import numpy as np

from cbp_ray.figures import statistics
from cbp_ray.figures.results import Setting, Settings
from cbp_ray.figures.statistics import Array

LEVEL = 0.95
"""Probability that all intervals of a claim together hold the true values."""
JUMPS = 50
"""A statistic with fewer values among its resamples is not continuous."""
LEAST_RUNS = 5
"""Number of runs per setting below which nothing is decided."""


class Verdict(StrEnum):
    """What the results say of a claim."""

    HOLDS = "holds"
    FAILS = "fails"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class Cell:
    """One comparison of a claim."""

    name: str
    """What is compared, in a few words."""
    statistic: Array
    """[1 + resamples], above zero if the claim is right here."""
    runs: int | None = None
    """Number of runs that it was computed from, if not from those of the evidence."""


class Evidence:
    """The settings of a figure, and means over all runs and over resamples of them."""

    def __init__(self, settings: Settings, resamples: int = statistics.RESAMPLES) -> None:
        self.settings, self._weights = settings, statistics.resampling_weights(settings.runs, resamples)

    def mean(self, per_run: Array) -> Array:
        """Means [..., 1 + resamples] of per-run values [..., runs]."""
        return np.asarray(per_run[..., : self.settings.runs] @ self._weights.T)

    def totals(self, settings: Settings) -> Array:
        """Total error of several settings, [settings, 1 + resamples]."""
        return self.mean(np.stack([setting.total for setting in settings]))

    def least(self, **properties: Any) -> Array:
        """Total error of the best of several settings, [1 + resamples].

        Every resample chooses its own best, as the paper's choice of settings is part of what chance decides.
        """
        return np.asarray(self.totals(self.settings.select(**properties)).min(axis=0))

    def late(self, setting: Setting, metric: str = "error") -> Array:
        """Mean of a metric over the end of the runs."""
        return self.mean(statistics.late(_clean(setting, metric)))

    def early(self, setting: Setting, metric: str) -> Array:
        """Mean of a metric over the beginning of the runs."""
        return self.mean(statistics.early(_clean(setting, metric)))

    def growth(self, setting: Setting, metric: str) -> Array:
        """How far a metric at the end lies above its value at half of the run, as a fraction of the latter."""
        values = _clean(setting, metric)
        return np.asarray(self.mean(statistics.late(values)) / self.mean(statistics.middle(values)) - 1)

    def fall(self, setting: Setting) -> Array:
        """How far the accuracy at the end lies below its high point, which is the low point of the error."""
        error = _clean(setting, "error")
        return np.asarray(self.mean(statistics.late(error)) - self.mean(statistics.low_point(error)[0]))

    def rise(self, setting: Setting) -> Array:
        """How far the adjusted error at the end lies above its low point, as a fraction of the low point.

        Adjusted is the error divided by that of the linear tracker on the same data. How hard the data are varies slowly
        within a run, and both suffer alike; a linear tracker has no hidden units and so no plasticity to lose.
        """
        error, linear = (_clean(one, "error") for one in (setting, self.linear(setting)))
        low, low_linear = statistics.low_point(error, linear)
        late = self.mean(statistics.late(error)) / self.mean(statistics.late(linear))
        return np.asarray(late / (self.mean(low) / self.mean(low_linear)) - 1)

    def linear_total(self, examples: int) -> Array:
        """Total error of the linear tracker over the first examples of its longest runs."""
        setting = max(self.settings.select(algorithm="linear"), key=lambda setting: (setting.examples, -setting.mean_total))
        bins = setting.curves.examples <= examples
        return self.mean(statistics.total(setting.error[:, bins], setting.curves.examples[bins]))

    def linear(self, setting: Setting) -> Setting:
        """The linear tracker at its best step size on the data of a setting."""
        return self.settings.best(algorithm="linear", examples=setting.examples)


def _clean(setting: Setting, metric: str) -> Array:
    return statistics.finite(setting.error) if metric == "error" else setting.curves[metric]


Cells = Callable[[Evidence], Iterable[Cell]]
Options = ParamSpec("Options")


def comparison(function: Callable[Concatenate[Evidence, Options], Iterable[Cell]]) -> Callable[Options, Cells]:
    """Lets a comparison with options be called with the options alone; what it gives waits for the evidence."""
    return lambda *options, **named: lambda evidence: function(evidence, *options, **named)


@dataclass(frozen=True)
class Claim:
    """One sentence of the paper."""

    key: str
    """Name of the claim, which begins with the figure's key: `fig6.cbp-stable`."""
    quote: str
    """The sentence in the paper's words."""
    definition: str
    """What is computed, and when the claim counts as right."""
    cells: Cells
    """The comparisons, made from the evidence."""

    @property
    def figure(self) -> str:
        """Key of the figure that supports the claim."""
        return self.key.partition(".")[0]


@dataclass(frozen=True)
class CellFinding:
    """What came out of one comparison."""

    name: str
    estimate: float
    low: float
    high: float
    verdict: Verdict
    runs: int
    """Number of runs per setting."""
    needed: int | None = None
    """If it is undecided, about how many runs would decide it, should the estimate be right; None if that can't be told."""


@dataclass(frozen=True)
class Finding:
    """What came out of one claim."""

    key: str
    figure: str
    quote: str
    definition: str
    verdict: Verdict
    runs: int
    """Number of runs per setting, the least of all cells."""
    level: float
    """Confidence level of the interval of each cell."""
    cells: tuple[CellFinding, ...]

    @property
    def decisive(self) -> CellFinding:
        """The cell that decides: the one with the lowest interval if the claim holds, else the one furthest against it."""
        return min(self.cells, key=lambda cell: cell.high if self.verdict is Verdict.FAILS else cell.low)


def evaluate(claim: Claim, evidence: Evidence) -> Finding:
    """Judges one claim by the evidence."""
    cells = list(claim.cells(evidence))
    level = 1 - (1 - LEVEL) / len(cells)
    return conclude(claim, [judge(cell, level, cell.runs or evidence.settings.runs) for cell in cells], level)


def conclude(claim: Claim, cells: Sequence[CellFinding], level: float) -> Finding:
    """The finding of a claim from those of its comparisons."""
    verdicts = {cell.verdict for cell in cells}
    verdict = next(worst for worst in (Verdict.FAILS, Verdict.UNDECIDED, Verdict.HOLDS) if worst in verdicts)
    runs = min(cell.runs for cell in cells)
    return Finding(claim.key, claim.figure, claim.quote, claim.definition, verdict, runs, level, tuple(cells))


def judge(cell: Cell, level: float, runs: int) -> CellFinding:
    """Judges one comparison by its interval."""
    low, high = statistics.interval(cell.statistic, level, runs)
    verdict = Verdict.UNDECIDED
    if runs >= LEAST_RUNS and (low > 0 or high < 0):
        verdict = Verdict.HOLDS if low > 0 else Verdict.FAILS
    needed = _runs_needed(cell.statistic, low, high, runs) if verdict is Verdict.UNDECIDED else None
    return CellFinding(cell.name, float(cell.statistic[0]), low, high, verdict, runs, needed)


def _runs_needed(statistic: Array, low: float, high: float, runs: int) -> int | None:
    """So many that the interval, which narrows with their square root, would end at zero."""
    estimate = float(statistic[0])
    # A count, or a share of few settings, jumps; its interval does not narrow so.
    jumps = len(np.unique(statistic)) < JUMPS
    if runs < LEAST_RUNS or jumps or estimate == 0:
        return None
    reach = estimate - low if estimate > 0 else high - estimate
    return math.ceil(runs * (reach / estimate) ** 2)
