"""One look for all figures: sizes, colours, and how files are saved. The looks of methods are the methods' own."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np

from cbp_ray.figures.statistics import Array
from cbp_ray.methods.method import COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

PANEL_WIDTH, PANEL_HEIGHT = 2.35, 1.9
"""Size of a panel in inches."""

REPLACEMENT_RATES: list[dict[str, Any]] = [{"color": COLOURS[name]} for name in ("sky", "blue", "purple")]
"""Looks of curves by replacement rate, from the smallest of a figure to the largest."""
SERIES: list[dict[str, Any]] = [{"color": COLOURS[name]} for name in ("vermilion", "blue", "green")]
"""Looks of curves by the value of anything else, from the smallest to the largest."""
STEP_SIZES: dict[float, dict[str, Any]] = dict(zip((0.01, 0.003, 0.001), SERIES, strict=True))
UTILITIES: dict[str, dict[str, Any]] = {
    "overall": {"color": COLOURS["blue"], "marker": "o"},
    "mean_corrected_contribution": {"color": COLOURS["green"], "marker": "D"},
    "contribution": {"color": COLOURS["sky"], "marker": "v"},
    "adaptation": {"color": COLOURS["orange"], "marker": "^"},
    "weight_magnitude": {"color": COLOURS["purple"], "marker": "P"},
    "random": {"color": COLOURS["black"], "marker": "X"},
}

_SETTINGS: Any = {
    "axes.titlesize": 9,
    **dict.fromkeys(("font.size", "axes.labelsize", "legend.fontsize"), 8),
    **dict.fromkeys(("xtick.labelsize", "ytick.labelsize"), 7),
    **dict.fromkeys(("axes.linewidth", "xtick.major.width", "ytick.major.width"), 0.6),
    "xtick.minor.width": 0.4,
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon"), False),
    **dict.fromkeys(("axes.grid", "axes.axisbelow"), True),
    **{"grid.color": "#E4E4E4", "grid.linewidth": 0.5, "lines.linewidth": 1.3, "lines.markersize": 3.5},
    **{"pdf.fonttype": 42, "savefig.dpi": 160},
}


@contextmanager
def canvas(rows: int, columns: int, path: Path, width: float = PANEL_WIDTH, height: float = PANEL_HEIGHT) -> Iterator[Any]:
    """Panels [rows, columns] to draw on; saved as `path` with .png and .pdf when the drawing is done."""
    with matplotlib.rc_context(_SETTINGS):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        # Not through pyplot: no global state, no window system, whatever backend the caller has chosen.
        figure = Figure(figsize=(columns * width, rows * height + 0.35), layout="constrained")
        FigureCanvasAgg(figure)
        yield figure.subplots(rows, columns, squeeze=False)
        save(figure, path)


def save(figure: "Canvas", path: Path) -> None:
    """Writes a PNG and a PDF without dates, so that the same results give the same bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Appended: a name may have a dot in it.
    figure.savefig(f"{path}.png", metadata={"Software": None})
    figure.savefig(f"{path}.pdf", metadata={"CreationDate": None, "Producer": None, "Creator": None})


def legend(panels: Any, beside: bool = False) -> None:
    """Adds one legend for all panels, above or beside them, with each label once."""
    figure = panels[0, 0].figure
    handles: dict[str, Any] = {}
    for panel in panels.flat:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    if beside:
        figure.legend(handles.values(), handles.keys(), loc="outside right center", handlelength=2)
        return
    # In inches: the width of a letter, and of the line beside the label.
    widest = 0.075 * max(len(label) for label in handles) + 0.45
    total = sum(0.075 * len(label) + 0.45 for label in handles)
    columns = len(handles) if total < figure.get_figwidth() else max(1, int(figure.get_figwidth() / widest))
    figure.legend(
        handles.values(), handles.keys(), loc="outside upper center", ncols=columns, columnspacing=1.4, handlelength=2
    )


def band(panel: "Axes", x: Array, mean: Array, standard_error: Array, label: str, style: dict[str, Any]) -> None:
    """Draws a curve with a band of one standard error to either side."""
    line = {key: value for key, value in style.items() if key != "marker"}
    panel.plot(x, mean, label=label, **line)
    if np.isfinite(standard_error).all():
        panel.fill_between(x, mean - standard_error, mean + standard_error, color=style["color"], alpha=0.22, linewidth=0)


def note(panel: "Axes", text: str) -> None:
    """Writes small print above a panel. Must be called before `title`."""
    panel.text(0.5, 1.01, text, transform=panel.transAxes, fontsize=5.5, color="#505050", ha="center", va="bottom")


def title(panel: "Axes", text: str) -> None:
    """Writes the title of a panel, above its note if it has one."""
    panel.set_title(text, pad=11 if panel.texts else None)


def limit(panel: "Axes", low: float, high: float, room: float = 0.06) -> None:
    """Sets the vertical limits, with some room around what they must hold."""
    if np.isfinite([low, high]).all() and high > low:
        panel.set_ylim(low - room * (high - low), high + room * (high - low))


def large_numbers(panel: "Axes") -> None:
    """Writes 1M instead of 1000000 on the horizontal axis."""
    from matplotlib.ticker import EngFormatter

    panel.xaxis.set_major_formatter(EngFormatter(sep=""))
