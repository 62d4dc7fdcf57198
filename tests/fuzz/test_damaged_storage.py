"""Storage that was damaged: whatever a file of a sweep holds, every command names it in one line or goes on without it."""

import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from fuzz_help import answer, bounded_memory, changed, damaged, efforts, hold, scalars, values, works_or_refuses
from hypothesis import strategies as st
from made_up_results import store_made_up
from rich.console import Console

from cbp_ray.cli import main
from cbp_ray.cli.watch import overview
from cbp_ray.experiments.checkpoint import dump, parse
from cbp_ray.experiments.curves import Curves
from cbp_ray.results import Block, Store, load, warnings
from cbp_ray.results.curve_summary import CurveSummary
from cbp_ray.results.keys import BlockName
from cbp_ray.results.sealed import seal
from cbp_ray.results.store import METADATA
from cbp_ray.results.tensorboard import write_image
from cbp_ray.sweeps import Sweep, failures, load_sweep, unfinished
from cbp_ray.sweeps.block_run import BlockRun
from cbp_ray.sweeps.live_curves import LiveCurves, LivePart
from cbp_ray.sweeps.progress import Heartbeat, Totals
from cbp_ray.sweeps.resolved import record_sweep
from cbp_ray.sweeps.search_log import SearchLog, Stop, search_key
from cbp_ray.sweeps.status import statuses

SMALL = """
sweep: small
seeds: 0:6
base: {optimizer: {name: sgd, step_size: 0.01}, examples: 300, bin_size: 100}
groups:
  bp: {algorithm: {name: bp}}
  cbp: {algorithm: {name: cbp, replacement_rate: 1e-3}}
"""
SEARCH = (
    SMALL.partition("groups")[0]
    + """
tune: {samples: 2, space: {algorithm.replacement_rate: {uniform: [0, 1]}}}
groups: {cbp: {algorithm: {name: cbp, replacement_rate: 1e-3}}}
"""
)


GLANCE = {"metric": "error", "value": 0.5, "curve": [1.0, None, 0.5]}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two sweep files and results of every kind: blocks, a checkpoint, live curves, a failure, a search."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "small.yaml").write_text(SMALL)
    (folder / "search.yaml").write_text(SEARCH)
    sweep, search = load_sweep(folder / "small.yaml"), load_sweep(folder / "search.yaml")
    store = store_made_up(sweep, folder / "results", [0.9, 0.4])
    config = sweep.configurations[0].config
    curves = store.read_curves(config, (0, 1))
    block = Block(config, sweep.engine, (6, 7))
    unfinished.save(store, block, {"weights": np.arange(100.0)}, curves)
    failures.record(store, Block(config, sweep.engine, (8, 9)), "bp", 3, "Traceback\nValueError: no")
    warnings.record(store, config, sweep.engine, "bp", "it never acted")
    live = LiveCurves(store)
    live.report(Block(config, sweep.engine, (6, 7)), LivePart(0, CurveSummary.of(curves, "error")))
    Heartbeat(store, "small", Totals(4, 12, 0, 1, 1.0)).beat("finished", force=True)
    write_image(store, "figure", b"\x89PNG" + bytes(40))
    record_sweep(search, store)
    log, drawn = SearchLog(store, search_key(search)), Block(search.configurations[0].config, "kernel", search.seeds)
    log.add(drawn, "cbp")
    log.stop(drawn, Stop(100, 0.5))
    store.write_partial(drawn, Curves(search.seeds, curves.examples[:1], {"error": np.ones((6, 1))}))
    return folder


@pytest.fixture
def folder(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it to damage, and the current folder."""
    shutil.copytree(whole, tmp_path / "lab")
    # A sign of life that is of now, and tells of a trial.
    totals = Totals(4, 12, 0, 1, 1.0, glances=[{"name": "cbp", "seeds": "0:6", "fraction": 0.2, **GLANCE}])
    Heartbeat(Store(tmp_path / "lab" / "results", "small"), "search", totals).beat(force=True)
    monkeypatch.chdir(tmp_path / "lab")
    # Drawing takes longer than all the rest.
    (tmp_path / "drawn" / "paper").mkdir(parents=True)
    monkeypatch.setattr("cbp_ray.figures.sweep_curves.draw_sweep", lambda *_: None)
    return tmp_path / "lab"


def files(folder: Path, pattern: str = "*") -> list[Path]:
    return sorted(path for path in (folder / "results").rglob(pattern) if path.is_file())


COMMANDS = [
    ["status"],
    ["status", "small", "--json"],
    ["status", "--failed"],
    ["results", "small"],
    ["results", "small.yaml", "--json"],
    ["plot", "small.yaml", "--output", "../drawn"],
    ["run", "small.yaml", "--dry-run"],
    ["run", "search.yaml", "--dry-run"],
]


def look(folder: Path, path: Path, content: bytes, commands: list[list[str]]) -> None:
    """Puts damaged content there, asks, and puts things right again."""
    good = path.read_bytes()
    path.write_bytes(content)
    try:
        said = [answer(command) for command in commands]
        checked = answer(["verify", "--json"])
        assert checked.code in (0, 1)
        # What a command refuses because of a file must be what `verify` finds, and `--remove` heals.
        if any(each.code == 2 for each in said):
            assert json.loads(checked.out)["damaged"], said
        works_or_refuses(lambda: [table(folder) for table in TABLES])
    finally:
        path.write_bytes(good)


TABLES: list[Callable[[Path], Any]] = [
    lambda folder: load(folder / "results", "small").configurations,
    lambda folder: load(folder / "results", "small").runs,
    lambda folder: load(folder / "results", "small").curves,
    lambda folder: load(folder / "results", "small").trials,
    lambda folder: Console(file=io.StringIO()).print(overview(list(statuses(Store(folder / "results", "small"))))),
]


@efforts
def test_garbled_files(folder: Path, effort: str) -> None:
    assert all(main(command) == 0 for command in COMMANDS) and main(["verify"]) == 0

    def check(data: Any, commands: list[list[str]]) -> None:
        path = data.draw(st.sampled_from(files(folder)))
        look(folder, path, data.draw(damaged(path.read_bytes())), commands)

    some = st.lists(st.sampled_from(COMMANDS), min_size=1, max_size=2)
    hold(check, effort, 60, data=st.data(), commands=some)


@efforts
def test_json_that_says_something_else(folder: Path, effort: str) -> None:

    def check(data: Any, commands: list[list[str]]) -> None:
        path = data.draw(st.sampled_from(files(folder, "*.json")))
        content = data.draw(changed(json.loads(path.read_text())) | values)
        try:
            text = json.dumps(content)
        except (TypeError, ValueError):
            return
        look(folder, path, text.encode("utf-8", "replace"), commands)

    some = st.lists(st.sampled_from(COMMANDS), min_size=1, max_size=2)
    hold(check, effort, 60, data=st.data(), commands=some)


STRUCTURES: dict[str, Callable[[Path], Any]] = {
    "a file for the curves": lambda sweep: (shutil.rmtree(sweep / "curves"), (sweep / "curves").write_text("")),
    "a file for the records": lambda sweep: (shutil.rmtree(sweep / "sweeps"), (sweep / "sweeps").write_text("")),
    "a file for the sweep": lambda sweep: (shutil.rmtree(sweep), sweep.write_text("")),
    "a failure that leads nowhere": lambda sweep: (sweep / "failures" / ("0" * 20 + "-5_6.json")).symlink_to("nowhere"),
    "a warning that leads nowhere": lambda sweep: (sweep / "warnings" / "x.json").symlink_to("nowhere"),
    "a sign of life that leads nowhere": lambda sweep: (sweep / "progress" / "x.json").symlink_to("nowhere"),
    "curves that lead nowhere": lambda sweep: (sweep / "curves" / ("0" * 20 + "-5_6.parquet")).symlink_to("nowhere"),
    "a folder for curves": lambda sweep: (sweep / "curves" / ("0" * 20 + "-5_6.parquet")).mkdir(),
}


@pytest.mark.parametrize("structure", STRUCTURES)
def test_folders_and_files_that_are_something_else(structure: str, folder: Path) -> None:
    STRUCTURES[structure](folder / "results" / "small")
    for command in (*COMMANDS, ["run", "small.yaml"], ["verify"], ["rm", "small", "--yes"]):
        if command[0] == "run" and "--dry-run" not in command and "for the" not in structure:
            continue  # it would run
        said = answer(command)
        assert "Traceback" not in said.err and said.err.count("\n") <= 1, said.err
    if structure.endswith("for the curves"):
        assert answer(["verify"]).code == 1


def test_what_is_damaged_stays_until_it_can_be_made_again(folder: Path) -> None:
    path = files(folder, "curves/*.parquet")[0]
    content = path.read_bytes()[:-1]
    path.write_bytes(content)
    assert answer(["run", "small.yaml", "--address", "127.0.0.1:1"]).code == 2
    assert path.read_bytes() == content


CHANGES = ["drop", "text", "null", "rows", "more", "nested", "other", "no metadata", "metadata"]


@efforts
def test_tables_with_other_columns(folder: Path, effort: str) -> None:

    def check(data: Any, commands: list[list[str]]) -> None:
        path = data.draw(st.sampled_from(files(folder, "*.parquet")))
        table = pyarrow.parquet.read_table(path)
        column = data.draw(st.sampled_from(table.column_names))
        change = data.draw(
            st.sampled_from(["drop", "text", "null", "rows", "more", "nested", "other", "no metadata", "metadata"])
        )
        index, count = table.column_names.index(column), len(table)
        if change == "drop":
            table = table.drop_columns([column])
        elif change == "rows":
            table = table.slice(data.draw(st.integers(0, count)), data.draw(st.integers(0, count)))
        elif change == "more":
            table = pyarrow.concat_tables([table] * data.draw(st.integers(2, 5)))
        elif change == "no metadata":
            table = table.replace_schema_metadata(None)
        elif change == "metadata":
            table = table.replace_schema_metadata({METADATA: json.dumps(data.draw(values)).encode("utf-8", "replace")})
        elif change == "other":
            table = table.append_column(data.draw(st.sampled_from(["x", "error", "seed"])), pyarrow.array(["x"] * count))
        else:
            made = {"text": ["x"] * count, "null": [None] * count, "nested": [[1]] * count}[change]
            table = table.set_column(index, column, pyarrow.array(made))
        # With a right checksum, or nothing else would be looked at.
        look(folder, path, seal(table, table.schema.metadata or {}), commands)

    some = st.lists(st.sampled_from(COMMANDS), min_size=1, max_size=2)
    hold(check, effort, 60, data=st.data(), commands=some)


@pytest.mark.parametrize("name", ["{}-0_99999999999999", "{}-5_1", "{}-0_1+0_1", "{}-" + "9" * 30 + "_1", "{}--5_3", "{}-0_٣"])
def test_names_that_promise_too_much_are_no_blocks(name: str, folder: Path) -> None:
    path = files(folder, "*.parquet")[0]
    with bounded_memory():
        assert BlockName.parse(name.format("0" * 20)) is None
        path.rename(path.with_name(name.format("0" * 20) + ".parquet"))
        assert answer(["status"]).code == 0
        assert answer(["verify"]).code == 1


def test_a_small_file_of_many_rows_is_not_read(folder: Path) -> None:
    path = files(folder, "*.parquet")[0]
    table = pyarrow.parquet.read_table(path)
    count = 30_000_000
    path.write_bytes(seal(pyarrow.table({"seed": np.zeros(count, np.uint64)}), table.schema.metadata))
    assert path.stat().st_size < 1_000_000
    said = answer(["verify", "--json"])
    assert said.code == 1 and f"{count:,}" in said.out


ARRAYS = {"a": np.arange(5.0), "b": np.array("text"), "c": np.zeros((2, 3), np.int32)}


@efforts
def test_checkpoints_that_are_garbled(effort: str) -> None:
    def check(content: bytes) -> None:
        found = works_or_refuses(lambda: parse(content))
        for name, array in (found or {}).items():
            assert name in ARRAYS and np.array_equal(array, ARRAYS[name])  # checksums notice what is no longer the same

    hold(check, effort, 150, content=damaged(dump(ARRAYS)))


def test_checkpoints_that_are_bombs_or_pickles_are_refused() -> None:
    import io
    import zipfile

    def archive(content: bytes, kind: int = zipfile.ZIP_STORED) -> bytes:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", kind) as made:
            made.writestr("a.npy", content)
        return buffer.getvalue()

    def npy(array: Any) -> bytes:
        buffer = io.BytesIO()
        np.save(buffer, array)
        return buffer.getvalue()

    huge = npy(np.zeros(3)).replace(b"(3,), }" + b" " * 10, b"(30000000000,), }")
    assert b"30000000000" in huge
    pickled = npy(np.array([{}], dtype=object))
    compressed = archive(npy(np.zeros(200_000_000, np.uint8)), zipfile.ZIP_DEFLATED)
    with bounded_memory():
        for content in (archive(huge), archive(pickled), compressed, b"", b"PK", npy(np.zeros(3))):
            assert works_or_refuses(lambda content=content: parse(content)) is None  # type: ignore[misc]


@efforts
def test_blocks_begin_again_where_their_checkpoint_is_of_no_use(folder: Path, effort: str) -> None:
    """Whatever a checkpoint holds, the block's results are those of an unbroken run, or the checkpoint's own state."""
    sweep: Sweep = load_sweep(folder / "small.yaml")
    store = Store(folder / "other", "small")
    block = Block(sweep.configurations[0].config, "kernel", (0, 1))
    run = BlockRun(store, block)
    assert run.bins is not None
    run.last = next(run.bins)  # type: ignore[assignment]
    assert run.last is not None
    run.examples.append(run.last.examples)
    run.points.append(run.last.metrics)
    run._save()
    state = parse(store.checkpoints.read(f"{block.trial_id}.npz"))

    def check(data: Any) -> None:
        name = data.draw(st.sampled_from(sorted(state)))
        change = data.draw(st.sampled_from(["drop", "shape", "kind", "value", "scalar"]))
        array = state[name]
        if change == "shape":
            array = np.resize(array, data.draw(st.sampled_from([(0,), (1,), (3, 1), (2, 2, 2)])))
        elif change == "kind":
            array = np.full(array.shape, "x")
        elif change == "scalar":
            array = np.array(data.draw(st.sampled_from([0, -1, 2**62, 1.5, "", "x"])))
        elif change == "value":
            array = np.array(str(data.draw(scalars)))
        garbled = {**state, name: array}
        if change == "drop":
            del garbled[name]
        store.checkpoints.write(f"{block.trial_id}.npz", dump(garbled))
        BlockRun(store, block)

    hold(check, effort, 40, data=st.data())
