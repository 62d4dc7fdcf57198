"""SIGKILL of everything that a sweep consists of: on this machine alone, and on clusters of two and three nodes."""

import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from fault_help import Scene, kill, nodes, scene, wait_until, workers
from ray.cluster_utils import Cluster

pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.timeout(600)]


def kill_worker(made: Scene, _: Cluster) -> None:
    found = list[int]()
    wait_until(lambda: found.extend(workers(made)) or found)
    kill(found[0])


def kill_node(made: Scene, cluster: Cluster) -> None:
    cluster.remove_node(cluster.worker_nodes.copy().pop(), allow_graceful=False)


def kill_raylet_of_a_node(made: Scene, cluster: Cluster) -> None:
    cluster.worker_nodes.copy().pop().kill_raylet(check_alive=False)


def add_node(made: Scene, cluster: Cluster) -> None:
    cluster.add_node(num_cpus=1)


ACCIDENTS: dict[str, tuple[Callable[[Scene, Cluster], None], int]] = {
    "worker": (kill_worker, 2),
    "node": (kill_node, 3),
    "raylet": (kill_raylet_of_a_node, 3),
    "new-node": (add_node, 2),
}
"""What happens, and on how many nodes."""


@pytest.mark.slow
@pytest.mark.parametrize("accident", ACCIDENTS)
def test_a_cluster_loses_or_wins_a_part_and_the_sweep_goes_on(accident: str, tmp_path: Path) -> None:
    happens, count = ACCIDENTS[accident]
    # Long enough for a new node to start a worker.
    with scene(tmp_path, examples=30_000_000 if accident == "new-node" else 2_000_000) as made:
        with nodes(made, *[1] * count) as cluster:
            program = made.start("--address", cluster.address)
            program.wait_for("trial_done", 1)
            happens(made, cluster)
            assert program.wait() == 0, program.story()
        if accident == "new-node":
            assert len(made.used_nodes()) == count + 1
        else:
            assert any(event["event"] == "trial_retry" for event in program.events), "nothing was hit"
        made.check()


@pytest.mark.slow
@pytest.mark.parametrize("who", ["head", "driver"])
def test_a_cluster_loses_its_head_or_the_driver_and_the_next_start_goes_on(who: str, tmp_path: Path) -> None:
    with scene(tmp_path) as made:
        # By itself, Ray waits a minute for a GCS to come back.
        made.environment |= {"RAY_gcs_rpc_server_reconnect_timeout_s": "15"}
        with nodes(made, 1, 1) as cluster:
            program = made.start("--address", cluster.address)
            program.wait_for("trial_done", 2)
            if who == "driver":
                kill(program.process.pid)
                assert program.wait() < 0
                before = made.stored()
                made.finish("--address", cluster.address)
            else:
                cluster.head_node.kill_gcs_server(check_alive=False)
                assert program.wait(100) == 1
                assert program.errors().count("\n") == 1
                assert any("GCS" in str(event.get("message")) for event in program.events if event["event"] == "warning")
                before = made.stored()
        if who == "head":
            made.finish()
        assert before.items() <= made.stored().items()
        made.check()


PARTS = {
    "driver": "",
    "worker": "ray::ResourceTrainable",
    "raylet": "raylet/raylet",
    "gcs": "gcs_server",
}
"""Parts of a sweep on this machine alone, by what their command lines have."""


def disturb(made: Scene, rng: random.Random, patience: float) -> str | None:
    """Starts the sweep, and kills a part of it at a random moment. Returns which; None if it came to its end before."""
    program, part = made.start(), rng.choice(list(PARTS))
    moment = time.monotonic() + rng.uniform(0, patience)
    while time.monotonic() < moment and program.process.poll() is None:
        time.sleep(0.05)
    found = [program.process.pid] if part == "driver" else program.descendants(PARTS[part])
    if program.process.poll() is not None or not found:
        assert program.wait() == 0, program.story()
        return None
    kill(rng.choice(found))
    # A worker is replaced; without its raylet or the GCS, the sweep ends by itself.
    assert program.wait(100) in {"worker": (0,), "driver": (-signal.SIGKILL,)}.get(part, (0, 1)), (part, program.story())
    return part


def test_a_driver_that_is_killed_loses_nothing(tmp_path: Path) -> None:
    with scene(tmp_path, examples=200_000) as made:
        program = made.start()
        program.wait_for("trial_done", 2)
        kill(program.process.pid)
        assert program.wait() == -signal.SIGKILL
        before = made.stored()
        assert before
        made.finish()
        assert before.items() <= made.stored().items()
        made.check()


@pytest.mark.slow
@pytest.mark.timeout(4000)
@pytest.mark.parametrize("kills", [5, pytest.param(50, marks=pytest.mark.soak)])
def test_nothing_is_lost_at_random_moments(kills: int, tmp_path: Path) -> None:
    rng, happened = random.Random(2021), 0
    with scene(tmp_path) as made:
        while happened < kills:
            before = made.stored()
            happened += disturb(made, rng, 14.0) is not None
            assert before.items() <= made.stored().items(), "something that was stored is gone or was written again"
            if made.complete():
                # Perhaps a killed driver was the last: what it left, the next start removes.
                made.finish()
                made.check()
                made.begin_anew(tmp_path / f"results-{happened}")
        made.finish()
        made.check()
