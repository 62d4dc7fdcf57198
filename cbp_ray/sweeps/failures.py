"""Trials that failed for good: a file each, until all its runs are stored."""

import json
import time
from collections.abc import Mapping
from typing import Any

from click import unstyle

from cbp_ray.results.keys import seeds_by_key
from cbp_ray.results.storage import Folder
from cbp_ray.results.store import Block, Store, block_names

SUFFIX = ".json"


def record(store: Store, block: Block, group: str, attempts: int, error: str) -> str:
    """Keeps a trial's failure with its traceback. Returns the error's last line."""
    text = unstyle(error).strip()
    lines = [line for line in text.splitlines() if line.strip()]
    failure = {
        "trial_id": block.trial_id,
        "group": group,
        "engine": block.engine,
        "seeds": list(block.seeds),
        "config": block.config.model_dump(mode="json"),
        "attempts": attempts,
        "time": time.time(),
        "message": lines[-1].strip() if lines else "no message",
        "traceback": text,
    }
    _folder(store).write(block.trial_id + SUFFIX, json.dumps(failure, indent=1).encode())
    return str(failure["message"])


def drop_stored(store: Store, stored: Mapping[str, set[int]]) -> None:
    """Removes the failures all of whose runs are stored by now, in whatever blocks."""
    for name in block_names(_folder(store), SUFFIX):
        if name.within(stored):
            _folder(store).remove(f"{name}{SUFFIX}")


def read_all(store: Store, stored: Mapping[str, set[int]] | None = None) -> list[dict[str, Any]]:
    """All failures that still count: those with a run that is not stored.

    Args:
      store: results of the sweep.
      stored: the seeds that are stored, by config key; looked up if not given.
    """
    names = block_names(_folder(store), SUFFIX)
    if names and stored is None:
        stored = seeds_by_key(store.names())
    return [json.loads(_folder(store).read(f"{name}{SUFFIX}")) for name in names if not name.within(stored or {})]


def _folder(store: Store) -> Folder:
    return store.folder / "failures"
