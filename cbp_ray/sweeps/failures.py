"""Trials that failed for good: a file each, until the trial succeeds."""

import json
import re
import time
from typing import Any

from cbp_ray.results.store import Block, Store

SUFFIX = ".json"
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def record(store: Store, block: Block, group: str, attempts: int, error: str) -> str:
    """Keeps a trial's failure with its traceback. Returns the error's last line."""
    text = _COLOURS.sub("", error).strip()
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
    (store.folder / "failures").write(block.trial_id + SUFFIX, json.dumps(failure, indent=1).encode())
    return str(failure["message"])


def forget(store: Store, block: Block) -> None:
    """After the block is stored."""
    (store.folder / "failures").remove(block.trial_id + SUFFIX)


def read_all(store: Store) -> list[dict[str, Any]]:
    """All failures on record."""
    folder = store.folder / "failures"
    return [json.loads(folder.read(name)) for name in folder.names() if name.endswith(SUFFIX)]
