"""What a sweep's folder says of the files that share it: what each asks for, with every setting resolved."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

import yaml

from cbp_ray.experiments.config import OnlineConfig
from cbp_ray.results.keys import config_key, seed_ranges
from cbp_ray.results.store import Store
from cbp_ray.sweeps.definition import Sweep
from cbp_ray.sweeps.document import Document, merge
from cbp_ray.sweeps.draws import search_key
from cbp_ray.sweeps.grid import expand

FOLDER = "sweeps"
SUFFIX = ".json"
HEAD = "# Everything resolved: includes, scale, overrides and defaults. Runs as it is; sweeps/*.json has each configuration.\n"


def record_sweep(sweep: Sweep, store: Store) -> str:
    """Writes what is asked for: the file as resolved, and every configuration with all its settings.

    Several files may share a sweep. `sweeps/<record>.yaml` and `.json` are of each of them, `sweep.yaml` of the last that ran.

    Returns:
      The record's name: that of the file; with its scale, if it is another than the paper's; and with a hash of its place,
      if there is a record of another file of that name.
    """
    whole: dict[str, Any] = {
        "sweep": sweep.name,
        "kind": "grid" if sweep.tune is None else "search",
        "engine": sweep.engine,
        "origin": sweep.origin,
        "seeds": list(sweep.seeds),
        "configurations": [
            {"key": config_key(c.config, sweep.engine), "group": c.group, "config": c.config.model_dump(mode="json")}
            for c in sweep.configurations
        ],
    }
    if sweep.tune is not None:
        whole |= {"search": search_key(sweep), "samples": sweep.tune.samples * len(sweep.configurations)}
    # Through JSON, so that what several groups share is not one object, which YAML would write once and refer to.
    document = json.loads(json.dumps(resolved(sweep)))
    text = (HEAD + yaml.safe_dump(document, sort_keys=False, default_flow_style=None, width=128)).encode()
    folder, name = store.folder / FOLDER, _name(sweep, store, whole)
    folder.write(f"{name}.yaml", text)
    folder.write(f"{name}{SUFFIX}", json.dumps(whole).encode())
    store.folder.write("sweep.yaml", text)
    return name


def read_records(store: Store) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and content of every record."""
    folder = store.folder / FOLDER
    for file in folder.names():
        if file.endswith(SUFFIX):
            yield file.removesuffix(SUFFIX), json.loads(folder.read(file))


def _name(sweep: Sweep, store: Store, record: Mapping[str, Any]) -> str:
    name = sweep.source if sweep.scale == "paper" else f"{sweep.source}@{sweep.scale}"
    try:
        old = json.loads((store.folder / FOLDER).read(f"{name}{SUFFIX}"))
    except FileNotFoundError:
        return name
    asked = ("engine", "seeds", "configurations", "search")
    if _same_file(old.get("origin", ""), sweep.origin) or all(old.get(key) == record.get(key) for key in asked):
        return name
    return f"{name}-{hashlib.sha256(sweep.origin.encode()).hexdigest()[:6]}"


def _same_file(one: str, other: str) -> bool:
    """Whether two origins are of one file. That of a job is a path within its working directory, wherever that was."""
    if not one or not other:
        return True
    a, b = PurePath(one), PurePath(other)
    if a.is_absolute() == b.is_absolute():
        return a == b
    inner, outer = (b, a) if a.is_absolute() else (a, b)
    return outer.parts[-len(inner.parts) :] == inner.parts


def resolved(sweep: Sweep) -> Document:
    """A document that gives the same sweep and leaves nothing to defaults.

    Grids stay grids. A default is left out where configurations of a group differ in it without the file saying so: where it
    follows from another setting that is a grid.
    """
    document = sweep.document
    base = document.get("base") or {}
    groups = {group: _with_defaults(merge(base, own or {})) for group, own in document.get("groups", {}).items()}
    ranges = [f"{first}:{last + 1}" for first, last in seed_ranges(sweep.seeds)]
    whole = {
        "sweep": sweep.name,
        "seeds": ranges[0] if len(ranges) == 1 else ranges,
        "engine": sweep.engine,
        "resources": sweep.resources.model_dump(mode="json"),
        "groups": groups,
    }
    return whole if sweep.tune is None else whole | {"tune": sweep.tune.model_dump(mode="json")}


def _with_defaults(settings: Mapping[str, Any]) -> Document:
    return _fill(settings, [OnlineConfig.make(point).model_dump(mode="json") for point in expand(settings)])


def _fill(settings: Mapping[str, Any], points: Sequence[Mapping[str, Any]]) -> Document:
    """`settings` with what all `points` have and it does not say."""
    filled = dict(settings)
    for name, first in points[0].items():
        values = [point.get(name) for point in points]
        if name not in settings:
            if all(name in point for point in points) and all(value == first for value in values):
                filled[name] = first
        elif isinstance(settings[name], Mapping):
            filled[name] = _fill(settings[name], [value for value in values if isinstance(value, Mapping)])
    return filled
