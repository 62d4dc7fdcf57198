"""Sweeps of Slippery Ant whose trials sample in several processes: `problem.env_runners` and `envs_per_runner`."""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from ray.cluster_utils import Cluster
from sweep_help import descendants, kill

from cbp_ray.cli import main
from cbp_ray.errors import InputError
from cbp_ray.experiments.config import OnlineConfig
from cbp_ray.experiments.online import iterate_online
from cbp_ray.results import Store
from cbp_ray.results.keys import config_key
from cbp_ray.sweeps import Sweep, cluster, load_sweep, run_sweep
from cbp_ray.sweeps.cluster import most_trials
from cbp_ray.sweeps.plan import find_missing, make_plan
from cbp_ray.sweeps.progress import Event

pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.timeout(500)]
FILE = """
sweep: distributed
engine: rllib
seeds: 5:7
base:
  problem: {name: slippery_ant, friction_period: 900, iteration_size: 600, epochs: 2, minibatch_size: 100}
  network: {hidden: [16, 16]}
  algorithm: {name: cbp, replacement_rate: 0.05, maturity_threshold: 1}
  optimizer: {name: adam, step_size: 1e-4}
  examples: 9000
  bin_size: 1500
"""


def sweep_of(folder: Path, *overrides: str, seeds: str | None = None) -> Sweep:
    path = folder / "distributed.yaml"
    path.write_text(FILE)
    return load_sweep(path, overrides=overrides, seeds=seeds)


@contextmanager
def nodes(*cpus: int) -> Iterator[str]:
    """A cluster of nodes with so many CPUs each."""
    cluster.use_token()
    ray.shutdown()  # RLlib, in tests before, connects by itself
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": cpus[0], "include_dashboard": False})
    try:
        for count in cpus[1:]:
            made.add_node(num_cpus=count)
        made.wait_for_nodes()
        yield made.address
    finally:
        ray.shutdown()
        made.shutdown()


def curves(sweep: Sweep, storage: Path) -> list[dict[str, Any]]:
    store = Store(storage, sweep.name)
    return [dict(store.read_curves(c.config, sweep.seeds, sweep.engine).metrics) for c in sweep.configurations]


def test_how_sampling_is_distributed_is_part_of_the_key_unless_it_is_not() -> None:
    """A setting that is left out and its default are the same, and the name of such results does not change unnoticed."""
    settings = {"algorithm": {"name": "bp"}, "optimizer": {"name": "adam", "step_size": 1e-4}}

    def key(**problem: int) -> str:
        return config_key(OnlineConfig.make({"problem": {"name": "slippery_ant", **problem}, **settings}), "rllib")

    plain = key()
    assert plain == key(env_runners=0, envs_per_runner=1) == "0eb082cbd1b78084aef2"
    assert len({plain, key(env_runners=1), key(env_runners=2), key(envs_per_runner=2)}) == 4


def test_a_trial_with_env_runners_has_one_seed_and_reserves_their_cores(tmp_path: Path) -> None:
    plain, distributed = sweep_of(tmp_path), sweep_of(tmp_path, "problem.env_runners=3")
    assert (plain.helpers, distributed.helpers) == (0, 3)
    plans = [make_plan(find_missing(sweep, Store(tmp_path, sweep.name)), 1) for sweep in (plain, distributed)]
    assert [trial.block.seeds for trial in plans[1].trials] == [(5,), (6,)]
    assert plans[1].core_seconds == pytest.approx(4 * plans[1].seconds)
    assert plans[1].seconds < plans[0].seconds
    assert plans[1].memory_bytes > plans[0].memory_bytes


@pytest.mark.parametrize(
    ("free", "helpers", "expected"),
    [([4.0], 0, 4), ([4.0], 1, 2), ([4.0], 2, 1), ([2.0, 1.0], 2, 1), ([1.0, 1.0], 2, 0), ([3.0, 3.0], 2, 2), ([], 0, 0)],
)
def test_trials_that_fit_on_a_cluster(free: list[float], helpers: int, expected: int) -> None:
    assert most_trials([{"CPU": cpus} for cpus in free], [{"CPU": 1.0}] * (1 + helpers)) == expected


def test_a_gpu_limits_the_trials_of_its_node() -> None:
    free = [{"CPU": 8.0, "GPU": 1.0}, {"CPU": 8.0}]
    assert most_trials(free, [{"CPU": 1.0, "GPU": 0.25}]) == 4


def test_the_dry_run_knows_the_cores(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep_of(tmp_path)
    arguments = ["run", str(tmp_path / "distributed.yaml"), "--dry-run", "--storage", str(tmp_path)]
    assert main([*arguments, "--set", "problem.env_runners=2"]) == 0
    assert "on 3 cores" in capsys.readouterr().out


def test_the_dry_run_warns_of_more_cores_than_there_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep_of(tmp_path)
    arguments = ["run", str(tmp_path / "distributed.yaml"), "--dry-run", "--storage", str(tmp_path)]
    assert main([*arguments, "--set", "problem.env_runners=500"]) == 0
    assert "a trial reserves 501 cores, this machine has" in "".join(capsys.readouterr())


@pytest.mark.parametrize("setting", ["env_runners=-1", "env_runners=601", "envs_per_runner=0", "envs_per_runner=601"])
def test_impossible_numbers_are_refused(tmp_path: Path, setting: str) -> None:
    with pytest.raises(InputError, match=rf"problem\.{setting.split('=')[0]}: "):
        sweep_of(tmp_path, f"problem.{setting}")


@pytest.mark.long
def test_runners_that_do_not_fit_are_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"problem\.env_runners: must fit on the cluster, got 99 beside cpu=1"):
        run_sweep(sweep_of(tmp_path, "problem.env_runners=99"), tmp_path)


@pytest.mark.long
def test_two_nodes_give_the_numbers_of_one_also_when_a_runner_dies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Nodes that are started from here have it too: a checkpoint after every bin.
    monkeypatch.setenv("CBP_RAY_CHECKPOINT_SECONDS", "0")
    sweep = sweep_of(tmp_path, "problem.env_runners=2", "problem.envs_per_runner=2", "examples=30000", seeds="5")
    with nodes(3) as address:
        assert run_sweep(sweep, tmp_path / "one", address=address).failed == 0
    with nodes(2, 1) as address:
        done: list[int] = []
        events: list[Event] = []
        killer = threading.Thread(target=_kill_a_runner, args=(done,), daemon=True)
        killer.start()

        def hear(event: Event) -> None:
            events.append(event)
            done.append(event.totals.examples_done)  # the totals themselves change

        assert run_sweep(sweep, tmp_path / "killed", address=address, progress=hear).failed == 0
        killer.join(1)
        assert not killer.is_alive() and any(event.kind == "trial_retry" for event in events)
    # From the beginning, it would have learned from all examples once more; from the last checkpoint, from those of a bin.
    assert done[-1] < 30_000 + 2 * 1_500
    np.testing.assert_equal(curves(sweep, tmp_path / "one"), curves(sweep, tmp_path / "killed"))


def _kill_a_runner(done: list[int]) -> None:
    """Once some checkpoints must be there."""
    while not any(examples >= 4_500 for examples in done):
        time.sleep(0.1)
    while not (found := [pid for pid, line in descendants(os.getpid()) if "SlipperyEnvRunner" in line]):
        time.sleep(0.01)
    kill(found[0])


@pytest.mark.long
def test_a_split_run_with_runners_equals_the_unbroken_one(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path, "problem.env_runners=2", "problem.envs_per_runner=2", "examples=4500")
    config = sweep.configurations[0].config
    with nodes(3) as address, cluster.connected(address):
        whole, state = bins_of(config)
        resumed, _ = bins_of(config, state)
    assert len(whole) == 3 and len(resumed) == 2
    np.testing.assert_equal(resumed, whole[1:])


def bins_of(config: OnlineConfig, state: Any = None) -> tuple[list[Any], Any]:
    """The metrics of a run's bins, and the first checkpoint. Bins hold on to their run, and that to the cores of runners."""
    metrics, first = [], None
    for point in iterate_online(config, (5,), "rllib", state):
        metrics.append(point.metrics)
        first = first or point.checkpoint()
    return metrics, first
