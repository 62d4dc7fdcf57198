"""JSON in a sweep's folder, read with suspicion: a disk, a copy or a person may have changed it since it was written."""

import json
import re
from collections.abc import Mapping
from typing import Any

from cbp_ray.errors import InputError
from cbp_ray.results.storage import Folder

REDO = "run `cbp-ray verify --remove`, then the sweep again"
"""What to do about a damaged file."""
NUMBER = (int, float)
LARGE = 2**63
"""JSON's integers may have any length, ours are smaller than this."""
KINDS: dict[str, dict[str, type | tuple[type, ...]]] = {
    "sweeps": {"sweep": str, "engine": str, "seeds": list, "configurations": list},
    "failures": {"trial_id": str, "group": str, "attempts": int, "message": str, "traceback": str},
    "warnings": {"group": str, "message": str},
    "progress": {"state": str, "time": NUMBER, "host": str, "running_trials": list, "glances": list},
    "drawn": {"group": str, "config": dict},
    "stopped": {"examples": int, "value": NUMBER},
}
"""Fields that files of each folder must have, with their types; what else they have is not looked at."""
CONFIGURATION = {"key": str, "group": str, "config": dict}
GLANCE: dict[str, type | tuple[type, ...]] = {"name": str, "seeds": str, "fraction": NUMBER}
SEARCH: dict[str, type | tuple[type, ...]] = {"search": str, "samples": int}


def read_json(folder: Folder, name: str, kind: str) -> dict[str, Any]:
    """A mapping that the program has written.

    Args:
      folder: where it is.
      name: name of the file.
      kind: which fields it must have, a key of `KINDS`; any for another.

    Raises:
      FileNotFoundError: if there is no such file.
      InputError: if it is not JSON, or has not these fields; the message names it.
    """
    content = folder.read(name)
    try:
        found = json.loads(content)
        check_fields(found, kind)
    except (ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:80]
        raise InputError(f"{folder.location}/{name}: must be JSON of cbp-ray, got {reason}; {REDO}") from None
    mapping: dict[str, Any] = found
    return mapping


def check_fields(found: Any, kind: str) -> None:
    """Refuses, with a ValueError, what has not the fields of its kind."""
    _check(found, KINDS.get(kind, {}))
    if kind == "sweeps":
        _check_record(found)
    if kind == "progress":
        _check_sign(found)


def _check(found: Any, fields: Mapping[str, type | tuple[type, ...]]) -> None:
    if not isinstance(found, dict):
        raise ValueError("no mapping")
    for name, kind in fields.items():
        value = found.get(name)
        if not isinstance(value, kind) or isinstance(value, bool) or (isinstance(value, int) and abs(value) >= LARGE):
            raise ValueError(f"another {name}" if name in found else f"none of {name}")


def _check_sign(sign: Mapping[str, Any]) -> None:
    """Checks what a sign of life says of the time left and of each trial that runs."""
    if sign.get("remaining_seconds") is not None:
        _check(sign, {"remaining_seconds": NUMBER})
    for glance in sign["glances"]:
        _check(glance, GLANCE)
        if glance.get("value") is not None:
            _check(glance, {"value": NUMBER, "metric": str})
        points = glance.get("curve", [])
        if not isinstance(points, list) or not all(point is None or isinstance(point, NUMBER) for point in points):
            raise ValueError("another curve")


def _check_record(record: Mapping[str, Any]) -> None:
    """Checks what a record asks for, as far as it can be known without making its configurations."""
    if not record["seeds"] or not all(type(seed) is int and 0 <= seed < 2**64 for seed in record["seeds"]):
        raise ValueError("other seeds")
    for each in record["configurations"]:
        _check(each, CONFIGURATION)
    if record.get("kind") == "search":
        _check(record, SEARCH)
        # It is the name of a folder, and must not lead out of the sweep's.
        if not re.fullmatch("[0-9a-f]{1,64}", record["search"]):
            raise ValueError("another search")
