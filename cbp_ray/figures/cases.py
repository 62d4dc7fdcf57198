"""The results behind a figure: every setting of its sweep with its runs, and how to pick from them."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cbp_ray.experiments import Curves, OnlineConfig
from cbp_ray.figures import statistics
from cbp_ray.figures.statistics import Array
from cbp_ray.methods.method import TOLD


@dataclass(frozen=True)
class Case:
    """One setting and its runs."""

    config: OnlineConfig
    curves: Curves

    @property
    def algorithm(self) -> str:
        """`bp`, `l2`, `online_norm`, `cbp` or `linear`."""
        return self.config.algorithm.name

    @property
    def activation(self) -> str | None:
        """None for the linear tracker, which has no hidden units."""
        return self.config.network.activation if self.config.algorithm.hidden else None

    @property
    def optimizer(self) -> str:
        """`sgd` or `adam`."""
        return self.config.optimizer.name

    @property
    def step_size(self) -> float:
        """α."""
        return self.config.optimizer.step_size

    @property
    def width(self) -> int | None:
        """Units of the first hidden layer; None for the linear tracker."""
        return self.config.hidden[0] if self.config.hidden else None

    @property
    def task_length(self) -> int | None:
        """Examples between two changes of the permutation; None unless Permuted MNIST."""
        return self.config.problem.examples_per_task

    @property
    def examples(self) -> int:
        """Length of a run."""
        return self.config.examples

    @property
    def utility(self) -> str | None:
        """Which utility decides; None unless Continual Backprop."""
        return self.config.algorithm.told.get("utility")

    @property
    def parameter(self) -> float:
        """What the sensitivity figures sweep: replacement rate, weight decay, else the step size."""
        method = self.config.algorithm
        return self.step_size if method.swept is None else float(getattr(method, method.swept))

    @cached_property
    def error(self) -> Array:
        """[runs, bins]: squared error, or the fraction of wrong classifications. Small is good, whatever the problem."""
        if "accuracy" in self.curves.metrics:
            return np.asarray(1 - self.curves.accuracy)
        return self.curves.error

    @cached_property
    def total(self) -> Array:
        """Mean error per example of each run, [runs]."""
        return statistics.total(self.error, self.curves.examples)

    @cached_property
    def mean_total(self) -> float:
        """What settings are chosen by: the mean over the runs."""
        return float(self.total.mean())

    @cached_property
    def standard_error_of_total(self) -> float:
        """Of `mean_total`; not a number for a single run."""
        runs = len(self.total)
        return float(self.total.std(ddof=1) / math.sqrt(runs)) if runs > 1 else math.nan

    @cached_property
    def diverged(self) -> int:
        """Runs that did not stay finite."""
        return int((~self._stayed_finite).sum())

    @cached_property
    def _stayed_finite(self) -> NDArray[np.bool_]:
        # The accuracy of a network of not-a-numbers is a number.
        metric = self.curves.metrics.get("loss", self.error)
        return np.asarray(np.isfinite(metric).all(axis=1))

    @cached_property
    def survivors(self) -> "Case | None":
        """The same without the diverged runs, for drawings; None if all diverged."""
        keep = self._stayed_finite
        if not keep.any():
            return None
        seeds = tuple(seed for seed, kept in zip(self.curves.seeds, keep, strict=True) if kept)
        metrics = {name: values[keep] for name, values in self.curves.metrics.items()}
        return Case(self.config, Curves(seeds, self.curves.examples, metrics))

    @property
    def settings(self) -> dict[str, Any]:
        """What tells this case from others, for tables; None where it does not apply."""
        own = {**dict.fromkeys(TOLD), **self.config.algorithm.told}
        return {
            "algorithm": self.algorithm,
            "activation": self.activation,
            "optimizer": self.optimizer,
            "step_size": self.step_size,
            **own,
            **({"width": self.width, "task_length": self.task_length} if self.task_length is not None else {}),
        }


class Cases:
    """All cases of a figure."""

    def __init__(self, cases: Iterable[Case]) -> None:
        self._cases = tuple(cases)

    def __iter__(self) -> Iterator[Case]:
        return iter(self._cases)

    def __len__(self) -> int:
        return len(self._cases)

    @cached_property
    def runs(self) -> int:
        """Runs that every case has."""
        return min(len(case.curves.seeds) for case in self._cases)

    def select(self, **properties: Any) -> "Cases":
        """The cases with these properties (`algorithm="l2"`, say), by rising `parameter`.

        Raises:
          LookupError: if there are none.
        """
        found = [case for case in self._cases if all(_equal(getattr(case, key), v) for key, v in properties.items())]
        if not found:
            raise LookupError(f"no case with {properties}")
        return Cases(sorted(found, key=lambda case: case.parameter))

    def one(self, **properties: Any) -> Case:
        """The only case with these properties.

        Raises:
          LookupError: if there is none, or more than one.
        """
        found = list(self.select(**properties))
        if len(found) > 1:
            raise LookupError(f"{len(found)} cases with {properties}")
        return found[0]

    def best(self, **properties: Any) -> Case:
        """The case of least total error among those with these properties, as the paper chooses settings."""
        return min(self.select(**properties), key=lambda case: case.mean_total)

    def has(self, **properties: Any) -> bool:
        """Whether there is such a case."""
        try:
            return len(self.select(**properties)) > 0
        except LookupError:
            return False

    def totals(self) -> Array:
        """Total error of every case and run, [cases, runs]."""
        return np.stack([case.total for case in self._cases])

    def values(self, name: str) -> list[Any]:
        """The distinct values of a property, in order of appearance."""
        return list(dict.fromkeys(getattr(case, name) for case in self._cases))


def _equal(value: Any, wanted: Any) -> bool:
    if isinstance(wanted, float) and isinstance(value, float | int):
        return math.isclose(value, wanted, rel_tol=1e-9)
    return bool(value == wanted)
