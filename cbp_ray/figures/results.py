"""The results behind a figure: every setting of its sweep with its runs, and how to pick from them."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cbp_ray.figures import statistics
from cbp_ray.figures.statistics import Array

if TYPE_CHECKING:
    from cbp_ray.experiments import Curves, OnlineConfig
    from cbp_ray.problems import Problem

_WORDS = {"step_size": "step size {:g}", "task_length": "change every {:,}", "width": "width {}"}


@dataclass(frozen=True)
class Setting:
    """One setting of a sweep with its runs."""

    config: "OnlineConfig"
    curves: "Curves"

    @property
    def algorithm(self) -> str:
        """Name of the method in configs: `bp`, `cbp`, ..."""
        return self.config.algorithm.name

    @property
    def label(self) -> str:
        """What the method is called in print where it learns this problem."""
        return self.config.label

    @property
    def look(self) -> dict[str, Any]:
        """Matplotlib settings of the method's curves."""
        return self.config.algorithm.look

    @property
    def activation(self) -> str | None:
        """Name of the activation in configs; None for a method without hidden units."""
        return self.config.network.activation if self.config.algorithm.hidden else None

    @property
    def optimizer(self) -> str:
        """Name of the optimizer in configs: `sgd` or `adam`."""
        return self.config.optimizer.name

    @property
    def step_size(self) -> float:
        """Step size α of the optimizer."""
        return self.config.optimizer.step_size

    @property
    def width(self) -> int | None:
        """Units of the first hidden layer; None for a method without hidden units."""
        return self.config.hidden[0] if self.config.hidden else None

    @property
    def task_length(self) -> int | None:
        """Examples between two changes of the permutation; None for a problem without tasks."""
        return self.config.problem.examples_per_task

    @property
    def examples(self) -> int:
        """Length of a run."""
        return self.config.examples

    @property
    def utility(self) -> str | None:
        """Name of the utility that decides on replacements; None for a method without one."""
        return self.config.algorithm.told.get("utility")

    @property
    def parameter(self) -> float:
        """Value of the setting that sensitivity figures sweep, which the method names; else the step size."""
        method = self.config.algorithm
        return self.step_size if method.swept is None else float(getattr(method, method.swept))

    def has(self, **properties: Any) -> bool:
        """Whether its properties have these values, numbers up to rounding."""
        return all(_equal(getattr(self, name), wanted) for name, wanted in properties.items())

    def in_words(self, name: str) -> str:
        """One of its properties with its value: `step size 0.01`, `change every 10,000`."""
        return _WORDS[name].format(getattr(self, name))

    @cached_property
    def error(self) -> Array:
        """[runs, bins]: squared error, or the fraction of wrong classifications. Small is good, whatever the problem."""
        return error_of(self)

    @cached_property
    def total(self) -> Array:
        """Mean error per example of each run, [runs]."""
        return statistics.total(self.error, self.curves.examples)

    @cached_property
    def mean_total(self) -> float:
        """Mean of `total` over the runs, by which the best setting is chosen."""
        return float(self.total.mean())

    @cached_property
    def standard_error_of_total(self) -> float:
        """Standard error of `mean_total`; not a number for a single run."""
        return statistics.standard_error(self.total)

    @cached_property
    def diverged(self) -> int:
        """Number of runs that did not stay finite."""
        return int((~self._stayed_finite).sum())

    @cached_property
    def _stayed_finite(self) -> NDArray[np.bool_]:
        # The accuracy of a network of not-a-numbers is a number.
        metric = self.curves.metrics.get("loss", self.error)
        return np.asarray(np.isfinite(metric).all(axis=1))

    @cached_property
    def survivors(self) -> "Setting | None":
        """The same setting without its diverged runs, for drawings; None if all runs diverged."""
        keep = self._stayed_finite
        if not keep.any():
            return None
        seeds = tuple(seed for seed, kept in zip(self.curves.seeds, keep, strict=True) if kept)
        metrics = {name: values[keep] for name, values in self.curves.metrics.items()}
        return replace(self, curves=replace(self.curves, seeds=seeds, metrics=metrics))

    @property
    def told(self) -> dict[str, Any]:
        """What tells this setting from others, for tables; None where it does not apply."""
        # Inside: listing the figures needs this module, and not pydantic.
        from cbp_ray.methods.method import TOLD

        return {
            "algorithm": self.algorithm,
            "activation": self.activation,
            "optimizer": self.optimizer,
            "step_size": self.step_size,
            **dict.fromkeys(TOLD),
            **self.config.algorithm.told,
            **({"width": self.width, "task_length": self.task_length} if self.task_length is not None else {}),
        }


class Settings:
    """The settings of a figure, all of one problem."""

    def __init__(self, settings: Iterable[Setting]) -> None:
        self._settings = tuple(settings)

    def __iter__(self) -> Iterator[Setting]:
        return iter(self._settings)

    @property
    def problem(self) -> "Problem":
        """The problem of the first setting, which has the words for all of them."""
        return self._settings[0].config.problem

    @cached_property
    def runs(self) -> int:
        """Number of runs that every setting has."""
        return min(len(setting.curves.seeds) for setting in self._settings)

    def select(self, **properties: Any) -> "Settings":
        """The settings with these properties (`algorithm="l2"`, say), by rising `parameter`.

        Raises:
          LookupError: if there are none.
        """
        found = [one for one in self._settings if one.has(**properties)]
        if not found:
            raise LookupError(f"no setting with {properties}")
        return Settings(sorted(found, key=lambda setting: setting.parameter))

    def one(self, **properties: Any) -> Setting:
        """The only setting with these properties.

        Raises:
          LookupError: if there is none, or more than one.
        """
        first, *others = self.select(**properties)
        if others:
            raise LookupError(f"{1 + len(others)} settings with {properties}")
        return first

    def best(self, **properties: Any) -> Setting:
        """The setting of least total error among those with these properties, as the paper chooses settings."""
        return min(self.select(**properties), key=lambda setting: setting.mean_total)

    def has(self, **properties: Any) -> bool:
        """Whether there is such a setting."""
        return any(setting.has(**properties) for setting in self._settings)

    def label(self, algorithm: str) -> str:
        """What a method that is among the settings is called in print."""
        return next(setting.label for setting in self._settings if setting.algorithm == algorithm)


def error_of(setting: Setting) -> Array:
    """The error of a setting's runs, [runs, bins], see `Setting.error`."""
    metric = setting.config.problem.performance
    values = setting.curves[metric]
    if (episodes := setting.curves.metrics.get("episodes")) is not None:
        values = _carried_over(values, episodes == 0)
    return values if metric == "error" else np.asarray(1 - values)


def _carried_over(values: Array, missing: NDArray[np.bool_]) -> Array:
    """Values [runs, bins] with the latest known one where one is missing: in a bin in which no episode ended."""
    values = values.copy()
    for number in range(1, values.shape[1]):
        values[:, number] = np.where(missing[:, number], values[:, number - 1], values[:, number])
    return values


def _equal(value: Any, wanted: Any) -> bool:
    if isinstance(wanted, float) and isinstance(value, float | int):
        return math.isclose(value, wanted, rel_tol=1e-9)
    return bool(value == wanted)


def rate_in_words(rate: float) -> str:
    """A rate as `1e-4`, not `0.0001` or `1e-04`."""
    mantissa, exponent = f"{rate:e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}"
