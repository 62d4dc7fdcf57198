"""Whether a sweep runs at this moment, from the sign of life that the process which runs it leaves in its folder."""

import time

from cbp_ray.errors import InputError
from cbp_ray.results.json_files import read_json
from cbp_ray.results.store import Store
from cbp_ray.sweeps.progress import SILENT_SECONDS


def is_recent(moment: float) -> bool:
    """Whether a sign of life is of now, by the clock of this machine: those of two machines must not differ by a minute.

    One from the future is from before a clock was set back.
    """
    return abs(time.time() - moment) < SILENT_SECONDS


def running_on(store: Store) -> str | None:
    """Name of the machine of a process that runs the sweep; None if no process has given a sign of life lately."""
    folder = store.folder / "progress"
    for name in folder.names():
        try:
            sign = read_json(folder, name, "progress")
            if sign["state"] == "running" and is_recent(sign["time"]):
                return str(sign["host"])
        except (FileNotFoundError, InputError):
            continue  # damaged: whoever runs it writes it again within seconds
    return None
