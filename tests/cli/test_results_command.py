"""`cbp-ray results`, and the same results in Python: tables of what is stored, whole or not, and the best to run again."""

import csv
import json
from pathlib import Path

import click
import numpy as np
import pytest
from made_up_results import curves, store_made_up

from cbp_ray.cli import main
from cbp_ray.cli.results import small_curve
from cbp_ray.errors import InputError
from cbp_ray.experiments import Curves
from cbp_ray.results import Block, Store, load, warnings
from cbp_ray.sweeps import Sweep, failures, load_sweep
from cbp_ray.sweeps.resolved import record_sweep
from cbp_ray.sweeps.search_log import SearchLog, Stop, search_key

GRID = """
sweep: grid
seeds: 0:6
base: {optimizer: {name: sgd, step_size: 0.01}, examples: 1_000_000}
groups:
  plain: {algorithm: {name: bp}}
  cbp: {algorithm: {name: cbp, replacement_rate: [1e-5, 1e-4, 1e-3]}}
"""
LASTS = [1.1, 0.6, 0.4, 0.8]
"""The error at the end of each configuration of the grid."""

SEARCH = """
sweep: search
seeds: 0:2
base: {optimizer: {name: sgd, step_size: 0.01}, examples: 400, bin_size: 100}
groups:
  cbp: {algorithm: {name: cbp, replacement_rate: 1e-3}}
tune:
  samples: 4
  space:
    algorithm.replacement_rate: {loguniform: [1e-4, 1e-2]}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "grid.yaml"
    path.write_text(GRID)
    return path


@pytest.fixture
def storage(file: Path, tmp_path: Path) -> str:
    store_made_up(load_sweep(file), tmp_path / "results", LASTS)
    return str(tmp_path / "results")


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["results", *arguments]) == 0
    return capsys.readouterr().out


def asked(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, list[dict[str, object]]]:
    found: dict[str, list[dict[str, object]]] = json.loads(shown(capsys, *arguments, "--json"))
    return found


def test_a_row_per_configuration_the_best_first_with_its_interval(
    storage: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = asked(capsys, "grid", "--storage", storage)["configurations"]
    assert [row["algorithm.replacement_rate"] for row in rows] == [1e-4, 1e-5, 1e-3, None]
    config = load_sweep(file).configurations[2].config
    stored = Store(storage, "grid").read_curves(config, range(6)).error
    assert rows[0]["performance"] == pytest.approx(stored.mean())
    assert rows[0]["late"] == pytest.approx(stored[:, -10:].mean())
    # Student's interval of six runs: 2.5706 standard errors.
    half = 2.5706 * stored.mean(axis=1).std(ddof=1) / np.sqrt(6)
    assert rows[0]["performance_high"] == pytest.approx(stored.mean() + half, rel=1e-4)
    assert (rows[0]["seeds"], rows[0]["seeds_wanted"], rows[0]["state"]) == (6, 6, "complete")
    # The file asks for the same as the sweep that it has stored.
    assert asked(capsys, str(file), "--storage", storage)["configurations"] == rows


def test_how_many_are_read_is_shown_where_they_are_many(
    storage: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["results", "grid", "--storage", storage]) == 0
    few = capsys.readouterr()
    monkeypatch.setattr("cbp_ray.cli.results.MANY", len(LASTS))
    assert main(["results", "grid", "--storage", storage]) == 0
    many = capsys.readouterr()
    assert few.err == "" and "reading" in many.err and few.out == many.out


def test_the_table_fits_the_terminal_and_shows_what_differs(
    storage: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = shown(capsys, "grid", "--storage", storage)
    lines = text.partition("The best")[0].splitlines()
    assert max(len(line) for line in lines if "group" in line or "cbp" in line) <= 132
    head = next(line for line in lines if "group" in line)
    assert head.split()[:5] == ["group", "replacement_rate", "seeds", "error", "late"]
    assert "step_size" not in head and "dtype" not in head
    assert "no room for" in text
    monkeypatch.setattr("rich.console.Console.is_terminal", True)
    monkeypatch.setenv("COLUMNS", "80")
    narrow = click.unstyle(shown(capsys, "grid", "--storage", storage)).partition("no room")[0]
    assert max(map(len, narrow.splitlines())) <= 80


def test_the_best_runs_again_as_it_is(storage: str, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    best = tmp_path / "best.yaml"
    shown(capsys, "grid", "--storage", storage, "--best", str(best))
    sweep, again = load_sweep(file), load_sweep(best)
    assert again.configurations == sweep.configurations[2:3]
    assert (again.name, again.seeds, again.engine, again.resources) == (sweep.name, sweep.seeds, sweep.engine, sweep.resources)
    assert asked(capsys, "grid", "--storage", storage)["best"]["yaml"] == best.read_text()  # type: ignore[call-overload]
    # All of it is stored.
    assert main(["run", str(best), "--storage", storage, "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["trials"] == 0


def test_rows_are_sorted_by_any_column_and_cut(storage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def rates(*arguments: str) -> list[object]:
        rows = asked(capsys, "grid", "--storage", storage, *arguments)["configurations"]
        return [row["algorithm.replacement_rate"] for row in rows]

    assert rates("--sort", "replacement_rate") == [1e-5, 1e-4, 1e-3, None]
    assert rates("--sort", "-algorithm.replacement_rate", "--top", "2") == [1e-3, 1e-4]
    assert rates("--sort", "-late") == [None, 1e-3, 1e-5, 1e-4]
    target = tmp_path / "rows.csv"
    shown(capsys, "grid", "--storage", storage, "--top", "3", "--csv", str(target))
    with target.open() as lines:
        rows = list(csv.DictReader(lines))
    assert len(rows) == 3 and float(rows[0]["performance"]) < float(rows[1]["performance"])
    assert {"saturated", "algorithm.utility", "performance_low"} <= set(rows[0])


def test_a_sweep_that_is_not_complete_shows_what_there_is(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep, storage = load_sweep(file), tmp_path / "some"
    store = store_made_up(sweep, storage, [1.1, 0.6, np.nan, np.nan])
    best = Block(sweep.configurations[2].config, sweep.engine, (0, 1))
    made = curves(0.5, 0.1, runs=2)
    store.write(best, Curves((0, 1), made.examples, made.metrics), {})
    failures.record(store, Block(sweep.configurations[3].config, sweep.engine, sweep.seeds), "cbp", 3, "OSError: no")
    # What another process is writing is not looked at.
    (storage / "grid" / "curves" / ".tmp-1").write_bytes(b"half")
    found = asked(capsys, "grid", "--storage", str(storage))
    rows = {row["algorithm.replacement_rate"]: (row["state"], row["seeds"]) for row in found["configurations"]}
    assert rows == {None: ("complete", 6), 1e-5: ("complete", 6), 1e-4: ("partial", 2), 1e-3: ("failed", 0)}
    warnings.record(store, sweep.configurations[1].config, sweep.engine, "cbp", "it never replaced a unit")
    assert "warning: cbp: it never replaced a unit" in shown(capsys, "grid", "--storage", str(storage))
    # Two lucky seeds are not the best of six.
    assert found["best"]["config"]["algorithm"]["replacement_rate"] == 1e-5  # type: ignore[call-overload]


def test_a_diverged_run_is_counted_and_its_configuration_comes_last(
    storage: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep, made = load_sweep(file, seeds="6"), curves(0.5, 0.4, runs=1)
    made.metrics["error"][0, 7:] = np.nan
    best = Block(sweep.configurations[2].config, sweep.engine, (6,))
    Store(storage, "grid").write(best, Curves((6,), made.examples, made.metrics), {})
    file.write_text(GRID.replace("0:6", "0:7"))
    rows = asked(capsys, str(file), "--storage", storage)["configurations"]
    assert (rows[-1]["algorithm.replacement_rate"], rows[-1]["diverged"], rows[-1]["performance"]) == (1e-4, 1, None)
    assert "7/7 (1 diverged)" in shown(capsys, str(file), "--storage", storage)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (["nothing"], "SWEEP"),
        (["nothing.yaml"], "SWEEP"),
        (["grid", "--sort", "replacment_rate"], "--sort"),
        (["grid", "--sort", "name"], "--sort"),
        (["grid", "--top", "0"], "--top"),
        (["grid", "--csv", "/nowhere/at/all.csv"], "--csv"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], field: str, storage: str, capsys: pytest.CaptureFixture[str]) -> None:
    if field == "--csv":
        arguments[-1] = str(Path(storage).parent / "grid.yaml" / "under_a_file.csv")
    assert main(["results", *arguments, "--storage", storage]) == 2
    output = capsys.readouterr()
    assert output.err.startswith(f"cbp-ray results: {field}: ") and output.err.count("\n") == 1 and output.out == ""


def test_python_gets_tidy_tables(storage: str) -> None:
    found = load(storage, "grid")
    assert (len(found.configurations), len(found.runs), len(found.curves)) == (4, 24, 4 * 6 * 50)
    frame = found.curves.to_pandas()
    means = frame[frame["examples"] > 800_000].groupby("key")["error"].mean()
    late = found.configurations.to_pandas().set_index("key")["late"]
    np.testing.assert_allclose(means.sort_index(), late.sort_index())
    runs = found.runs.to_pandas()
    assert runs.groupby("key")["performance"].mean().to_dict() == pytest.approx(
        found.configurations.to_pandas().set_index("key")["performance"].to_dict()
    )
    assert set(runs["host"]) == {"here"} and sorted(runs["seed"].unique()) == list(range(6))
    with pytest.raises(InputError, match="it has grid"):
        load(storage, "gird")


def test_polars_takes_the_tables(storage: str) -> None:
    polars = pytest.importorskip("polars")
    assert polars.from_arrow(load(storage, "grid").curves).shape[0] == 4 * 6 * 50


def store_search(path: Path, storage: Path) -> tuple[Sweep, Store, list[Block]]:
    """A search of four trials: two finished, one stopped half-way, one failed."""
    path.write_text(SEARCH)
    sweep, store = load_sweep(path), Store(storage, "search")
    log, base = SearchLog(store, search_key(sweep)), sweep.configurations[0].config
    blocks = []
    for rate in (1e-3, 2e-3, 3e-3, 4e-3):
        algorithm = base.algorithm.model_copy(update={"replacement_rate": rate})
        blocks.append(Block(base.model_copy(update={"algorithm": algorithm}), sweep.engine, sweep.seeds))
        log.add(blocks[-1], "cbp")
    examples = np.arange(1, 5) * 100
    for block, last in zip(blocks[:2], (0.9, 0.3), strict=True):
        store.write(block, Curves(sweep.seeds, examples, curves(0.5, last, runs=2, bins=4).metrics), {})
    half = curves(0.5, 0.1, runs=2, bins=2)
    store.write_partial(blocks[2], Curves(sweep.seeds, examples[:2], half.metrics))
    log.stop(blocks[2], Stop(200, 0.1))
    failures.record(store, blocks[3], "cbp", 3, "OSError: no")
    record_sweep(sweep, store)
    return sweep, store, blocks


def test_a_search_shows_every_trial_with_its_state_and_value(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, store, blocks = store_search(tmp_path / "search.yaml", tmp_path)
    for argument in ("search", str(tmp_path / "search.yaml")):
        found = asked(capsys, argument, "--storage", str(tmp_path))
        rows = [(row["algorithm.replacement_rate"], row["state"], row["at_examples"]) for row in found["trials"]]
        assert rows == [(2e-3, "finished", 400), (1e-3, "finished", 400), (3e-3, "stopped", 200), (4e-3, "failed", None)]
        assert found["trials"][2]["value"] == 0.1
        # What was stopped is not complete, however good it looks.
        assert found["best"]["config"]["algorithm"]["replacement_rate"] == 2e-3  # type: ignore[call-overload]
    text = shown(capsys, "search", "--storage", str(tmp_path))
    assert "stopped at 50%" in text and "failed" in text
    table = load(tmp_path, "search")
    states = dict(zip(*(table.configurations.column(name).to_pylist() for name in ("key", "state")), strict=True))
    assert [states[block.name.key] for block in blocks] == ["complete", "complete", "stopped", "failed"]
    stopped = table.curves.to_pandas().query("state == 'stopped'")
    assert stopped["key"].unique().tolist() == [blocks[2].name.key] and stopped["examples"].tolist() == [100, 200] * 2
    # A stopped trial whose runs are stored after all leaves nothing behind.
    store.write(blocks[2], Curves(blocks[2].seeds, np.arange(1, 5) * 100, curves(0.5, 0.1, runs=2, bins=4).metrics), {})
    store.tidy()
    assert store.read_partial(blocks[2]) is None
    assert [row["state"] for row in load(tmp_path, "search").trials.to_pylist()].count("finished") == 3


def test_a_small_curve_goes_from_low_to_high() -> None:
    assert small_curve(np.linspace(0, 1, 100), width=8) == "▁▂▃▄▅▆▇█"
    assert small_curve([1.0, np.nan, 0.0], width=8) == "█ ▁"
    assert small_curve([2.0, 2.0]) == "▁▁" and small_curve([np.nan]) == ""
