"""What is done, running, failed and missing: read from a sweep's folder alone, so any shell can ask at any time."""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cbp_ray.errors import InputError
from cbp_ray.results import warnings
from cbp_ray.results.json_files import read_json
from cbp_ray.results.keys import seeds_by_key
from cbp_ray.results.storage import Folder
from cbp_ray.results.store import Store
from cbp_ray.results.verify import cut_short
from cbp_ray.sweeps import failures
from cbp_ray.sweeps.resolved import read_records
from cbp_ray.sweeps.running import is_recent
from cbp_ray.sweeps.search_log import SearchLog


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
    """Runs that are stored."""
    stopped: int
    """Runs that a search has stopped early."""
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
    doing: str
    """What that process is busy with before the first examples are learned from; empty afterwards."""
    glances: list[dict[str, Any]]
    """Name, seeds, fraction done, latest value and a small curve of each trial that runs."""
    warnings: list[str]
    """What a person should know about configurations, each once: of a method that never acted, say."""

    @property
    def missing(self) -> int:
        """Runs that are neither stored nor stopped early."""
        return self.runs - self.done - self.stopped


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
    damaged = cut_short(store)
    names = [name for name in store.names() if name not in damaged]
    stored = seeds_by_key(names)
    failed_keys = [failure["trial_id"].partition("-")[0] for failure in failures.read_all(store, stored)]
    warned = warnings.read_all(store)
    for source, record in read_records(store):
        seeds, search = set(record["seeds"]), record.get("kind") == "search"
        if search:
            # What a search asks for shows in the notes that it leaves of every trial that it begins.
            log, samples = SearchLog(store, record.get("search", "")), record.get("samples", 0)
            keys = {name.key for name in log.drawn()}
            known = log.known(names)[:samples]
            whole = len({*known} & {*names})
            runs, done, stopped = len(seeds) * samples, len(seeds) * whole, len(seeds) * (len(known) - whole)
        else:
            keys = {c["key"] for c in record["configurations"]}
            runs, done, stopped = len(seeds) * len(keys), sum(len(seeds & stored[key]) for key in keys), 0
        try:
            sign = read_json(store.folder / "progress", f"{source}.json", "progress")
        except (FileNotFoundError, InputError):
            sign = {}  # whoever runs it writes it again within seconds
        silent = time.time() - sign["time"] if sign else None
        state = str(sign.get("state", "incomplete"))
        alive = state == "running" and is_recent(sign["time"])
        if not alive:
            if search and state == "finished":
                # It may have come to the end of its space before it had drawn all samples.
                runs = done + stopped
            state = "complete" if done + stopped == runs else {"running": "died", "finished": "incomplete"}.get(state, state)
        yield Status(
            sweep=store.sweep,
            source=source,
            state=state,
            configurations=len(keys),
            runs=runs,
            done=done,
            stopped=stopped,
            failed=sum(key in keys for key in failed_keys),
            running_trials=len(sign["running_trials"]) if alive else 0,
            silent_seconds=silent,
            host=str(sign.get("host", "")),
            remaining_seconds=sign.get("remaining_seconds") if alive else None,
            doing=str(sign.get("doing", "")) if alive else "",
            glances=sign.get("glances", []) if alive else [],
            warnings=[
                *(f"{name} is damaged; run the sweep again, which redoes it" for name in damaged if name.key in keys),
                *sorted({f"{w['group']}: {w['message']}" for key, w in warned.items() if key in keys}),
            ],
        )
