"""A cluster of two nodes with its job server: the same numbers, jobs that go on, and nothing without the token."""

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from long_tests import first
from sweep_help import SMALL, assert_bit_equal, snapshot

from cbp_ray.cli import main
from cbp_ray.sweeps import cluster, load_sweep, run_sweep

pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.timeout(500)]
ROOT = Path(__file__).parents[2]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def address() -> Iterator[tuple[str, str]]:
    """Two nodes of one core each. Address of the cluster, URL of its job server, which is on loopback."""
    cluster.use_token()
    # Jobs run the `python` that their node finds first.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    import ray
    from ray.cluster_utils import Cluster

    ray.shutdown()  # RLlib, in tests before, connects by itself

    def node(**settings: object) -> dict[str, object]:
        # By default every node of a machine wants the same port for its agent, which jobs go through.
        return {"num_cpus": 1, "dashboard_agent_listen_port": free_port(), **settings}

    dashboard = {"include_dashboard": True, "dashboard_host": "127.0.0.1", "dashboard_port": free_port()}
    nodes = Cluster(initialize_head=True, head_node_args=node(**dashboard))
    nodes.add_node(**node())
    nodes.wait_for_nodes()
    assert nodes.head_node is not None
    yield nodes.address, f"http://{nodes.head_node.address_info['webui_url']}"
    ray.shutdown()
    nodes.shutdown()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working directory as a user has it: the config, and results that must not be sent."""
    (tmp_path / "work" / "results").mkdir(parents=True)
    (tmp_path / "work" / "results" / "large.parquet").write_bytes(bytes(1000))
    (tmp_path / "work" / "small.yaml").write_text(SMALL)
    return tmp_path / "work"


def fresh(**more: str) -> dict[str, str]:
    """The environment of a shell in which nobody has used Ray: of Ray's variables, only those of the token."""
    return {name: value for name, value in os.environ.items() if not name.startswith("RAY_") or "TOKEN" in name} | more


@contextlib.contextmanager
def one_core_taken(node: str) -> Iterator[None]:
    """Leaves no core of a node to others."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    actor: Any = ray.remote(num_cpus=1)(type("Guest", (), {"here": lambda self: True}))
    guest = actor.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote()
    assert ray.get(guest.here.remote())
    yield
    ray.kill(guest)


@pytest.mark.long
def test_two_nodes_give_the_numbers_of_one(address: tuple[str, str], tmp_path: Path) -> None:
    import ray

    file = tmp_path / "small.yaml"
    file.write_text(SMALL)
    with cluster.connected(address[0]):
        nodes = [node["NodeID"] for node in ray.nodes()]
        for node, seeds in zip(nodes, ("0:3", "0:6"), strict=True):
            with one_core_taken(node):
                outcome = run_sweep(load_sweep(file, seeds=seeds), tmp_path)
            assert (outcome.trials_done, outcome.failed) == (3, 0)
    assert_bit_equal(load_sweep(file), tmp_path)
    runs = [run for path in (tmp_path / "small" / "runs").iterdir() for run in pyarrow.parquet.read_table(path).to_pylist()]
    assert {run["node"] for run in runs} == set(nodes)


@pytest.mark.long
def test_a_job_runs_shows_its_log_and_goes_on_when_submitted_again(
    address: tuple[str, str], folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, server = address
    arguments = ["submit", str(folder / "small.yaml"), "--address", server, "--working-dir", str(folder)]
    arguments += ["--storage", str(tmp_path / "shared")]
    for _ in range(2):
        code, out = main([*arguments, "--wait"]), capsys.readouterr().out
        # On a busy machine Ray may lose the working directory before its second node has fetched it.
        if "Failed to download runtime_env" not in out:
            break
    assert code == 0, out
    job, *shown = out.splitlines()
    assert job.startswith("raysubmit_")
    assert any("18 runs in 3 trials" in line for line in shown)
    assert_bit_equal(load_sweep(folder / "small.yaml"), tmp_path / "shared")

    assert main(["logs", job, "--address", server]) == 0
    assert "18 runs in 3 trials" in capsys.readouterr().out
    assert main(["stop", job, "--address", server]) == 0
    assert capsys.readouterr().out == "was not running\n"

    before = snapshot(tmp_path / "shared")
    assert main(["status", "--address", server]) == 0
    (row,) = [line.split() for line in capsys.readouterr().out.splitlines() if job in line]
    assert row[:2] == [job, "SUCCEEDED"]

    # As docs/cluster.md prints it, without our wrapper, in a shell that knows nothing of Ray but where the token is.
    (printed,) = re.findall("^    (.*ray job submit.*)", (ROOT / "docs" / "cluster.md").read_text(), re.MULTILINE)
    command = printed.replace("tune_configs/examples/grid.yaml", "small.yaml").replace("http://127.0.0.1:8265", server)
    command = command.replace("/shared/cbp", str(tmp_path / "shared"))
    done = subprocess.run(command, cwd=folder, env=fresh(), shell=True, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 runs in 0 trials" in done.stdout and "18 runs were there before" in done.stdout
    assert snapshot(tmp_path / "shared") == before


@pytest.mark.long
def test_a_job_that_is_stopped_ends(
    address: tuple[str, str], folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, server = address
    arguments = ["submit", str(folder / "small.yaml"), "--address", server, "--working-dir", str(folder)]
    assert main([*arguments, "--storage", str(tmp_path / "shared"), "--set", "base.examples=2_000_000_000"]) == 0
    job = capsys.readouterr().out.strip()
    deadline = time.monotonic() + 60
    while "trials" not in capsys.readouterr().out and time.monotonic() < deadline:
        main(["logs", job, "--address", server])
        time.sleep(0.5)
    assert main(["stop", job, "--address", server]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "stopped"
    assert main(["logs", job, "--address", server, "--follow"]) == 1


@pytest.mark.parametrize("authorization", [None, "Bearer wrong"])
@pytest.mark.parametrize("path", ["/api/jobs/", "/api/version", "/nodes", "/api/cluster_status", "/logs"])
def test_without_the_token_the_job_server_answers_401(authorization: str | None, path: str, address: tuple[str, str]) -> None:
    request = urllib.request.Request(address[1] + path)
    if authorization:
        request.add_header("Authorization", authorization)
    with pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(request, timeout=30)
    assert error.value.code in ({401} if authorization is None else {401, 403})


@pytest.mark.parametrize("token", [None, "0" * 32], ids=["none", "another"])
@pytest.mark.parametrize("command", first(1, ["submit", "run"]))
def test_a_user_without_the_token_is_told_how_to_get_it(
    command: str, token: str | None, address: tuple[str, str], folder: Path, tmp_path: Path
) -> None:
    environment = {name: value for name, value in fresh(HOME=str(tmp_path)).items() if not name.startswith("RAY_")}
    if token is not None:
        environment["RAY_AUTH_TOKEN"] = token
    where = address[1] if command == "submit" else address[0]
    arguments = [sys.executable, "-m", "cbp_ray", command, "small.yaml", "--address", where, "--storage", "/tmp/shared"]
    begun = time.monotonic()
    done = subprocess.run(arguments, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    assert time.monotonic() - begun < 30
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1
    got = "got none" if token is None else "got another"
    assert f"{where} wants its token, {got}" in done.stderr and "auth_token" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (["submit", "small.yaml", "--address", "head:8265", "--storage", "/shared"], "--address"),
        (["submit", "small.yaml", "--address", "http://127.0.0.1:9", "--storage", "/shared"], "--address"),
        (["submit", "small.yaml", "--address", "http://127.0.0.1:9"], "--storage"),
        (
            ["submit", "small.yaml", "--address", "http://127.0.0.1:9", "--storage", "/s", "--set", "optimizr=1"],
            "small.yaml: groups.cbp.optimizr",
        ),
        (
            ["submit", "small.yaml", "--address", "http://127.0.0.1:9", "--storage", "/s", "--working-dir", "results"],
            "CONFIG.yaml",
        ),
        (["logs", "raysubmit_0", "--address", "http://127.0.0.1:9"], "--address"),
    ],
)
def test_bad_requests_are_refused_in_one_line(
    arguments: list[str], field: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and error.startswith(f"cbp-ray {arguments[0]}: {field}: ")


def test_an_unknown_job_is_refused(address: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["logs", "raysubmit_unknown", "--address", address[1]]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and error.startswith("cbp-ray logs: JOB: ")


@pytest.mark.long
def test_run_on_the_cluster_from_another_process(address: tuple[str, str], folder: Path, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "cbp_ray",
        "run",
        "small.yaml",
        "--address",
        address[0],
        "--storage",
        str(tmp_path),
        "--json",
    ]
    done = subprocess.run(command, cwd=folder, env=fresh(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["runs_done"] == 18
    assert done.stderr == ""
