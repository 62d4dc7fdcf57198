"""What a person should know about stored runs: a file for each configuration of which there is something to say."""

import contextlib
import json
from typing import Any

from cbp_ray.experiments.config import OnlineConfig
from cbp_ray.experiments.curves import Curves
from cbp_ray.results.json_files import read_json
from cbp_ray.results.keys import config_key
from cbp_ray.results.store import Store

FOLDER, SUFFIX = "warnings", ".json"


def never_acted(config: OnlineConfig, curves: Curves) -> str | None:
    """One line if these runs are complete and their method never did what it is there for; None otherwise."""
    if "replacements" not in curves.metrics or not config.hidden:
        return None
    updates = config.examples * config.problem.updates_per_example
    return config.algorithm.never_acted(float(curves["replacements"].sum()), updates, min(config.hidden))


def record(store: Store, config: OnlineConfig, engine: str, group: str, message: str) -> bool:
    """Keeps a warning about a configuration. Returns whether it is new."""
    folder, name = store.folder / FOLDER, f"{config_key(config, engine)}{SUFFIX}"
    if folder.has(name):
        return False
    # The file of the runs says it, too; that this one can't be written ends no sweep.
    with contextlib.suppress(OSError):
        folder.write(name, json.dumps({"group": group, "message": message}).encode())
    return True


def read_all(store: Store) -> dict[str, dict[str, Any]]:
    """Group and message of every warning, by the key of its configuration."""
    folder, found = store.folder / FOLDER, dict[str, dict[str, Any]]()
    for name in folder.names():
        with contextlib.suppress(FileNotFoundError):  # it was removed meanwhile
            if name.endswith(SUFFIX):
                found[name.removesuffix(SUFFIX)] = read_json(folder, name, FOLDER)
    return found
