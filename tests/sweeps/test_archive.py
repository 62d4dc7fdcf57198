"""Archives: what is exported and imported is the same to the last byte, and nothing else gets in."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from made_up_results import store_made_up

from cbp_ray.cli import main
from cbp_ray.errors import InputError
from cbp_ray.experiments import Curves
from cbp_ray.results import Block, Store
from cbp_ray.results.sealed import seal
from cbp_ray.results.store import METADATA
from cbp_ray.sweeps import Sweep, load_sweep
from cbp_ray.sweeps.archive import MOST_ROWS, pack, store_archive, unpack
from cbp_ray.sweeps.plan import find_missing

SMALL = """
sweep: small
seeds: 0:6
base: {optimizer: {name: sgd, step_size: 0.01}, examples: 300, bin_size: 100}
groups:
  bp: {algorithm: {name: bp}}
  cbp: {algorithm: {name: cbp, replacement_rate: 1e-3}}
"""


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    (tmp_path / "small.yaml").write_text(SMALL)
    return load_sweep(tmp_path / "small.yaml")


@pytest.fixture
def store(sweep: Sweep, tmp_path: Path) -> Store:
    """Twelve runs in four blocks, and two more in a block that has a metric which the others lack."""
    store = store_made_up(sweep, tmp_path / "results", [0.9, 0.4])
    config = sweep.configurations[1].config
    made = store.read_curves(config, (0, 1))
    more = Curves((6, 7), made.examples, made.metrics | {"srank": np.array([[1.0, np.nan, 3.0]] * 2)})
    store.write(Block(config, sweep.engine, (6, 7)), more, {"host": "there", "seconds": 2.0})
    return store


def files(store: Store) -> dict[str, bytes]:
    """All results and records."""
    return {path: store.folder.read(path) for path in store.folder.tree() if not path.startswith("progress")}


def test_what_was_exported_is_imported_to_the_last_byte(sweep: Sweep, store: Store, tmp_path: Path) -> None:
    archive, other = tmp_path / "small.parquet", Store(tmp_path / "other", "small")
    assert main(["export", "small", str(archive), "--storage", store.storage.location]) == 0
    assert main(["import", str(archive), "--storage", other.storage.location]) == 0
    assert files(other) == files(store)
    assert find_missing(sweep, other).stored_runs == 12
    table = pyarrow.parquet.read_table(archive)
    assert len(table) == 14 * 3 and {"seed", "bin", "error", "config", "seconds"} <= set(table.column_names)
    assert main(["verify", "--storage", other.storage.location]) == 0


def test_only_what_is_missing_is_imported(store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    archive, other = tmp_path / "small.parquet", Store(tmp_path / "other", "mine")
    half = unpack(pack(store, store.names()[:2]), "half")
    assert len(store_archive(half, other)) == 2
    before = files(other)
    archive.write_bytes(pack(store, store.names()))
    assert main(["import", str(archive), "--as", "mine", "--storage", other.storage.location]) == 0
    assert "8 of 14 runs are new" in capsys.readouterr().out
    now = files(other)
    assert {path: now[path] for path in before} == before
    assert sorted(other.names(), key=str) == sorted(store.names(), key=str)
    # Whoever looks at it sees the name that it has here.
    assert json.loads(now["sweeps/small.json"])["sweep"] == "mine" and b"\nsweep: mine\n" in now["sweep.yaml"]


def test_a_file_of_which_a_byte_has_changed_is_refused(store: Store) -> None:
    content = pack(store, store.names())
    for place in range(0, len(content), 97):
        changed = bytearray(content)
        changed[place] ^= 1
        with pytest.raises(InputError, match="export"):
            unpack(bytes(changed), "FILE")


def other_config(table: pyarrow.Table, about: dict[str, Any]) -> pyarrow.Table:
    configs = [text.as_py().replace("0.01", "0.02") for text in table.column("config")]
    return table.set_column(table.column_names.index("config"), "config", pyarrow.array(configs))


def other_seeds(table: pyarrow.Table, about: dict[str, Any]) -> pyarrow.Table:
    return table.set_column(0, "seed", pyarrow.array([7] * len(table), pyarrow.uint64()))


def a_row_less(table: pyarrow.Table, about: dict[str, Any]) -> pyarrow.Table:
    return table.slice(1)


def in_pieces(table: pyarrow.Table, about: dict[str, Any]) -> pyarrow.Table:
    return pyarrow.concat_tables([table.slice(5), table.slice(0, 5)])


def no_rows(table: pyarrow.Table, about: dict[str, Any]) -> pyarrow.Table:
    return table.slice(0, 0)


def no_engine(table: pyarrow.Table, about: dict[str, Any]) -> pyarrow.Table:
    return table.drop_columns(["engine"])


def another_name(table: pyarrow.Table, about: dict[str, Any]) -> pyarrow.Table:
    about["sweep"] = "../small"
    return table


def no_records(table: pyarrow.Table, about: dict[str, Any]) -> pyarrow.Table:
    about["records"] = "eJw="
    return table


@pytest.mark.parametrize(
    "change", [other_config, other_seeds, a_row_less, in_pieces, no_rows, no_engine, another_name, no_records]
)
def test_what_no_export_has_written_is_refused_whole(
    change: Callable[[pyarrow.Table, dict[str, Any]], pyarrow.Table],
    store: Store,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    archive = tmp_path / "small.parquet"
    archive.write_bytes(pack(store, store.names()))
    table = pyarrow.parquet.read_table(archive)
    about = json.loads(table.schema.metadata[METADATA])
    table = change(table, about)
    archive.write_bytes(seal(table, {METADATA: json.dumps(about).encode()}))
    assert main(["import", str(archive), "--storage", str(tmp_path / "other")]) == 2
    error = capsys.readouterr().err
    assert "FILE" in error and error.count("\n") == 1
    assert not (tmp_path / "other").exists()


def test_billions_of_rows_in_a_few_bytes_are_not_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = pyarrow.table({"trial_id": pyarrow.nulls(MOST_ROWS + 1)})
    archive = tmp_path / "large.parquet"
    archive.write_bytes(seal(rows, {METADATA: b"{}"}))
    assert main(["import", str(archive), "--storage", str(tmp_path / "other")]) == 2
    assert "rows" in capsys.readouterr().err


def test_there_must_be_something_to_export(store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in store.names():
        store.curves.remove(f"{name}.parquet")
    assert main(["export", "small", str(tmp_path / "small.parquet"), "--storage", store.storage.location]) == 2
    assert main(["export", "small", str(tmp_path), "--storage", store.storage.location]) == 2
    assert main(["import", "/dev/zero", "--storage", store.storage.location]) == 2
    assert capsys.readouterr().err.count("\n") == 3
    assert not (tmp_path / "small.parquet").exists()
