"""Drawings of the Bit-Flipping figures: error against examples, and total error against what is swept."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cbp_ray.activations import ACTIVATIONS
from cbp_ray.figures import style
from cbp_ray.figures.panels import EXAMPLES, best_of_each_method, curve, examples_axis, means_to_show, one_per_activation
from cbp_ray.figures.results import Setting, Settings

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TOTAL = "mean error over the run"
"""Label of the vertical axis of sensitivity panels."""
HIGHEST = 1.12
"""The vertical axis ends this far above the highest of the flat lines and of the swept curves' lower halves."""


def draw_step_sizes(settings: Settings, path: Path, activations: Sequence[str], columns: int) -> None:
    """One panel per activation: BP at several step sizes, and the linear tracker (figures 3 and 10 to 13)."""
    with one_per_activation(path, activations, columns, EXAMPLES, settings.problem.performance_label) as panels:
        for panel, activation in panels:
            shown = settings.select(algorithm="bp", activation=activation)
            for step, look in style.STEP_SIZES.items():
                if shown.has(step_size=step):
                    longest = max(shown.select(step_size=step), key=lambda setting: setting.examples)
                    curve(panel, longest, longest.in_words("step_size"), look)
            _finish_curves(panel, settings, shown, activation)


def draw_algorithms(settings: Settings, path: Path, activations: Sequence[str], columns: int) -> None:
    """One panel per activation: each algorithm at its best setting (figure 15)."""
    with one_per_activation(path, activations, columns, EXAMPLES, settings.problem.performance_label) as panels:
        for panel, activation in panels:
            _algorithms(panel, settings, activation)


def draw_curves_and_sensitivity(settings: Settings, path: Path, activations: Sequence[str]) -> None:
    """One column per activation: learning curves at the best settings above, sensitivity below (figures 6 and 14)."""
    wide = style.PANEL_WIDTH * (1.25 if len(activations) == 2 else 1)
    with style.canvas(2, len(activations), path, width=wide) as panels:
        for (above, below), activation in zip(panels.T, activations, strict=True):
            _algorithms(above, settings, activation)
            above.set_xlabel(EXAMPLES)
            _sensitivity(below, settings, activation)
            below.set_xlabel(_what_is_swept(settings))
        panels[0, 0].set_ylabel(settings.problem.performance_label)
        panels[1, 0].set_ylabel(TOTAL)
        style.legend(panels)


def draw_sensitivity(settings: Settings, path: Path, activations: Sequence[str], columns: int) -> None:
    """One panel per activation: total error against what is swept (figure 16)."""
    with one_per_activation(path, activations, columns, _what_is_swept(settings), TOTAL) as panels:
        for panel, activation in panels:
            _sensitivity(panel, settings, activation)
            style.title(panel, ACTIVATIONS[activation].label)


def draw_utilities(settings: Settings, path: Path) -> None:
    """Total error against replacement rate, a curve per utility, BP as a line (figure 17a)."""
    with style.canvas(1, 1, path, width=5.6, height=2.6) as panels:
        panel, plain = panels[0, 0], settings.one(algorithm="bp")
        panel.axhline(plain.mean_total, color=plain.look["color"], label=plain.label)
        swept = {name: settings.select(algorithm="cbp", utility=name) for name in style.UTILITIES}
        for name, along in swept.items():
            label = name.replace("_", " ").replace("mean corrected", "mean-corrected")
            _swept_curve(panel, along, label, style.UTILITIES[name])
        _finish_sensitivity(panel, [plain.mean_total], list(swept.values()))
        style.title(panel, "tanh, Adam")
        panel.set_xlabel("replacement rate")
        panel.set_ylabel(TOTAL)
        style.legend(panels, beside=True)


def draw_saturation_and_gradient(settings: Settings, path: Path) -> None:
    """Fraction of saturated features and magnitude of the input gradient, each algorithm at its best setting (figure 19)."""
    best = best_of_each_method(settings)
    with style.canvas(1, 2, path, width=3.0, height=2.2) as panels:
        left, right = panels[0]
        _metric(left, best, "saturated", "(a) saturated features", "fraction with |h| > 0.9")
        _metric(right, best, "input_gradient", "(b) gradient of the input weights", "mean magnitude")
        left.set_ylim(0, 1)
        right.set_ylim(bottom=0)
        style.legend(panels)


def _algorithms(panel: "Axes", settings: Settings, activation: str) -> None:
    """Learning curves of one activation: each algorithm at its best setting, and the linear tracker."""
    shown = best_of_each_method(settings, activation=activation)
    for setting in shown:
        curve(panel, setting, setting.label, setting.look)
    _finish_curves(panel, settings, shown, activation)


def _finish_curves(panel: "Axes", settings: Settings, shown: Iterable[Setting], activation: str) -> None:
    """Adds the linear tracker, title and limits to the learning curves of one activation."""
    shown = list(shown)
    if settings.has(algorithm="linear"):
        linear = settings.best(algorithm="linear")
        curve(panel, linear, linear.label, linear.look)
        shown.append(linear)
    style.title(panel, ACTIVATIONS[activation].label)
    examples_axis(panel, shown)
    means = means_to_show(shown, settings.problem.performance)
    style.limit(panel, float(means.min()), float(min(means.max(), 4 * means.min())))


def _metric(panel: "Axes", settings: Iterable[Setting], metric: str, title: str, label: str) -> None:
    """Another metric than the error against examples, one curve per setting."""
    for setting in settings:
        curve(panel, setting, setting.label, setting.look, metric)
    style.title(panel, title)
    panel.set_xlabel(EXAMPLES)
    panel.set_ylabel(label)
    examples_axis(panel, settings)


def _what_is_swept(settings: Settings) -> str:
    """The horizontal axis of sensitivity panels: a line for every method that sweeps a setting of its own."""
    methods = [setting.config.algorithm for setting in best_of_each_method(settings)]
    return "\n".join(
        f"{method.swept.replace('_', ' ')} ({method.label.removeprefix('BP+')})" for method in reversed(methods) if method.swept
    )


def _sensitivity(panel: "Axes", settings: Settings, activation: str) -> None:
    """Methods that sweep a setting against its values, all on one axis; methods that sweep none as lines."""
    best = best_of_each_method(settings, activation=activation)
    flat = [setting for setting in best if setting.config.algorithm.swept is None]
    if settings.has(algorithm="linear"):
        flat.append(settings.best(algorithm="linear"))
    # What diverged has no mean. The lines and points are those of the runs that did not, and say so.
    shown = [(setting.survivors, setting.diverged) for setting in flat if setting.survivors is not None]
    for setting, diverged in shown:
        look = {key: value for key, value in setting.look.items() if key != "marker"}
        panel.axhline(setting.mean_total, label=setting.label, **look | ({"linestyle": ":"} if diverged else {}))
        error = setting.standard_error_of_total
        if np.isfinite(error):
            low, high = setting.mean_total - error, setting.mean_total + error
            panel.axhspan(low, high, color=look["color"], alpha=0.15, linewidth=0)
    swept = [setting for setting in best if setting.config.algorithm.swept is not None]
    curves = [settings.select(algorithm=setting.algorithm, activation=activation) for setting in swept]
    for setting, along in zip(swept, curves, strict=True):
        _swept_curve(panel, along, setting.label, setting.look)
    _finish_sensitivity(panel, [setting.mean_total for setting, _ in shown], curves)
    if any(setting.diverged for setting in (*flat, *(one for along in curves for one in along))):
        style.note(panel, "dotted line, open marker: without the runs that diverged")


def _swept_curve(panel: "Axes", along: Settings, label: str, look: dict[str, Any]) -> None:
    """Total error against the swept parameter, with standard errors; the best is ringed, open are those with divergence."""
    shown = [(setting.survivors, setting.diverged) for setting in along if setting.survivors is not None]
    x = np.array([setting.parameter for setting, _ in shown])
    y = np.array([setting.mean_total for setting, _ in shown])
    spread = np.array([setting.standard_error_of_total for setting, _ in shown])
    panel.errorbar(x, y, yerr=None if np.isnan(spread).any() else spread, label=label, capsize=1.5, elinewidth=0.8, **look)
    for setting, diverged in shown:
        if diverged:
            panel.plot(setting.parameter, setting.mean_total, color=look["color"], marker=look["marker"], mfc="white", zorder=5)
    best = min(along, key=lambda setting: setting.mean_total)
    panel.plot(best.parameter, best.mean_total, "o", ms=8, mfc="none", mec=look["color"], mew=0.9)


def _finish_sensitivity(panel: "Axes", flat: list[float], swept: list[Settings]) -> None:
    """Logarithmic axis, and limits that keep the flat lines and the good settings apart; the rest leaves the panel."""
    panel.set_xscale("log")
    curves = [[one.survivors.mean_total for one in along if one.survivors is not None] for along in swept]
    points = [*flat, *(y for curve in curves for y in curve)]
    if points:
        high = HIGHEST * max([*flat, *(float(np.median(curve)) for curve in curves if curve)])
        style.limit(panel, min(points), min(high, max(points)))
