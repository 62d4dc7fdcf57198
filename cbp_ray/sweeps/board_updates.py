"""The TensorBoard runs of a sweep: one for every configuration that is complete, whenever and by whomever it was completed."""

from collections import defaultdict
from collections.abc import Callable, Iterable

from cbp_ray.errors import InputError
from cbp_ray.experiments.config import OnlineConfig
from cbp_ray.results.keys import BlockName, config_key
from cbp_ray.results.store import Block, Store
from cbp_ray.results.tensorboard import Boards, Settings, flat_settings, varying
from cbp_ray.sweeps.resolved import read_records
from cbp_ray.sweeps.search_log import SearchLog, search_key
from cbp_ray.sweeps.sweep import Sweep


class BoardUpdates:
    """Writes the runs as results come in. A run sums up all seeds that are stored, also those that another file asked for.

    Args:
      sweep: the sweep whose configurations are shown.
      store: where results are.
      stored: the blocks that are stored already.
      warn: told once if they can't be written: pictures of results must not end the making of results.
    """

    def __init__(self, sweep: Sweep, store: Store, stored: Iterable[BlockName], warn: Callable[[str], None]) -> None:
        self._sweep, self._store, self._warn = sweep, store, warn
        self._wanted = set(sweep.seeds)
        self._blocks: dict[str, list[BlockName]] = defaultdict(list)
        for name in stored:
            self._blocks[name.key].append(name)
        self._boards: Boards | None = None
        self._broken = False

    def catch_up(self) -> None:
        """Writes the runs of complete configurations that are not there: after a crash, or after they were removed."""
        for configuration in self._sweep.configurations:
            key = config_key(configuration.config, self._sweep.engine)
            self._write(key, lambda c=configuration: (c.group, c.config))  # type: ignore[misc]
        if self._sweep.tune is not None:
            log = SearchLog(self._store, search_key(self._sweep))
            for name in log.drawn():
                self._write(name.key, lambda name=name: log.read(name))  # type: ignore[misc]

    def stored(self, block: Block, group: str) -> None:
        """Takes note of a block that is stored now."""
        blocks = self._blocks[block.name.key]
        if block.name not in blocks:
            blocks.append(block.name)
        self._write(block.name.key, lambda: (group, block.config))

    def _write(self, key: str, about: Callable[[], tuple[str, OnlineConfig]]) -> None:
        """Writes a configuration's run if all seeds that are wanted are stored; `about` is asked only if it is not there."""
        blocks = self._blocks.get(key, [])
        seeds = {seed for name in blocks for seed in name.seeds}
        if self._broken or not self._wanted <= seeds:
            return
        try:
            if self._boards is None:
                self._boards = Boards(self._store, self._sweep.engine, self._columns)
            if not self._boards.has(key, seeds):
                group, config = about()
                self._boards.write(config, group, blocks)
        except (OSError, InputError) as error:
            self._broken = True
            self._warn(f"no more TensorBoard runs: {error}")

    def _columns(self) -> Settings:
        """The settings in which configurations of this sweep differ, whichever file they come from."""
        found: dict[str, Settings] = {}
        for _, record in read_records(self._store):
            for each in record["configurations"]:
                found[each["key"]] = {"group": each["group"], **flat_settings(each["config"])}
        columns = varying(list(found.values()))
        if self._sweep.tune is not None:
            start = flat_settings(self._sweep.configurations[0].config)
            columns |= {path: start[path] for path in self._sweep.tune.space if path in start}
        return columns
