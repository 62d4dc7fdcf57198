"""What is computed from the runs of Bit-Flipping: the columns of tables, and the comparisons that claims are made of.

A comparison gives one cell per algorithm, activation or step size that it is about.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np

from cbp_ray.activations import ACTIVATIONS
from cbp_ray.figures import statistics
from cbp_ray.figures.claims import Cell, Cells, Evidence, comparison
from cbp_ray.figures.results import Setting, Settings
from cbp_ray.figures.statistics import Array

RISE = 0.05
"""Where a flat curve ends and a rising one begins."""
SLIGHTLY_WORSE = 0.10
"""Excess of total error, as a fraction, that the paper's "slightly worse" allows."""
MOST = 1 / 2
"""Share of settings that "most" means at least."""
ALMOST_ALL = 3 / 4
"""Share of settings that "almost all" means at least."""
WIDE_DECADES = 2.0
"""Decades of replacement rates that a "wide range" covers at least."""
NEARLY_90_PERCENT = (0.80, 0.95)
"""Fractions between which "almost 90%" lies."""
SENSITIVITY_FACTOR = 10.0
"""Sensitivity is judged among settings within this factor of the best one."""

MAIN = ("tanh", "relu")
OTHERS = ("sigmoid", "leaky_relu", "elu", "swish")
ALL = tuple(ACTIVATIONS)
LARGER_STEPS = (0.01, 0.003)
STEPS = (*LARGER_STEPS, 0.001)


def numbers(setting: Setting, settings: Settings) -> dict[str, Any]:
    """Columns of tables: total error, low point, late error and late diagnostics of one setting."""
    error, linear = statistics.finite(setting.error), None
    if settings.has(algorithm="linear", examples=setting.examples):
        linear = statistics.finite(settings.best(algorithm="linear", examples=setting.examples).error)
    low, low_linear = statistics.low_point(error, linear)
    late = statistics.late(error)
    late_linear = 1.0 if linear is None else statistics.late(linear).mean()
    return {
        "total_error": setting.mean_total,
        "total_error_se": setting.standard_error_of_total,
        "low_point": float(low.mean()),
        "late_error": float(late.mean()),
        "late_error_se": statistics.standard_error(late),
        "rise": float((late.mean() / late_linear) / (low.mean() / low_linear.mean()) - 1),
        "late_saturated": float(statistics.late(setting.curves["saturated"]).mean()),
        "late_input_gradient": float(statistics.late(setting.curves["input_gradient"]).mean()),
    }


@comparison
def backprop_rises(evidence: Evidence, activations: Sequence[str], steps: Sequence[float]) -> Iterator[Cell]:
    """The error of BP rises, for every activation and step size."""
    for activation in activations:
        for step in steps:
            setting = longest(evidence.settings.select(algorithm="bp", activation=activation, step_size=step))
            yield Cell(f"{ACTIVATIONS[activation].label}, step {step:g}", evidence.rise(setting) - RISE)


def worse_than_linear(evidence: Evidence) -> Iterator[Cell]:
    """ReLU ends above the linear tracker."""
    linear = evidence.late(evidence.settings.best(algorithm="linear"))
    for step in STEPS:
        setting = evidence.settings.one(algorithm="bp", activation="relu", step_size=step)
        yield Cell(f"ReLU, step {step:g}", evidence.late(setting) - linear)


def rises_or_stays_higher(evidence: Evidence) -> Iterator[Cell]:
    """A small step rises, or ends above what the better of the larger steps had on average; errors are adjusted."""
    for activation in ALL:
        settings = evidence.settings.select(algorithm="bp", activation=activation)
        small = longest(settings.select(step_size=0.001))
        larger = [settings.one(step_size=step) for step in LARGER_STEPS]
        least = np.min([evidence.mean(one.total) for one in larger], axis=0) / evidence.linear_total(larger[0].examples)
        late = evidence.late(small) / evidence.late(evidence.linear(small))
        yield Cell(ACTIVATIONS[activation].label, np.maximum(evidence.rise(small) - RISE, late / least - 1))


@comparison
def stability(evidence: Evidence, algorithms: Sequence[str], activations: Sequence[str], stable: bool) -> Iterator[Cell]:
    """The best setting of each algorithm is stable (or rises), for every activation."""
    for algorithm in algorithms:
        for activation in activations:
            rise = evidence.rise(evidence.settings.best(algorithm=algorithm, activation=activation))
            name = f"{evidence.settings.label(algorithm)}, {ACTIVATIONS[activation].label}"
            yield Cell(name, RISE - rise if stable else rise - RISE)


@comparison
def better(evidence: Evidence, algorithm: str, than: str, activations: Sequence[str], slack: float = 0.0) -> Iterator[Cell]:
    """The total error is lower at the best settings, or at most `slack` higher: a fraction of the other's."""
    for activation in activations:
        mine = evidence.least(algorithm=algorithm, activation=activation)
        other = evidence.least(algorithm=than, activation=activation)
        name = f"{evidence.settings.label(algorithm)} against {evidence.settings.label(than)}, {ACTIVATIONS[activation].label}"
        yield Cell(name, (1 + slack) - mine / other)


def together(*parts: Cells) -> Cells:
    """One claim about all the cells of several."""
    return lambda evidence: (cell for part in parts for cell in part(evidence))


@comparison
def better_for_a_share(
    evidence: Evidence, share: float, algorithms: Sequence[str], activations: Sequence[str]
) -> Iterator[Cell]:
    """More than this share of the swept values has a lower total error than BP."""
    for algorithm in algorithms:
        for activation in activations:
            fraction = beats_backprop(evidence, algorithm, activation).mean(axis=0)
            yield Cell(f"{evidence.settings.label(algorithm)}, {ACTIVATIONS[activation].label}", fraction - share)


def beats_backprop(evidence: Evidence, algorithm: str, activation: str) -> Array:
    """1 where a swept value has a lower total error than BP, else 0; [values, 1 + resamples]."""
    swept = evidence.totals(evidence.settings.select(algorithm=algorithm, activation=activation))
    plain = evidence.mean(evidence.settings.one(algorithm="bp", activation=activation).total)
    return (swept < plain).astype(np.float64)


def wide_range(evidence: Evidence) -> Iterator[Cell]:
    """The longest stretch of successive replacement rates that beat BP covers some decades."""
    for activation in ALL:
        values = np.log10([setting.parameter for setting in evidence.settings.select(algorithm="cbp", activation=activation)])
        wins = beats_backprop(evidence, "cbp", activation) > 0
        longest_stretch = np.zeros(wins.shape[1])
        start = np.full(wins.shape[1], np.nan)
        for value, won in zip(values, wins, strict=True):
            start = np.where(won, np.where(np.isnan(start), value, start), np.nan)
            longest_stretch = np.fmax(longest_stretch, value - start)
        yield Cell(ACTIVATIONS[activation].label, longest_stretch - (WIDE_DECADES - 1e-9))


@comparison
def less_sensitive(evidence: Evidence, activations: Sequence[str]) -> Iterator[Cell]:
    """Near its best setting, CBP loses less than L2 does near its own."""
    for activation in activations:
        loss = {name: excess(evidence, name, activation) for name in ("l2", "cbp")}
        yield Cell(ACTIVATIONS[activation].label, loss["l2"] - loss["cbp"])


def excess(evidence: Evidence, algorithm: str, activation: str) -> Array:
    """Mean relative excess of the total error over the best, among the other settings near the best."""
    settings = evidence.settings.select(algorithm=algorithm, activation=activation)
    totals = evidence.totals(settings)
    parameters = np.array([setting.parameter for setting in settings])
    best = totals.argmin(axis=0)
    apart = np.abs(np.log(parameters[:, None] / parameters[None, best]))
    near = (apart > 1e-9) & (apart < np.log(SENSITIVITY_FACTOR) + 1e-9)
    relative = totals / totals.min(axis=0) - 1
    return np.asarray((relative * near).sum(axis=0) / near.sum(axis=0))


@comparison
def best_utility(evidence: Evidence, first: str, but: Collection[str] = ()) -> Iterator[Cell]:
    """At its best replacement rate, one utility has a lower total error than each of the others, but for some."""
    mine = evidence.least(algorithm="cbp", utility=first)
    for name in dict.fromkeys(setting.utility for setting in evidence.settings):
        if name is not None and name not in (first, *but):
            yield Cell(name.replace("_", " "), 1 - mine / evidence.least(algorithm="cbp", utility=name))


def longest(settings: Settings) -> Setting:
    """The setting with the longest runs."""
    return max(settings, key=lambda setting: setting.examples)


def saturation_grows(evidence: Evidence) -> Iterator[Cell]:
    """The fraction of saturated features of BP is larger late than early."""
    setting = evidence.settings.one(algorithm="bp")
    yield Cell("late - early", evidence.late(setting, "saturated") - evidence.early(setting, "saturated"))


def nearly_90_percent(evidence: Evidence) -> Iterator[Cell]:
    """Late in learning, nearly 90% of the features of BP are saturated."""
    fraction = evidence.late(evidence.settings.one(algorithm="bp"), "saturated")
    low, high = NEARLY_90_PERCENT
    yield Cell(f"above {low:.0%}", fraction - low)
    yield Cell(f"below {high:.0%}", high - fraction)


def gradient_shrinks(evidence: Evidence) -> Iterator[Cell]:
    """The input gradient of BP is smaller late than early."""
    setting = evidence.settings.one(algorithm="bp")
    yield Cell("1 - late / early", 1 - evidence.late(setting, "input_gradient") / evidence.early(setting, "input_gradient"))


def norm_saturates_least(evidence: Evidence) -> Iterator[Cell]:
    """Late in learning, OnlineNorm has fewer saturated features than any other algorithm."""
    norm = evidence.late(evidence.settings.best(algorithm="online_norm"), "saturated")
    for name in ("bp", "l2", "cbp"):
        other = evidence.late(evidence.settings.best(algorithm=name), "saturated")
        yield Cell(f"{evidence.settings.label(name)} - BP+OnlineNorm", other - norm)


def norm_gradient(evidence: Evidence) -> Iterator[Cell]:
    """Late in learning, OnlineNorm has a larger input gradient than CBP, and a larger error."""
    norm, cbp = (evidence.settings.best(algorithm=name) for name in ("online_norm", "cbp"))
    yield Cell("late gradient", evidence.late(norm, "input_gradient") / evidence.late(cbp, "input_gradient") - 1)
    yield Cell("late error", evidence.late(norm) / evidence.late(cbp) - 1)


def norm_error(evidence: Evidence) -> Iterator[Cell]:
    """At the best settings, OnlineNorm has a larger total error than L2 and CBP."""
    norm = evidence.least(algorithm="online_norm")
    for name in ("l2", "cbp"):
        yield Cell(f"against {evidence.settings.label(name)}", norm / evidence.least(algorithm=name) - 1)
