"""What is done, running, failed and missing: read from a sweep's folder alone, so any shell can ask at any time."""

import json
import os
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cbp_ray.errors import InputError
from cbp_ray.results.storage import Folder
from cbp_ray.results.store import Store
from cbp_ray.sweeps import failures
from cbp_ray.sweeps.progress import SILENT_SECONDS

ENDED = {"finished", "failed", "interrupted"}


@dataclass(frozen=True)
class Status:
    """One file's part of a sweep."""

    sweep: str
    source: str
    """Name of the file it comes from."""
    state: str
    """`complete`, `running`, `incomplete`, `interrupted`, `failed`, or `died`: running, but without a sign of life."""
    configurations: int
    runs: int
    done: int
    """Runs that are stored."""
    failed: int
    """Trials that failed and have not succeeded since."""
    running_trials: int
    silent_seconds: float | None
    """Since the last sign of life of the process that ran it last."""
    host: str
    remaining_seconds: float | None
    """Estimate of the process that runs it."""

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
    stored: dict[str, set[int]] = defaultdict(set)
    for name in store.names():
        stored[name.key].update(name.seeds)
    failed_keys = [failure["trial_id"].partition("-")[0] for failure in failures.read_all(store)]
    folder = store.folder / "sweeps"
    for file in folder.names():
        if file.endswith(".json"):
            yield _status(store, file.removesuffix(".json"), json.loads(folder.read(file)), stored, failed_keys)


def _status(store: Store, source: str, wanted: dict[str, Any], stored: dict[str, set[int]], failed: list[str]) -> Status:
    seeds, keys = set(wanted["seeds"]), [c["key"] for c in wanted["configurations"]]
    if wanted.get("kind") == "search":
        # Which settings it tries, only the search knows: what it has stored is all there is to count.
        keys = [key for key, found in stored.items() if seeds <= found]
    done = sum(len(seeds & stored[key]) for key in keys)
    runs, own = len(seeds) * len(keys), set(keys)
    failures_here = sum(key in own for key in failed)
    try:
        sign = json.loads((store.folder / "progress").read(f"{source}.json"))
    except FileNotFoundError:
        sign = {}
    silent = time.time() - sign["time"] if sign else None
    state = str(sign.get("state", "incomplete"))
    alive = state == "running" and silent is not None and silent < SILENT_SECONDS
    if not alive:
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
        len(keys),
        runs,
        done,
        failures_here,
        len(sign.get("running_trials", [])) if alive else 0,
        silent,
        str(sign.get("host", "")),
        sign.get("remaining_seconds") if alive else None,
    )
