"""A run of Slippery Ant outside of a sweep has a Ray of its own."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import ray

from rllib_ext.engine import connect

pytestmark = pytest.mark.xdist_group("ray")
RUN = """
from cbp_ray.experiments import run_online
problem = {"name": "slippery_ant", "iteration_size": 64, "minibatch_size": 64, "epochs": 1}
config = {"problem": problem, "algorithm": {"name": "bp"}, "optimizer": {"name": "adam", "step_size": 0.001}}
run_online({**config, "network": {"hidden": [4]}, "examples": 64, "bin_size": 64}, [0], "rllib")
"""


def test_whoever_has_no_cluster_starts_a_small_one_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[dict[str, Any]] = []
    monkeypatch.setattr(ray, "init", lambda **settings: started.append(settings))
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    connect()
    assert started == []  # RAY_ADDRESS says where to connect
    monkeypatch.delenv("RAY_ADDRESS")
    connect()
    assert [(settings["address"], settings["include_dashboard"]) for settings in started] == [("local", False)]
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    connect()
    assert len(started) == 1


@pytest.mark.long
def test_a_cluster_that_runs_or_ran_on_the_same_machine_is_left_alone() -> None:
    # Ray's sockets need a short path.
    with tempfile.TemporaryDirectory() as folder:
        left = Path(folder, "ray", "ray_current_cluster")
        left.parent.mkdir()
        left.write_text("127.0.0.1:1")
        environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"} | {"RAY_TMPDIR": folder}
        done = subprocess.run(
            [sys.executable, "-c", RUN], env=environment, capture_output=True, text=True, timeout=200, check=False
        )
    assert done.returncode == 0, done.stderr
