"""The results of a sweep: one Parquet file of curves and one of runs for every block of seeds."""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow
import pyarrow.compute
import pyarrow.parquet

from cbp_ray.errors import InputError
from cbp_ray.experiments.config import OnlineConfig
from cbp_ray.experiments.curves import Curves
from cbp_ray.results.json_files import REDO
from cbp_ray.results.keys import RESULT_VERSION, BlockName, config_key, describe_seeds, key_of, seeds_by_key
from cbp_ray.results.sealed import read_sealed, seal, spelt_out
from cbp_ray.results.storage import Folder

SUFFIX, CHECKPOINT, FAILURE = ".parquet", ".npz", ".json"
"""How the names of files end."""
METADATA = b"cbp_ray"
NOT_METRICS = ("trial_id", "seed", "bin", "examples")


class MissingResults(InputError):
    """Results were asked for that no sweep has stored yet."""

    def __init__(self, message: str, seeds: tuple[int, ...]) -> None:
        super().__init__(message)
        self.seeds = seeds
        """Seeds of the runs that are missing."""


@dataclass(frozen=True)
class Block:
    """One configuration with the seeds of one trial."""

    config: OnlineConfig
    """The configuration, everything resolved."""
    engine: str
    """Name of the engine that runs it."""
    seeds: tuple[int, ...]
    """Seeds of its runs, ascending."""

    @cached_property
    def name(self) -> BlockName:
        """The name of its files."""
        return BlockName(config_key(self.config, self.engine), self.seeds)

    @property
    def trial_id(self) -> str:
        """The name of its files as text."""
        return str(self.name)


class Store:
    """The results of one sweep, in `<storage>/<sweep>/`.

    Args:
      storage: folder or URI of all results.
      sweep: name of the sweep.
    """

    def __init__(self, storage: str | os.PathLike[str], sweep: str) -> None:
        self.storage, self.sweep = Folder(storage), sweep
        self.folder = self.storage / sweep
        self.curves, self.runs = self.folder / "curves", self.folder / "runs"
        self.checkpoints, self.failures = self.folder / "checkpoints", self.folder / "failures"
        self.partial, self.live = self.folder / "partial", self.folder / "live"

    def names(self) -> list[BlockName]:
        """Every stored block, from the names of the files alone."""
        return block_names(self.curves, SUFFIX)

    def has(self, block: Block) -> bool:
        """Whether exactly this block is stored."""
        return self.curves.has(block.trial_id + SUFFIX)

    def tidy(self) -> None:
        """Removes failures, checkpoints and unfinished curves all of whose runs are stored by now, and half-written files."""
        self.folder.remove_forsaken()
        stored = seeds_by_key(self.names())
        kinds = ((self.failures, FAILURE), (self.checkpoints, CHECKPOINT), (self.partial, SUFFIX), (self.live, CHECKPOINT))
        for folder, suffix in kinds:
            for name in block_names(folder, suffix):
                if name.within(stored):
                    folder.remove(f"{name}{suffix}")

    def write(self, block: Block, curves: Curves, about: Mapping[str, Any]) -> bool:
        """Stores a block with the curves of its seeds. A block that is there already stays untouched.

        Args:
          block: what was run.
          curves: curves of exactly its seeds.
          about: columns of `runs`, the same for every seed.

        Returns:
          Whether it was written.
        """
        if curves.seeds != block.seeds:
            raise ValueError(f"curves of seeds {curves.seeds} for a block of {block.seeds}")
        if self.has(block):
            return False
        metadata = {METADATA: json.dumps(identity(block.config, block.engine)).encode()}
        name, count = block.trial_id + SUFFIX, len(block.seeds)
        runs = pyarrow.table(
            {
                "trial_id": [block.trial_id] * count,
                "seed": np.array(block.seeds, dtype=np.uint64),
                "engine": [block.engine] * count,
                "config": [block.config.model_dump_json()] * count,
                **{key: [value] * count for key, value in about.items()},
            }
        )
        # The curves come last: a block counts as done from the moment they are there.
        self.runs.write(name, seal(runs, metadata))
        self.curves.write(name, seal(curves_table(block, curves), metadata))
        return True

    def write_partial(self, block: Block, curves: Curves) -> None:
        """Keeps the curves so far of a block that a search may have stopped; they never count as results."""
        metadata = {METADATA: json.dumps(identity(block.config, block.engine)).encode()}
        self.partial.write(block.trial_id + SUFFIX, seal(curves_table(block, curves), metadata))

    def read_partial(self, block: Block) -> Curves | None:
        """What `write_partial` kept; None if there is nothing."""
        try:
            return read_block(self.partial, block.name, block.config, block.engine, partial=True)
        except FileNotFoundError:
            return None

    def read_curves(
        self, config: OnlineConfig, seeds: Iterable[int], engine: str = "kernel", names: Iterable[BlockName] | None = None
    ) -> Curves:
        """The curves of one configuration, with exactly these seeds in this order.

        Args:
          config: the configuration.
          seeds: the runs wanted.
          engine: which engine made them.
          names: what `names()` said, to save asking again when many configurations are read.

        Raises:
          MissingResults: if a run is not stored; the message says which.
        """
        wanted = tuple(int(seed) for seed in seeds)
        key = config_key(config, engine)
        position: dict[int, tuple[BlockName, int]] = {}
        for name in self.names() if names is None else names:
            if name.key == key:
                for row, seed in enumerate(name.seeds):
                    position.setdefault(seed, (name, row))
        missing = tuple(seed for seed in wanted if seed not in position)
        if missing or not wanted:
            raise MissingResults(self._say_missing(config, engine, wanted, missing), missing)
        parts = {name: read_block(self.curves, name, config, engine) for name in {position[seed][0] for seed in wanted}}
        first = parts[position[wanted[0]][0]]
        metrics = {
            metric: np.stack([parts[position[seed][0]].metrics[metric][position[seed][1]] for seed in wanted])
            for metric in first.metrics
            if all(metric in part.metrics for part in parts.values())
        }
        return Curves(wanted, first.examples, metrics)

    def _say_missing(self, config: OnlineConfig, engine: str, wanted: tuple[int, ...], missing: tuple[int, ...]) -> str:
        algorithm = config.algorithm.model_dump(mode="json", exclude_defaults=True) | {"name": config.algorithm.name}
        settings = ", ".join(f"{name}={value}" for name, value in algorithm.items() if name != "name")
        which = f"{config.algorithm.name}({settings}) with {config.optimizer.name} {config.optimizer.step_size}"
        where = f"{self.folder.location} (key {config_key(config, engine)})"
        found = f"got none for seeds {describe_seeds(missing) or 'nothing'}"
        return f"results in {where}: must hold {len(wanted)} runs of {which} by engine {engine!r}, {found}; run the sweep first"


def read_block(folder: Folder, name: BlockName, config: OnlineConfig, engine: str, partial: bool = False) -> Curves:
    """The curves in one file, which must be whole and hold what its name says; only those of partial ones may be shorter.

    Raises:
      FileNotFoundError: if there is no such file.
      InputError: if it holds anything else; the message names it.
    """
    path = f"{name}{SUFFIX}"
    table = read_parquet(folder, path, len(name.seeds) * config.bins)
    where = f"{folder.location}/{path}"
    if json.loads(table.schema.metadata[METADATA]) != identity(config, engine):
        raise InputError(f"{where}: must hold the config of its name, got another; {REDO}")
    return curves_of(table, name, config, f"{where}: ", REDO, partial)


def config_of(table: pyarrow.Table, name: BlockName) -> tuple[OnlineConfig, str] | None:
    """The configuration and the engine that a file says it is of, which must be those of its name.

    Returns:
      Both, or None if it is of another version of results.

    Raises:
      ValueError: if they are others.
    """
    about = json.loads(table.schema.metadata[METADATA])
    if about.get("version") != RESULT_VERSION and key_of(about) == name.key:
        return None
    config, engine = OnlineConfig.make(about["config"]), str(about["engine"])
    if config_key(config, engine) != name.key:
        raise ValueError("it holds another configuration than its name says")
    return config, engine


def curves_of(
    table: pyarrow.Table, name: BlockName, config: OnlineConfig, where: str, fix: str, partial: bool = False
) -> Curves:
    """The curves in a table with a row per run and bin, which must be those of a block.

    Raises:
      InputError: if they are not; the message begins with `where` and ends with `fix`.
    """
    count = len(name.seeds)
    # Files of an earlier version may lack a diagnostic.
    metrics = [column for column in table.column_names if column not in NOT_METRICS]
    for column in ("seed", "examples", config.problem.performance, *metrics):
        if not _is_numeric(table, column, whole=column in NOT_METRICS):
            raise InputError(f"{where}must have a number in every row of {column}, got others; {fix}")
    if len(table) % count or (not partial and len(table) != count * config.bins):
        raise InputError(f"{where}must have {count} runs of {config.bins} bins, got {len(table)} rows; {fix}")
    shape = count, len(table) // count
    seeds = table.column("seed").to_numpy().reshape(shape)
    if any((seeds[row] != seed).any() for row, seed in enumerate(name.seeds)):
        raise InputError(f"{where}must hold the seeds of its name, got others; {fix}")
    examples = table.column("examples").to_numpy().reshape(shape)
    if (examples != examples[0]).any() or (np.diff(examples[0], prepend=0) <= 0).any():
        raise InputError(f"{where}must have examples that grow from bin to bin, the same in all runs, got others; {fix}")
    values = {column: table.column(column).to_numpy().reshape(shape) for column in metrics}
    return Curves(name.seeds, examples[0], values)


def _is_numeric(table: pyarrow.Table, column: str, whole: bool = False) -> bool:
    """Whether a table has the column once, with a number in every row."""
    if table.column_names.count(column) != 1 or table.column(column).null_count:
        return False
    kind = table.schema.field(column).type
    return bool(pyarrow.types.is_integer(kind) or (pyarrow.types.is_floating(kind) and not whole))


def read_parquet(folder: Folder, path: str, most_rows: int) -> pyarrow.Table:
    """A file that the store has written. One with more rows than it can have is not read: few bytes may hold billions.

    Raises:
      FileNotFoundError: if there is no such file.
      InputError: if a byte of it is not as it was written; the message names it.
    """
    content = folder.read(path)
    try:
        table = read_sealed(content, most_rows)
        table = spelt_out(table, pyarrow.parquet.read_schema(pyarrow.BufferReader(content)))
        about = json.loads(table.schema.metadata[METADATA])
        if not isinstance(about, dict):
            raise ValueError("no description of it")
    except (pyarrow.ArrowException, OSError, KeyError, TypeError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:80] if content else "an empty file"
        raise InputError(f"{folder.location}/{path}: must be a whole file of results, got {reason}; {REDO}") from None
    return table


def read_runs(folder: Folder, name: BlockName) -> pyarrow.Table:
    """What is known about the runs of a block, one row for each of its seeds.

    Raises:
      FileNotFoundError: if there is no such file.
      InputError: if it holds anything else; the message names it.
    """
    table = read_parquet(folder, f"{name}{SUFFIX}", len(name.seeds))
    if not _is_numeric(table, "seed", whole=True) or tuple(table.column("seed").to_pylist()) != name.seeds:
        raise InputError(f"{folder.location}/{name}{SUFFIX}: must hold the seeds of its name, got others; {REDO}")
    return table


def block_names(folder: Folder, suffix: str) -> list[BlockName]:
    """The blocks that files of a folder are named for, in order."""
    parsed = (BlockName.parse(name.removesuffix(suffix)) for name in folder.names() if name.endswith(suffix))
    return [name for name in parsed if name is not None]


def identity(config: OnlineConfig, engine: str) -> dict[str, Any]:
    """What a file of results says of the runs in it."""
    return {"config": config.model_dump(mode="json"), "engine": engine, "version": RESULT_VERSION}


def curves_table(block: Block, curves: Curves) -> pyarrow.Table:
    """A row per run and bin, with the block's name."""
    table = curves.to_table()
    ids = pyarrow.DictionaryArray.from_arrays(pyarrow.array(np.zeros(len(table), np.int32)), [block.trial_id])
    return table.add_column(0, "trial_id", ids)
