"""Figures 4, 7, 8, 18 and 20, the Permuted MNIST family: accuracy and weight magnitude against examples."""

from collections.abc import Iterable
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cbp_ray.figures import style
from cbp_ray.figures.cases import Case, Cases
from cbp_ray.figures.learning_curves import curve, examples_axis
from cbp_ray.figures.names import NAMES, in_words, rate_in_words

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PERCENT = 100.0
Line = tuple[Case, str, dict[str, Any]]
"""A case, its label and its look."""


def draw_accuracy_along(cases: Cases, path: Path, setting: str) -> None:
    """BP, a curve for every value of a setting (figures 4, 18, 20)."""
    shown = sorted(cases.select(algorithm="bp"), key=lambda case: getattr(case, setting))
    looks = [style.STEP_SIZES[case.step_size] for case in shown] if setting == "step_size" else list(style.SERIES)
    lines = [(case, in_words(setting, getattr(case, setting)), look) for case, look in zip(shown, cycle(looks), strict=False)]
    _draw(lines, path, "accuracy")


def draw_algorithms_accuracy(cases: Cases, path: Path) -> None:
    """BP, L2 and OnlineNorm at their best settings, CBP at every replacement rate (figure 7)."""
    _draw(_algorithms(cases), path, "accuracy")


def draw_weight_magnitude(cases: Cases, path: Path) -> None:
    """Mean magnitude of the last layer's weights in the same runs (figure 8)."""
    _draw(_algorithms(cases), path, "output_weight_magnitude")


def _algorithms(cases: Cases) -> list[Line]:
    plain = [(cases.best(algorithm=name), NAMES[name], style.ALGORITHMS[name]) for name in ("bp", "l2", "online_norm")]
    swept = zip(cases.select(algorithm="cbp"), cycle(style.REPLACEMENT_RATES), strict=False)
    return [*plain, *((case, f"CBP, ρ = {rate_in_words(case.parameter)}", look) for case, look in swept)]


def _draw(lines: list[Line], path: Path, metric: str) -> None:
    with style.canvas(1, 1, path, width=6.2, height=2.6) as panels:
        panel, factor = panels[0, 0], PERCENT if metric == "accuracy" else 1.0
        for case, label, look in lines:
            curve(panel, case, label, look, metric, factor)
        cases = [case for case, _, _ in lines]
        _limits(panel, cases, metric, factor)
        style.title(panel, _what_is_common(cases))
        examples_axis(panel, max(case.examples for case in cases))
        panel.set_xlabel("examples (millions)")
        panel.set_ylabel("accuracy (%)" if metric == "accuracy" else "mean |w| of the last layer")
        style.legend(panels, beside=True)


def _limits(panel: "Axes", cases: Iterable[Case], metric: str, factor: float) -> None:
    # The first bin, before anything is learned, would squeeze all others together.
    means = [factor * case.survivors.curves.mean(metric)[1:] for case in cases if case.survivors is not None]
    if means:
        together = np.concatenate(means)
        style.limit(panel, float(together.min()), float(together.max()))


def _what_is_common(cases: list[Case]) -> str:
    """Read off the runs: a figure at laptop scale must not look like one of the paper's."""
    layers, widths = len(cases[0].config.network.hidden), {case.width for case in cases}
    size = f"{layers} × {widths.pop()}" if len(widths) == 1 else f"{layers} layers"
    words = [f"{size} {NAMES[str(cases[0].activation)]}"]
    for setting in ("step_size", "task_length"):
        values = {getattr(case, setting) for case in cases}
        if len(values) == 1:
            words.append(in_words(setting, values.pop()))
    return ", ".join([*words, f"{min(len(case.curves.seeds) for case in cases)} runs"])
