"""What a sweep's folder says: of the files that share it, of failures, of searches."""

import json
import os
import subprocess
import time
from pathlib import Path

import pytest
import yaml
from sweep_help import SMALL

from cbp_ray.cli import main
from cbp_ray.errors import InputError
from cbp_ray.experiments import run_online
from cbp_ray.results import Block, Store
from cbp_ray.sweeps import Sweep, block_run, failures, load_sweep, provenance, run_sweep, unfinished
from cbp_ray.sweeps.block_run import BlockRun
from cbp_ray.sweeps.progress import Heartbeat, Totals
from cbp_ray.sweeps.resolved import record_sweep
from cbp_ray.sweeps.search_log import SearchLog, Stop, search_key
from cbp_ray.sweeps.status import Status, statuses

ROOT = Path(__file__).parents[2]

SEARCH = """
sweep: search
seeds: 0:2
base: {optimizer: {name: sgd, step_size: 0.01}, problem: {flip_period: 500}, examples: 2000, bin_size: 1000}
groups:
  cbp: {algorithm: {name: cbp, replacement_rate: 1e-3}}
tune:
  samples: 3
  space:
    algorithm.replacement_rate: {loguniform: [1e-4, 1e-2]}
"""


@pytest.fixture
def search(tmp_path: Path) -> Sweep:
    return load_sweep(write(tmp_path / "search.yaml", SEARCH))


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def store_runs(sweep: Sweep, store: Store, size: int | None = None) -> None:
    """As the sweep itself would, in blocks of so many seeds."""
    for each in sweep.configurations:
        for start in range(0, len(sweep.seeds), size or len(sweep.seeds)):
            seeds = sweep.seeds[start : start + (size or len(sweep.seeds))]
            store.write(Block(each.config, sweep.engine, seeds), run_online(each.config, seeds), {})


def rows(store: Store) -> dict[str, Status]:
    return {row.source: row for row in statuses(store)}


def test_another_scale_and_another_file_have_a_status_of_their_own(tmp_path: Path) -> None:
    one = write(tmp_path / "small.yaml", SMALL + "scales: {smoke: {seeds: 0:2}}")
    two = write(tmp_path / "other.yaml", SMALL.replace("[1e-3, 1e-2]", "[1e-3]"))
    store = Store(tmp_path, "small")
    assert record_sweep(load_sweep(one), store) == "small"
    assert record_sweep(load_sweep(one, scale="smoke"), store) == "small@smoke"
    assert record_sweep(load_sweep(two), store) == "other"
    assert {name: row.runs for name, row in rows(store).items()} == {"small": 18, "small@smoke": 6, "other": 12}
    # More seeds or values of the same file are its record.
    assert record_sweep(load_sweep(one, seeds="0:9"), store) == "small"
    assert rows(store)["small"].runs == 27


@pytest.mark.parametrize(
    "name",
    ["examples/grid.yaml", "examples/base.yaml", "examples/search.yaml", "examples/torch.yaml", "bit_flipping/fig11.yaml"],
)
def test_the_sweep_yaml_says_everything_and_gives_the_same_sweep(name: str, tmp_path: Path) -> None:
    sweep = load_sweep(ROOT / "tune_configs" / name, overrides=["dtype=float64"], seeds="3:5", scale="smoke")
    record_sweep(sweep, Store(tmp_path, sweep.name))
    path = tmp_path / sweep.name / "sweep.yaml"
    again = load_sweep(path)
    assert (again.configurations, again.seeds, again.tune, again.resources, again.engine) == (
        (sweep.configurations, sweep.seeds, sweep.tune, sweep.resources, sweep.engine)
    )
    assert "&" not in path.read_text()
    document = yaml.safe_load(path.read_text())
    first = sweep.configurations[0]
    assert document["groups"][first.group][0] == first.config.model_dump(mode="json")


def test_defaults_that_depend_on_a_grid_are_resolved_too(tmp_path: Path) -> None:
    sweep = load_sweep(write(tmp_path / "small.yaml", SMALL.replace("name: sgd", "name: [sgd, adam]")))
    assert len(sweep.configurations) == 6
    record_sweep(sweep, Store(tmp_path, "small"))
    assert load_sweep(tmp_path / "small" / "sweep.yaml").configurations == sweep.configurations


def test_a_failure_and_a_checkpoint_end_when_all_their_runs_are_stored_in_whatever_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep, store = load_sweep(write(tmp_path / "small.yaml", SMALL)), Store(tmp_path, "small")
    block = Block(sweep.configurations[0].config, sweep.engine, sweep.seeds)
    failures.record(store, block, "cbp", 3, "Traceback\nOSError: no")
    monkeypatch.setenv("CBP_RAY_CHECKPOINT_SECONDS", "0")
    monkeypatch.setattr(block_run, "STEP_SECONDS", 0.0)
    BlockRun(store, block).advance()
    record_sweep(sweep, store)
    assert rows(store)["small"].failed == 1
    store_runs(sweep, store, size=4)
    # Told at once, and removed by the next run.
    assert rows(store)["small"].failed == 0 and failures.read_all(store) == []
    assert len(unfinished.unfinished(store)) == 1
    run_sweep(sweep, tmp_path)
    assert unfinished.unfinished(store) == [] and not list((tmp_path / "small" / "failures").iterdir())


def test_a_failure_some_of_whose_runs_are_missing_stays(tmp_path: Path) -> None:
    sweep, store = load_sweep(write(tmp_path / "small.yaml", SMALL)), Store(tmp_path, "small")
    config = sweep.configurations[0].config
    failures.record(store, Block(config, sweep.engine, (0, 1, 2)), "cbp", 3, "OSError: no")
    store.write(Block(config, sweep.engine, (0, 1)), run_online(config, (0, 1)), {})
    store.tidy()
    assert [failure["message"] for failure in failures.read_all(store)] == ["OSError: no"]


def test_tensorboard_runs_that_were_lost_come_back(tmp_path: Path) -> None:
    sweep, store = load_sweep(write(tmp_path / "small.yaml", SMALL)), Store(tmp_path, "small")
    store_runs(sweep, store, size=4)
    root = tmp_path / "small" / "tensorboard"

    def boards() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in root.rglob("events*") if "head-" not in path.name}

    run_sweep(sweep, tmp_path)
    whole = boards()
    assert len(whole) == 3
    run_sweep(sweep, tmp_path)
    assert boards() == whole
    lost = next(iter(whole))
    os.remove(lost)
    run_sweep(sweep, tmp_path)
    assert set(boards()) == set(whole)
    # Fewer seeds do not make less of what is there.
    run_sweep(load_sweep(tmp_path / "small.yaml", seeds="0:2"), tmp_path)
    assert set(boards()) == set(whole)


def test_a_search_that_died_is_not_complete_and_its_failures_show(search: Sweep, tmp_path: Path) -> None:
    store, totals = Store(tmp_path, "search"), Totals(3, 6, 0, 1, 1.0)
    log = SearchLog(store, search_key(search))
    config = search.configurations[0].config
    blocks = [
        Block(config.model_copy(update={"examples": examples}), search.engine, search.seeds) for examples in (1000, 2000, 3000)
    ]
    name = record_sweep(search, store)
    heartbeat = Heartbeat(store, name, totals)
    heartbeat.beat(force=True)
    assert rows(store)[name].state == "running"

    for block in blocks:
        log.add(block, "cbp")
    store.write(blocks[0], run_online(blocks[0].config, search.seeds), {})
    failures.record(store, blocks[1], "cbp", 3, "OSError: no")
    path = tmp_path / "search" / "progress" / "search.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"time": time.time() - 3600}))
    row = rows(store)[name]
    assert (row.state, row.configurations, row.done, row.runs, row.missing, row.failed) == ("died", 3, 2, 6, 4, 1)

    log.stop(blocks[2], Stop(1000, 0.5))
    heartbeat.beat("failed", force=True)
    row = rows(store)[name]
    assert (row.state, row.done, row.stopped, row.failed) == ("failed", 2, 2, 1)
    store.write(blocks[1], run_online(blocks[1].config, search.seeds), {})
    row = rows(store)[name]
    assert (row.state, row.done, row.stopped, row.runs, row.failed) == ("complete", 4, 2, 6, 0)


def test_a_search_with_other_settings_is_another_but_more_samples_are_not(search: Sweep, tmp_path: Path) -> None:
    def key(override: str) -> str:
        return search_key(load_sweep(tmp_path / "search.yaml", overrides=[override]))

    assert key("tune.samples=9") == search_key(search)
    changes = ["tune.seed=1", "tune.scheduler.name=none", "tune.mode=max", "seeds=0:3", "examples=3000", "engine=torch"]
    assert len({search_key(search), *map(key, changes)}) == 1 + len(changes)


@pytest.mark.parametrize(
    ("space", "field"),
    [
        ("algorithm.replacement_rate: {uniform: [0.1, 1.2]}", "algorithm.replacement_rate"),
        ("algorithm.replacement_rate: {uniform: [-0.1, 0.5]}", "algorithm.replacement_rate"),
        ("algorithm.maturity_threshold: {uniform: [10, 1000]}", "algorithm.maturity_threshold"),
        ("algorithm.maturity_threshold: {randint: [10, 16777218]}", "algorithm.maturity_threshold"),
        ("network.activation: {choice: [tanh, relu, tan]}", "network.activation"),
        ("network.hidden: {choice: [[5], [5, 5]]}", "network.hidden"),
        ("{problem.inputs: {randint: [10, 30]}, problem.flipping_bits: {randint: [5, 12]}}", "problem.flipping_bits"),
    ],
)
@pytest.mark.parametrize("command", ["run --storage {0}/out", "run --dry-run", "submit --address http://x:1 --storage /x"])
def test_the_ends_of_every_range_are_checked_before_anything_starts(
    space: str, field: str, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path / "search.yaml", SEARCH.partition("    algorithm.replacement_rate: {log")[0] + f"    {space}\n")
    assert main([*command.format(tmp_path).split(), str(file)]) == 2
    error = capsys.readouterr().err
    assert f": tune.space for groups.cbp: {field}: " in error and error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_ranges_up_to_an_end_that_is_never_drawn_are_right(tmp_path: Path) -> None:
    space = "{algorithm.decay_rate: {uniform: [0.9, 1.0]}, algorithm.maturity_threshold: {randint: [0, 16777216]}}"
    load_sweep(write(tmp_path / "a.yaml", SEARCH.partition("    algorithm.repl")[0] + f"    {space}\n"))
    with pytest.raises(InputError, match=r"groups.cbp: algorithm.decay: "):
        load_sweep(write(tmp_path / "a.yaml", SEARCH.replace("algorithm.replacement_rate: {log", "algorithm.decay: {log")))


def test_a_dry_run_of_a_search_counts_its_samples(search: Sweep, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["run", str(tmp_path / "search.yaml"), "--storage", str(tmp_path), "--dry-run"]
    assert main([*arguments, "--json"]) == 0
    estimate = json.loads(capsys.readouterr().out)
    assert (estimate["trials"], estimate["runs"], estimate["samples"]) == (3, 6, 3)
    block = Block(search.configurations[0].config, search.engine, search.seeds)
    log = SearchLog(Store(tmp_path, "search"), search_key(search))
    log.add(block, "cbp")
    log.stop(block, Stop(1000, 0.5))
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert "1 configurations x 3 samples x 2 seeds (0:2) = 6 runs" in shown
    assert "stored already: 2 runs; to do: 4 runs in 2 trials" in shown and "estimate: at most" in shown


def test_the_commit_of_a_run_marks_files_that_differ_from_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        return subprocess.run(["git", *identity, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True).stdout

    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    assert provenance.commit() == ""
    write(tmp_path / "cbp_ray" / "code.py", "1")
    for command in (["init"], ["add", "."], ["commit", "-m", "first"]):
        git(*command)
    assert provenance.commit() == git("rev-parse", "HEAD").strip()
    write(tmp_path / "results" / "large", "not code")
    assert provenance.commit() == git("rev-parse", "HEAD").strip()
    write(tmp_path / "cbp_ray" / "code.py", "2")
    assert provenance.commit() == git("rev-parse", "HEAD").strip() + "+"
