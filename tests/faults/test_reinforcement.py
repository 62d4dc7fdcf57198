"""Processes of Slippery Ant's training are killed: it goes on from a checkpoint, with the right steps and frictions."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fault_help import MARK, Scene, kill, nodes, scene, wait_until, workers

from cbp_ray.results import Store
from cbp_ray.sweeps import load_sweep

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


def curves(made: Scene) -> dict[str, Any]:
    sweep = load_sweep(made.file)
    (each,) = sweep.configurations
    return dict(Store(made.storage, sweep.name).read_curves(each.config, sweep.seeds, sweep.engine).metrics)


def test_the_process_that_trains_is_killed(tmp_path: Path) -> None:
    found = []
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
        with scene(tmp_path / name, text=SWEEP) as made:
            made.environment = {"CBP_RAY_CHECKPOINT_SECONDS": "0"}
            program = made.start()
            if name == "killed":
                wait_until(lambda: list(made.storage.glob("*/checkpoints/*.npz")), 200)
                kill(workers(made)[0])
                program.wait_for("trial_retry")
            assert program.wait() == 0, program.story()
            found.append(curves(made))
    np.testing.assert_equal(*found)
    frictions = found[0]["friction"][0]
    assert len(np.unique(frictions)) == 5 and frictions[0] == 1.5


@pytest.mark.parametrize("victim", ["SlipperyEnvRunner", "Learner", "ContinualPPO"])
def test_a_process_of_rllib_is_killed(victim: str, tmp_path: Path) -> None:
    """An env runner is replaced; without a learner or the algorithm, the run goes on from its last checkpoint."""
    options = ["--num-env-runners", "1", "--num-learners", "1", "--seed", "3", "--replacement-rate", "1e-3"]
    options += ["--friction-period", "8192", "--stop-iters", "8", "--checkpoint-freq", "1"]
    command = [sys.executable, "-m", "rllib_ext.train", "--storage-path", str(tmp_path), "--name", "run", *options]
    with scene(tmp_path) as made, nodes(made, 3) as cluster:
        command += ["--address", cluster.address]
        environment = {**os.environ, MARK: made.name, "RAY_worker_niceness": "0"}
        program = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        wait_until(lambda: len(rows(tmp_path)) >= 3, 300)
        found: list[int] = []
        while not found:
            found = [pid for pid, line in made.processes().items() if line.startswith(f"ray::{victim}")]
            time.sleep(0.01)
        kill(found[0])
        out, errors = program.communicate(timeout=400)
        assert program.returncode == 0, out + errors
        assert "done: 32,768 time-steps" in out
        last = rows(tmp_path)[-1]
        assert last["training_iteration"] == 8


def rows(folder: Path) -> list[dict[str, Any]]:
    """What Tune has logged, an entry per iteration."""
    lines = [line for path in folder.glob("run/*/result.json") for line in path.read_text().splitlines()]
    return [json.loads(line) for line in lines if line.endswith("}")]
