"""What is done, running, failed and missing: read from a sweep's folder alone, so any shell can ask at any time."""

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from cbp_ray.errors import InputError
from cbp_ray.results.keys import BlockName, seeds_by_key
from cbp_ray.results.storage import Folder
from cbp_ray.results.store import Store
from cbp_ray.sweeps import failures
from cbp_ray.sweeps.progress import SILENT_SECONDS
from cbp_ray.sweeps.resolved import read_records
from cbp_ray.sweeps.search_log import SearchLog

ENDED = {"finished", "failed", "interrupted"}


@dataclass(frozen=True)
class Status:
    """One file's part of a sweep."""

    sweep: str
    """Name of the sweep."""
    source: str
    """Name of the file it comes from."""
    state: str
    """`complete`, `running`, `incomplete`, `interrupted`, `failed`, or `died`: running, but without a sign of life."""
    configurations: int
    """Number of configurations known so far."""
    runs: int
    """Number of runs that the file asks for."""
    done: int
    """Runs that are stored, or that a search has stopped early."""
    failed: int
    """Trials that failed and have not succeeded since."""
    running_trials: int
    """Number of trials that run now."""
    silent_seconds: float | None
    """Seconds since the last sign of life of the process that ran it last."""
    host: str
    """Name of the machine of that process."""
    remaining_seconds: float | None
    """Time left, as the process that runs it estimates."""

    @property
    def missing(self) -> int:
        """Runs that are neither stored nor running to our knowledge."""
        return self.runs - self.done


def sweeps_in(storage: str | os.PathLike[str], only: str | None = None) -> list[Store]:
    """The sweeps of a storage.

    Raises:
      InputError: if there is none of that name.
    """
    names = [name for name in Folder(storage).folders() if (Folder(storage) / name).has("sweep.yaml")]
    if only is not None and only not in names:
        known = f"it has {', '.join(names)}" if names else "it has none"
        raise InputError(f"SWEEP: must be one in {os.fspath(storage)}, got {only!r}; {known}")
    return [Store(storage, name) for name in names if only is None or name == only]


def statuses(store: Store) -> Iterator[Status]:
    """One per file that shares the sweep."""
    names = store.names()
    stored = seeds_by_key(names)
    failed_keys = [failure["trial_id"].partition("-")[0] for failure in failures.read_all(store, stored)]
    for source, record in read_records(store):
        wanted = _wanted_by_search(store, record, names) if record.get("kind") == "search" else _wanted_by_grid(record, stored)
        yield _status(store, source, wanted, failed_keys)


class _Wanted(NamedTuple):
    """What one file asks for."""

    keys: set[str]
    """Keys of the configurations known so far."""
    runs: int
    done: int
    search: bool = False


def _wanted_by_grid(record: dict[str, Any], stored: dict[str, set[int]]) -> _Wanted:
    seeds, keys = set(record["seeds"]), {c["key"] for c in record["configurations"]}
    return _Wanted(keys, len(seeds) * len(keys), sum(len(seeds & stored[key]) for key in keys))


def _wanted_by_search(store: Store, record: dict[str, Any], names: list[BlockName]) -> _Wanted:
    """What a search asks for, from the notes that it leaves of every trial that it begins."""
    log, runs = SearchLog(store, record.get("search", "")), len(record["seeds"])
    known = min(len(log.known(names)), record.get("samples", 0))
    return _Wanted({name.key for name in log.drawn()}, runs * record.get("samples", 0), runs * known, search=True)


def _status(store: Store, source: str, wanted: _Wanted, failed: list[str]) -> Status:
    runs, done = wanted.runs, wanted.done
    failures_here = sum(key in wanted.keys for key in failed)
    try:
        sign = json.loads((store.folder / "progress").read(f"{source}.json"))
    except FileNotFoundError:
        sign = {}
    silent = time.time() - sign["time"] if sign else None
    state = str(sign.get("state", "incomplete"))
    alive = state == "running" and silent is not None and silent < SILENT_SECONDS
    if not alive:
        if wanted.search and state == "finished":
            # It may have come to the end of its space before it had drawn all samples.
            runs = done
        if done == runs:
            state = "complete"
        elif state == "running":
            state = "died"
        elif state not in ENDED or state == "finished":
            state = "incomplete"
    return Status(
        store.sweep,
        source,
        state,
        len(wanted.keys),
        runs,
        done,
        failures_here,
        len(sign.get("running_trials", [])) if alive else 0,
        silent,
        str(sign.get("host", "")),
        sign.get("remaining_seconds") if alive else None,
    )
