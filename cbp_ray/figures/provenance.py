"""Where figures come from: the code, the machine, the time they took. No names of machines or people."""

import contextlib
import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cbp_ray.sweeps.provenance import commit, cpu_model

LOG = "reproductions.jsonl"
"""Name of the log in a folder of figures: a line of JSON per `Reproduction`."""


@dataclass(frozen=True)
class Reproduction:
    """One call of `cbp-ray reproduce`."""

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
    commit: str
    cpu: str
    cores: int
    finished: str

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


def now() -> dict[str, Any]:
    """The part of a `Reproduction` that is read off the machine."""
    finished = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    return {"commit": commit(), "cpu": cpu_model(), "cores": len(os.sched_getaffinity(0)), "finished": finished}
