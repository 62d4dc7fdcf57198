"""Which trials a search has begun and which were stopped early, kept on disk so that a resumed search repeats none.

`searches/<search>/drawn/` has a file for every trial that a search has begun, `searches/<search>/stopped/` one for every trial
that its scheduler ended. The names alone say which trials: counting opens nothing.
"""

import json
from collections.abc import Iterable
from typing import NamedTuple

from cbp_ray.experiments.config import OnlineConfig
from cbp_ray.results.json_files import read_json
from cbp_ray.results.keys import BlockName
from cbp_ray.results.store import Block, Store, block_names

SUFFIX = ".json"


class Stop(NamedTuple):
    """Where a scheduler ended a trial."""

    examples: int
    """Examples that the trial had seen."""
    value: float
    """Value of the search's metric at that point."""


class SearchLog:
    """The trials of one search, by the search's key (see `search_key` in `cbp_ray.sweeps.search_log`)."""

    def __init__(self, store: Store, search: str) -> None:
        folder = store.folder / "searches" / search
        self._drawn, self._stopped = folder / "drawn", folder / "stopped"

    def drawn(self) -> list[BlockName]:
        """All trials that were begun."""
        return block_names(self._drawn, SUFFIX)

    def stopped(self) -> list[BlockName]:
        """The trials that the scheduler ended."""
        return block_names(self._stopped, SUFFIX)

    def known(self, stored: Iterable[BlockName]) -> list[BlockName]:
        """The trials whose outcome is known: stored, or stopped."""
        settled = {*stored, *self.stopped()}
        return [name for name in self.drawn() if name in settled]

    def add(self, block: Block, group: str) -> None:
        """Notes that a trial begins."""
        about = {"group": group, "config": block.config.model_dump(mode="json"), "engine": block.engine}
        self._drawn.write(f"{block.trial_id}{SUFFIX}", json.dumps(about).encode())

    def read(self, name: BlockName) -> tuple[str, OnlineConfig]:
        """Group and config of a trial."""
        about = read_json(self._drawn, f"{name}{SUFFIX}", "drawn")
        return str(about["group"]), OnlineConfig.make(about["config"])

    def stop(self, block: Block, stop: Stop) -> None:
        """Notes that the scheduler ended a trial."""
        self._stopped.write(f"{block.trial_id}{SUFFIX}", json.dumps(stop._asdict()).encode())

    def read_stop(self, name: BlockName) -> Stop:
        """Where a trial was ended."""
        stop = read_json(self._stopped, f"{name}{SUFFIX}", "stopped")
        return Stop(stop["examples"], stop["value"])
