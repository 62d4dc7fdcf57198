"""What a running sweep tells: events to the process that started it, and a sign of life in its folder for all others."""

import json
import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from cbp_ray.results.store import Store

HEARTBEAT_SECONDS = 5.0
PRIOR_SECONDS = 20.0
"""The first estimate of the time left counts as much as this time of the sweep itself."""
SILENT_SECONDS = 60.0
"""A sweep that has given no sign of life for this long is taken for dead."""


@dataclass
class Totals:
    """Where a sweep is, and in the end what was done."""

    trials: int
    """Number of trials to run; what was stored before is not among them."""
    runs: int
    """Number of runs in these trials."""
    stored_runs: int
    """Number of runs that were there before."""
    slots: int
    """Number of trials that run at the same time."""
    estimated_seconds: float
    """Estimated time of all trials on one core."""
    trials_done: int = 0
    """Number of trials that have ended, also those that a search stopped."""
    runs_done: int = 0
    """Number of runs that are stored by now."""
    examples_done: float = 0
    """Examples learned from, summed over runs."""
    failed: int = 0
    """Number of trials given up; `cbp-ray status --failed` shows why."""
    retried: int = 0
    """Number of times that a trial was tried again."""
    engine_seconds: float = 0.0
    """CPU time inside the engine, summed over the workers."""
    begun: float = field(default_factory=time.monotonic)
    """When the sweep began, by a clock that nobody sets."""
    ended: float | None = None
    """When it ended, by the same clock; None while it runs."""
    running: dict[str, float] = field(default_factory=dict)
    """Fraction done of each trial that runs."""
    estimated_done: float = 0.0
    """The part of `estimated_seconds` of finished trials and of the done part of running ones."""
    estimated_resumed: float = 0.0
    """The part of `estimated_done` that trials had done before, and went on from."""
    stored_seconds: float = 0.0
    """Estimated time, on one core, of the runs that were there before."""
    resumed_trials: int = 0
    """Number of trials that go on from a checkpoint."""
    learning: float | None = None
    """When the first examples were learned from, by the same clock: what it takes to start says nothing of the rest."""
    doing: str = ""
    """What the sweep is busy with until the first examples are learned from: `starting Ray`, say."""
    glances: list[dict[str, Any]] = field(default_factory=list)
    """Latest value and a small curve of each trial that runs; see `LiveCurves.glance`."""

    @property
    def seconds(self) -> float:
        """Seconds from the start until the end, or until now."""
        return (self.ended or time.monotonic()) - self.begun

    @property
    def examples_per_second(self) -> float:
        return self.examples_done / max(self.seconds, 1e-9)

    @property
    def remaining_seconds(self) -> float | None:
        """From what was estimated, and from how long the done part really took, which counts more the more is done."""
        if not self.slots or not self.trials:
            return None
        now = self.ended or time.monotonic()
        took = PRIOR_SECONDS + (now - self.learning if self.learning is not None else 0.0)
        expected = PRIOR_SECONDS + max(0.0, self.estimated_done - self.estimated_resumed) / self.slots
        return max(0.0, (self.estimated_seconds - self.estimated_done) / self.slots * took / expected)

    def as_dict(self) -> dict[str, Any]:
        """The numbers that programs read, as JSON has them."""
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
            "examples_per_second": round(self.examples_per_second),
            "engine_seconds": round(self.engine_seconds, 3),
            "seconds": round(self.seconds, 3),
            "remaining_seconds": None if remaining is None else round(remaining, 1),
            "doing": self.doing,
        }


@dataclass(frozen=True)
class Event:
    """Something happened: `phase` (before the start), `start`, `trial_start`, `trial_done`, `trial_retry`, `trial_failed`,
    `trial_stopped`, `progress`, `interrupted`, `warning`, `end`."""

    kind: str
    """Name of what happened, see above."""
    totals: Totals
    """Where the sweep is."""
    about: dict[str, Any] = field(default_factory=dict)
    """The trial's id, group, error, … or a message."""

    def as_json(self) -> str:
        """The event as one line of JSON."""
        return json.dumps({"event": self.kind, "time": round(time.time(), 3), **self.about, **self.totals.as_dict()})


Listener = Callable[[Event], None]


class Heartbeat:
    """Writes `progress/<source>.json` every few seconds."""

    def __init__(self, store: Store, source: str, totals: Totals) -> None:
        self._folder, self._name, self._totals = store.folder / "progress", f"{source}.json", totals
        self._next = 0.0
        self.trouble: OSError | None = None

    @property
    def due(self) -> bool:
        """Whether it is time for the next sign."""
        return time.monotonic() >= self._next

    def beat(self, state: str = "running", force: bool = False) -> None:
        """Says that the sweep is alive, or how it ended. That it can't be said, which is in `trouble`, ends no sweep."""
        if not force and not self.due:
            return
        self._next = time.monotonic() + HEARTBEAT_SECONDS
        sign = {
            "state": state,
            "time": time.time(),
            "host": platform.node(),
            "pid": os.getpid(),
            "running_trials": sorted(self._totals.running),
            "glances": self._totals.glances,
            **self._totals.as_dict(),
        }
        try:
            self._folder.write(self._name, json.dumps(sign).encode(), lasting=state != "running")
            self.trouble = None
        except OSError as error:
            self.trouble = error
