"""Drawings of the Slippery Ant figures: the return, and beside it what happens inside the networks."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cbp_ray.figures import style
from cbp_ray.figures.claims import LEAST_RUNS
from cbp_ray.figures.panels import best_of_each_method, curve
from cbp_ray.figures.results import Setting, Settings
from cbp_ray.figures.slippery_ant.comparisons import friction_period, in_words, phases, tenths

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TIME_STEPS = "time-steps (millions)"
DIAGNOSTICS = {
    "dormant": "dormant units (%)",
    "saturated": "saturated outputs (%)",
    "stable_rank": "stable rank",
    "policy_weight_magnitude_{}": "mean |w|, policy",
    "value_weight_magnitude_{}": "mean |w|, value",
    "replacements": "units replaced per bin",
}
"""What the panels beside the return show; `{}` stands for the hidden layer, a line each."""
LAYERS = ("-", "--", ":", "-.")
"""Styles of lines by hidden layer."""
Line = tuple[Setting, str, dict[str, Any]]
"""A setting, its label and its look."""


def draw_algorithms(settings: Settings, path: Path) -> None:
    """PPO, PPO+L2 and Continual PPO at their best settings (figure 9)."""
    _draw([(one, one.label, one.look) for one in best_of_each_method(settings)], path)


def draw_utilities(settings: Settings, path: Path) -> None:
    """Continual PPO with each utility at its best setting, and PPO (figure 17b)."""
    plain = settings.one(algorithm="bp")
    utilities = dict.fromkeys(str(one.utility) for one in settings.select(algorithm="cbp"))
    shown = [(name, settings.best(algorithm="cbp", utility=name)) for name in style.UTILITIES if name in utilities]
    lines = [(one, f"{one.label}, {in_words(name)}", style.UTILITIES[name]) for name, one in shown]
    _draw([(plain, plain.label, plain.look), *lines], path)


def _draw(lines: Sequence[Line], path: Path) -> None:
    with style.canvas(2, 4, path) as panels:
        returns, parts, *others = panels.flat
        for setting, label, look in lines:
            curve(returns, setting, label, look)
            _tenths(parts, setting, label, look)
        for panel, (metric, vertical) in zip(others, DIAGNOSTICS.items(), strict=True):
            for setting, label, look in lines:
                _diagnostic(panel, setting, label, look, metric)
            panel.set_ylabel(vertical)
        returns.set_ylabel("episodic return")
        parts.set_ylabel("return in a phase")
        style.title(returns, _what_it_is([setting for setting, _, _ in lines]))
        part = "tenth" if all(len(phase.bins) >= 10 for phase in phases(lines[0][0])) else "bin"
        style.title(parts, f"○ first {part}, ● last {part} of a phase")
        for panel in panels.flat:
            _phases(panel, lines[0][0])
        for panel in panels[-1]:
            panel.set_xlabel(TIME_STEPS)
        style.legend(panels)


def _diagnostic(panel: "Axes", setting: Setting, label: str, look: dict[str, Any], metric: str) -> None:
    factor = 100.0 if metric in ("dormant", "saturated") else 1.0
    if "{}" not in metric:
        curve(panel, setting, label, look, metric, factor)
        return
    for layer, line in zip(range(1, len(setting.config.hidden) + 1), LAYERS, strict=False):
        # One entry in the legend for each algorithm; the first layer has the same line there.
        curve(panel, setting, label if layer == 1 else "_", look | {"linestyle": line}, metric.format(layer), factor)
    style.title(panel, "— layer 1, - - layer 2" if len(setting.config.hidden) == 2 else "by layer")


def _tenths(panel: "Axes", setting: Setting, label: str, look: dict[str, Any]) -> None:
    """Mean over the runs of the return in the first and in the last tenth of each phase, at the phase's middle."""
    if setting.survivors is None:
        return
    first, last = (part.mean(axis=0) for part in tenths(setting.survivors))
    period = friction_period(setting)
    middles = np.array([min(phase.begins + period / 2, setting.examples) for phase in phases(setting.survivors)]) / 1e6
    colour = look["color"]
    panel.plot(middles, first, "o", color=colour, markerfacecolor="white")
    panel.plot(middles, last, "o-", color=colour, linewidth=0.6)
    if len(setting.survivors.curves.seeds) < LEAST_RUNS:
        for run in tenths(setting.survivors)[1]:
            panel.plot(middles, run, ".", color=colour, markersize=2, alpha=0.6)


def _phases(panel: "Axes", setting: Setting) -> None:
    """Marks the changes of the friction, and lets the axis go from the first time-step to the last."""
    for change in range(friction_period(setting), setting.examples, friction_period(setting)):
        panel.axvline(change / 1e6, color="#909090", linewidth=0.5, linestyle=(0, (2, 2)), zorder=0.9)
    panel.set_xlim(0, setting.examples / 1e6)


def _what_it_is(settings: Sequence[Setting]) -> str:
    """Title that is read off the runs: a figure at laptop scale must not look like one of the paper's."""
    runs = min(len(setting.curves.seeds) for setting in settings)
    return f"{runs} run{'s' * (runs != 1)}, friction every {friction_period(settings[0]):,}"
