"""Records of what the files that share a sweep ask for: `sweeps/<file>.json`, with every setting resolved."""

from collections.abc import Iterator
from typing import Any

from cbp_ray.errors import InputError
from cbp_ray.results.json_files import read_json
from cbp_ray.results.storage import Folder
from cbp_ray.results.store import Store

FOLDER, SUFFIX = "sweeps", ".json"
Record = dict[str, Any]


def read_records(store: Store) -> Iterator[tuple[str, Record]]:
    """Name and content of every record.

    Raises:
      InputError: if one is damaged.
    """
    folder = store.folder / FOLDER
    for file in folder.names():
        if file.endswith(SUFFIX):
            yield file.removesuffix(SUFFIX), read_json(folder, file, FOLDER)


def stored_sweeps(storage: Folder) -> list[str]:
    """Names of the sweeps that a storage holds, also of those that have lost their `sweep.yaml`."""
    found = ((name, storage / name) for name in storage.folders())
    return [name for name, folder in found if folder.has("sweep.yaml") or "curves" in folder.folders()]


def find_sweep(storage: str, name: str) -> Store:
    """The stored sweep of a name.

    Raises:
      InputError: if there is none; the message has those that there are.
    """
    known = stored_sweeps(Folder(storage))
    if name not in known:
        fix = f"it has {', '.join(known)}" if known else "it has none"
        raise InputError(f"SWEEP: must be a sweep in {storage}, got {name!r}; {fix}")
    return Store(storage, name)
