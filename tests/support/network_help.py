"""Two machines on one: network namespaces with a switch between them that can be told to pass nothing on.

Nothing of the real network is touched: all interfaces and addresses are in namespaces of their own.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

from fault_help import MARK, Scene, wait_until

from cbp_ray.sweeps import cluster

HEAD, NODE = "10.99.0.1", "10.99.0.2"
"""Addresses of the two machines, in namespaces only."""
PORT = 6379


def why_not() -> str | None:
    """Why there can be no namespaces here; None if there can."""
    if os.geteuid() != 0:
        return "only root may make network namespaces"
    if shutil.which("ip") is None:
        return "needs `ip`, of iproute2"
    name = f"cbp-{uuid.uuid4().hex[:8]}"
    if _ip("netns", "add", name, check=False):
        return "this kernel makes no network namespaces"
    try:
        return "this kernel has no bridges" if _ip("-n", name, "link", "add", "br0", "type", "bridge", check=False) else None
    finally:
        _ip("netns", "del", name)


def _ip(*arguments: str, check: bool = True) -> int:
    return subprocess.run(["ip", *arguments], check=check, capture_output=True).returncode


class Network:
    """Two machines, `head` and `node`, that reach each other through a switch and nothing else."""

    def __init__(self) -> None:
        prefix = f"cbp-{uuid.uuid4().hex[:8]}"
        self.switch, self.head, self.node = f"{prefix}-switch", f"{prefix}-head", f"{prefix}-node"
        self.machines = {self.head: HEAD, self.node: NODE}

    def build(self) -> None:
        """Makes the namespaces, and plugs everything in."""
        for name in (self.switch, *self.machines):
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", self.switch, "link", "add", "br0", "type", "bridge")
        _ip("-n", self.switch, "link", "set", "br0", "up")
        for number, (name, address) in enumerate(self.machines.items()):
            port = f"port{number}"
            _ip("-n", self.switch, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("-n", self.switch, "link", "set", port, "master", "br0", "up")
            _ip("-n", name, "address", "add", f"{address}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")
        wait_until(self.reaches, 20, lambda: "the two machines do not reach each other")

    def remove(self) -> None:
        """Removes the namespaces, and with them all that is in them."""
        for name in (self.switch, *self.machines):
            _ip("netns", "del", name, check=False)

    def cut(self) -> None:
        """From now on, everything between the machines is dropped without a word: no refusal, no lost carrier."""
        _ip("-n", self.switch, "link", "set", "port1", "nomaster")
        assert not self.reaches()

    def mend(self) -> None:
        """Passes everything on again."""
        _ip("-n", self.switch, "link", "set", "port1", "master", "br0")
        wait_until(self.reaches, 20, lambda: "the network did not come back")

    def reaches(self) -> bool:
        """Whether the node can open a connection to a port of the head's; that it is refused is an answer as well."""
        code = f"import socket; s = socket.socket(); s.settimeout(1); exit(s.connect_ex(({HEAD!r}, 9)) not in (0, 111))"
        return subprocess.run(["ip", "netns", "exec", self.node, sys.executable, "-c", code], check=False).returncode == 0

    def inside(self, machine: str) -> list[str]:
        """What to put before a command that shall run on a machine."""
        return ["ip", "netns", "exec", machine]

    @property
    def address(self) -> str:
        """Where the cluster is."""
        return f"{HEAD}:{PORT}"


@contextlib.contextmanager
def two_machines(made: Scene) -> Iterator[Network]:
    """A cluster of two nodes with a core each, on two machines, whose processes are marked as the scene's."""
    cluster.use_token()
    network = Network()
    temporary = Path(tempfile.mkdtemp(prefix="ray-"))  # paths of Ray's sockets must be short
    ray = [sys.executable, "-m", "ray.scripts.scripts", "start", "--num-cpus=1", "--object-store-memory=100000000"]
    options = {
        network.head: ["--head", f"--port={PORT}", "--include-dashboard=false", f"--temp-dir={temporary}"],
        network.node: [f"--address={network.address}"],
    }
    variables = {**os.environ, **made.environment, MARK: made.name, "RAY_AUTH_MODE": "token", "RAY_worker_niceness": "0"}
    try:
        network.build()
        for machine, more in options.items():
            command = [*network.inside(machine), *ray, *more, f"--node-ip-address={network.machines[machine]}"]
            started = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
            assert started.returncode == 0, started.stdout + started.stderr
        yield network
    finally:
        _stop_ray(made)
        network.remove()
        shutil.rmtree(temporary, ignore_errors=True)


def _stop_ray(made: Scene) -> None:
    """Does what `ray stop` does, to the servers of this scene alone: workers and agents must go by themselves."""

    def servers() -> list[int]:
        found = made.processes().items()
        return [pid for pid, line in found if re.search(r"gcs_server|raylet/raylet|log_monitor|autoscaler/_private", line)]

    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in servers():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        with contextlib.suppress(AssertionError):
            wait_until(lambda: not servers(), 10)
