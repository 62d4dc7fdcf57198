"""A second look at claims that their runs leave undecided: more runs, of those settings alone that undecided comparisons read.

Where a comparison is about the best setting, that is the one which was best in the first runs. Which settings a comparison
reads is watched, not declared.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from cbp_ray.experiments.curves import Curves
from cbp_ray.figures.claims import Claim, Evidence, Finding, Verdict, conclude, judge
from cbp_ray.figures.figure import Figure
from cbp_ray.figures.reproduce import check
from cbp_ray.figures.results import Setting, Settings, error_of
from cbp_ray.figures.statistics import Array, total
from cbp_ray.results import Store
from cbp_ray.sweeps import Sweep


@dataclass(frozen=True)
class _WatchedCurves(Curves):
    """Curves that say when one of them is read."""

    note: Callable[[], None]

    def __getitem__(self, metric: str) -> NDArray[np.float64]:
        self.note()
        return super().__getitem__(metric)


@dataclass(frozen=True)
class _Watched(Setting):
    """A setting that says when its runs are read, but not when it is only asked whether it is the best."""

    first: Setting

    @property
    def error(self) -> Array:
        return error_of(self)

    @property
    def total(self) -> Array:
        return total(self.error, self.curves.examples)

    @property
    def mean_total(self) -> float:
        return self.first.mean_total


def settings_read(claim: Claim, settings: Settings) -> list[frozenset[int]]:
    """Of each comparison of a claim, which settings its runs come from, as their numbers among the settings."""
    noted: set[int] = set()

    def watch(number: int, setting: Setting) -> Setting:
        curves = setting.curves
        own = _WatchedCurves(curves.seeds, curves.examples, curves.metrics, lambda: noted.add(number))
        return _Watched(setting.config, own, setting)

    watched = Settings(watch(number, setting) for number, setting in enumerate(settings))
    found: list[frozenset[int]] = []
    for _ in claim.cells(Evidence(watched, resamples=1)):
        # What was read before the first cell may be common to all.
        found.append(frozenset(noted) | (found[0] if found else frozenset()))
        noted.clear()
    return found


@dataclass(frozen=True)
class Undecided:
    """The comparisons of a claim that are not decided yet."""

    claim: Claim
    finding: Finding
    cells: tuple[int, ...]
    """Their numbers."""
    settings: frozenset[int]
    """Numbers of the settings that they read."""


def undecided(claims: Iterable[Claim], findings: Iterable[Finding], settings: Settings) -> list[Undecided]:
    """What is left open."""
    found = []
    for claim, finding in zip(claims, findings, strict=True):
        # A claim that fails in one comparison has failed.
        if finding.verdict is Verdict.UNDECIDED:
            cells = tuple(number for number, cell in enumerate(finding.cells) if cell.verdict is Verdict.UNDECIDED)
            read = settings_read(claim, settings)
            found.append(Undecided(claim, finding, cells, frozenset().union(*(read[number] for number in cells))))
    return found


def more_runs(sweep: Sweep, left: Sequence[Undecided], settings: Settings, runs: int) -> Sweep | None:
    """The sweep with so many runs of the settings that are left open; None if nothing is, or it has as many."""
    keys = {_key(setting) for number, setting in enumerate(settings) if any(number in one.settings for one in left)}
    some = tuple(each for each in sweep.configurations if each.config.model_dump_json() in keys)
    if not some or runs <= len(sweep.seeds):
        return None
    return replace(sweep, configurations=some, seeds=tuple(range(runs)), source=f"{sweep.source}-decide")


def read_more(sweep: Sweep, storage: str | os.PathLike[str]) -> dict[str, Curves]:
    """The stored curves of `more_runs`, by config.

    Raises:
      MissingResults: if a run is not stored.
    """
    store = Store(storage, sweep.name)
    names, configs = store.names(), [each.config for each in sweep.configurations]
    return {config.model_dump_json(): store.read_curves(config, sweep.seeds, sweep.engine, names) for config in configs}


def look_again(left: Undecided, settings: Settings, more: Mapping[str, Curves]) -> Finding:
    """Judges the open comparisons of a claim by more runs.

    Args:
      left: what is open.
      settings: the settings with their first runs.
      more: by config, the curves of all runs of the settings that were run again.
    """
    (runs,) = {len(more[_key(setting)].seeds) for number, setting in enumerate(settings) if number in left.settings}
    again = Settings(_Watched(setting.config, _stretched(setting, more, runs), setting) for setting in settings)
    cells = list(left.claim.cells(Evidence(again)))
    judged = list(left.finding.cells)
    for number in left.cells:
        judged[number] = judge(cells[number], left.finding.level, runs)
    return conclude(left.claim, judged, left.finding.level)


def _stretched(setting: Setting, more: Mapping[str, Curves], runs: int) -> Curves:
    """All runs of a setting. Of one that was not run again, copies in their places, for comparisons that nobody asks about."""
    curves = more.get(_key(setting), setting.curves)
    count = len(curves.seeds)
    if count == runs:
        return curves
    rows = np.arange(runs) % count
    return Curves(tuple(range(runs)), curves.examples, {name: values[rows] for name, values in curves.metrics.items()})


def _key(setting: Setting) -> str:
    return setting.config.model_dump_json()


def further_sweeps(
    figures: Sequence[Figure], sweeps: Sequence[Sweep], settings: Sequence[Settings], runs: int
) -> list[Sweep | None]:
    """What has to run, figure by figure, so that undecided comparisons have so many runs."""
    found = []
    for figure, sweep, own in zip(figures, sweeps, settings, strict=True):
        found.append(more_runs(sweep, undecided(figure.claims, check(figure, own), own), own, runs))
    return found


def decided(
    figures: Sequence[Figure],
    sweeps: Sequence[Sweep],
    settings: Sequence[Settings],
    findings: Sequence[list[Finding]],
    storage: str | os.PathLike[str],
    runs: int,
) -> list[list[Finding]]:
    """The findings of figures after a second look with so many runs, which must be stored.

    Raises:
      MissingResults: if a run is not stored.
    """
    found = []
    for figure, sweep, own, first in zip(figures, sweeps, settings, findings, strict=True):
        left = undecided(figure.claims, first, own)
        further = more_runs(sweep, left, own, runs)
        more = {} if further is None else read_more(further, storage)
        again = {} if further is None else {one.claim.key: look_again(one, own, more) for one in left}
        found.append([again.get(finding.key, finding) for finding in first])
    return found
