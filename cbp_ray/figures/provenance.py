"""Where results come from: the code, the machine, the time they took. No names of machines or people."""

import contextlib
import io
import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet

from cbp_ray.results import Store, config_key
from cbp_ray.sweeps import Sweep
from cbp_ray.sweeps.provenance import commit, cpu_model

LOG = "reproductions.jsonl"


@dataclass(frozen=True)
class Reproduction:
    """One call of `cbp-ray reproduce`."""

    command: str
    figures: list[str]
    scale: str
    runs: int
    """Runs done by this call."""
    stored_runs: int
    """Runs that were there before."""
    failed: int
    """Trials given up."""
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


@dataclass(frozen=True)
class Spent:
    """What the stored runs of a sweep took."""

    runs: int
    engine_seconds: float
    """CPU time inside the engine."""
    commits: tuple[str, ...]
    cpus: tuple[str, ...]


def spent(sweep: Sweep, storage: str | os.PathLike[str]) -> Spent:
    """Adds up what the runs of a sweep took, wherever and whenever they were made."""
    blocks = list(_blocks(sweep, Store(storage, sweep.name)))
    return Spent(
        sum(int(block["runs"]) for block in blocks),
        sum(float(block["engine_seconds"]) for block in blocks),
        tuple(sorted({str(block["commit"]) for block in blocks})),
        tuple(sorted({str(block["cpu"]) for block in blocks})),
    )


def _blocks(sweep: Sweep, store: Store) -> Iterator[dict[str, Any]]:
    keys = {config_key(configuration.config, sweep.engine) for configuration in sweep.configurations}
    wanted = set(sweep.seeds)
    for name in store.names():
        if name.key not in keys or not wanted.intersection(name.seeds):
            continue
        table = pyarrow.parquet.read_table(io.BytesIO(store.runs.read(f"{name}.parquet")))
        about = dict.fromkeys(("commit", "cpu"), "") | {"engine_seconds": 0.0}
        first = table.slice(0, 1).to_pylist()[0]
        # Of all seeds of a block together.
        yield {key: first.get(key, value) for key, value in about.items()} | {"runs": len(name.seeds)}
