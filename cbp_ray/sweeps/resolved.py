"""What a sweep's folder says of the files that share it: what each asks for, with every setting resolved."""

import json
from collections.abc import Iterator
from typing import Any

import yaml

from cbp_ray.results.keys import config_key, seed_ranges
from cbp_ray.results.store import Store
from cbp_ray.sweeps.search_log import search_key
from cbp_ray.sweeps.sweep import Sweep

FOLDER = "sweeps"
SUFFIX = ".json"
HEAD = "# Everything resolved: includes, scale, overrides, grids and defaults. Runs as it is.\n"
_DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def record_sweep(sweep: Sweep, store: Store) -> str:
    """Writes what is asked for, with every configuration and all its settings.

    Several files may share a sweep. `sweeps/<record>.yaml` and `.json` are of each of them, `sweep.yaml` of the last that ran.

    Returns:
      The record's name: that of the file; with its scale, if it is another than the paper's.
    """
    name = sweep.source if sweep.scale == "paper" else f"{sweep.source}@{sweep.scale}"
    configs = [(c.group, c.config, c.config.model_dump(mode="json")) for c in sweep.configurations]
    groups: dict[str, list[Any]] = {}
    for group, _, settings in configs:
        groups.setdefault(group, []).append(settings)
    ranges = [f"{first}:{last + 1}" for first, last in seed_ranges(sweep.seeds)]
    document = {
        "sweep": sweep.name,
        "seeds": ranges[0] if len(ranges) == 1 else ranges,
        "engine": sweep.engine,
        "resources": sweep.resources.model_dump(mode="json"),
        **({} if sweep.tune is None else {"tune": sweep.tune.model_dump(mode="json")}),
        "groups": groups,
    }
    record: dict[str, Any] = {
        "sweep": sweep.name,
        "kind": "grid" if sweep.tune is None else "search",
        "engine": sweep.engine,
        "seeds": list(sweep.seeds),
        "configurations": [
            {"key": config_key(config, sweep.engine), "group": group, "config": settings} for group, config, settings in configs
        ],
    }
    if sweep.tune is not None:
        record |= {"search": search_key(sweep), "samples": sweep.tune.samples * len(sweep.configurations)}
    text = (HEAD + yaml.dump(document, Dumper=_DUMPER, sort_keys=False, default_flow_style=None, width=128)).encode()
    folder = store.folder / FOLDER
    folder.write(f"{name}.yaml", text)
    folder.write(f"{name}{SUFFIX}", json.dumps(record).encode())
    store.folder.write("sweep.yaml", text)
    return name


def read_records(store: Store) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and content of every record."""
    folder = store.folder / FOLDER
    for file in folder.names():
        if file.endswith(SUFFIX):
            yield file.removesuffix(SUFFIX), json.loads(folder.read(file))
