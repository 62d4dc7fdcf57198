"""How the cost of a sweep grows: with its trials, with nodes, with seeds per block, and with configurations in TensorBoard.

A point is one sweep of one size, and its numbers are kept in a file: the benchmark goes on where it stopped. The files, and the
sweeps themselves, are in `CBP_RAY_SCALING`, by default `cbp-ray-scaling` in the folder for temporary files. Some points alone:

    python -m cbp_ray_benchmarks.scaling trials-10 trials-100 nodes-2

CPU seconds and bytes are those of each process, so that other work on the machine disturbs them little; seconds of the clock
are what they are. A run of the kernel takes a few ms here and a node's trial sleeps, so that nearly all is what a sweep adds.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from cbp_ray_benchmarks import scaling_points
from cbp_ray_benchmarks.scaling_figure import draw

from cbp_ray.atomic_files import write_whole

VARIABLE = "CBP_RAY_SCALING"
SIZES = {
    "trials": (10, 100, 1_000, 10_000),
    "nodes": (1, 2, 5, 10, 20),
    "seeds": (1, 8, 64, 512),
    "worker": (500,),
    "reports": (50,),
    "live": (10, 100, 1_000, 10_000),
}
"""Sizes of every part: trials, nodes, seeds of a block, trials of one worker, trials that report often, trials that run."""
MOST_DIGITS = 9
"""Digits that the size of a point may have."""
PARTS: dict[str, Callable[[Path, int], dict[str, Any]]] = {
    "trials": scaling_points.trials,
    "nodes": scaling_points.nodes,
    "seeds": scaling_points.seeds,
    "worker": scaling_points.worker,
    "reports": scaling_points.reports,
    "live": scaling_points.live,
}
COLUMNS = {
    "trials": {
        "driver_cpu_ms_per_trial": "driver CPU, ms a trial",
        "driver_kb_per_trial": "driver, KB a trial",
        "driver_rss_mb_peak": "driver, MB",
        "driver_files_peak": "open files",
        "worker_kb_per_trial": "worker, KB a trial",
        "status_s": "status, s",
        "board_loaded_after_s": "TensorBoard loaded, s",
        "board_rss_mb": "TensorBoard, MB",
    },
    "nodes": {
        "efficiency": "busy",
        "trials_per_s": "trials/s",
        "driver_cpu_ms_per_trial": "driver CPU, ms a trial",
        "gcs_cpu_ms_per_trial": "GCS CPU, ms a trial",
        "raylet_cpu_ms_per_trial": "raylets' CPU, ms a trial",
    },
    "seeds": {
        "trials": "trials",
        "driver_cpu_ms_per_trial": "driver CPU, ms a trial",
        "driver_cpu_ms_per_run": "driver CPU, ms a run",
        "driver_kb_per_trial": "driver, KB a trial",
    },
    "worker": {
        "worker_rss_mb_early": "MB early",
        "worker_rss_mb_late": "MB late",
        "worker_files_early": "files early",
        "worker_files_late": "files late",
    },
    "reports": {"reports": "reports", "driver_cpu_ms_per_report": "driver CPU, ms a report"},
    "live": {"cpu_ms_per_report": "CPU, ms a report", "busy": "part of a core", "busy_clock": "part of the clock"},
}
"""Which numbers of each part are shown, and what they are called; `--json` has all."""


def folder() -> Path:
    """Where points and sweeps are kept."""
    found = Path(os.environ.get(VARIABLE) or Path(tempfile.gettempdir()) / "cbp-ray-scaling")
    found.mkdir(parents=True, exist_ok=True)
    return found


def measure(part: str, size: int) -> dict[str, Any]:
    """The numbers of a point: as they are kept, or measured now."""
    file = folder() / f"{part}-{size}.json"
    if not file.exists():
        print(f"bench scaling: {part} {size:,}", file=sys.stderr, flush=True)
        begun = time.monotonic()
        found = PARTS[part](folder(), size) | {"load_average": os.getloadavg()[0]}
        write_whole(file, json.dumps(found | {"point_s": round(time.monotonic() - begun, 1)}).encode())
    kept: dict[str, Any] = json.loads(file.read_text())
    return kept


def run() -> dict[str, Any]:
    """Measures what is not kept yet, and draws all of it."""
    result = {part: {str(size): measure(part, size) for size in sizes} for part, sizes in SIZES.items()}
    draw(result, folder() / "scaling")
    print(f"bench scaling: {folder() / 'scaling.png'}", file=sys.stderr, flush=True)
    return result


def render(result: dict[str, Any]) -> str:
    """The result as tables for people to read."""
    return "\n\n".join(_table(part, result[part]) for part in SIZES if result.get(part))


def _table(part: str, points: dict[str, dict[str, Any]]) -> str:
    names = COLUMNS[part]
    lines = [f"| {' | '.join([part, *names.values()])} |", "|---" * (len(names) + 1) + "|"]
    for size, point in points.items():
        cells = (_cell(point.get(name)) for name in names)
        lines.append(f"| {int(size):,} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(value: Any) -> str:
    if not isinstance(value, int | float):
        return ""
    return f"{value:,.0f}" if isinstance(value, int) or abs(value) >= 100 else f"{value:,.2f}"


class _Parser(argparse.ArgumentParser):
    """Says in one line what is wrong."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def _point(argument: str) -> tuple[str, int]:
    part, _, size = argument.partition("-")
    # Python reads no number of thousands of digits, and says so with an error.
    if part not in PARTS or not size.isdecimal() or len(size) > MOST_DIGITS or int(size) == 0:
        raise argparse.ArgumentTypeError(f"{argument!r} is no point; write a part ({', '.join(PARTS)}) and a size: trials-10")
    return part, int(size)


if __name__ == "__main__":
    parser = _Parser("python -m cbp_ray_benchmarks.scaling", description="Some points of the benchmark alone.")
    parser.add_argument("points", nargs="+", type=_point, metavar="PART-SIZE", help=f"part: {', '.join(PARTS)}")
    for part, size in parser.parse_args().points:
        print(json.dumps({f"{part}-{size}": measure(part, size)}))
