"""`cbp-ray status` as people see it: a table, and with --watch what runs, with its latest values and small curves."""

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from cbp_ray.cli.display import LOG_WIDTH, span, table_of

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

    from cbp_ray.results.store import Store
    from cbp_ray.sweeps.status import Status

WATCH_SECONDS = 3.0
"""Seconds between two looks."""
MOST_SHOWN = 30
"""Running trials that are shown."""
MOST_WARNINGS = 5
BLOCKS = "▁▂▃▄▅▆▇█"


def spark(values: Sequence[float | None]) -> str:
    """A small curve in one line of text; a blank where there is no value.

    Example:
      >>> spark([0, 1, None, 7])
      '▁▂ █'
    """
    known = [value for value in values if value is not None]
    if not known:
        return ""
    low, high = min(known), max(known)
    scale = (len(BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(" " if value is None else BLOCKS[round((value - low) * scale)] for value in values)


def status_table(rows: "Sequence[Status]") -> "Table":
    """What is done, running, failed and missing."""
    from rich.table import Column

    whole = [Column(name, no_wrap=True) for name in ("runs done", "failed", "last sign")]
    # Folded rather than cut where there is no room: their names are typed elsewhere.
    table = table_of(Column("sweep", overflow="fold"), Column("file", overflow="fold"), "state", *whole)
    for row in rows:
        sign = f"{span(row.silent_seconds)} ago" if row.silent_seconds is not None else "none"
        busy = ", ".join(filter(None, (row.state, row.doing)))
        state = busy if row.remaining_seconds is None else f"{busy}, about {span(row.remaining_seconds)} left"
        early = f" ({row.stopped} stopped)" if row.stopped else ""
        table.add_row(row.sweep, row.source, state, f"{row.done}/{row.runs}{early}", str(row.failed), sign)
    return table


def status_warnings(rows: "Sequence[Status]") -> list[str]:
    """One line for each warning about a configuration, up to a few."""
    found = list(dict.fromkeys(f"{row.sweep}: {warning}" for row in rows for warning in row.warnings))
    more = [f"and {len(found) - MOST_WARNINGS} more warnings: see --json"] if len(found) > MOST_WARNINGS else []
    return [f"warning: {line}" for line in found[:MOST_WARNINGS]] + more


def running_table(glances: Sequence[dict[str, Any]]) -> "Table":
    """The trials that run: how far each is, its latest value, and a small curve."""
    from rich.table import Column

    numbers = [Column(name, justify="right", no_wrap=True) for name in ("done", "latest")]
    table = table_of(Column("running", overflow="fold"), "seeds", *numbers, Column("so far", no_wrap=True))
    for glance in glances[:MOST_SHOWN]:
        value = glance.get("value")
        latest = f"{glance['metric']} {value:.4g}" if value is not None else "in the first bin"
        done = f"{glance['fraction']:.0%}" if glance["fraction"] >= 0.1 else f"{glance['fraction']:.1%}"
        table.add_row(glance["name"], glance["seeds"], done, latest, spark(glance.get("curve", [])))
    if len(glances) > MOST_SHOWN:
        table.add_row(f"and {len(glances) - MOST_SHOWN} more", "", "", "", "")
    return table


def overview(rows: "Sequence[Status]") -> "Group":
    """All that --watch shows at one moment."""
    from rich.console import Group
    from rich.text import Text

    glances = [glance for row in rows for glance in row.glances]
    parts: list[Any] = [status_table(rows)]
    if glances:
        parts.append(running_table(glances))
    return Group(*parts, *(Text(line) for line in status_warnings(rows)))


def watch_sweeps(stores: "Sequence[Store]") -> None:
    """Shows how sweeps go until none runs any more, or until Ctrl-C; where it is no terminal, one below the other."""
    from rich.console import Console
    from rich.live import Live

    from cbp_ray.sweeps.status import statuses

    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, LOG_WIDTH)
    terminal = sys.stdout.isatty()
    try:
        with Live(console=console, auto_refresh=False, transient=False) if terminal else _Plain(console) as live:
            while True:
                rows = [row for store in stores for row in statuses(store)]
                live.update(overview(rows), refresh=True)
                if not any(row.state == "running" for row in rows):
                    break
                time.sleep(WATCH_SECONDS if terminal else 3 * WATCH_SECONDS)
    except KeyboardInterrupt:
        click.echo()


class _Plain:
    """Stands in for rich's Live where output can't be replaced."""

    def __init__(self, console: Any) -> None:
        self._console = console

    def __enter__(self) -> "_Plain":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def update(self, content: Any, refresh: bool = False) -> None:
        """Prints the new picture below the last one."""
        self._console.print(content)
