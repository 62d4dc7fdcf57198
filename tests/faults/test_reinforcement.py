"""Processes of Slippery Ant's training are killed: it goes on from a checkpoint, with the right steps and frictions."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fault_help import MARK, Scene, kill, nodes, scene, wait_until

from cbp_ray.results import Store
from cbp_ray.sweeps import load_sweep
from rllib_ext.ant.friction import FrictionSchedule

pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.timeout(600), pytest.mark.slow]
SWEEP = """
sweep: faults
engine: rllib
seeds: 5:6
base:
  problem: {name: slippery_ant, friction_period: 9000, iteration_size: 600, epochs: 2, minibatch_size: 100}
  network: {hidden: [16, 16]}
  algorithm: {name: cbp, replacement_rate: 0.05, maturity_threshold: 1}
  optimizer: {name: adam, step_size: 1e-4}
  examples: 45_000
  bin_size: 1500
"""
WORKER = "ray::(ResourceTrainable|RunBlock)"
"""How the title of the process begins that trains."""


def results(made: Scene) -> dict[str, Any]:
    """All curves of the sweep's one run, and how many time-steps it had seen at the end of each bin."""
    sweep = load_sweep(made.file)
    (each,) = sweep.configurations
    curves = Store(made.storage, sweep.name).read_curves(each.config, sweep.seeds, sweep.engine)
    return {"examples": curves.examples, **curves.metrics}


def assert_right(found: dict[str, Any]) -> None:
    """The time-steps are counted without a gap, and the friction is what it must be at each of them."""
    assert found["examples"].tolist() == list(range(1500, 45_001, 1500))
    schedule = FrictionSchedule(seed=5, period=9000)
    assert found["friction"][0].tolist() == [schedule.friction(step - 1) for step in found["examples"]]
    assert len(np.unique(found["friction"])) == 5 and found["replacements"].sum() > 0


def wait_for_checkpoint(made: Scene) -> None:
    """Until there is a checkpoint that is newer than this moment."""
    begun = time.time()
    wait_until(lambda: [p for p in made.storage.glob("*/checkpoints/*.npz") if p.stat().st_mtime > begun], 200)


def test_the_process_that_trains_is_killed(tmp_path: Path) -> None:
    found = []
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
        with scene(tmp_path / name, text=SWEEP) as made:
            made.environment |= {"CBP_RAY_CHECKPOINT_SECONDS": "0"}
            program = made.start()
            if name == "killed":
                wait_for_checkpoint(made)
                kill(find(made, WORKER))
                program.wait_for("trial_retry")
            assert program.wait() == 0, program.story()
            found.append(results(made))
            made.leave()
    np.testing.assert_equal(*found)
    assert_right(found[0])


def test_processes_of_distributed_rollouts_are_killed(tmp_path: Path) -> None:
    """On one node and whole; on two nodes, with the death of an env runner, and later of the process that trains."""
    found = []
    for name, cpus in (("whole", [3]), ("killed", [2, 1])):
        (tmp_path / name).mkdir()
        text = SWEEP.replace("{name: slippery_ant,", "{name: slippery_ant, env_runners: 2, envs_per_runner: 2,")
        with scene(tmp_path / name, text=text) as made:
            made.environment |= {"CBP_RAY_CHECKPOINT_SECONDS": "0"}
            with nodes(made, *cpus) as cluster:
                program = made.start("--address", cluster.address)
                if name == "killed":
                    wait_for_checkpoint(made)
                    kill(find(made, "ray::SlipperyEnvRunner"))
                    program.wait_for("trial_retry", 1)
                    wait_for_checkpoint(made)
                    kill(find(made, WORKER))
                    program.wait_for("trial_retry", 2)
                assert program.wait() == 0, program.story()
            found.append(results(made))
            made.leave()
    np.testing.assert_equal(*found)
    assert_right(found[0])


def find(made: Scene, pattern: str) -> int:
    """A process whose title begins so, as soon as there is one: for moments, Ray gives its workers other titles."""
    found: list[int] = []

    def look() -> bool:
        found.extend(pid for pid, line in made.processes().items() if re.match(pattern, line))
        return bool(found)

    wait_until(look, 60, lambda: f"there is no {pattern}")
    return found[0]


VICTIMS = {"env-runner": "ray::SlipperyEnvRunner", "learner": "ray::_WrappedExecutable", "algorithm": "ray::ContinualPPO"}
"""How the titles of RLlib's processes begin."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What a run of `rllib_ext.train` with two env runners logs of which nothing is killed."""
    return train(tmp_path_factory.mktemp("whole"), None, 2)


@pytest.mark.parametrize("victim", VICTIMS)
def test_a_process_of_rllib_is_killed(victim: str, tmp_path: Path, whole: list[dict[str, Any]]) -> None:
    """An env runner is replaced; without a learner or the algorithm, the run goes on from its last checkpoint.

    An iteration whose only env runner died waits for the new one: none is without samples.
    """
    runners = 1 if victim == "env-runner" else 2
    logged, schedule = train(tmp_path, VICTIMS[victim], runners), FrictionSchedule(seed=3, period=8192)
    seen = [steps_of(row) for row in logged]
    assert set(seen) == set(range(4096, 32_769, 4096))
    for steps, row in zip(seen, logged, strict=True):
        assert row["env_runners"]["friction"] == schedule.friction(steps)
        # 10 epochs over every time-step, and over none twice.
        assert row["learners"]["default_policy"]["num_module_steps_trained_lifetime"] == 10 * steps
    if victim == "env-runner":  # a new one begins with other episodes
        assert seen == list(range(4096, 32_769, 4096))
    else:
        found = {steps_of(row): row["env_runners"]["episode_return_mean"] for row in logged}
        assert found == {steps_of(row): row["env_runners"]["episode_return_mean"] for row in whole}


def steps_of(row: dict[str, Any]) -> int:
    return int(row["env_runners"]["num_env_steps_sampled_lifetime"])


def train(folder: Path, victim: str | None, runners: int) -> list[dict[str, Any]]:
    """Runs `rllib_ext.train`, and kills one of its processes after some iterations. Returns what Tune has logged."""
    options = ["--num-env-runners", str(runners), "--num-learners", "1", "--seed", "3", "--replacement-rate", "1e-3"]
    options += ["--friction-period", "8192", "--stop-timesteps", "32768", "--checkpoint-freq", "1"]
    command = [sys.executable, "-m", "rllib_ext.train", "--storage-path", str(folder), "--name", "run", *options]
    with scene(folder) as made, nodes(made, runners + 2) as cluster:
        command += ["--address", cluster.address]
        environment = {**os.environ, MARK: made.name, "RAY_worker_niceness": "0"}
        program = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if victim is not None:
            wait_until(lambda: len(rows(folder)) >= 3, 300)
            kill(find(made, victim))
        out, errors = program.communicate(timeout=400)
        assert program.returncode == 0, out + errors
        assert "done: 32,768 time-steps" in out
        made.leave()
    return rows(folder)


def rows(folder: Path) -> list[dict[str, Any]]:
    """What Tune has logged, an entry per iteration."""
    lines = [line for path in folder.glob("run/*/result.json") for line in path.read_text().splitlines()]
    return [json.loads(line) for line in lines if line.endswith("}")]
