"""What a running sweep tells: events to whoever started it, and a sign of life in its folder for everybody else."""

import json
import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from cbp_ray.results.store import Store

HEARTBEAT_SECONDS = 5.0
SILENT_SECONDS = 60.0
"""A sweep that has given no sign of life for so long is taken for dead."""


@dataclass
class Totals:
    """Where a sweep is."""

    trials: int
    """Of this start: what is stored already is not among them."""
    runs: int
    stored_runs: int
    """Runs that were there before."""
    slots: int
    """Trials at once."""
    estimated_seconds: float
    """On one core."""
    trials_done: int = 0
    runs_done: int = 0
    examples_done: float = 0
    failed: int = 0
    retried: int = 0
    repeated: int = 0
    engine_seconds: float = 0.0
    begun: float = field(default_factory=time.time)
    running: dict[str, float] = field(default_factory=dict)
    """Fraction done of each trial that runs."""
    estimated_done: float = 0.0
    """Of `estimated_seconds`, that of finished trials and of the done part of running ones."""

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.time() - self.begun

    @property
    def examples_per_second(self) -> float:
        return self.examples_done / max(self.seconds, 1e-9)

    @property
    def remaining_seconds(self) -> float | None:
        """From what was estimated and how long the done part really took; None until something is done."""
        if self.estimated_done <= 0:
            return None
        return max(0.0, self.seconds * (self.estimated_seconds / self.estimated_done - 1))

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        remaining = self.remaining_seconds
        return {
            "trials": self.trials,
            "trials_done": self.trials_done,
            "runs": self.runs,
            "runs_done": self.runs_done,
            "runs_stored_before": self.stored_runs,
            "running": len(self.running),
            "failed": self.failed,
            "retried": self.retried,
            "repeated": self.repeated,
            "examples_per_second": round(self.examples_per_second),
            "engine_seconds": round(self.engine_seconds, 3),
            "seconds": round(self.seconds, 3),
            "remaining_seconds": None if remaining is None else round(remaining, 1),
        }


@dataclass(frozen=True)
class Event:
    """Something happened: `start`, `trial_start`, `trial_done`, `trial_retry`, `trial_failed`, `progress`, `interrupted`,
    `warning`, `end`."""

    kind: str
    totals: Totals
    about: dict[str, Any] = field(default_factory=dict)
    """The trial's id, group, error, … or a message."""

    def as_json(self) -> str:
        """One line."""
        return json.dumps({"event": self.kind, "time": round(time.time(), 3), **self.about, **self.totals.as_dict()})


Listener = Callable[[Event], None]


def ignore(_event: Event) -> None:
    """A listener for those who do not want to know."""


class Heartbeat:
    """Writes `progress/<source>.json` every few seconds."""

    def __init__(self, store: Store, source: str, totals: Totals) -> None:
        self._folder, self._name, self._totals = store.folder / "progress", f"{source}.json", totals
        self._next = 0.0

    def beat(self, state: str = "running", force: bool = False) -> None:
        """Says that the sweep is alive, or how it ended."""
        if not force and time.monotonic() < self._next:
            return
        self._next = time.monotonic() + HEARTBEAT_SECONDS
        sign = {
            "state": state,
            "time": time.time(),
            "host": platform.node(),
            "pid": os.getpid(),
            "running_trials": sorted(self._totals.running),
            **self._totals.as_dict(),
        }
        self._folder.write(self._name, json.dumps(sign).encode())
