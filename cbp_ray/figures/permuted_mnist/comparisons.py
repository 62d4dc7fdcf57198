"""What is computed from the runs of Permuted MNIST: the columns of tables, and the comparisons that claims are made of.

In comparisons, differences of accuracy are in percentage points.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from cbp_ray.figures import statistics
from cbp_ray.figures.claims import Cell, Evidence, comparison
from cbp_ray.figures.results import Setting, Settings, rate_in_words
from cbp_ray.figures.statistics import Array

FALL = 0.5
"""Percentage points: where a flat curve ends and a falling one begins."""
GROWTH = 0.05
"""Where weights that have stopped growing end and growing ones begin: growth over the second half of a run."""
LAST_LAYER = "output_weight_magnitude"
"""Name of the metric of the last layer's weights."""


def numbers(setting: Setting, settings: Settings) -> dict[str, Any]:
    """Columns of tables: total accuracy, high point, late accuracy, fall, weights and dead units of one setting."""
    late, high = 1 - statistics.late(setting.error), 1 - statistics.low_point(setting.error)[0]
    magnitude = setting.curves[LAST_LAYER]
    layers = range(1, len(setting.config.hidden) + 1)
    return {
        "total_accuracy": 1 - setting.mean_total,
        "total_accuracy_se": setting.standard_error_of_total,
        "high_point": float(high.mean()),
        "late_accuracy": float(late.mean()),
        "late_accuracy_se": statistics.standard_error(late),
        "fall": float(high.mean() - late.mean()),
        "late_weight_magnitude": float(statistics.late(magnitude).mean()),
        "weight_growth": float(statistics.late(magnitude).mean() / statistics.middle(magnitude).mean() - 1),
        **{f"late_dead_{layer}": float(statistics.late(setting.curves[f"dead_{layer}"]).mean()) for layer in layers},
    }


@comparison
def backprop_falls(evidence: Evidence, name: str) -> Iterator[Cell]:
    """The accuracy of BP falls for every value of a property of settings (`step_size`, say)."""
    for setting in _along(evidence, name):
        yield Cell(setting.in_words(name), fall(evidence, setting) - FALL)


@comparison
def falls_more(evidence: Evidence, name: str, larger: bool = False) -> Iterator[Cell]:
    """The accuracy of BP falls more the smaller (larger) a property is, from each value to the next."""
    for setting, milder in pairwise(_along(evidence, name, larger)):
        yield _falls_more(evidence, name, setting, milder)


@comparison
def falls_most(evidence: Evidence, name: str) -> Iterator[Cell]:
    """The accuracy of BP falls more for the smallest value of a property than for any other."""
    worst, *rest = _along(evidence, name)
    for milder in rest:
        yield _falls_more(evidence, name, worst, milder)


@comparison
def stays(evidence: Evidence, algorithms: Sequence[str], stable: bool) -> Iterator[Cell]:
    """The accuracy of each algorithm at its best setting is stable (or falls)."""
    for name in algorithms:
        drop = fall(evidence, evidence.settings.best(algorithm=name))
        yield Cell(evidence.settings.label(name), FALL - drop if stable else drop - FALL)


def good_at_every_rate(evidence: Evidence) -> Iterator[Cell]:
    """CBP is stable, and at the end better than BP, for every replacement rate."""
    plain = evidence.late(evidence.settings.one(algorithm="bp"))
    for setting in evidence.settings.select(algorithm="cbp"):
        rate = rate_in_words(setting.parameter)
        yield Cell(f"rate {rate}, stable", FALL - fall(evidence, setting))
        yield Cell(f"rate {rate}, above BP", 100 * (plain - evidence.late(setting)))


@comparison
def weights_grow(evidence: Evidence, algorithms: Sequence[str], growing: bool) -> Iterator[Cell]:
    """The last layer's weights of each algorithm at its best setting keep growing (or have stopped)."""
    for name in algorithms:
        growth = evidence.growth(evidence.settings.best(algorithm=name), LAST_LAYER)
        yield Cell(evidence.settings.label(name), growth - GROWTH if growing else GROWTH - growth)


@comparison
def drops_more(evidence: Evidence, algorithms: Sequence[str], than: Sequence[str]) -> Iterator[Cell]:
    """At the best settings, the accuracy of each algorithm falls more than that of each of the others."""
    drops = {name: fall(evidence, evidence.settings.best(algorithm=name)) for name in (*algorithms, *than)}
    for name in algorithms:
        for other in than:
            labels = f"{evidence.settings.label(name)} - {evidence.settings.label(other)}"
            yield Cell(labels, drops[name] - drops[other])


def fall(evidence: Evidence, setting: Setting) -> Array:
    """High point - late accuracy, in percentage points."""
    return 100 * evidence.fall(setting)


def _falls_more(evidence: Evidence, name: str, setting: Setting, milder: Setting) -> Cell:
    words = [one.in_words(name) for one in (setting, milder)]
    return Cell(" - ".join(words), fall(evidence, setting) - fall(evidence, milder))


def _along(evidence: Evidence, name: str, largest_first: bool = False) -> list[Setting]:
    """The settings of BP by rising (falling) value of a property."""
    return sorted(evidence.settings.select(algorithm="bp"), key=lambda setting: getattr(setting, name), reverse=largest_first)
