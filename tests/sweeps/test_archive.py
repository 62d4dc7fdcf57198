"""Archives: what is exported and imported is the same to the last byte, and nothing else gets in."""

import base64
import json
import platform
import shutil
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from made_up_results import store_made_up

from cbp_ray.atomic_files import TEMPORARY
from cbp_ray.cli import main
from cbp_ray.errors import InputError
from cbp_ray.experiments import Curves
from cbp_ray.results import Block, Store
from cbp_ray.results.sealed import seal
from cbp_ray.results.store import METADATA, read_parquet
from cbp_ray.sweeps import Sweep, load_sweep
from cbp_ray.sweeps import archive as archive_module
from cbp_ray.sweeps.archive import MOST_ROWS, OF_BLOCK, pack, store_archive, unpack
from cbp_ray.sweeps.plan import find_missing
from cbp_ray.sweeps.resolved import record_sweep

SMALL = """
sweep: small
seeds: 0:6
base: {optimizer: {name: sgd, step_size: 0.01}, examples: 300, bin_size: 100}
groups:
  bp: {algorithm: {name: bp}}
  cbp: {algorithm: {name: cbp, replacement_rate: 1e-3}}
"""

DEEP = """
sweep: deep
seeds: 0:2
base: {problem: {name: permuted_mnist}, optimizer: {name: sgd, step_size: 0.01}, examples: 300, bin_size: 100}
groups:
  one: {network: {hidden: [5]}, algorithm: {name: bp}}
  two: {network: {hidden: [5, 5]}, algorithm: {name: bp}}
"""
MANY = f"""
sweep: many
seeds: 0:2
base: {{optimizer: {{name: sgd, step_size: 0.01}}, examples: 300, bin_size: 100}}
groups:
  cbp: {{algorithm: {{name: cbp, replacement_rate: {[1e-6 * (1 + number) for number in range(60)]}}}}}
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
    half = unpack(pack(store, store.names()[:2])[0], "half")
    assert len(store_archive(half, other)) == 2
    before = files(other)
    archive.write_bytes(pack(store, store.names())[0])
    assert main(["import", str(archive), "--as", "mine", "--storage", other.storage.location]) == 0
    assert "8 of 14 runs are new" in capsys.readouterr().out
    now = files(other)
    assert {path: now[path] for path in before} == before
    assert sorted(other.names(), key=str) == sorted(store.names(), key=str)
    # Whoever looks at it sees the name that it has here.
    assert json.loads(now["sweeps/small.json"])["sweep"] == "mine" and b"\nsweep: mine\n" in now["sweep.yaml"]


def test_a_file_of_which_a_byte_has_changed_is_refused(store: Store) -> None:
    content = pack(store, store.names())[0]
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


def pressed(records: Any) -> str:
    return base64.b64encode(zlib.compress(json.dumps(records).encode())).decode()


def records_of_no_names(table: pyarrow.Table, about: dict[str, Any]) -> pyarrow.Table:
    about["records"] = pressed([1])
    return table


def nothing_for_records(table: pyarrow.Table, about: dict[str, Any]) -> pyarrow.Table:
    about["records"] = pressed(None)
    return table


def a_record_elsewhere(table: pyarrow.Table, about: dict[str, Any]) -> pyarrow.Table:
    about["records"] = pressed({"../up": {"engine": "kernel", "seeds": [1], "configurations": []}})
    return table


def another_engine(table: pyarrow.Table, about: dict[str, Any]) -> pyarrow.Table:
    return table.set_column(table.column_names.index("engine"), "engine", pyarrow.array(["engine"] * len(table)))


def seeds_that_hide_seeds(table: pyarrow.Table, about: dict[str, Any]) -> pyarrow.Table:
    about["layouts"][0][1].append(["seed", "uint64"])
    return table


def a_metric_of_text(table: pyarrow.Table, about: dict[str, Any]) -> pyarrow.Table:
    about["layouts"][0][0].append(["engine", "string"])
    return table


def a_list_as_column(table: pyarrow.Table, about: dict[str, Any]) -> pyarrow.Table:
    about["layouts"][0][1].append(["listed", "string"])
    return table.append_column("listed", pyarrow.array([["text"]] * len(table)))


def a_map_as_column(table: pyarrow.Table, about: dict[str, Any]) -> pyarrow.Table:
    about["layouts"][0][1].append(["map", "string"])
    return table.append_column("map", pyarrow.array([{"a": 1}] * len(table)))


def no_layouts(table: pyarrow.Table, about: dict[str, Any]) -> pyarrow.Table:
    about["layouts"] = []
    return table


def negative_examples(table: pyarrow.Table, about: dict[str, Any]) -> pyarrow.Table:
    return table.set_column(table.column_names.index("examples"), "examples", pyarrow.array([-5] * len(table)))


@pytest.mark.parametrize(
    "change",
    [
        other_config,
        other_seeds,
        a_row_less,
        in_pieces,
        no_rows,
        no_engine,
        another_name,
        no_records,
        records_of_no_names,
        nothing_for_records,
        a_record_elsewhere,
        another_engine,
        seeds_that_hide_seeds,
        a_metric_of_text,
        a_list_as_column,
        a_map_as_column,
        no_layouts,
        negative_examples,
    ],
)
def test_what_no_export_has_written_is_refused_whole(
    change: Callable[[pyarrow.Table, dict[str, Any]], pyarrow.Table],
    store: Store,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    archive = tmp_path / "small.parquet"
    archive.write_bytes(pack(store, store.names())[0])
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


def test_a_file_that_is_mostly_holes_is_not_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (tmp_path / "holes.parquet").open("wb") as file:
        file.truncate(2**40)
    assert main(["import", str(tmp_path / "holes.parquet"), "--storage", str(tmp_path / "other")]) == 2
    assert "bytes" in capsys.readouterr().err


def test_a_text_that_many_rows_have_is_read_once(store: Store, tmp_path: Path) -> None:
    archive, rows = tmp_path / "text.parquet", 1_500
    text = pyarrow.DictionaryArray.from_arrays(pyarrow.array(np.zeros(rows, np.int32)), ["x" * 1_000_000])
    archive.write_bytes(seal(pyarrow.table(dict.fromkeys(OF_BLOCK, text)), {METADATA: b"{}"}))
    before = pyarrow.total_allocated_bytes()
    with pytest.raises(InputError, match="export"):
        unpack(archive.read_bytes(), "FILE")
    assert pyarrow.default_memory_pool().max_memory() - before < 500_000_000
    # The same, put into a storage, where every row would have it.
    store.curves.write("text.parquet", archive.read_bytes())
    with pytest.raises(InputError, match="texts that are longer than fits"):
        read_parquet(store.curves, "text.parquet", rows)


def test_blocks_of_many_kinds_come_back_to_the_last_byte(tmp_path: Path) -> None:
    (tmp_path / "größe von x.yaml").write_text(DEEP)
    sweep, store = load_sweep(tmp_path / "größe von x.yaml"), Store(tmp_path / "results", "deep")
    for number, each in enumerate(sweep.configurations):
        values = {metric: np.full((2, 3), number + 0.5) for metric in each.config.metrics}
        curves = Curves((0, 1), np.array([100, 200, 300]), values | ({} if number else {"whole": np.ones((2, 3), np.int64)}))
        about = [{"host": "a", "seconds": 1}, {"seconds": 2.5, "more": "b", "none": None}][number]
        store.write(Block(each.config, sweep.engine, (0, 1)), curves, about)
    record_sweep(sweep, store)
    other = Store(tmp_path / "other", "deep")
    store_archive(unpack(pack(store, store.names())[0], "FILE"), other)
    assert files(other) == files(store) and "sweeps/größe von x.json" in files(other)


def test_results_of_another_version_stay_behind(
    sweep: Sweep, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in ("keys", "store"):
        monkeypatch.setattr(f"cbp_ray.results.{module}.RESULT_VERSION", 0)
    store_made_up(sweep, tmp_path / "results", [0.5, 0.6])
    monkeypatch.undo()
    archive = tmp_path / "small.parquet"
    assert main(["export", "small", str(archive), "--storage", store.storage.location]) == 0
    assert "14 runs of small" in (said := capsys.readouterr().out) and "12 of another version" in said
    assert main(["import", str(archive), "--storage", str(tmp_path / "other")]) == 0
    assert main(["verify", "small", "--storage", store.storage.location]) == 0


def test_what_is_too_much_for_one_file_is_refused_when_it_is_written(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_module, "MOST_ROWS", 20)
    with pytest.raises(InputError, match="copy its folder"):
        pack(store, store.names())


def test_a_folder_with_a_name_of_its_own_is_imported_under_another(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(tmp_path / "results" / "small", tmp_path / "results" / "small (copy)")
    archive = str(tmp_path / "small.parquet")
    assert main(["export", "small (copy)", archive, "--storage", store.storage.location]) == 0
    assert main(["import", archive, "--storage", str(tmp_path / "other")]) == 2
    assert "--as" in capsys.readouterr().err and not (tmp_path / "other").exists()
    assert main(["import", archive, "--as", "copy", "--storage", str(tmp_path / "other")]) == 0


def without(runs: pyarrow.Table, curves: pyarrow.Table) -> tuple[pyarrow.Table, pyarrow.Table]:
    return runs.drop_columns(["seed"]), curves


def fewer_rows(runs: pyarrow.Table, curves: pyarrow.Table) -> tuple[pyarrow.Table, pyarrow.Table]:
    return runs, curves.slice(1)


def text_for_numbers(runs: pyarrow.Table, curves: pyarrow.Table) -> tuple[pyarrow.Table, pyarrow.Table]:
    place = curves.column_names.index("error")
    return runs, curves.set_column(place, "error", pyarrow.array(["x"] * len(curves)))


def text_for_seconds(runs: pyarrow.Table, curves: pyarrow.Table) -> tuple[pyarrow.Table, pyarrow.Table]:
    place = runs.column_names.index("seconds")
    return runs.set_column(place, "seconds", pyarrow.array(["x"] * len(runs))), curves


@pytest.mark.parametrize("change", [without, fewer_rows, text_for_numbers, text_for_seconds])
def test_blocks_that_are_no_results_are_not_exported(
    change: Callable[..., tuple[pyarrow.Table, pyarrow.Table]],
    store: Store,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name = next(name for name in store.names() if name.seeds == (6, 7))
    paths = [tmp_path / "results" / "small" / folder / f"{name}.parquet" for folder in ("runs", "curves")]
    tables = [pyarrow.parquet.read_table(path) for path in paths]
    for path, table, before in zip(paths, change(*tables), tables, strict=True):
        path.write_bytes(seal(table, {METADATA: before.schema.metadata[METADATA]}))
    assert main(["export", "small", str(tmp_path / "small.parquet"), "--storage", store.storage.location]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "small" in error
    assert not (tmp_path / "small.parquet").exists()


def test_a_block_without_its_runs_is_not_exported(store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store.runs.remove(f"{store.names()[0]}.parquet")
    assert main(["export", "small", str(tmp_path / "small.parquet"), "--storage", store.storage.location]) == 2
    assert str(store.names()[0]) in capsys.readouterr().err


def test_what_is_damaged_is_replaced_by_what_is_imported(store: Store) -> None:
    content, before = pack(store, store.names())[0], files(store)
    for folder, name in ((store.curves, store.names()[0]), (store.runs, store.names()[1])):
        path = Path(folder.path) / f"{name}.parquet"
        path.write_bytes(path.read_bytes()[:-1])
    assert [block.name for block in store_archive(unpack(content, "FILE"), store)] == store.names()[:2]
    assert files(store) == before


def test_nothing_is_imported_into_a_sweep_of_which_a_record_is_damaged(store: Store) -> None:
    content = pack(store, store.names())[0]
    store.folder.write("sweeps/small.json", b"[]")
    store.curves.remove(f"{store.names()[0]}.parquet")
    before = files(store)
    with pytest.raises(InputError, match=r"small\.json"):
        store_archive(unpack(content, "FILE"), store)
    assert files(store) == before


def test_an_import_that_is_killed_goes_on(tmp_path: Path) -> None:
    (tmp_path / "many.yaml").write_text(MANY)
    sweep = load_sweep(tmp_path / "many.yaml")
    store = store_made_up(sweep, tmp_path / "results", [0.1 * (1 + number) for number in range(len(sweep.configurations))])
    archive, other = tmp_path / "many.parquet", Store(tmp_path / "other", "many")
    archive.write_bytes(pack(store, store.names())[0])
    command = [sys.executable, "-m", "cbp_ray", "import", str(archive), "--storage", str(tmp_path / "other")]
    for count in (3, 20, 40):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        while process.poll() is None and len(other.names()) < count:
            time.sleep(0.001)
        process.kill()
        process.wait()
    # What a process that is killed in the middle of a file leaves behind.
    (tmp_path / "other" / "many" / "curves" / temporary_of(process.pid)).write_bytes(b"half")
    assert 3 <= len(other.names()) <= len(store.names())
    assert subprocess.run(command, stdout=subprocess.DEVNULL, check=True).returncode == 0
    assert files(other) == files(store)
    assert not list((tmp_path / "other").rglob(".tmp-*"))


def temporary_of(pid: int) -> str:
    return f"{TEMPORARY}{'0' * 32}-{pid}-{platform.node()}"


def test_there_must_be_something_to_export(store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in store.names():
        store.curves.remove(f"{name}.parquet")
    assert main(["export", "small", str(tmp_path / "small.parquet"), "--storage", store.storage.location]) == 2
    assert main(["export", "small", str(tmp_path), "--storage", store.storage.location]) == 2
    assert main(["import", "/dev/zero", "--storage", store.storage.location]) == 2
    assert capsys.readouterr().err.count("\n") == 3
    assert not (tmp_path / "small.parquet").exists()
