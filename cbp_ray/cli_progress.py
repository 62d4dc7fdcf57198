"""How a running sweep looks: a bar on a terminal, plain lines elsewhere, JSON for programs."""

import json
import sys
import time
from typing import Any, Protocol

import click

from cbp_ray.sweeps.progress import Event, Totals

PLAIN_SECONDS = 10.0
"""Between two lines that say nothing new."""


class Display(Protocol):
    """A listener that is closed at the end."""

    def __call__(self, event: Event) -> None: ...

    def close(self) -> None: ...


def make_display(as_json: bool) -> Display:
    """What suits whoever looks."""
    if as_json:
        return Json()
    return Bar() if sys.stdout.isatty() else Lines()


def span(seconds: float | None) -> str:
    """`4 s`, `3 min`, `2.5 h`, `160 days`."""
    if seconds is None:
        return "?"
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 100 * 3600:
        return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.0f} days"


def rate(totals: Totals) -> str:
    """`35 M examples/s`."""
    number = totals.examples_per_second
    return f"{number / 1e6:.1f} M examples/s" if number >= 1e5 else f"{number:.0f} examples/s"


def summary(totals: Totals) -> str:
    """The last line."""
    parts = [f"{totals.runs_done} runs in {totals.trials_done} trials, {span(totals.seconds)}"]
    if totals.stored_runs:
        parts.append(f"{totals.stored_runs} runs were there before")
    if totals.runs_done:
        parts.append(rate(totals))
    if totals.failed:
        parts.append(f"{totals.failed} trials FAILED: see cbp-ray status --failed")
    return "; ".join(parts)


def best(event: Event) -> str | None:
    """What a search has found."""
    found = event.about.get("best")
    return f"best: {found['value']:.6g} with {json.dumps(found['config'])}" if found else None


def incident(event: Event) -> str | None:
    """A line about what should not scroll away."""
    about = event.about
    if event.kind == "trial_failed":
        return f"failed after {about['attempts']} attempts: {about['group']} {about['trial_id']}: {about['message']}"
    if event.kind == "trial_retry":
        return f"retry: {about['group']} {about['trial_id']} (failure {about['attempt']})"
    if event.kind == "interrupted":
        return "stopped; run the same command again to go on"
    return str(about["message"]) if event.kind == "warning" else None


def _end(event: Event) -> None:
    click.echo(summary(event.totals))
    if (line := best(event)) is not None:
        click.echo(line)


class Json:
    """One object per line."""

    def __call__(self, event: Event) -> None:
        click.echo(event.as_json())

    def close(self) -> None:
        """Nothing is open."""


class Lines:
    """A line every now and then."""

    def __init__(self) -> None:
        self._next = 0.0

    def __call__(self, event: Event) -> None:
        totals = event.totals
        if event.kind == "start":
            click.echo(f"{event.about['storage']}: {totals.runs} runs in {totals.trials} trials, {totals.slots} at once")
        elif event.kind == "end":
            _end(event)
        elif (line := incident(event)) is not None:
            click.echo(line)
        elif event.kind == "progress" and time.monotonic() >= self._next:
            self._next = time.monotonic() + PLAIN_SECONDS
            done = f"{totals.trials_done}/{totals.trials} trials, {totals.runs_done}/{totals.runs} runs"
            click.echo(f"{done}, {rate(totals)}, {span(totals.remaining_seconds)} left, {totals.failed} failed")

    def close(self) -> None:
        """Nothing is open."""


class Bar:
    """A live bar."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[text]}"),
            transient=True,
        )
        self._task = self._progress.add_task("starting Ray", total=None, text="")
        self._progress.start()

    def __call__(self, event: Event) -> None:
        totals = event.totals
        if event.kind == "end":
            self.close()
            _end(event)
            return
        if (line := incident(event)) is not None:
            self._progress.console.print(line, markup=False, highlight=False)
        text = f"{totals.trials_done}/{totals.trials} trials · {rate(totals)} · {span(totals.remaining_seconds)} left"
        if totals.failed:
            text += f" · {totals.failed} failed"
        fields: dict[str, Any] = {"description": f"{totals.runs_done}/{totals.runs} runs", "text": text}
        self._progress.update(self._task, total=totals.estimated_seconds, completed=totals.estimated_done, **fields)

    def close(self) -> None:
        """Takes the bar off the screen."""
        self._progress.stop()
