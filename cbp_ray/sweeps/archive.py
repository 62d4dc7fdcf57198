"""All stored runs of a sweep as one Parquet file, to take them to another storage: `cbp-ray export` and `cbp-ray import`.

The file has a row per run and bin with every metric, and with the run's config, versions and seconds, so that other programs
can read it as well. Unpacked, it gives the files that were packed, to the last byte.
"""

import base64
import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, NoReturn

import numpy as np
import pyarrow

from cbp_ray.errors import InputError
from cbp_ray.experiments.config import MOST_BINS, OnlineConfig
from cbp_ray.experiments.curves import Curves
from cbp_ray.experiments.engines import ENGINES
from cbp_ray.results.json_files import REDO, check_fields
from cbp_ray.results.keys import BlockName, config_key, seeds_by_key
from cbp_ray.results.records import FOLDER, Record, read_records
from cbp_ray.results.sealed import read_sealed, seal
from cbp_ray.results.store import (
    METADATA,
    NOT_METRICS,
    SUFFIX,
    Block,
    Store,
    config_of,
    curves_of,
    curves_table,
    read_parquet,
    read_runs,
)
from cbp_ray.results.verify import is_damaged, remove_block
from cbp_ray.sweeps.resolved import write_record

OF_BLOCK = ("trial_id", "engine", "config")
"""Columns that say which block a row is of; those of `runs/` behind them say what else is known."""
MOST_ROWS = 20_000_000
"""Most rows of an archive."""
MOST_FILE_BYTES = 2**30
"""Most bytes of its file."""
MOST_RECORD_BYTES = 2**28
"""Most bytes of what its sweep files ask for."""
MOST_NAME = 200
"""Most characters of a sweep file's name."""
COMPRESSION_LEVEL = 15
FIX = "export the sweep again"


class Layout(NamedTuple):
    """Which columns a block's files have, in their order, each with its type."""

    metrics: tuple[tuple[str, str], ...]
    """Metrics of its curves."""
    runs: tuple[tuple[str, str], ...]
    """What is known of its runs."""


@dataclass(frozen=True)
class Archive:
    """What an archive holds."""

    sweep: str
    """Name of the sweep."""
    blocks: list[tuple[Block, Curves, dict[str, Any]]]
    """Each block with its curves and with what is known of its runs."""
    records: dict[str, Record]
    """What the sweep's files ask for, by their names."""


def pack(store: Store, names: Iterable[BlockName]) -> tuple[bytes, int]:
    """The content of an archive of some blocks, and how many runs it has. Blocks of other versions of results stay behind.

    Raises:
      InputError: if a file of them is damaged, the message names it; or if there is nothing, or too much.
    """
    parts, layouts, rows, runs = [], {}, 0, 0
    for name in names:
        if (found := _read(store, name)) is None:
            continue
        part, layouts[str(name)] = found
        rows, runs = rows + len(part), runs + len(name.seeds)
        parts.append(part)
        if rows > MOST_ROWS:
            raise InputError(f"SWEEP: must have at most {MOST_ROWS:,} rows, one per run and bin, got more; copy its folder")
    if not parts:
        raise InputError(f"SWEEP: must have stored runs, got none in {store.folder.location}; run it first")
    known = list(dict.fromkeys(layouts.values()))
    # What is known of runs in a search stands in logs of its own, which stay behind.
    records = {name: record for name, record in read_records(store) if record.get("kind") != "search"}
    about = {
        "sweep": store.sweep,
        "layouts": known,
        "layout_of": {name: known.index(layout) for name, layout in layouts.items() if layout != known[0]},
        "records": _pressed(records),
    }
    try:
        table = pyarrow.concat_tables(parts, promote_options="permissive").unify_dictionaries()
    except pyarrow.ArrowException as error:
        raise InputError(f"{store.folder.location}: must have blocks that fit together, got {error}; {REDO}") from None
    floats = [field.name for field in table.schema if pyarrow.types.is_floating(field.type)]
    options = {
        "use_dictionary": [name for name in table.column_names if name not in floats],
        "use_byte_stream_split": floats,
        "compression_level": COMPRESSION_LEVEL,
    }
    return seal(table, {METADATA: json.dumps(about).encode()}, **options), runs


def _read(store: Store, name: BlockName) -> tuple[pyarrow.Table, Layout] | None:
    """A block as rows of an archive; None if it is of another version of results."""
    file = f"{name}{SUFFIX}"
    where = f"{store.curves.location}/{file}"
    try:
        table = read_parquet(store.curves, file, len(name.seeds) * MOST_BINS)
        if (found := config_of(table, name)) is None:
            return None
        curves = curves_of(table, name, found[0], f"{where}: ", REDO)
        runs = read_runs(store.runs, name)
        config_of(runs, name)
        known = [field for field in runs.schema if field.name not in (*OF_BLOCK, *NOT_METRICS)]
        if {field.name for field in known} & set(curves.metrics):
            raise ValueError("metrics that runs have as well")
        about = {"engine": found[1], "config": found[0].model_dump_json()}
        about |= {field.name: runs.column(field.name)[0].as_py() for field in known}
    except FileNotFoundError as error:
        raise InputError(f"{where}: must have its file in runs/, got none ({error.strerror}); {REDO}") from None
    except (KeyError, ValueError) as error:
        raise InputError(str(error) if isinstance(error, InputError) else f"{where}: {_said(error)}; {REDO}") from None
    rows = curves_table(Block(found[0], found[1], name.seeds), curves)
    layout = Layout(
        tuple((metric, str(rows.schema.field(metric).type)) for metric in curves.metrics),
        tuple((field.name, str(field.type)) for field in known),
    )
    for column, value in about.items():
        # A text once, however many rows have it.
        values = pyarrow.array([value] if value is None or isinstance(value, str) else np.array([value]))
        values = values.dictionary_encode() if pyarrow.types.is_string(values.type) else values
        rows = rows.append_column(column, values.take(pyarrow.array(np.zeros(len(rows), np.int32))))
    return rows, layout


def unpack(content: bytes, where: str) -> Archive:
    """What an archive holds, every block checked as if it were read from a storage.

    Raises:
      InputError: if it is no archive, or damaged; the message names `where`.
    """
    try:
        table = read_sealed(content, MOST_ROWS)
        about = json.loads(table.schema.metadata[METADATA])
        if not isinstance(about, dict) or not isinstance(about["sweep"], str):
            raise ValueError("no name of a sweep")
        records = _unpressed(about["records"])
        layouts = [Layout(_columns(metrics), _columns(runs)) for metrics, runs in about["layouts"]]
        layout_of = {name: layouts[number] for name, number in about["layout_of"].items()}
        blocks = [_block(part, layouts[0], layout_of) for part in _parts(table)]
    except (
        InputError,
        pyarrow.ArrowException,
        OSError,
        AttributeError,
        LookupError,
        TypeError,
        ValueError,
        RecursionError,
        zlib.error,
    ) as error:
        _refuse(where, error)
    return Archive(about["sweep"], blocks, records)


def store_archive(archive: Archive, store: Store) -> list[Block]:
    """Stores what a storage lacks of an archive, and what is damaged there. Returns the blocks that were written."""
    written, stored = [], seeds_by_key(store.names())
    there = {name for name, _ in read_records(store)}
    for block, curves, about in archive.blocks:
        if store.folder.local is not None and is_damaged(store, block.name):
            remove_block(store, block.name)
        elif block.name.within(stored):
            continue
        if store.write(block, curves, about):
            written.append(block)
    for name, record in archive.records.items():
        if name not in there:
            write_record(store, name, record | {"sweep": store.sweep}, {})
    # What an import that was killed had begun to write.
    store.folder.remove_forsaken()
    return written


def _pressed(records: dict[str, Record]) -> str:
    return base64.b64encode(zlib.compress(json.dumps(records).encode(), 9)).decode()


def _unpressed(text: str) -> dict[str, Record]:
    content = zlib.decompressobj().decompress(base64.b64decode(text, validate=True), MOST_RECORD_BYTES)
    records: dict[str, Record] = json.loads(content)
    for name, record in records.items():
        # It becomes the name of a file, and must not lead out of the folder.
        if not name or name.startswith(".") or len(name) > MOST_NAME or not name.isprintable() or set(name) & set("/\\"):
            raise ValueError(f"a file {name[:40]!r} in {FOLDER}/")
        check_fields(record, "sweeps")
        for each in record["configurations"]:
            _check_engine(OnlineConfig.make(each["config"]), record["engine"])
        if not isinstance(record.get("resources", {}), dict) or not isinstance(record.get("loggers", []), list):
            raise ValueError(f"other resources or loggers in {name!r}")
    return records


def _check_engine(config: OnlineConfig, engine: str) -> None:
    if (engine, config.problem.name) not in ENGINES:
        raise ValueError(f"engine {engine[:40]!r} for {config.problem.name}")


def _columns(listed: Any) -> tuple[tuple[str, str], ...]:
    """The columns of a layout."""
    columns = tuple((str(name), str(kind)) for name, kind in listed)
    names = {name for name, _ in columns}
    if len(names) != len(columns) or names & {*OF_BLOCK, *NOT_METRICS}:
        raise ValueError("columns twice")
    return columns


def _parts(table: pyarrow.Table) -> list[pyarrow.Table]:
    """The rows of each block."""
    ids = table.column("trial_id").combine_chunks().dictionary_encode()
    if ids.null_count or not len(ids):
        raise ValueError("rows of no block" if len(ids) else "no rows")
    ids = ids.combine_chunks() if isinstance(ids, pyarrow.ChunkedArray) else ids
    places = ids.indices.to_numpy()
    starts = [0, *(np.flatnonzero(np.diff(places)) + 1).tolist(), len(places)]
    if len(starts) - 1 != len(set(places.tolist())):
        raise ValueError("a block in pieces")
    return [table.slice(first, last - first) for first, last in pairwise(starts)]


def _block(part: pyarrow.Table, usual: Layout, layouts: Mapping[str, Layout]) -> tuple[Block, Curves, dict[str, Any]]:
    trial, engine, text = (str(part.column(name)[0].as_py()) for name in OF_BLOCK)
    name, config, layout = BlockName.parse(trial), OnlineConfig.make(json.loads(text)), layouts.get(trial, usual)
    _check_engine(config, engine)
    if name is None or config_key(config, engine) != name.key:
        raise ValueError(f"another configuration than {trial!r} says")
    # Blocks with other columns may have given a column another type.
    kinds = [(each, part.schema.field(each).type) for each in ("seed", "examples")]
    kinds += [(metric, pyarrow.type_for_alias(kind)) for metric, kind in layout.metrics]
    curves = part.select([metric for metric, _ in kinds]).cast(pyarrow.schema(kinds))
    about = {
        column: pyarrow.array([part.column(column)[0].as_py()]).cast(pyarrow.type_for_alias(kind))[0].as_py()
        for column, kind in layout.runs
    }
    return Block(config, engine, name.seeds), curves_of(curves, name, config, "", ""), about


def _said(error: Exception) -> str:
    """What an error says, in one line."""
    reason = " ".join(str(error).split()).rstrip("; ")
    return f"nothing called {reason}" if isinstance(error, KeyError) else reason


def _refuse(where: str, error: Exception) -> NoReturn:
    raise InputError(f"{where}: must be a file that `cbp-ray export` wrote, got {_said(error)[:120]}; {FIX}") from None
