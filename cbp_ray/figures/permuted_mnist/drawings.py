"""Drawings of the Permuted MNIST figures: accuracy and weight magnitude against examples."""

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from cbp_ray.activations import ACTIVATIONS
from cbp_ray.figures import style
from cbp_ray.figures.panels import EXAMPLES, best_of_each_method, curve, examples_axis, means_to_show
from cbp_ray.figures.permuted_mnist.comparisons import LAST_LAYER
from cbp_ray.figures.results import Setting, Settings, rate_in_words

PERCENT = 100.0
Line = tuple[Setting, str, dict[str, Any]]
"""A setting, its label and its look."""


def draw_accuracy_along(settings: Settings, path: Path, name: str) -> None:
    """The accuracy of BP, a curve for every value of a property of settings (figures 4, 18, 20)."""
    shown = sorted(settings.select(algorithm="bp"), key=lambda setting: getattr(setting, name))
    looks = [style.STEP_SIZES[setting.step_size] for setting in shown] if name == "step_size" else style.SERIES
    _draw_accuracy([(one, one.in_words(name), look) for one, look in zip(shown, cycle(looks), strict=False)], path)


def draw_algorithms(settings: Settings, path: Path) -> None:
    """The accuracy of CBP at every replacement rate, and of the others at their best settings (figure 7)."""
    _draw_accuracy(_algorithms(settings), path)


def draw_weight_magnitude(settings: Settings, path: Path) -> None:
    """Mean magnitude of the last layer's weights in the same runs (figure 8)."""
    _draw(_algorithms(settings), path, LAST_LAYER, "mean |w| of the last layer")


def _algorithms(settings: Settings) -> list[Line]:
    plain = [(one, one.label, one.look) for one in best_of_each_method(settings) if one.algorithm != "cbp"]
    swept = zip(settings.select(algorithm="cbp"), cycle(style.REPLACEMENT_RATES), strict=False)
    return [*plain, *((one, f"{one.label}, ρ = {rate_in_words(one.parameter)}", look) for one, look in swept)]


def _draw_accuracy(lines: Sequence[Line], path: Path) -> None:
    problem = lines[0][0].config.problem
    _draw(lines, path, problem.performance, problem.performance_label, PERCENT)


def _draw(lines: Sequence[Line], path: Path, metric: str, vertical: str, factor: float = 1.0) -> None:
    with style.canvas(1, 1, path, width=6.2, height=2.6) as panels:
        panel = panels[0, 0]
        for setting, label, look in lines:
            curve(panel, setting, label, look, metric, factor)
        settings = [setting for setting, _, _ in lines]
        means = factor * means_to_show(settings, metric)
        style.limit(panel, float(means.min()), float(means.max()))
        style.title(panel, _what_is_common(settings))
        examples_axis(panel, settings)
        panel.set_xlabel(EXAMPLES)
        panel.set_ylabel(vertical)
        style.legend(panels, beside=True)


def _what_is_common(settings: Sequence[Setting]) -> str:
    """Title that is read off the runs: a figure at laptop scale must not look like one of the paper's."""
    layers, widths = len(settings[0].config.network.hidden), {setting.width for setting in settings}
    size = f"{layers} × {widths.pop()}" if len(widths) == 1 else f"{layers} layers"
    common = [name for name in ("step_size", "task_length") if len({getattr(setting, name) for setting in settings}) == 1]
    words = [f"{size} {ACTIVATIONS[str(settings[0].activation)].label}", *(settings[0].in_words(name) for name in common)]
    return ", ".join([*words, f"{min(len(setting.curves.seeds) for setting in settings)} runs"])
