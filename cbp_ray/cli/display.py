"""What people see: tables, and a running sweep as a bar on a terminal, plain lines elsewhere, JSON for programs."""

import json
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.table import Column, Table

    from cbp_ray.sweeps.progress import Event, Totals

LOG_WIDTH = 132
"""Columns of a table that goes to a file or a pipe."""
PLAIN_SECONDS = 10.0
"""Seconds between two lines that say nothing new."""
START_SECONDS = 4.0
"""Likewise, until the first examples are learned from."""


def table_of(*columns: "Column | str") -> "Table":
    """An empty table in the style of `cbp-ray status`."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    return Table(*columns, box=SIMPLE_HEAD, collapse_padding=True, pad_edge=False)


def print_table(table: "Table") -> None:
    """Prints a table as wide as the terminal, and wide into a file or a pipe."""
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, LOG_WIDTH)
    console.print(table)


class Display:
    """A listener to a sweep that is closed at its end. By itself it prints every event as one JSON object per line."""

    def __call__(self, event: "Event") -> None:
        click.echo(event.as_json())

    def close(self) -> None:
        """Takes off the screen what should not stay there."""


def make_display(as_json: bool) -> Display:
    """The display that suits where the output goes."""
    if as_json:
        return Display()
    return Bar() if sys.stdout.isatty() else Lines()


def span(seconds: float | None) -> str:
    """A time in words: `4 s`, `3 min`, `2.5 h`, `160 days`."""
    if seconds is None:
        return "?"
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 100 * 3600:
        return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.0f} days"


def rate(totals: "Totals") -> str:
    """The speed of a sweep in words: `35 M examples/s`."""
    number = totals.examples_per_second
    return f"{number / 1e6:.1f} M examples/s" if number >= 1e5 else f"{number:.0f} examples/s"


def summary(totals: "Totals") -> str:
    """The last line about a sweep: what was done, and what failed."""
    parts = [f"{totals.runs_done} runs in {totals.trials_done} trials, {span(totals.seconds)}"]
    if totals.stored_runs:
        parts.append(f"{totals.stored_runs} runs were there before")
    if totals.runs_done:
        parts.append(rate(totals))
    if totals.failed:
        parts.append(f"{totals.failed} trials FAILED: see cbp-ray status --failed")
    return "; ".join(parts)


def beginning(totals: "Totals") -> str:
    """What a sweep finds when it begins, and what is left to do."""
    found = []
    if totals.stored_runs:
        found.append(f"{totals.stored_runs} of {totals.stored_runs + totals.runs} runs are stored")
    if totals.resumed_trials:
        trials = "1 trial goes" if totals.resumed_trials == 1 else f"{totals.resumed_trials} trials go"
        found.append(f"{trials} on from a checkpoint")
    found.append(f"{totals.runs} runs to do in {totals.trials} trials, {totals.slots} at once")
    return ", ".join(found)


def standing(totals: "Totals") -> str:
    """Where a sweep is, with what was stored before it began: `120/300 runs, 35 M examples/s, about 4 min left`."""
    runs = f"{totals.stored_runs + totals.runs_done}/{totals.stored_runs + totals.runs} runs"
    trials = f"{totals.trials_done}/{totals.trials} trials"
    speed = totals.doing or (rate(totals) if totals.examples_done else "in the first bin")
    left = f"about {span(totals.remaining_seconds)} left" if totals.remaining_seconds is not None else ""
    failed = f"{totals.failed} failed" if totals.failed else ""
    return ", ".join(filter(None, (runs, trials, speed, left, failed)))


def incident(event: "Event") -> str | None:
    """A line about an event that should not scroll away; None for the others."""
    about = event.about
    if event.kind == "trial_failed":
        return f"failed after {about['attempts']} attempts: {about['group']} {about['trial_id']}: {about['message']}"
    if event.kind == "trial_retry":
        return f"retry: {about['group']} {about['trial_id']} (failure {about['attempt']})"
    if event.kind == "interrupted":
        return "stopped; run the same command again to go on"
    return str(about["message"]) if event.kind == "warning" else None


def _end(event: "Event") -> None:
    click.echo(summary(event.totals))
    if found := event.about.get("best"):
        click.echo(f"best: {found['value']:.6g} with {json.dumps(found['config'])}")


class Lines(Display):
    """Prints a line every few seconds. Until the first examples are learned from, also while nobody calls it."""

    def __init__(self) -> None:
        self._next = 0.0
        self._doing, self._begun, self._said = "starting", time.monotonic(), time.monotonic()
        self._learning = threading.Event()
        threading.Thread(target=self._wait, daemon=True).start()

    def _wait(self) -> None:
        while not self._learning.wait(0.5):
            if time.monotonic() - self._said >= START_SECONDS:
                self._say(f"{self._doing}, {span(time.monotonic() - self._begun)} since the start")

    def _say(self, line: str) -> None:
        self._said = time.monotonic()
        click.echo(line)

    def __call__(self, event: "Event") -> None:
        totals = event.totals
        if totals.doing and totals.doing != self._doing:
            self._doing = totals.doing
            if event.kind != "start":
                self._say(totals.doing)
        if event.kind == "start":
            self._say(f"{event.about['storage']}: {beginning(totals)}")
        elif event.kind == "end":
            self.close()
            _end(event)
        elif (line := incident(event)) is not None:
            self._say(line)
        elif event.kind == "progress" and totals.examples_done and time.monotonic() >= self._next:
            self._learning.set()
            self._next = time.monotonic() + PLAIN_SECONDS
            self._say(standing(totals))

    def close(self) -> None:
        self._learning.set()


class Bar(Display):
    """Shows a live bar on a terminal."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

        self._progress = Progress(
            SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[text]}"), transient=True
        )
        self._task = self._progress.add_task("starting", total=None, text="")
        self._progress.start()

    def __call__(self, event: "Event") -> None:
        totals = event.totals
        if event.kind == "end":
            self.close()
            _end(event)
            return
        if event.kind == "phase":
            self._progress.update(self._task, description=totals.doing)
            return
        line = f"{event.about['storage']}: {beginning(totals)}" if event.kind == "start" else incident(event)
        if line is not None:
            self._progress.console.print(line, markup=False, highlight=False)
        runs, _, text = standing(totals).partition(", ")
        fields: dict[str, Any] = {"description": runs, "text": text.replace(", ", " · ")}
        # What was stored before is a part of the bar.
        whole, done = totals.stored_seconds + totals.estimated_seconds, totals.stored_seconds + totals.estimated_done
        self._progress.update(self._task, total=whole, completed=done, **fields)

    def close(self) -> None:
        self._progress.stop()
