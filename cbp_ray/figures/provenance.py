"""Where figures come from: the code, the machine, the time they took. No names of machines or people."""

import contextlib
import json
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from cbp_ray.sweeps.provenance import commit, cpu_model

if TYPE_CHECKING:
    from cbp_ray.sweeps.progress import Totals

LOG = "reproductions.jsonl"
"""Name of the log in a folder of figures: a line of JSON per `Reproduction`."""


@dataclass(frozen=True)
class Reproduction:
    """One call of `cbp-ray reproduce`; the last four are read off the machine."""

    command: str
    figures: list[str]
    scale: str
    runs: int
    """Number of runs done by this call."""
    stored_runs: int
    """Number of runs that were stored before."""
    failed: int
    """Number of trials given up."""
    sweep_seconds: float
    """Wall-clock time of the sweeps."""
    seconds: float
    """Wall-clock time of everything, drawing and claims included."""
    commit: str = field(default_factory=commit)
    cpu: str = field(default_factory=cpu_model)
    cores: int = field(default_factory=lambda: len(os.sched_getaffinity(0)))
    finished: str = field(default_factory=lambda: time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()))

    @classmethod
    def of(cls, command: str, figures: list[str], scale: str, outcomes: "Sequence[Totals]", begun: float) -> "Reproduction":
        """What some sweeps have done that began at a time of `time.monotonic()`."""
        return cls(
            command=command,
            figures=figures,
            scale=scale,
            runs=sum(outcome.runs_done for outcome in outcomes),
            stored_runs=sum(outcome.stored_runs for outcome in outcomes),
            failed=0,
            sweep_seconds=sum(outcome.seconds for outcome in outcomes),
            seconds=time.monotonic() - begun,
        )

    def append_to(self, directory: Path) -> None:
        """Adds a line to the log in a folder of figures."""
        directory.mkdir(parents=True, exist_ok=True)
        with open(directory / LOG, "a", encoding="utf-8") as log:
            log.write(json.dumps(asdict(self)) + "\n")


def reproductions(directory: Path) -> list[Reproduction]:
    """The log of a folder of figures, oldest first."""
    with contextlib.suppress(FileNotFoundError):
        return [Reproduction(**json.loads(line)) for line in (directory / LOG).read_text(encoding="utf-8").splitlines()]
    return []


def told(directory: Path, figures: Iterable[str]) -> str:
    """The calls that made runs for one of some figures, a line each: command, time, commit, number of runs, machine."""
    wanted = set(figures)
    return "\n".join(
        f"- `{entry.command}` on {entry.finished}, commit {entry.commit}: {entry.runs:,} runs in {entry.sweep_seconds:.0f} s"
        f" ({entry.seconds:.0f} s with drawing and claims), {entry.cores} cores of {entry.cpu}"
        for entry in reproductions(directory)
        if entry.runs and not wanted.isdisjoint(entry.figures)
    )
