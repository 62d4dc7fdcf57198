"""Trials that failed for good: a file each, until all its runs are stored."""

import contextlib
import json
import time
from collections.abc import Mapping
from typing import Any

from click import unstyle

from cbp_ray.results.json_files import read_json
from cbp_ray.results.keys import seeds_by_key
from cbp_ray.results.store import FAILURE, Block, Store, block_names


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
    # Of a storage that fails, the trial may have died; whoever is told of the message knows.
    with contextlib.suppress(OSError):
        store.failures.write(block.trial_id + FAILURE, json.dumps(failure, indent=1).encode())
    return str(failure["message"])


def read_all(store: Store, stored: Mapping[str, set[int]] | None = None) -> list[dict[str, Any]]:
    """All failures that still count: those with a run that is not stored, or not among `stored` if that is given."""
    names = block_names(store.failures, FAILURE)
    if names and stored is None:
        stored = seeds_by_key(store.names())
    found = []
    for name in names:
        with contextlib.suppress(FileNotFoundError):  # it was removed meanwhile
            if not name.within(stored or {}):
                found.append(read_json(store.failures, f"{name}{FAILURE}", "failures"))
    return found
