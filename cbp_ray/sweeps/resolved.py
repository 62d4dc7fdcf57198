"""What a sweep's folder says of the files that share it: what each asks for, with every setting resolved."""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from cbp_ray.results.keys import config_key, seed_ranges
from cbp_ray.results.records import FOLDER, SUFFIX, Record
from cbp_ray.results.records import read_records as read_records
from cbp_ray.results.store import Store
from cbp_ray.sweeps.search_log import search_key
from cbp_ray.sweeps.sweep import Sweep

HEAD = "# Everything resolved: includes, scale, overrides, grids and defaults. Runs as it is.\n"
_DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def record_sweep(sweep: Sweep, store: Store) -> str:
    """Writes what is asked for, with every configuration and all its settings.

    Several files may share a sweep. `sweeps/<record>.yaml` and `.json` are of each of them, `sweep.yaml` of the last that ran.

    Returns:
      The record's name: that of the file; with its scale, if it is another than the paper's.
    """
    name = sweep.source if sweep.scale == "paper" else f"{sweep.source}@{sweep.scale}"
    write_record(store, name, record_of(sweep), {} if sweep.tune is None else {"tune": sweep.tune.model_dump(mode="json")})
    return name


def write_record(store: Store, name: str, record: Record, more: Mapping[str, Any]) -> None:
    """Writes a record under its name, with `more` keys in its sweep file."""
    text = (HEAD + sweep_text(record, record["configurations"], **more)).encode()
    folder = store.folder / FOLDER
    folder.write(f"{name}.yaml", text)
    folder.write(f"{name}{SUFFIX}", json.dumps(record).encode())
    store.folder.write("sweep.yaml", text)


def record_of(sweep: Sweep) -> Record:
    """What a sweep asks for, as its record has it."""
    record: Record = {
        "sweep": sweep.name,
        "kind": "grid" if sweep.tune is None else "search",
        "engine": sweep.engine,
        "seeds": list(sweep.seeds),
        "resources": sweep.resources.model_dump(mode="json"),
        "loggers": list(sweep.loggers),
        "configurations": [
            {"key": config_key(c.config, sweep.engine), "group": c.group, "config": c.config.model_dump(mode="json")}
            for c in sweep.configurations
        ],
    }
    if sweep.tune is not None:
        samples = sweep.tune.samples * len(sweep.configurations)
        record |= {
            "search": search_key(sweep),
            "samples": samples,
            "metric": sweep.tune.metric,
            "mode": sweep.tune.mode,
            "space": list(sweep.tune.space),
        }
    return record


def sweep_text(record: Mapping[str, Any], configurations: Iterable[Mapping[str, Any]], **more: Any) -> str:
    """A sweep file with some configurations, groups and configs as in a record, that runs as it is.

    Args:
      record: where name, seeds, engine, resources and loggers come from.
      configurations: groups and configs.
      more: further keys of the file.
    """
    ranges = [f"{first}:{last + 1}" for first, last in seed_ranges(record["seeds"])]
    groups: dict[str, list[Any]] = {}
    for each in configurations:
        groups.setdefault(each["group"], []).append(each["config"])
    document = {
        "sweep": record["sweep"],
        "seeds": ranges[0] if len(ranges) == 1 else ranges,
        "engine": record["engine"],
        **{key: record[key] for key in ("resources", "loggers") if record.get(key)},
        **more,
        "groups": groups,
    }
    return str(yaml.dump(document, Dumper=_DUMPER, sort_keys=False, default_flow_style=None, width=128))


def rename_records(store: Store) -> None:
    """Makes the records of a sweep that was moved say its new name."""
    folder = store.folder / FOLDER
    for name, record in list(read_records(store)):
        folder.write(f"{name}{SUFFIX}", json.dumps(record | {"sweep": store.sweep}).encode())
    for place, name in [(folder, name) for name in folder.names()] + [(store.folder, name) for name in store.folder.names()]:
        if name.endswith(".yaml"):
            text = re.sub(r"^sweep: .*$", f"sweep: {store.sweep}", place.read(name).decode(), count=1, flags=re.MULTILINE)
            place.write(name, text.encode())
