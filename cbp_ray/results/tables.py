"""Results as tidy tables: of configurations, runs, curves, and the trials of searches.

Everything is read from whole files, so that a sweep may run meanwhile; what it stores later is not in the tables.
"""

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow

from cbp_ray.errors import InputError
from cbp_ray.experiments.config import OnlineConfig
from cbp_ray.experiments.curves import Curves
from cbp_ray.results.keys import BlockName, config_key
from cbp_ray.results.records import Record, find_sweep, read_records
from cbp_ray.results.search_log import SearchLog
from cbp_ray.results.store import FAILURE, Block, Store, block_names, read_runs
from cbp_ray.results.summaries import Summary, plain_settings


@dataclass(frozen=True)
class Entry:
    """A configuration that is asked for, with what is there of it."""

    key: str
    """Key of its results."""
    group: str
    """Its group in the sweep file."""
    config: OnlineConfig
    """Its settings, everything resolved."""
    engine: str
    """Name of the engine that runs it."""
    wanted: tuple[int, ...]
    """Seeds that are asked for."""
    names: tuple[BlockName, ...]
    """Its blocks that are stored."""
    state: str
    """`complete`, `partial`, `missing` or `failed`; a trial of a search may also be `stopped`, by its scheduler."""
    record: Record = field(repr=False, compare=False)
    """The record that asks for it."""

    @property
    def seeds(self) -> tuple[int, ...]:
        """Seeds that are asked for and stored."""
        stored = {seed for name in self.names for seed in name.seeds}
        return tuple(seed for seed in self.wanted if seed in stored)


class Results:
    """The results of one sweep as they were when this was made; tables are made when they are asked for.

    Args:
      store: where the results are.
      records: what files ask for, as `read_records` has it.
    """

    def __init__(self, store: Store, records: Iterable[Record]) -> None:
        self.store, self._records = store, list(records)
        self.on_read: Callable[[], object] = lambda: None
        """Called after each configuration of which there are curves, while all are read."""
        self._names: dict[str, list[BlockName]] = defaultdict(list)
        for name in store.names():
            self._names[name.key].append(name)
        self._failed = {name.key for name in block_names(store.failures, FAILURE) if not name.within(self._stored)}

    @cached_property
    def _stored(self) -> dict[str, set[int]]:
        return {key: {seed for name in names for seed in name.seeds} for key, names in self._names.items()}

    @property
    def sweep(self) -> str:
        """Name of the sweep."""
        return self.store.sweep

    @cached_property
    def entries(self) -> dict[str, Entry]:
        """Every configuration by its key: those that files list, and those that searches have drawn."""
        found: dict[str, Entry] = {}
        for record in self._records:
            if record.get("kind") == "search":
                log = SearchLog(self.store, record["search"])
                stopped = set(log.stopped())
                for name in log.drawn():
                    group, config = log.read(name)
                    found[name.key] = self._entry(record, name.key, group, config, name.seeds, name in stopped)
            else:
                for each in record["configurations"]:
                    config = OnlineConfig.make(each["config"])
                    # Not the key that the record has, which may be of another version of results.
                    key = config_key(config, record["engine"])
                    before = found[key].wanted if key in found else ()
                    found[key] = self._entry(record, key, each["group"], config, sorted({*before, *record["seeds"]}))
        return found

    def _entry(
        self, record: Record, key: str, group: str, config: OnlineConfig, seeds: Sequence[int], stopped: bool = False
    ) -> Entry:
        stored = self._stored.get(key, set())
        if stored.issuperset(seeds):
            state = "complete"
        elif stopped:
            state = "stopped"
        elif key in self._failed:
            state = "failed"
        else:
            state = "partial" if stored.intersection(seeds) else "missing"
        return Entry(key, group, config, record["engine"], tuple(seeds), tuple(self._names.get(key, ())), state, record)

    def read(self, entry: Entry) -> Curves | None:
        """The curves that there are of a configuration: its stored runs, or those of a stopped trial so far."""
        if entry.seeds:
            return self.store.read_curves(entry.config, entry.seeds, entry.engine, entry.names)
        return self.store.read_partial(Block(entry.config, entry.engine, entry.wanted)) if entry.state == "stopped" else None

    def _read_all(self) -> Iterator[tuple[Entry, Curves]]:
        for entry in self.entries.values():
            if (curves := self.read(entry)) is not None and len(curves.examples):
                yield entry, curves
                self.on_read()

    @cached_property
    def summaries(self) -> dict[str, Summary]:
        """What the stored runs of each configuration amount to, by key; the curves themselves are not kept."""
        return {entry.key: Summary.of(entry.config, curves) for entry, curves in self._read_all() if entry.seeds}

    @cached_property
    def configurations(self) -> pyarrow.Table:
        """One row per configuration: its settings, how many seeds are stored, performance with its interval, diagnostics.

        `performance` is the mean over the whole run of what the problem is judged by (see `metric`), `late` that over its
        last bins; `_low` and `_high` are the ends of a 95% confidence interval over the seeds. Diagnostics are means over
        seeds and the last bins.
        """
        rows, settings = [], _settings(self.entries.values())
        for entry in self.entries.values():
            about = {"key": entry.key, "group": entry.group, "engine": entry.engine, "state": entry.state}
            counts = {"seeds": len(entry.seeds), "seeds_wanted": len(entry.wanted)}
            summary = self.summaries.get(entry.key)
            rows.append(about | settings[entry.key] | counts | (summary.row if summary is not None else {}))
        return table_of_rows(rows)

    @cached_property
    def runs(self) -> pyarrow.Table:
        """One row per stored run: key, group and seed, its performance, and where, when and how long it ran."""
        parts = []
        for entry in self.entries.values():
            if not entry.seeds:
                continue
            summary, left = self.summaries[entry.key], set(entry.seeds)
            place = {seed: row for row, seed in enumerate(entry.seeds)}
            for name in entry.names:
                table = read_runs(self.store.runs, name)
                seeds = [int(seed) for seed in table.column("seed").to_numpy()]
                kept = [row for row, seed in enumerate(seeds) if seed in left]
                left.difference_update(seeds)
                table, rows = table.take(kept), [place[seeds[row]] for row in kept]
                more = {
                    "key": [entry.key] * len(kept),
                    "group": [entry.group] * len(kept),
                    "metric": [summary.row["metric"]] * len(kept),
                    "performance": summary.performance[rows],
                    "late": summary.late[rows],
                    "diverged": summary.diverged[rows],
                }
                parts.append(_with_columns(table, more))
        return _concatenated(parts)

    @cached_property
    def curves(self) -> pyarrow.Table:
        """One row per run and bin: key, group and state of the configuration, seed, bin, examples and every metric.

        The curves of trials that a search has stopped are there as far as they go, with the state `stopped`.
        """
        parts = []
        for entry, curves in self._read_all():
            table = curves.to_table()
            parts.append(_with_columns(table, {n: [getattr(entry, n)] * len(table) for n in ("key", "group", "state")}))
        return _concatenated(parts)

    @cached_property
    def trials(self) -> pyarrow.Table:
        """One row per trial of every search: its settings, its state, the examples it has seen and its value.

        The state is `finished`, `stopped` (by the scheduler), `failed` or `unfinished`: running, or interrupted.
        """
        return table_of_rows(
            [row for record in self._records if record.get("kind") == "search" for row in self._trials(record)]
        )

    def _trials(self, record: Record) -> Iterator[dict[str, Any]]:
        log = SearchLog(self.store, record["search"])
        stopped, metric = set(log.stopped()), record.get("metric", "error")
        # Those that began while this was read are left out.
        drawn = [name for name in log.drawn() if name.key in self.entries]
        settings = _settings(self.entries[name.key] for name in drawn)
        for name in drawn:
            entry, value, examples = self.entries[name.key], None, None
            if entry.state == "complete":
                curves = self.read(entry)
                assert curves is not None
                value, examples = float(curves.mean(metric)[-1]), entry.config.examples
            elif name in stopped:
                stop = log.read_stop(name)
                value, examples = stop.value, stop.examples
            states = {"complete": "finished", "stopped": "stopped", "failed": "failed"}
            yield {
                "search": record["search"],
                "key": entry.key,
                "group": entry.group,
                **settings[entry.key],
                "seeds": len(name.seeds),
                "state": states.get(entry.state, "unfinished"),
                "at_examples": examples,
                "metric": metric,
                "value": value,
            }


def load(storage: str | os.PathLike[str], sweep: str) -> Results:
    """The results of a sweep as pyarrow tables: `configurations`, `runs`, `curves` and, for searches, `trials`.

    Args:
      storage: folder or URI of all results.
      sweep: name of the sweep.

    Raises:
      InputError: if there is no such sweep, or a file of it is damaged.

    Example:
      load("results", "first").curves.to_pandas().groupby(["key", "examples"])["error"].mean()
    """
    if not isinstance(storage, str | os.PathLike) or not isinstance(sweep, str):
        found = f"{storage!r} and {sweep!r}"
        raise InputError(f"load: must get the storage and the sweep by their names, got {found}; use 'results', 'first', say")
    try:
        store = find_sweep(os.fspath(storage), sweep)
    except (OSError, ValueError, TypeError, pyarrow.ArrowException) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"load: must get a folder or URI of results, got {storage!r} ({error}); use 'results', say") from None
    return Results(store, [record for _, record in read_records(store)])


def _settings(entries: Iterable[Entry]) -> dict[str, dict[str, Any]]:
    """The settings of configurations by key, all with the same names; None where a method has no such setting."""
    found = {entry.key: plain_settings(entry.config) for entry in entries}
    names = dict.fromkeys(name for settings in found.values() for name in settings)
    return {key: {name: settings.get(name) for name in names} for key, settings in found.items()}


def table_of_rows(rows: Sequence[Mapping[str, Any]]) -> pyarrow.Table:
    """A table with the columns of all rows, in the order in which they first come; what a row lacks is null."""
    names = dict.fromkeys(name for row in rows for name in row)
    return pyarrow.table({name: pyarrow.array(_alike([row.get(name) for row in rows])) for name in names})


def _alike(values: list[Any]) -> list[Any]:
    """The values as one type: text if some are text, and numbers with a point if some have one."""
    kinds = {type(value) for value in values if value is not None}
    if len(kinds) < 2:
        return values
    make: Any = float if kinds <= {int, float} else str
    return [None if value is None else make(value) for value in values]


def _with_columns(table: pyarrow.Table, columns: Mapping[str, Any]) -> pyarrow.Table:
    """The table with further columns before its own."""
    for position, (name, values) in enumerate(columns.items()):
        table = table.add_column(position, name, pyarrow.array(values))
    return table.replace_schema_metadata(None)


def _concatenated(tables: Sequence[pyarrow.Table]) -> pyarrow.Table:
    try:
        return pyarrow.concat_tables(tables, promote_options="permissive") if tables else pyarrow.table({})
    except pyarrow.ArrowException as error:
        reason = " ".join(str(error).split())[:160]
        raise InputError(
            f"results: must have the same kinds of columns in all files, got {reason}; remove what differs"
        ) from None
