"""What is computed from the runs of Slippery Ant: the columns of tables, and the comparisons that claims are made of.

A *phase* is the time between two changes of the friction. A bin belongs to the phase that it lies in; one that sees two
frictions belongs to none.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from cbp_ray.figures import statistics
from cbp_ray.figures.claims import Cell, Evidence, comparison
from cbp_ray.figures.results import Setting, Settings
from cbp_ray.figures.statistics import Array

if TYPE_CHECKING:
    from cbp_ray.problems import SlipperyAntConfig

RETURN = "episode_return"
"""Name of the metric that says how well the ant walks."""
LOST = 0.1
"""The share of the return at the beginning where "as well as initially" ends and "degrades" begins."""


class Phase(NamedTuple):
    """The bins of one friction."""

    begins: int
    """Time-steps before it."""
    bins: NDArray[np.intp]
    """Indices of its bins."""


def friction_period(setting: Setting) -> int:
    """Time-steps between two changes of the friction."""
    return cast("SlipperyAntConfig", setting.config.problem).friction_period


def phases(setting: Setting) -> list[Phase]:
    """The phases that have bins, one after the other."""
    period, ends = friction_period(setting), setting.curves.examples
    first, last = np.concatenate([[0], ends[:-1]]) // period, (ends - 1) // period
    inside = first == last
    return [Phase(int(number) * period, np.flatnonzero(inside & (last == number))) for number in np.unique(last[inside])]


def tenth(phase: Phase) -> int:
    """Number of bins in a tenth of a phase, at least one."""
    return max(1, len(phase.bins) // 10)


def tenths(setting: Setting) -> tuple[Array, Array]:
    """Mean return of each run in the first and in the last tenth of each phase, [runs, phases]; at least one bin each."""
    returns = setting.curves[RETURN]
    parts = [(phase.bins, tenth(phase)) for phase in phases(setting)]
    first, last = ([bins[:number] for bins, number in parts], [bins[-number:] for bins, number in parts])
    return (
        np.stack([returns[:, bins].mean(axis=1) for bins in first], axis=1),
        np.stack([returns[:, bins].mean(axis=1) for bins in last], axis=1),
    )


def beginning(setting: Setting) -> Array:
    """Mean return of each run in the second half of the first phase."""
    return _second_half(setting, phases(setting)[0])


def end(setting: Setting) -> Array:
    """Mean return of each run in the second half of the last phase."""
    return _second_half(setting, phases(setting)[-1])


def _second_half(setting: Setting, phase: Phase) -> Array:
    bins = phase.bins[len(phase.bins) // 2 :]
    return np.asarray(setting.curves[RETURN][:, bins].mean(axis=1))


def numbers(setting: Setting, settings: Settings) -> dict[str, Any]:
    """Columns of tables: total return, beginning and end, what is kept, and what the networks have become."""
    first, last = beginning(setting), end(setting)
    layers = range(1, len(setting.config.hidden) + 1)
    weights = [f"{network}_weight_magnitude_{layer}" for network in ("policy", "value") for layer in layers]
    return {
        "total_return": 1 - setting.mean_total,
        "total_return_se": setting.standard_error_of_total,
        "beginning": float(first.mean()),
        "end": float(last.mean()),
        "end_se": statistics.standard_error(last),
        "kept": float(last.mean() / first.mean()),
        **{f"late_{name}": _late(setting, name) for name in ("dormant", "saturated", "stable_rank", *weights)},
    }


def _late(setting: Setting, metric: str) -> float:
    return float(statistics.late(setting.curves[metric]).mean())


@comparison
def degrades(evidence: Evidence, algorithm: str) -> Iterator[Cell]:
    """An algorithm at its best setting ends at less than 90% of its return at the beginning."""
    yield Cell(label(evidence, algorithm), -_kept(evidence, evidence.settings.best(algorithm=algorithm)))


@comparison
def stays(evidence: Evidence, algorithm: str, utility: str | None = None) -> Iterator[Cell]:
    """An algorithm at its best setting ends at more than 90% of its return at the beginning."""
    wanted = {"algorithm": algorithm} | ({} if utility is None else {"utility": utility})
    yield Cell(label(evidence, algorithm), _kept(evidence, evidence.settings.best(**wanted)))


@comparison
def better(evidence: Evidence, algorithms: Sequence[str], than: Sequence[str]) -> Iterator[Cell]:
    """Each algorithm has a larger total return than each of the others, all at their best settings."""
    for name in algorithms:
        for other in than:
            labels = f"{label(evidence, name)} - {label(evidence, other)}"
            yield Cell(labels, evidence.least(algorithm=other) - evidence.least(algorithm=name))


@comparison
def utilities_better_than_backprop(evidence: Evidence, utilities: Sequence[str]) -> Iterator[Cell]:
    """Continual PPO with each utility has a larger total return than PPO."""
    for utility in utilities:
        yield Cell(in_words(utility), evidence.least(algorithm="bp") - evidence.least(algorithm="cbp", utility=utility))


@comparison
def utility_better(evidence: Evidence, utility: str, than: str) -> Iterator[Cell]:
    """Continual PPO has a larger total return with one utility than with another."""
    totals = [evidence.least(algorithm="cbp", utility=name) for name in (utility, than)]
    yield Cell(f"{in_words(utility)} - {in_words(than)}", totals[1] - totals[0])


@comparison
def difference_grows(evidence: Evidence, utility: str, than: str) -> Iterator[Cell]:
    """What one utility is better than another is more at the end than at the beginning."""
    one, other = (evidence.settings.best(algorithm="cbp", utility=name) for name in (utility, than))
    late, early = (evidence.mean(part(one) - part(other)) for part in (end, beginning))
    yield Cell(f"{in_words(utility)} - {in_words(than)}", late - early)


def label(evidence: Evidence, algorithm: str) -> str:
    """What a method is called where PPO learns by it."""
    return evidence.settings.label(algorithm)


def in_words(utility: str) -> str:
    """A utility as it is called in print."""
    return utility.replace("_", " ").replace("mean corrected", "mean-corrected")


def _kept(evidence: Evidence, setting: Setting) -> Array:
    """End - 0.9 of the beginning, as a fraction of the beginning's size: above zero if the return is kept."""
    first, last = evidence.mean(beginning(setting)), evidence.mean(end(setting))
    return np.asarray((last - first) / np.abs(first) + LOST)
