"""The comparisons that claims about accuracy are made of. Differences of accuracy are in percentage points."""

from collections.abc import Iterable, Iterator
from itertools import pairwise

from cbp_ray.figures.cases import Case
from cbp_ray.figures.claims import Cell, Evidence
from cbp_ray.figures.comparisons import Cells
from cbp_ray.figures.names import NAMES, in_words, rate_in_words
from cbp_ray.figures.statistics import Array

FALL = 0.5
"""Percentage points: where a flat curve ends and a falling one begins."""
GROWTH = 0.05
"""Where weights that have stopped growing end and growing ones begin: growth over the second half of a run."""
LAST_LAYER = "output_weight_magnitude"


def backprop_falls(setting: str) -> Cells:
    """The accuracy of BP falls for every value of a setting."""

    def cells(evidence: Evidence) -> Iterator[Cell]:
        for case in _along(evidence, setting):
            yield Cell(in_words(setting, getattr(case, setting)), fall(evidence, case) - FALL)

    return cells


def falls_more(setting: str, larger: bool = False) -> Cells:
    """The accuracy of BP falls more the smaller (larger) a setting is, from each value to the next."""

    def cells(evidence: Evidence) -> Iterator[Cell]:
        for case, milder in pairwise(_along(evidence, setting, larger)):
            yield _falls_more(evidence, setting, case, milder)

    return cells


def falls_most(setting: str) -> Cells:
    """The accuracy of BP falls more for the smallest value of a setting than for any other."""

    def cells(evidence: Evidence) -> Iterator[Cell]:
        worst, *rest = _along(evidence, setting)
        for milder in rest:
            yield _falls_more(evidence, setting, worst, milder)

    return cells


def stays(algorithms: Iterable[str], stable: bool) -> Cells:
    """The accuracy of each algorithm at its best setting is stable (or falls)."""

    def cells(evidence: Evidence) -> Iterator[Cell]:
        for name in algorithms:
            drop = fall(evidence, evidence.cases.best(algorithm=name))
            yield Cell(NAMES[name], FALL - drop if stable else drop - FALL)

    return cells


def good_at_every_rate(evidence: Evidence) -> Iterator[Cell]:
    """CBP is stable, and at the end better than BP, for every replacement rate."""
    plain = evidence.late(evidence.cases.one(algorithm="bp"))
    for case in evidence.cases.select(algorithm="cbp"):
        rate = rate_in_words(case.parameter)
        yield Cell(f"rate {rate}, stable", FALL - fall(evidence, case))
        yield Cell(f"rate {rate}, above BP", 100 * (plain - evidence.late(case)))


def weights_grow(algorithms: Iterable[str], growing: bool) -> Cells:
    """The last layer's weights of each algorithm at its best setting keep growing (or have stopped)."""

    def cells(evidence: Evidence) -> Iterator[Cell]:
        for name in algorithms:
            growth = evidence.growth(evidence.cases.best(algorithm=name), LAST_LAYER)
            yield Cell(NAMES[name], growth - GROWTH if growing else GROWTH - growth)

    return cells


def drops_more(algorithms: Iterable[str], than: Iterable[str]) -> Cells:
    """At the best settings, the accuracy of each algorithm falls more than that of each of the others."""
    others = list(than)

    def cells(evidence: Evidence) -> Iterator[Cell]:
        drops = {name: fall(evidence, evidence.cases.best(algorithm=name)) for name in (*algorithms, *others)}
        for name in algorithms:
            for other in others:
                yield Cell(f"{NAMES[name]} - {NAMES[other]}", drops[name] - drops[other])

    return cells


def fall(evidence: Evidence, case: Case) -> Array:
    """High point - late accuracy, in percentage points."""
    return 100 * evidence.fall(case)


def _falls_more(evidence: Evidence, setting: str, case: Case, milder: Case) -> Cell:
    words = [in_words(setting, getattr(one, setting)) for one in (case, milder)]
    return Cell(" - ".join(words), fall(evidence, case) - fall(evidence, milder))


def _along(evidence: Evidence, setting: str, largest_first: bool = False) -> list[Case]:
    """The cases of BP by rising (falling) setting."""
    return sorted(evidence.cases.select(algorithm="bp"), key=lambda case: getattr(case, setting), reverse=largest_first)
