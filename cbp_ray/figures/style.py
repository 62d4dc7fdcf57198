"""One look for all figures: sizes, colours that colour-blind people can tell apart (Okabe and Ito), and how files are saved."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np

from cbp_ray.figures.statistics import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

PANEL_WIDTH, PANEL_HEIGHT = 2.35, 1.9
"""Inches."""
DPI = 160

BLUE, VERMILION, GREEN, ORANGE, PURPLE, SKY, BLACK, GREY = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#E69F00",
    "#CC79A7",
    "#56B4E9",
    "#000000",
    "#7A7A7A",
)
ALGORITHMS: dict[str, dict[str, Any]] = {
    "bp": {"color": VERMILION, "marker": "s"},
    "l2": {"color": ORANGE, "marker": "^"},
    "online_norm": {"color": GREEN, "marker": "D"},
    "cbp": {"color": BLUE, "marker": "o"},
    "linear": {"color": GREY, "linestyle": (0, (4, 2)), "marker": ""},
}
STEP_SIZES: dict[float, dict[str, Any]] = {
    0.01: {"color": VERMILION},
    0.003: {"color": BLUE},
    0.001: {"color": GREEN},
}
REPLACEMENT_RATES: tuple[dict[str, Any], ...] = ({"color": SKY}, {"color": BLUE}, {"color": PURPLE})
"""From the smallest rate of a figure to the largest."""
SERIES: tuple[dict[str, Any], ...] = ({"color": VERMILION}, {"color": BLUE}, {"color": GREEN})
"""From the smallest value of a setting to the largest."""
UTILITIES: dict[str, dict[str, Any]] = {
    "overall": {"color": BLUE, "marker": "o"},
    "mean_corrected_contribution": {"color": GREEN, "marker": "D"},
    "contribution": {"color": SKY, "marker": "v"},
    "adaptation": {"color": ORANGE, "marker": "^"},
    "weight_magnitude": {"color": PURPLE, "marker": "P"},
    "random": {"color": BLACK, "marker": "X"},
}

_SETTINGS: Any = {
    "font.size": 8,
    "axes.titlesize": 9,
    "axes.labelsize": 8,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.3,
    "lines.markersize": 3.5,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.minor.width": 0.4,
    "pdf.fonttype": 42,
    "savefig.dpi": DPI,
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
    """Both files; without dates, so that the same results give the same bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Appended: a name may have a dot in it.
    figure.savefig(f"{path}.png", metadata={"Software": None})
    figure.savefig(f"{path}.pdf", metadata={"CreationDate": None, "Producer": None, "Creator": None})


def legend(panels: Any, beside: bool = False) -> None:
    """One legend for all panels, above or beside them; each label once."""
    figure = panels[0, 0].figure
    handles: dict[str, Any] = {}
    for panel in panels.flat:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    if beside:
        figure.legend(handles.values(), handles.keys(), loc="outside right center", handlelength=2)
        return
    # Inches: of a letter, and of the line beside it.
    widest = 0.075 * max(len(label) for label in handles) + 0.45
    total = sum(0.075 * len(label) + 0.45 for label in handles)
    columns = len(handles) if total < figure.get_figwidth() else max(1, int(figure.get_figwidth() / widest))
    figure.legend(
        handles.values(), handles.keys(), loc="outside upper center", ncols=columns, columnspacing=1.4, handlelength=2
    )


def band(panel: "Axes", x: Array, mean: Array, standard_error: Array, label: str, style: dict[str, Any]) -> None:
    """A curve with a band of one standard error to either side."""
    line = {key: value for key, value in style.items() if key != "marker"}
    panel.plot(x, mean, label=label, **line)
    if np.isfinite(standard_error).all():
        panel.fill_between(x, mean - standard_error, mean + standard_error, color=style["color"], alpha=0.22, linewidth=0)


def note(panel: "Axes", text: str) -> None:
    """Small print above a panel. To be made before the title."""
    panel.text(0.5, 1.01, text, transform=panel.transAxes, fontsize=5.5, color="#505050", ha="center", va="bottom")


def title(panel: "Axes", text: str) -> None:
    """The title of a panel, above its note if it has one."""
    panel.set_title(text, pad=11 if panel.texts else None)


def limit(panel: "Axes", low: float, high: float, room: float = 0.06) -> None:
    """Vertical limits with some room."""
    if np.isfinite([low, high]).all() and high > low:
        panel.set_ylim(low - room * (high - low), high + room * (high - low))


def large_numbers(panel: "Axes") -> None:
    """1M instead of 1000000 on the horizontal axis."""
    from matplotlib.ticker import EngFormatter

    panel.xaxis.set_major_formatter(EngFormatter(sep=""))
