"""Drawings of the comparison: total errors with their intervals, and learning curves of the best."""

from pathlib import Path
from typing import Any

from cbp_ray.figures import style
from cbp_ray.figures.panels import EXAMPLES, curve
from cbp_ray.figures.rivals.comparison import BASELINE, OUTSIDE, Place

SHOWN = 6
"""Number of competitors whose learning curves are drawn, besides Backprop and those outside of the competition."""
LINES = ("-", "--", ":", "-.")


def draw_totals(kinds: dict[str, list[Place]], path: Path) -> None:
    """Total error of every competitor with its interval, a panel per kind, the best on top."""
    most = max(map(len, kinds.values()))
    with style.canvas(1, len(kinds), path, height=0.16 * most + 0.6) as panels:
        for panel, (kind, places) in zip(panels.flat, kinds.items(), strict=True):
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
            panel.set_xlabel("squared error per example")
            style.title(panel, kind)


def draw_curves(kinds: dict[str, list[Place]], path: Path) -> None:
    """Learning curves of the best competitors of each kind, of Backprop, and of those outside of the competition."""
    with style.canvas(1, len(kinds), path) as panels:
        for panel, (kind, places) in zip(panels.flat, kinds.items(), strict=True):
            ranked = [place for place in places if place.rank is not None]
            shown = [*ranked[:SHOWN], *(place for place in places if place.chosen.group in (BASELINE, *OUTSIDE))]
            used: dict[Any, int] = {}
            for place in {place.chosen.group: place for place in shown}.values():
                colour = place.setting.look["color"]
                line = LINES[used.get(colour, 0) % len(LINES)]
                used[colour] = used.get(colour, 0) + 1
                curve(panel, place.setting, place.chosen.group, {"color": colour, "linestyle": line})
            panel.set_xlabel(EXAMPLES)
            style.title(panel, kind)
        panels.flat[0].set_ylabel("squared error")
        style.legend(panels)
