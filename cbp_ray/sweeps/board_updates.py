"""The TensorBoard runs of a sweep: one for every configuration of which something is known, running or stored."""

import heapq
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from cbp_ray.errors import InputError
from cbp_ray.experiments.config import OnlineConfig
from cbp_ray.results.board_events import Chart
from cbp_ray.results.curve_summary import CurveSummary
from cbp_ray.results.keys import BlockName, config_key
from cbp_ray.results.run_names import RunNames, Settings, flat_settings, varying
from cbp_ray.results.store import Block, Store
from cbp_ray.results.tensorboard import Boards, Look, Run
from cbp_ray.sweeps.block_run import LIVE_SECONDS, LivePart
from cbp_ray.sweeps.live_curves import LiveCurves
from cbp_ray.sweeps.resolved import read_records
from cbp_ray.sweeps.search_log import SearchLog, search_key
from cbp_ray.sweeps.sweep import Sweep

AGAIN_SECONDS = 60.0
CHART_SIZE = 7
"""Configurations whose bands one chart shows at most, as long as there are few enough charts."""
MOST_CHARTS = 12
"""With more charts than this there is only one: whoever has so many configurations picks some of them by hand."""
MOST_RUNS = 500
"""Configurations of a file that have a run. TensorBoard ticks no run by itself where there are more, and keeps a file open for
each: beyond the usual limit of 1,024 open files it shows nothing at all."""
VARIABLE = "CBP_RAY_TENSORBOARD_RUNS"
"""The variable that says another number."""


@dataclass
class _Shown:
    """What this process has written of a configuration to which more may come."""

    group: str
    config: OnlineConfig
    seeds: np.ndarray[tuple[int], np.dtype[np.float64]] | None = None
    mean: np.ndarray[tuple[int], np.dtype[np.float64]] | None = None
    beside: CurveSummary | None = None
    """What reports said beside the results, of the blocks that are stored."""
    written: float = float("-inf")
    due: float | None = None
    """When to write what has changed since."""


class BoardUpdates:
    """Writes the runs as reports and results come in. A run sums up all seeds, also those that another file asked for.

    Args:
      sweep: the sweep whose configurations are shown.
      store: where results are.
      stored: the blocks that are stored already.
      live: what is known of the others.
      warn: told once if they can't be written: pictures of results must not end the making of results.
    """

    def __init__(
        self, sweep: Sweep, store: Store, stored: Iterable[BlockName], live: LiveCurves, warn: Callable[[str], None]
    ) -> None:
        self._sweep, self._store, self._live, self._warn = sweep, store, live, warn
        self._wanted = set(sweep.seeds)
        self._blocks: dict[str, list[BlockName]] = defaultdict(list)
        for name in stored:
            self._blocks[name.key].append(name)
        self._running: dict[str, set[BlockName]] = defaultdict(set)
        self._shown: dict[str, _Shown] = {}
        self._due: list[tuple[float, str]] = []
        """When to write which configuration, the soonest first; what was written meanwhile is still in it."""
        self._chosen: set[str] = set()
        """The configurations that have a run; a search adds those that it draws, as long as there is room."""
        self._most = most_runs()
        self._sight: _Sight | None = None
        self._boards: Boards | None = None
        self._again: float | None = None
        """When to try again, where they could not be written."""
        self._told = False

    def catch_up(self) -> None:
        """Writes the runs that are not there or have another name: after a crash, or after another file came to the sweep."""
        own = {config_key(c.config, self._sweep.engine): (c.group, c.config) for c in self._sweep.configurations}
        if self._sweep.tune is None and not self._chosen:
            self._guarded(lambda: self._choose(list(own)))
        for key, about in own.items():
            self._catch_up(key, lambda about=about: about)  # type: ignore[misc]
        if self._sweep.tune is not None:
            log = SearchLog(self._store, search_key(self._sweep))
            for name in log.drawn():
                self._catch_up(name.key, lambda name=name: log.read(name))  # type: ignore[misc]
        self._guarded(lambda: self._rename(set(own)))

    def _choose(self, keys: list[str]) -> None:
        """Chooses which configurations have a run: all, or those that have one already and others all over the grid."""
        if len(keys) <= self._most:
            self._chosen = set(keys)
            return
        there = [key for key in keys if self._opened().name(key) is not None][: self._most]
        taken, room = set(there), self._most - len(there)
        others = [key for key in keys if key not in taken]
        self._chosen = {*there, *(others[number * len(others) // room] for number in range(room))}
        self._warn(
            f"TensorBoard shows {self._most:,} of {len(keys):,} configurations, from all over the grid; "
            f"`cbp-ray results` has all, {VARIABLE} says how many"
        )

    def _shows(self, key: str) -> bool:
        """Whether a configuration has a run."""
        if key not in self._chosen and self._sweep.tune is not None and len(self._chosen) < self._most:
            self._chosen.add(key)
        return key in self._chosen

    def report(self, block: Block, group: str) -> None:
        """Takes note that more is known of a block that runs."""
        if not self._shows(block.name.key):
            return
        self._running[block.name.key].add(block.name)
        shown = self._shown.setdefault(block.name.key, _Shown(group, block.config))
        self._write_when_due(block.name.key, shown, time.monotonic() - shown.written >= 0.8 * LIVE_SECONDS)

    def stored(self, block: Block, group: str, part: LivePart | None = None) -> None:
        """Takes note of a block that is stored now, and of what its reports say beside the results."""
        key = block.name.key
        if not self._shows(key):
            return
        if block.name not in self._blocks[key]:
            self._blocks[key].append(block.name)
        self._running[key].discard(block.name)
        shown = self._shown.setdefault(key, _Shown(group, block.config))
        if part is not None:
            shown.beside = part.summary if shown.beside is None else CurveSummary.together([shown.beside, part.summary])
        complete = self._wanted <= self._seeds(key) and not self._running[key]
        # Short trials of one configuration follow each other quickly.
        self._write_when_due(key, shown, complete)

    def ended(self, block: Block) -> None:
        """Takes note that a block runs no more and is not stored: it was stopped, or failed."""
        key = block.name.key
        if not self._shows(key):
            return
        self._running[key].discard(block.name)
        if key in self._shown and self._live.of(block.name) is not None:
            self._write_when_due(key, self._shown[key], now=True)

    def tick(self) -> None:
        """Writes what is due, and tries again what could not be written."""
        if self._again is not None and time.monotonic() >= self._again:
            self._again = None
            for each in self._shown.values():
                each.seeds = each.mean = None
            self.catch_up()
            for key in list(self._shown):
                self._write_when_due(key, self._shown[key], now=True)
            self._told = self._again is not None
        while self._due and time.monotonic() >= self._due[0][0]:
            due, key = heapq.heappop(self._due)
            shown = self._shown.get(key)
            if shown is not None and shown.due == due:
                self._write_when_due(key, shown, now=True)

    def close(self) -> None:
        """Writes what is not written yet, at the end of a sweep."""
        if self._again is not None:
            self._again = 0.0
            self.tick()
        for key, shown in list(self._shown.items()):
            if shown.due is not None:
                self._write_when_due(key, shown, now=True)
        if self._boards is not None:
            self._guarded(self._boards.close)

    def _seeds(self, key: str) -> set[int]:
        return {seed for name in self._blocks.get(key, []) for seed in name.seeds}

    def _unfinished(self, key: str) -> list[BlockName]:
        """Blocks that are not stored and of which something is known, those that run first; none that share a seed."""
        seeds, found = self._seeds(key), list[BlockName]()
        for name in sorted(self._live.names(key), key=lambda name: name not in self._running[key]):
            if not seeds.intersection(name.seeds):
                found.append(name)
                seeds.update(name.seeds)
        return found

    def _catch_up(self, key: str, about: Callable[[], tuple[str, OnlineConfig]]) -> None:
        def write() -> None:
            if not self._shows(key):
                return
            seeds, unfinished = self._seeds(key), self._unfinished(key)
            if not seeds and not unfinished:
                return
            boards = self._opened()
            if boards.grows(key) if unfinished else boards.has(key, seeds):
                return
            self._write(key, _Shown(*about()))

        self._guarded(write)

    def _rename(self, own: set[str]) -> None:
        """Writes the runs again that have another name than they should."""
        if self._boards is None and not self._blocks:
            return
        boards = self._opened()
        assert self._sight is not None
        for key, group, config, _ in _listed(self._store):
            name = boards.name(key)
            if name is None or name.removesuffix(f",{key}") == self._sight.name(key, group, flat_settings(config)):
                continue
            if key in own or self._blocks.get(key):
                self._chosen.add(key)
                self._write(key, _Shown(group, OnlineConfig.make(config)))

    def _guarded(self, act: Callable[[], None]) -> None:
        if self._again is not None:
            return
        try:
            act()
        except (OSError, InputError) as error:
            self._again = time.monotonic() + AGAIN_SECONDS
            # What is in its files is not known any more.
            self._boards = None
            if not self._told:
                self._told = True
                self._warn(f"no TensorBoard runs for now: {error}; it is tried again every {AGAIN_SECONDS:.0f} s")

    def _opened(self) -> Boards:
        if self._boards is None:
            self._sight = _Sight(self._sweep, self._store)
            self._boards = Boards(self._store, self._sight.look)
        return self._boards

    def _write_when_due(self, key: str, shown: _Shown, now: bool) -> None:
        if not now:
            if shown.due is None:
                shown.due = max(time.monotonic(), shown.written) + LIVE_SECONDS
                heapq.heappush(self._due, (shown.due, key))
            return
        self._guarded(lambda: self._write(key, shown))
        if not self._running[key] and not self._unfinished(key) and self._wanted <= self._seeds(key):
            self._shown.pop(key, None)
            self._running.pop(key, None)
            if self._boards is not None:
                self._boards.forget(key)

    def _write(self, key: str, shown: _Shown) -> None:
        """Writes what is known of a configuration: appended where it only adds to what is there."""
        seeds, unfinished, boards = self._seeds(key), self._unfinished(key), self._opened()
        shown.due = None
        if not unfinished and boards.has(key, seeds) and shown.mean is None and self._named(key, shown):
            return
        parts = list(self._parts(key, shown, seeds, unfinished))
        if not parts:
            return
        summary = CurveSummary.together(parts)
        run = self._run(key, shown)
        if not unfinished:
            boards.write(run, summary, seeds)
            shown.seeds = shown.mean = None
        elif shown.seeds is None or shown.mean is None:
            boards.write(run, summary, None)
            shown.seeds, shown.mean = summary.seeds, summary.mean
        else:
            first = _first_change(shown.seeds, summary.seeds, shown.mean, summary.mean)
            if first < len(summary.examples):
                boards.append(run, summary, first, replaces=first < len(shown.seeds))
            shown.seeds, shown.mean = summary.seeds, summary.mean
        shown.written = time.monotonic()

    def _parts(self, key: str, shown: _Shown, seeds: set[int], unfinished: list[BlockName]) -> Iterator[CurveSummary]:
        if seeds:
            curves = self._store.read_curves(shown.config, sorted(seeds), self._sweep.engine, self._blocks[key])
            summary = CurveSummary.of(curves)
            if shown.beside is not None:
                own = {name: values for name, values in shown.beside.means.items() if name not in summary.means}
                summary = summary.beside(own)
            yield summary
        for name in unfinished:
            found = self._live.of(name)
            if found is not None and len(found.examples):
                yield found

    def _named(self, key: str, shown: _Shown) -> bool:
        """Whether the run has the name that it should have."""
        run = self._run(key, shown)
        return self._opened().name(key) in {run.name, f"{run.name},{key}"}

    def _run(self, key: str, shown: _Shown) -> Run:
        self._opened()
        assert self._sight is not None
        return self._sight.run(key, shown.group, shown.config)


def most_runs() -> int:
    """How many configurations of a file TensorBoard shows.

    Raises:
      InputError: if the variable says something else than a number.
    """
    text = os.environ.get(VARIABLE, str(MOST_RUNS))
    if not text.isascii() or not text.isdigit():
        raise InputError(f"{VARIABLE}: must be a number of configurations, got {text!r}; use {MOST_RUNS}")
    return int(text)


class _Sight:
    """What a person sees of the configurations of a sweep, whichever files they come from: names, columns and charts."""

    def __init__(self, sweep: Sweep, store: Store) -> None:
        self._groups: dict[str, str] = {}
        known: list[tuple[str, Settings]] = []
        for key, group, config, engine in _listed(store):
            self._groups[key] = group
            known.append((group, {**flat_settings(config), "engine": engine}))
        self._engine, self._metric = sweep.engine, sweep.configurations[0].config.problem.performance
        searched = {} if sweep.tune is None else sweep.tune.space
        self._names = RunNames(known, searched)
        self._columns = _swept([{"group": group, **each} for group, each in known])
        if searched:
            start = flat_settings(sweep.configurations[0].config)
            self._columns |= {path: start[path] for path in searched if path in start}
        self._charts = {} if sweep.tune is not None else _divide(self._groups)
        self._only = Chart("all configurations")

    def name(self, key: str, group: str, settings: Settings) -> str:
        """The name of a configuration's run."""
        return self._names.of(self._groups.get(key, group), {**settings, "engine": self._engine})

    def run(self, key: str, group: str, config: OnlineConfig) -> Run:
        """A configuration as TensorBoard shows it."""
        settings = flat_settings(config)
        group = self._groups.get(key, group)
        shown = {"group": group, **settings, "engine": self._engine}
        told = {name: value for name, value in shown.items() if name in self._columns}
        return Run(key, self.name(key, group, settings), told, self._charts.get(key, self._only))

    def look(self) -> Look:
        """What all runs have in common."""
        charts = list(dict.fromkeys(self._charts.values())) or [self._only]
        return Look(self._metric, self._columns, charts)


def _listed(store: Store) -> Iterator[tuple[str, str, dict[str, object], str]]:
    """Key, group, settings and engine of every configuration that files list, each once: as the first of the files has it."""
    found = set()
    for _, record in read_records(store):
        for each in record["configurations"]:
            if each["key"] not in found:
                found.add(each["key"])
                yield each["key"], each["group"], each["config"], record["engine"]


def _swept(all_settings: list[Settings]) -> Settings:
    """The settings that a sweep varies, each with one of its values: a constant of one method tells nothing of the others.

    What a group's name tells is left out: which method it has.
    """
    found = {}
    for name, value in varying(all_settings).items():
        values = {repr(settings[name]) for settings in all_settings if name in settings}
        if len(values) > 1 and (name != "algorithm.name" or len({settings["group"] for settings in all_settings}) == 1):
            found[name] = value
    return found


def _divide(configurations: dict[str, str]) -> dict[str, Chart]:
    """The chart in which each configuration is drawn, by its group: that of the group, or of a part of it.

    None if one chart is for all.
    """
    if len(configurations) <= CHART_SIZE:
        return {}
    groups: dict[str, list[str]] = defaultdict(list)
    for key, group in configurations.items():
        groups[group].append(key)
    charts: dict[str, Chart] = {}
    number = 0
    for group, keys in groups.items():
        parts = -(-len(keys) // CHART_SIZE)
        for part in range(parts):
            number += 1
            title = group if parts == 1 else f"{group}, part {part + 1} of {parts}"
            charts |= dict.fromkeys(keys[part::parts], Chart(title, number))
    return charts if number <= MOST_CHARTS else {}


def _first_change(*pairs: np.ndarray[tuple[int], np.dtype[np.float64]]) -> int:
    """Number of the first bin in which arrays (before, now, before, now, …) differ; not-a-number equals itself."""
    before, now = np.stack(pairs[::2]), np.stack(pairs[1::2])
    common = min(before.shape[1], now.shape[1])
    a, b = before[:, :common], now[:, :common]
    same = ((a == b) | (np.isnan(a) & np.isnan(b))).all(axis=0)
    return common if same.all() else int(np.argmin(same))
