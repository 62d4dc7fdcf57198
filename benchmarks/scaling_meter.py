"""What a sweep's processes use, looked up in `/proc` from outside: CPU time, memory and open files by the part they play."""

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

TICKS, PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
DRIVER, WORKER, GCS, RAYLET, AGENT = "driver", "worker", "gcs", "raylet", "agent"
SAMPLE_SECONDS = 0.5


class Process(NamedTuple):
    """A process at one moment."""

    pid: int
    parent: int
    begun: int
    seconds: float
    """CPU time so far, in all of its threads."""
    rss: int
    """Memory in bytes, what it shares with others included."""


def processes() -> dict[int, Process]:
    """All processes of this machine by their id."""
    found = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = Path(entry.path, "stat").read_text().rpartition(")")[2].split()
                pid, seconds = int(entry.name), (int(fields[11]) + int(fields[12])) / TICKS
                found[pid] = Process(pid, int(fields[1]), int(fields[19]), seconds, int(fields[21]) * PAGE)
    return found


def below(root: int, known: dict[int, Process]) -> set[int]:
    """A process and all that it has started, as far as they live."""
    children = defaultdict(list)
    for process in known.values():
        children[process.parent].append(process.pid)
    found, new = set[int](), [root] if root in known else []
    while new:
        found.update(new)
        new = [child for pid in new for child in children[pid] if child not in found]
    return found


def open_files(pid: int) -> int:
    """Number of open file descriptors of a process; 0 if it is gone."""
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0


def _role(pid: int, before: str) -> str:
    """The part that a process plays; that of before if it has just ended and has no command line any more."""
    try:
        line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return before
    if not line:
        return before
    if "gcs_server" in line:
        return GCS
    if "raylet/raylet" in line:
        return RAYLET
    ours = line.startswith("ray::") and not any(name in line for name in ("Agent", "Dashboard"))
    return WORKER if ours else AGENT


class Meter(threading.Thread):
    """Looks at a driver and at all processes of its Ray twice a second, until `stop`.

    Args:
      driver: process id of the driver.
      roots: further processes whose offspring counts: what has started a cluster.
    """

    def __init__(self, driver: int, *roots: int) -> None:
        super().__init__(daemon=True)
        self.driver, self._roots = driver, (driver, *roots)
        self.done = 0
        """Trials done so far, as whoever reads the driver's events says."""
        self.samples: list[dict[str, float]] = []
        """Of the driver: seconds since the start, trials done, CPU seconds, memory and open files."""
        self.workers: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
        """Trials done, memory and open files of each worker, by process id."""
        self._seconds: dict[tuple[int, int], tuple[str, float]] = {}
        self.peak: dict[str, int] = defaultdict(int)
        """Most memory of all processes of a part together, in bytes."""
        self._end, self._begun = threading.Event(), time.monotonic()

    def run(self) -> None:
        while not self._end.is_set():
            self._look()
            self._end.wait(SAMPLE_SECONDS)

    def _look(self) -> None:
        known, memory = processes(), defaultdict[str, int](int)
        for pid in set().union(*(below(root, known) for root in self._roots)):
            process = known[pid]
            before, _ = self._seconds.get((pid, process.begun), (AGENT, 0.0))
            role = DRIVER if pid == self.driver else _role(pid, before)
            if pid in self._roots and pid != self.driver:
                continue
            # A worker has another title before it is one.
            self._seconds[pid, process.begun] = role, process.seconds
            memory[role] += process.rss
            if role == WORKER:
                self.workers[pid].append((self.done, process.rss, open_files(pid)))
            elif role == DRIVER:
                now = time.monotonic() - self._begun
                numbers = {"seconds": now, "done": self.done, "cpu_s": process.seconds}
                self.samples.append(numbers | {"rss_mb": process.rss / 1e6, "files": open_files(pid)})
        for role, amount in memory.items():
            self.peak[role] = max(self.peak[role], amount)

    def stop(self) -> None:
        """Ends looking."""
        self._end.set()
        self.join()

    def cpu_seconds(self) -> dict[str, float]:
        """CPU seconds so far by part: driver, workers, Ray's services. What lived less than half a second is not in it."""
        found = dict.fromkeys((DRIVER, WORKER, GCS, RAYLET, AGENT), 0.0)
        for role, seconds in self._seconds.values():
            found[role] += seconds
        return found

    def at(self, done: float) -> dict[str, float]:
        """What was seen of the driver when so many trials were done, or a moment later."""
        return next((sample for sample in self.samples if sample["done"] >= done), self.samples[-1])


class Timed(NamedTuple):
    """A command that came to its end."""

    seconds: float
    cpu_seconds: float
    rss_mb: float
    code: int


def timed(*arguments: str, timeout: float = 900) -> Timed:
    """Runs `cbp-ray` with some arguments in a process of its own; its output goes nowhere."""
    begun = time.monotonic()
    command = [sys.executable, "-m", "cbp_ray", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    timer = threading.Timer(timeout, process.kill)
    timer.start()
    # Popen would reap it without telling what it used.
    _, status, usage = os.wait4(process.pid, 0)
    timer.cancel()
    process.returncode = os.waitstatus_to_exitcode(status)
    return Timed(time.monotonic() - begun, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1e3, process.returncode)


def summed(values: Any) -> dict[str, Any]:
    """A dict with its numbers rounded, for JSON that people read too."""
    return {key: round(value, 4) if isinstance(value, float) else value for key, value in values.items()}
