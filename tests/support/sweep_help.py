"""Sweeps for the tests that run Ray: small files, the program as a process, and what must be true of their results."""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cbp_ray.experiments import run_online
from cbp_ray.results import Store
from cbp_ray.sweeps import Sweep

SMALL = """
sweep: small
seeds: 0:6
base:
  optimizer: {name: sgd, step_size: 0.01}
  problem: {flip_period: 500}
  examples: 3000
  bin_size: 1000
groups:
  cbp: {algorithm: {name: cbp, replacement_rate: [1e-3, 1e-2]}}
  bp: {algorithm: {name: bp}}
"""


def assert_bit_equal(sweep: Sweep, storage: Path) -> None:
    """What the sweep has stored is what `run_online` gives, for every configuration, seed and metric."""
    store = Store(storage, sweep.name)
    for configuration in sweep.configurations:
        stored = store.read_curves(configuration.config, sweep.seeds, sweep.engine)
        alone = run_online(configuration.config, sweep.seeds, sweep.engine)
        for metric in alone.metrics:
            np.testing.assert_array_equal(stored[metric], alone[metric])


def snapshot(storage: Path) -> dict[str, tuple[int, int]]:
    """Identity and time of every stored file of results."""
    files = [path for folder in ("curves", "runs") for path in storage.glob(f"*/{folder}/*.parquet")]
    return {str(path): (path.stat().st_ino, path.stat().st_mtime_ns) for path in files}


class Program:
    """`cbp-ray run … --json` as a process of its own; `inside` stands before its command."""

    def __init__(self, *arguments: str, inside: Sequence[str] = ()) -> None:
        command = [*inside, sys.executable, "-m", "cbp_ray", "run", *arguments, "--json"]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, env=dict(os.environ)
        )
        self.events: list[dict[str, Any]] = []
        self._queue: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._queue.put(line)
        self._queue.put(None)

    def _next(self, deadline: float) -> dict[str, Any] | None:
        line = self._queue.get(timeout=max(0.1, deadline - time.monotonic()))
        if line is None:
            return None
        event: dict[str, Any] = json.loads(line)
        self.events.append(event)
        return event

    def wait_for(self, kind: str, count: int = 1, timeout: float = 280) -> None:
        """Until so many events of a kind have come since the start."""
        deadline = time.monotonic() + timeout
        while sum(event["event"] == kind for event in self.events) < count:
            if self._next(deadline) is None:
                raise AssertionError(f"ended before {count} x {kind}: {self.errors()}")

    def wait(self, timeout: float = 280) -> int:
        """Until the end. Returns the exit code."""
        deadline = time.monotonic() + timeout
        while self._next(deadline) is not None:
            pass
        return self.process.wait(timeout)

    def errors(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.read()

    def story(self) -> str:
        """What went wrong or was tried again, with what it wrote to standard error: for messages of failed tests."""
        told = [event for event in self.events if event["event"] in ("warning", "trial_retry", "trial_failed")]
        return "\n".join([*map(str, told), self.errors()])

    def done(self) -> list[str]:
        """Ids of the trials that it finished."""
        return [event["trial_id"] for event in self.events if event["event"] == "trial_done"]

    def started(self) -> list[str]:
        return [event["trial_id"] for event in self.events if event["event"] == "trial_start"]

    def descendants(self, part: str) -> list[int]:
        """Processes below it whose command line has `part`."""
        return [pid for pid, line in descendants(self.process.pid) if part in line]

    def kill_descendant(self, part: str, timeout: float = 60) -> None:
        """Kills the first process below it whose command line has `part`, as soon as there is one.

        Ray retitles its workers when they begin and end a task, so that for moments no process has the name.
        """
        deadline = time.monotonic() + timeout
        while not (found := self.descendants(part)):
            assert time.monotonic() < deadline, f"no process has {part!r} in its command line"
            time.sleep(0.005)
        kill(found[0])

    def end(self) -> None:
        """Whatever state it is in."""
        below = [pid for pid, _ in descendants(self.process.pid)]
        for pid in (self.process.pid, *below):
            kill(pid)
        self.process.wait(10)


def kill(pid: int) -> None:
    """At once, if it is there."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def descendants(root: int) -> Iterator[tuple[int, str]]:
    """Process ids and command lines below `root`."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    below, new = set(), {root}
    while new:
        new = {pid for pid, parent in parents.items() if parent in new} - below
        below |= new
    for pid in below:
        try:
            yield pid, Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
        except OSError:
            continue
