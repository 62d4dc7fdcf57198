"""Figures 3, 10, 11, 12, 13 and 15, and the upper half of figures 6 and 14: error against examples."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cbp_ray.figures import style
from cbp_ray.figures.cases import Case, Cases
from cbp_ray.figures.names import NAMES

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_step_sizes(cases: Cases, path: Path, activations: Iterable[str], columns: int) -> None:
    """One panel per activation: BP at several step sizes, and the linear tracker (figures 3 and 10 to 13)."""
    activations = list(activations)
    rows = -(-len(activations) // columns)
    wide = style.PANEL_WIDTH * (1.25 if columns == 2 else 1)
    with style.canvas(rows, columns, path, width=wide) as panels:
        for panel, activation in zip(panels.flat, activations, strict=True):
            shown = cases.select(algorithm="bp", activation=activation)
            for step, look in style.STEP_SIZES.items():
                if shown.has(step_size=step):
                    case = max(shown.select(step_size=step), key=lambda case: case.examples)
                    curve(panel, case, f"step size {step:g}", look)
            _finish(panel, [*shown, *_baseline(panel, cases)], NAMES[activation])
        _labels(panels, "squared error")
        style.legend(panels)


def draw_algorithms(cases: Cases, path: Path, activations: Iterable[str], columns: int) -> None:
    """One panel per activation: each algorithm at its best setting (figure 15)."""
    activations = list(activations)
    with style.canvas(-(-len(activations) // columns), columns, path) as panels:
        for panel, activation in zip(panels.flat, activations, strict=True):
            algorithm_panel(panel, cases, activation)
        _labels(panels, "squared error")
        style.legend(panels)


def algorithm_panel(panel: "Axes", cases: Cases, activation: str) -> None:
    """Each algorithm at its best setting for one activation."""
    shown = []
    for algorithm, look in style.ALGORITHMS.items():
        if algorithm != "linear" and cases.has(algorithm=algorithm, activation=activation):
            case = cases.best(algorithm=algorithm, activation=activation)
            curve(panel, case, NAMES[algorithm], look)
            shown.append(case)
    _finish(panel, [*shown, *_baseline(panel, cases)], NAMES[activation])


def metric_panel(panel: "Axes", cases: Iterable[Case], metric: str, title: str, label: str) -> None:
    """Another metric than the error against examples, one curve per case."""
    for case in cases:
        curve(panel, case, NAMES[case.algorithm], style.ALGORITHMS[case.algorithm], metric)
    style.title(panel, title)
    panel.set_ylabel(label)
    examples_axis(panel, max(case.examples for case in cases))


def _baseline(panel: "Axes", cases: Cases) -> list[Case]:
    if not cases.has(algorithm="linear"):
        return []
    case = cases.best(algorithm="linear")
    curve(panel, case, "linear", style.ALGORITHMS["linear"])
    return [case]


def curve(panel: "Axes", case: Case, label: str, look: dict[str, Any], metric: str | None = None, factor: float = 1.0) -> None:
    """A metric, by default the one that the problem is judged by, against examples, with its standard error."""
    if case.survivors is not None:
        curves = case.survivors.curves
        mean, error = factor * curves.mean(metric), factor * curves.standard_error(metric)
        style.band(panel, curves.examples / 1e6, mean, error, label, look)
    if case.diverged:
        style.note(panel, f"{label} without the {case.diverged} of {len(case.curves.seeds)} runs that diverged")


def _finish(panel: "Axes", cases: list[Case], title: str) -> None:
    style.title(panel, title)
    examples_axis(panel, max(case.examples for case in cases))
    # The first bin, before anything is learned, would squeeze all others together.
    means = np.concatenate([case.survivors.curves.mean()[1:] for case in cases if case.survivors is not None])
    style.limit(panel, float(means.min()), float(min(means.max(), 4 * means.min())))


def examples_axis(panel: "Axes", examples: int) -> None:
    """From the first example to the last."""
    panel.set_xlim(0, examples / 1e6)


def _labels(panels: Any, vertical: str) -> None:
    for panel in panels[-1]:
        panel.set_xlabel("examples (millions)")
    for row in panels:
        row[0].set_ylabel(vertical)
