"""Figures 6, 14, 16 and 17a: total error against replacement rate and weight decay."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cbp_ray.figures import style
from cbp_ray.figures.cases import Cases
from cbp_ray.figures.learning_curves import algorithm_panel
from cbp_ray.figures.names import NAMES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SWEPT = {"l2": "weight decay", "cbp": "replacement rate"}
HIGHEST = 1.12
"""The vertical axis ends this far above the highest of the flat lines and of the swept curves' lower halves."""


def draw_curves_and_sensitivity(cases: Cases, path: Path, activations: Iterable[str]) -> None:
    """One column per activation: learning curves at the best settings above, sensitivity below (figures 6 and 14)."""
    activations = list(activations)
    wide = style.PANEL_WIDTH * (1.25 if len(activations) == 2 else 1)
    with style.canvas(2, len(activations), path, width=wide) as panels:
        for column, activation in enumerate(activations):
            algorithm_panel(panels[0, column], cases, activation)
            panels[0, column].set_xlabel("examples (millions)")
            sensitivity_panel(panels[1, column], cases, activation)
        panels[0, 0].set_ylabel("squared error")
        panels[1, 0].set_ylabel("mean error over the run")
        style.legend(panels)


def draw_sensitivity(cases: Cases, path: Path, activations: Iterable[str], columns: int) -> None:
    """One panel per activation (figure 16)."""
    activations = list(activations)
    with style.canvas(-(-len(activations) // columns), columns, path) as panels:
        for panel, activation in zip(panels.flat, activations, strict=True):
            sensitivity_panel(panel, cases, activation)
            style.title(panel, NAMES[activation])
            panel.set_xlabel("")
        for panel in panels[-1]:
            panel.set_xlabel(_axis_label())
        for row in panels:
            row[0].set_ylabel("mean error over the run")
        style.legend(panels)


def sensitivity_panel(panel: "Axes", cases: Cases, activation: str) -> None:
    """L2 against weight decay and CBP against replacement rate on one axis; algorithms without either as lines."""
    flat = [
        (name, cases.best(algorithm=name, activation=activation))
        for name in ("bp", "online_norm")
        if cases.has(algorithm=name, activation=activation)
    ]
    if cases.has(algorithm="linear"):
        flat.append(("linear", cases.best(algorithm="linear")))
    # What diverged has no mean. The lines and points are those of the runs that did not, and say so.
    shown = [(name, case.survivors, case.diverged) for name, case in flat]
    for name, case, diverged in shown:
        if case is None:
            continue
        look = {key: value for key, value in style.ALGORITHMS[name].items() if key != "marker"}
        panel.axhline(case.mean_total, label=NAMES[name], **look | ({"linestyle": ":"} if diverged else {}))
        error = case.standard_error_of_total
        if np.isfinite(error):
            panel.axhspan(case.mean_total - error, case.mean_total + error, color=look["color"], alpha=0.15, linewidth=0)
    swept = {name: cases.select(algorithm=name, activation=activation) for name in SWEPT}
    for name, along in swept.items():
        swept_curve(panel, along, NAMES[name], style.ALGORITHMS[name])
    finish(panel, [case.mean_total for _, case, _ in shown if case is not None], list(swept.values()))
    if any(diverged for *_, diverged in shown) or any(case.diverged for along in swept.values() for case in along):
        style.note(panel, "dotted line, open marker: without the runs that diverged")
    panel.set_xlabel(_axis_label())


def swept_curve(panel: "Axes", along: Cases, label: str, look: dict[str, Any]) -> None:
    """Total error against the swept parameter, with standard errors; the best is ringed, open are those with divergence."""
    shown = [(case.survivors, case.diverged) for case in along if case.survivors is not None]
    x = np.array([case.parameter for case, _ in shown])
    y = np.array([case.mean_total for case, _ in shown])
    spread = np.array([case.standard_error_of_total for case, _ in shown])
    panel.errorbar(x, y, yerr=None if np.isnan(spread).any() else spread, label=label, capsize=1.5, elinewidth=0.8, **look)
    for case, diverged in shown:
        if diverged:
            face: dict[str, Any] = {"markerfacecolor": "white", "zorder": 5}
            panel.plot(case.parameter, case.mean_total, color=look["color"], marker=look["marker"], **face)
    best = min(along, key=lambda case: case.mean_total)
    ring: dict[str, Any] = {
        "markersize": 8,
        "markerfacecolor": "none",
        "markeredgecolor": look["color"],
        "markeredgewidth": 0.9,
    }
    panel.plot(best.parameter, best.mean_total, "o", **ring)


def finish(panel: "Axes", flat: list[float], swept: list[Cases]) -> None:
    """Logarithmic axis, and limits that keep the flat lines and the good settings apart; the rest leaves the panel."""
    panel.set_xscale("log")
    curves = [np.array([case.survivors.mean_total for case in along if case.survivors is not None]) for along in swept]
    low = min([*flat, *(float(y.min()) for y in curves)])
    high = HIGHEST * max([*flat, *(float(np.median(y)) for y in curves)])
    style.limit(panel, low, min(high, max(float(y.max()) for y in [*curves, np.array(flat)])))


def _axis_label() -> str:
    return "replacement rate (CBP)\nweight decay (L2)"
