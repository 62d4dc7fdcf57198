"""All stored runs of a sweep as one Parquet file, to take them to another storage: `cbp-ray export` and `cbp-ray import`.

The file has a row per run and bin with every metric, and with the run's config, versions and seconds, so that other programs
can read it as well. Unpacked, it gives the files that were packed, to the last byte.
"""

import base64
import json
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NoReturn

import numpy as np
import pyarrow
import pyarrow.parquet

from cbp_ray.errors import InputError
from cbp_ray.experiments.config import OnlineConfig
from cbp_ray.experiments.curves import Curves
from cbp_ray.results.json_files import check_fields
from cbp_ray.results.keys import BlockName, config_key, seeds_by_key
from cbp_ray.results.records import FOLDER, Record, read_records
from cbp_ray.results.sealed import is_sealed, seal
from cbp_ray.results.store import METADATA, NOT_METRICS, SUFFIX, Block, Store, curves_of, read_parquet, read_runs
from cbp_ray.sweeps.resolved import write_record
from cbp_ray.sweeps.sweep import NAME, check_name

OF_BLOCK = ("trial_id", "engine", "config")
"""Columns that say which block a row is of; those of `runs/` behind them say what else is known."""
MOST_ROWS = 20_000_000
"""Most rows of an archive: a few bytes of Parquet may hold billions."""
MOST_VALUES = 400_000_000
"""Most rows times columns."""
MOST_RECORD_BYTES = 2**28
"""Most bytes of what its sweep files ask for."""
COMPRESSION_LEVEL = 15
FIX = "export the sweep again"


@dataclass(frozen=True)
class Archive:
    """What an archive holds."""

    sweep: str
    """Name of the sweep."""
    blocks: list[tuple[Block, Curves, dict[str, Any]]]
    """Each block with its curves and with what is known of its runs."""
    records: dict[str, Record]
    """What the sweep's files ask for, by their names."""


def pack(store: Store, names: Iterable[BlockName]) -> bytes:
    """The content of an archive of some blocks.

    Raises:
      InputError: if a file of them is damaged; the message names it.
    """
    parts = []
    for name in names:
        runs = read_runs(store.runs, name)
        curves = read_parquet(store.curves, f"{name}{SUFFIX}", MOST_ROWS)
        known = [column for column in runs.column_names if column != "seed"]
        rows = pyarrow.array(np.repeat(np.arange(len(runs)), len(curves) // len(runs)))
        for column in [*OF_BLOCK, *(column for column in known if column not in OF_BLOCK)]:
            values = runs.column(column).combine_chunks()
            if pyarrow.types.is_string(values.type):
                # A text once, however many rows have it.
                values = values.dictionary_encode()
            curves = (curves.drop_columns([column]) if column in curves.column_names else curves).append_column(
                column, values.take(rows)
            )
        parts.append(curves.replace_schema_metadata({METADATA: json.dumps({"runs": known}).encode()}))
    if not parts:
        raise InputError(f"SWEEP: must have stored runs, got none in {store.folder.location}; run it first")
    known = list(dict.fromkeys(name for part in parts for name in json.loads(part.schema.metadata[METADATA])["runs"]))
    table = pyarrow.concat_tables([part.replace_schema_metadata(None) for part in parts], promote_options="permissive")
    # What is known of runs in a search stands in logs of its own, which stay behind.
    records = {name: record for name, record in read_records(store) if record.get("kind") != "search"}
    about = {"sweep": store.sweep, "runs": known, "records": _pressed(records)}
    floats = [field.name for field in table.schema if pyarrow.types.is_floating(field.type)]
    others = [name for name in table.column_names if name not in floats]
    return seal(
        table.unify_dictionaries(),
        {METADATA: json.dumps(about).encode()},
        use_dictionary=others,
        use_byte_stream_split=floats,
        compression_level=COMPRESSION_LEVEL,
    )


def unpack(content: bytes, where: str) -> Archive:
    """What an archive holds, every block checked as if it were read from a storage.

    Raises:
      InputError: if it is no archive, or damaged; the message names `where`.
    """
    try:
        if not is_sealed(content):
            raise ValueError("another file, or other bytes than were written")
        file = pyarrow.parquet.ParquetFile(pyarrow.BufferReader(content))
        rows, columns = file.metadata.num_rows, file.metadata.num_columns
        if rows > MOST_ROWS or rows * columns > MOST_VALUES:
            raise ValueError(f"{rows:,} rows of {columns:,} columns, more than are read")
        about = json.loads(file.schema_arrow.metadata[METADATA])
        check_name(about["sweep"])
        records = _unpressed(about["records"])
        table = file.read()
        blocks = [_block(part, about["runs"]) for part in _parts(table)]
    except (InputError, pyarrow.ArrowException, OSError, KeyError, TypeError, ValueError, RecursionError, zlib.error) as error:
        _refuse(where, error)
    return Archive(about["sweep"], blocks, records)


def store_archive(archive: Archive, store: Store) -> list[Block]:
    """Stores what a storage lacks of an archive. Returns the blocks that were written; what is there stays untouched."""
    written, stored = [], seeds_by_key(store.names())
    for block, curves, about in archive.blocks:
        if not block.name.within(stored) and store.write(block, curves, about):
            written.append(block)
    there = {name for name, _ in read_records(store)}
    for name, record in archive.records.items():
        if name not in there:
            write_record(store, name, record | {"sweep": store.sweep}, {})
    return written


def _pressed(records: dict[str, Record]) -> str:
    return base64.b64encode(zlib.compress(json.dumps(records).encode(), 9)).decode()


def _unpressed(text: str) -> dict[str, Record]:
    content = zlib.decompressobj().decompress(base64.b64decode(text, validate=True), MOST_RECORD_BYTES)
    records: dict[str, Record] = json.loads(content)
    for name, record in records.items():
        # It becomes the name of a file, and must not lead out of the folder.
        if not NAME.fullmatch(name.replace("@", "-")):
            raise ValueError(f"a file {name!r} in {FOLDER}/")
        check_fields(record, "sweeps")
        for each in record["configurations"]:
            OnlineConfig.make(each["config"])
    return records


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


def _block(part: pyarrow.Table, known: list[str]) -> tuple[Block, Curves, dict[str, Any]]:
    trial, engine, text = (str(part.column(name)[0].as_py()) for name in OF_BLOCK)
    name, config = BlockName.parse(trial), OnlineConfig.make(json.loads(text))
    if name is None or config_key(config, engine) != name.key:
        raise ValueError(f"another configuration than {trial!r} says")
    rest = [column for column in part.column_names if column not in known or column in NOT_METRICS]
    # Other blocks may have further metrics.
    curves = part.select([column for column in rest if part.column(column).null_count < len(part)])
    about = {column: part.column(column)[0].as_py() for column in known if column not in OF_BLOCK}
    return Block(config, engine, name.seeds), curves_of(curves, name, config, "", ""), about


def _refuse(where: str, error: Exception) -> NoReturn:
    reason = " ".join(str(error).split()).rstrip("; ")[:120]
    raise InputError(f"{where}: must be a file that `cbp-ray export` wrote, got {reason}; {FIX}") from None
