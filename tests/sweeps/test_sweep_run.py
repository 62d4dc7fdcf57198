"""Sweeps through a real local Ray: the numbers of `run_online`, nothing twice, failures on record."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sweep_help import SMALL, assert_bit_equal, snapshot
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from cbp_ray.cli import main
from cbp_ray.results import Block, Store, load
from cbp_ray.sweeps import Sweep, Totals, cluster, load_sweep, run_sweep
from cbp_ray.sweeps.progress import Event
from cbp_ray.sweeps.status import statuses
from cbp_ray.sweeps.unfinished import unfinished

pytestmark = pytest.mark.xdist_group("ray")
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module", autouse=True)
def _ray() -> Iterator[None]:
    """One local cluster for the module; `run_sweep` uses it and leaves it alone."""
    with cluster.connected(None):
        yield


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    return path


def run(sweep: Sweep, storage: Path) -> tuple[list[Event], Totals]:
    events: list[Event] = []
    return events, run_sweep(sweep, storage, progress=events.append)


def trials(events: list[Event], kind: str) -> list[str]:
    return [event.about["trial_id"] for event in events if event.kind == kind]


def test_a_sweep_stores_the_numbers_of_run_online_and_runs_once(file: Path, tmp_path: Path) -> None:
    sweep, seen = load_sweep(file), []

    def look(event: Event) -> None:
        if event.kind == "trial_start":
            seen.extend(statuses(Store(tmp_path, "small")))

    outcome = run_sweep(sweep, tmp_path, progress=look)
    assert (outcome.trials_done, outcome.runs_done, outcome.failed) == (3, 18, 0)
    assert_bit_equal(sweep, tmp_path)
    folder = tmp_path / "small"
    # A slow machine leaves checkpoints behind.
    found = {p.name for p in folder.iterdir()} - {"checkpoints"}
    assert found == {"curves", "runs", "progress", "sweeps", "sweep.yaml", "tensorboard"}
    assert load_sweep(folder / "sweep.yaml").configurations == sweep.configurations
    # What results do not have came with the reports.
    names = ("bp", "cbp,replacement_rate=0.001", "cbp,replacement_rate=0.01")
    tags = {name: EventAccumulator(str(folder / "tensorboard" / name)).Reload().Tags()["scalars"] for name in names}
    assert [("performance/error" in tags[name], "replacement/age" in tags[name]) for name in names] == [
        (True, False),
        (True, True),
        (True, True),
    ]
    assert {status.state for status in seen} == {"running"}
    (status,) = statuses(Store(tmp_path, "small"))
    assert (status.state, status.done, status.missing) == ("complete", 18, 0)

    # Killed after its last trial, it would have left a sign that it runs: the next start takes that back.
    sign = folder / "progress" / "small.json"
    sign.write_text(json.dumps(json.loads(sign.read_text()) | {"state": "running", "time": time.time()}))
    before = snapshot(tmp_path)
    again = run_sweep(sweep, tmp_path)
    (status,) = statuses(Store(tmp_path, "small"))
    assert status.state == "complete"
    assert (again.trials_done, again.runs_done, again.stored_runs) == (0, 0, 18)
    assert snapshot(tmp_path) == before


@pytest.mark.long
def test_a_block_that_is_damaged_is_named_and_made_again(file: Path, tmp_path: Path) -> None:
    sweep = load_sweep(file)
    run_sweep(sweep, tmp_path)
    damaged = min((tmp_path / "small" / "curves").iterdir())
    damaged.write_bytes(damaged.read_bytes()[:-1])
    told, redone = run(sweep, tmp_path)
    assert (redone.trials_done, redone.stored_runs) == (1, 12)
    assert [event.about["message"] for event in told if event.kind == "warning"] == [
        f"{damaged.stem} is damaged; its runs are made again"
    ]
    assert_bit_equal(sweep, tmp_path)


def test_a_damaged_block_is_named_also_when_others_hold_its_runs(file: Path, tmp_path: Path) -> None:
    sweep = load_sweep(file)
    run_sweep(sweep, tmp_path)
    store, each = Store(tmp_path, sweep.name), sweep.configurations[0]
    again = Block(each.config, sweep.engine, sweep.seeds[:2])
    store.write(again, store.read_curves(each.config, again.seeds), {"host": "there"})
    damaged = tmp_path / "small" / "curves" / f"{again.name}.parquet"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    told, redone = run(sweep, tmp_path)
    assert redone.trials_done == 0 and not damaged.exists()
    assert [event.about["message"].partition(" ")[0] for event in told if event.kind == "warning"] == [again.trial_id]


@pytest.mark.long
def test_more_seeds_more_values_and_other_files_run_only_what_is_new(file: Path, tmp_path: Path) -> None:
    run_sweep(load_sweep(file, seeds="2:5"), tmp_path)
    before = snapshot(tmp_path)
    more = load_sweep(file, overrides=["groups.cbp.algorithm.replacement_rate=[1e-3, 1e-2, 0.1]"])
    # The same folder by its URI: anything that pyarrow opens will do.
    outcome = run_sweep(more, tmp_path.as_uri())
    assert (outcome.runs_done, outcome.stored_runs) == (3 * 3 + 6, 9)
    after = snapshot(tmp_path)
    assert {path: after[path] for path in before} == before
    assert_bit_equal(more, tmp_path)

    other = tmp_path / "other.yaml"
    other.write_text(SMALL.replace("[1e-3, 1e-2]", "[1e-3, 0.5]"))
    outcome = run_sweep(load_sweep(other), tmp_path)
    assert (outcome.runs_done, outcome.stored_runs) == (6, 12)
    names = {path.name for path in (tmp_path / "small" / "sweeps").iterdir()}
    assert names == {"small.yaml", "small.json", "other.yaml", "other.json"}


@pytest.mark.long
def test_a_trial_that_fails_is_retried_then_recorded_while_the_rest_goes_on(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = load_sweep(file)
    victim = Block(sweep.configurations[0].config, sweep.engine, sweep.seeds).trial_id
    # A folder where the results should go: only this trial cannot store them.
    obstacle = tmp_path / "small" / "curves" / f"{victim}.parquet"
    obstacle.mkdir(parents=True)
    assert main(["run", str(file), "--storage", str(tmp_path), "--json"]) == 1
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (events[-1]["trials_done"], events[-1]["failed"]) == (2, 1)
    assert [event["trial_id"] for event in events if event["event"] == "trial_retry"] == [victim] * 2
    assert [event["trial_id"] for event in events if event["event"] == "trial_failed"] == [victim]

    assert main(["status", "small", "--storage", str(tmp_path), "--failed"]) == 0
    shown = capsys.readouterr().out
    assert f"{victim} after 3 attempts" in shown and "IsADirectoryError" in shown and "block_run.py" in shown
    assert main(["status", "small", "--storage", str(tmp_path), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["state"], row["done"], row["missing"], row["failed"]) == ("failed", 12, 6, 1)

    obstacle.rmdir()
    assert main(["run", str(file), "--storage", str(tmp_path)]) == 0
    capsys.readouterr()
    assert main(["status", "small", "--storage", str(tmp_path), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["state"], row["done"], row["failed"]) == ("complete", 18, 0)
    assert_bit_equal(sweep, tmp_path)


@pytest.mark.long
def test_a_scheduler_ends_poor_trials_early_and_a_search_goes_on_from_its_results(tmp_path: Path) -> None:
    sweep = load_sweep(ROOT / "tune_configs" / "examples" / "search.yaml", scale="smoke")
    events, _ = run(sweep, tmp_path)
    end = events[-1]
    assert end.kind == "end" and end.about["best"]["value"] > 0
    finished, stopped = trials(events, "trial_done"), trials(events, "trial_stopped")
    assert len(finished) + len(stopped) == 4 and finished
    assert {str(name) for name in Store(tmp_path, sweep.name).names()} == set(finished)

    # The curves of those that were stopped are kept, up to where the scheduler stopped them, but are no results.
    table = load(tmp_path, sweep.name)
    states = {row["key"]: (row["state"], row["at_examples"]) for row in table.trials.to_pylist()}
    assert sorted(state for state, _ in states.values()) == ["finished"] * len(finished) + ["stopped"] * len(stopped)
    ends = table.curves.to_pandas().groupby("key")["examples"].max().to_dict()
    assert ends == {key: examples for key, (_, examples) in states.items()}

    boards = {path.parent.name for path in (tmp_path / sweep.name / "tensorboard").rglob("events*")}
    # Also what was stopped is there to be seen.
    assert len(boards) == len(finished) + len(stopped) and all("replacement_rate=" in name for name in boards)
    (status,) = statuses(Store(tmp_path, sweep.name))
    assert (status.state, status.configurations, status.missing) == ("complete", 4, 0)
    assert (status.done, status.stopped) == (4 * len(finished), 4 * len(stopped))

    before = snapshot(tmp_path)
    again, outcome = run(sweep, tmp_path)
    assert snapshot(tmp_path) == before
    # Neither what was finished nor what was stopped runs again, and what is best is known.
    assert trials(again, "trial_start") == [] and again[-1].totals.examples_done == 0
    assert (outcome.runs_done, outcome.stored_runs, outcome.failed) == (0, 16, 0)
    assert again[-1].about["best"] == end.about["best"]

    more, _ = run(
        load_sweep(ROOT / "tune_configs" / "examples" / "search.yaml", scale="smoke", overrides=["tune.samples=6"]), tmp_path
    )
    assert len(trials(more, "trial_start")) == 2 and not set(trials(more, "trial_start")) & {*finished, *stopped}


@pytest.mark.long
@pytest.mark.parametrize("name", ["grid", "mnist", "base", "torch"])
def test_the_example_files_run_at_smoke_scale(name: str, tmp_path: Path) -> None:
    sweep = load_sweep(ROOT / "tune_configs" / "examples" / f"{name}.yaml", scale="smoke")
    outcome = run_sweep(sweep, tmp_path)
    assert (outcome.runs_done, outcome.failed) == (sweep.runs, 0)
    if sweep.engine == "torch" or name == "mnist":
        assert_bit_equal(sweep, tmp_path)


LONG = """
sweep: long
seeds: 0:32
base: {optimizer: {name: sgd, step_size: 0.01}, examples: 100_000_000, bin_size: 200_000}
groups: {cbp: {algorithm: {name: cbp, replacement_rate: [1e-5, 1e-4]}}}
"""


@pytest.mark.long
def test_a_time_limit_ends_a_sweep_as_ctrl_c_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "long.yaml"
    file.write_text(LONG)
    arguments = ["run", str(file), "--storage", str(tmp_path), "--json", "--max-concurrent", "1", "--time-limit", "8s"]
    assert main(arguments) == 130
    output = capsys.readouterr()
    events = [json.loads(line) for line in output.out.splitlines()]
    assert "time limit" in output.err and events[-1]["event"] == "interrupted"
    # One at a time, which saved a checkpoint; the other did not begin.
    assert [event["event"] for event in events].count("trial_start") == 1
    assert max(event["running"] for event in events) == 1
    (begun,) = unfinished(Store(tmp_path, "long"))
    assert begun.seeds == tuple(range(32))
    (status,) = statuses(Store(tmp_path, "long"))
    assert (status.state, status.done) == ("interrupted", 0)


def test_a_sweep_that_fits_on_no_node_is_refused(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(file), "--storage", str(tmp_path / "results"), "--set", "resources.gpu=0.5"]) == 2
    error = capsys.readouterr().err
    assert "resources: must fit on a node, got cpu=1, gpu=0.5" in error and error.count("\n") == 1
    assert not (tmp_path / "results").exists()
