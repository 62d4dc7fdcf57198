"""What drawings are made of: panels with learning curves, and what several panels share."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cbp_ray.figures import style
from cbp_ray.figures.claims import LEAST_RUNS
from cbp_ray.figures.results import Setting, Settings
from cbp_ray.figures.statistics import Array
from cbp_ray.methods import methods

if TYPE_CHECKING:
    from matplotlib.axes import Axes

EXAMPLES = "examples (millions)"
"""Label of the horizontal axis of learning curves."""


def best_of_each_method(settings: Settings, **properties: Any) -> list[Setting]:
    """Every method with hidden units at its best setting of these properties, in the order of the table of methods."""
    return [
        settings.best(algorithm=name, **properties)
        for name, method in methods().items()
        if method.hidden and settings.has(algorithm=name, **properties)
    ]


@contextmanager
def one_per_activation(
    path: Path, activations: Sequence[str], columns: int, horizontal: str, vertical: str
) -> Iterator[Iterable[tuple["Axes", str]]]:
    """Panels with their activations, labelled at the left and at the bottom, with one legend; saved as `style.canvas` does."""
    wide = style.PANEL_WIDTH * (1.25 if columns == 2 else 1)
    with style.canvas(-(-len(activations) // columns), columns, path, width=wide) as panels:
        yield zip(panels.flat, activations, strict=True)
        for panel in panels[-1]:
            panel.set_xlabel(horizontal)
        for row in panels:
            row[0].set_ylabel(vertical)
        style.legend(panels)


def curve(
    panel: "Axes", setting: Setting, label: str, look: dict[str, Any], metric: str | None = None, factor: float = 1.0
) -> None:
    """A metric, by default the one that the problem is judged by, against examples, with its standard error."""
    if setting.survivors is not None:
        curves, metric = setting.survivors.curves, metric or setting.config.problem.performance
        mean, error = factor * curves.mean(metric), factor * curves.standard_error(metric)
        style.band(panel, curves.examples / 1e6, mean, error, label, look)
        if 1 < len(curves.seeds) < LEAST_RUNS:
            # So few that each can be shown, and that their standard error says little.
            for run in curves[metric]:
                panel.plot(curves.examples / 1e6, factor * run, color=look["color"], linewidth=0.3, alpha=0.6)
    if setting.diverged:
        style.note(panel, f"{label} without the {setting.diverged} of {len(setting.curves.seeds)} runs that diverged")


def means_to_show(settings: Iterable[Setting], metric: str) -> Array:
    """The means of all settings that the limits of an axis must hold; not a number if all runs diverged."""
    # Not the first bin: from before anything is learned, it would squeeze all others together.
    means = [setting.survivors.curves.mean(metric)[1:] for setting in settings if setting.survivors is not None]
    return np.concatenate(means) if means else np.full(1, np.nan)


def examples_axis(panel: "Axes", settings: Iterable[Setting]) -> None:
    """Lets the horizontal axis go from the first example to the last of the longest runs."""
    panel.set_xlim(0, max(setting.examples for setting in settings) / 1e6)
