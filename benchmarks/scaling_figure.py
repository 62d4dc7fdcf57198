"""The curves of `cbp-ray bench scaling` as one figure."""

from pathlib import Path
from typing import Any

from cbp_ray.figures import style

FIRST, SECOND, THIRD = style.SERIES
WIDTH, HEIGHT = 3.4, 2.3


def draw(result: dict[str, dict[str, Any]], path: Path) -> None:
    """Draws what was measured as `path` with .png and .pdf."""
    with style.canvas(2, 2, path, width=WIDTH, height=HEIGHT) as panels:
        _trials(panels[0, 0], result["trials"])
        _memory(panels[0, 1], result["trials"])
        _nodes(panels[1, 0], result["nodes"])
        _live(panels[1, 1], result["live"])


def _line(panel: Any, points: dict[str, Any], name: str, look: dict[str, Any], label: str) -> None:
    sizes = [int(size) for size in points]
    panel.plot(sizes, [points[str(size)][name] for size in sizes], marker="o", label=label, **look)


def _finish(panel: Any, title: str, horizontal: str, vertical: str) -> None:
    panel.set_xlabel(horizontal)
    panel.set_ylabel(vertical)
    panel.set_ylim(bottom=0)
    if panel.get_legend_handles_labels()[0]:
        panel.legend()
    style.title(panel, title)


def _trials(panel: Any, points: dict[str, Any]) -> None:
    _line(panel, points, "driver_cpu_ms_per_trial", FIRST, "all trials")
    _line(panel, points, "driver_cpu_ms_per_late_trial", SECOND, "the second half")
    panel.set_xscale("log")
    _finish(panel, "What a trial costs the driver", "trials", "CPU time (ms)")


def _memory(panel: Any, points: dict[str, Any]) -> None:
    largest = points[max(points, key=int)]
    for name, look, label in (("driver", FIRST, "driver"), ("worker", SECOND, "a worker")):
        panel.plot(*zip(*largest[f"{name}_rss_curve"], strict=True), label=label, **look)
    style.large_numbers(panel)
    _finish(panel, "Memory", "trials done", "MB")


def _nodes(panel: Any, points: dict[str, Any]) -> None:
    sizes = [int(size) for size in points]
    rate = points[str(sizes[0])]["trials_per_s"]
    panel.plot(
        sizes, [rate / sizes[0] * size for size in sizes], color="#7A7A7A", linestyle="--", label="as many times one node"
    )
    _line(panel, points, "trials_per_s", FIRST, "measured")
    panel.set_xticks(sizes)
    _finish(panel, "Trials that sleep for 2 s", "simulated nodes of one core", "trials per second")


def _live(panel: Any, points: dict[str, Any]) -> None:
    _line(panel, points, "cpu_ms_per_report", FIRST, "")
    panel.get_lines()[0].set_label("_")
    panel.set_xscale("log")
    _finish(panel, "What a report costs, without Ray", "trials that run", "CPU time (ms)")
