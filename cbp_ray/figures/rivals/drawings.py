"""Drawings of the comparison: total errors with their intervals, and learning curves of the best."""

from pathlib import Path
from typing import Any

from cbp_ray.figures import style
from cbp_ray.figures.panels import EXAMPLES, curve
from cbp_ray.figures.rivals.comparison import BASELINE, OUTSIDE, Place

SHOWN = 6
"""Number of competitors whose learning curves are drawn, besides Backprop and those outside of the competition."""
LINES = {"layer_norm": "--", "l2": ":", "nature2024": "-.", "unprotected": "--", "betas": ":"}
"""Styles of lines by how the name of a competitor ends: variants have the colour of their method."""
WORDS_OF_ERROR = {"error": "squared error", "accuracy": "wrong classifications"}
"""What an error is, by the metric that the problem is judged by."""
COLUMNS = 2


def _shape(kinds: dict[str, list[Place]]) -> tuple[int, int]:
    """Rows and columns of panels."""
    columns = min(COLUMNS, len(kinds))
    return -(-len(kinds) // columns), columns


def draw_totals(kinds: dict[str, list[Place]], path: Path) -> None:
    """Total error of every competitor with its interval, a panel per kind, the best on top."""
    most = max(map(len, kinds.values()))
    with style.canvas(*_shape(kinds), path, width=1.3 * style.PANEL_WIDTH, height=0.16 * most + 0.6) as panels:
        for panel, (kind, places) in zip(panels.flat, kinds.items(), strict=False):
            for height, place in enumerate(reversed(places)):
                colour = place.setting.look["color"]
                mean, low, high = place.total
                outside = place.chosen.group in OUTSIDE
                panel.plot([low, high], [height, height], color=colour, linewidth=1.2)
                panel.plot(mean, height, "o", color=colour, markerfacecolor="white" if outside else colour, markersize=3)
            panel.set_yticks(range(len(places)), [place.chosen.group for place in reversed(places)], fontsize=6)
            # Those far behind would squeeze all others together.
            ends = sorted(place.total[0] for place in places)
            panel.set_xlim(0.95 * ends[0], min(ends[-1], 2.5 * ends[len(ends) // 2]) * 1.05)
            panel.set_xlabel(f"{WORDS_OF_ERROR[places[0].performance]} per example")
            style.title(panel, kind)


def draw_curves(kinds: dict[str, list[Place]], path: Path) -> None:
    """Learning curves of the best competitors of each kind, of Backprop, and of those outside of the competition."""
    with style.canvas(*_shape(kinds), path, width=1.3 * style.PANEL_WIDTH) as panels:
        for panel, (kind, places) in zip(panels.flat, kinds.items(), strict=False):
            ranked = [place for place in places if place.rank is not None]
            shown = [*ranked[:SHOWN], *(place for place in places if place.chosen.group in (BASELINE, *OUTSIDE))]
            for place in {place.chosen.group: place for place in shown}.values():
                factor = 100.0 if place.performance == "accuracy" else 1.0
                curve(panel, place.setting, place.chosen.group, look_of(place), factor=factor)
            style.title(panel, kind)
        for panel in panels[-1]:
            panel.set_xlabel(EXAMPLES)
        for row in panels:
            row[0].set_ylabel(next(iter(kinds.values()))[0].setting.config.problem.performance_label)
        style.legend(panels, beside=True)


def look_of(place: Place) -> dict[str, Any]:
    """Matplotlib settings of a competitor, the same in all panels."""
    look = {name: value for name, value in place.setting.look.items() if name != "marker"}
    ending = next(
        (line for end, line in LINES.items() if place.chosen.group.endswith(f"_{end}") or place.chosen.group == end), None
    )
    return look | ({} if ending is None or place.chosen.group == "l2" else {"linestyle": ending})
