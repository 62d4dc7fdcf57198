"""A sweep to which things happen: started, disturbed, started again, and then compared with one that nothing happened to."""

import contextlib
import os
import re
import subprocess
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import ray
from ray.cluster_utils import Cluster
from sweep_help import Program, kill, snapshot

from cbp_ray.experiments import Curves, run_online
from cbp_ray.results import Store
from cbp_ray.sweeps import cluster, load_sweep
from cbp_ray.sweeps.scratch import NEW, PREFIX
from cbp_ray.sweeps.status import statuses

MARK = "CBP_RAY_TEST_SCENE"
"""Variable of the environment by which all processes of a scene are known, whoever starts them."""
OUTLIVES = 90.0
"""Seconds by which nothing may outlive a sweep."""
RATES = "[1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3]"
SWEEP = f"""
sweep: faults
seeds: 0:32
base: {{optimizer: {{name: sgd, step_size: 0.01}}, problem: {{flip_period: 1000}}, examples: 2_000_000, bin_size: 100_000}}
groups:
  cbp: {{algorithm: {{name: cbp, replacement_rate: {RATES}}}}}
"""
TRIALS = 6


@cache
def undisturbed(examples: int) -> dict[str, Curves]:
    """What every configuration gives if nothing happens, by its replacement rate."""
    text = SWEEP.replace("2_000_000", str(examples))
    path = Path(os.environ.get("TMPDIR", "/tmp")) / f"undisturbed-{uuid.uuid4().hex}.yaml"
    path.write_text(text)
    try:
        sweep = load_sweep(path)
    finally:
        path.unlink()
    return {c.config.model_dump_json(): run_online(c.config, sweep.seeds, sweep.engine) for c in sweep.configurations}


class Scene:
    """A sweep that is started again and again in one storage, with whatever happens in between.

    Args:
      folder: where its files are.
      storage: where its results go; a folder below `folder` without it.
      examples: length of its runs.
      text: another sweep file.
    """

    def __init__(self, folder: Path, storage: Path | None = None, examples: int = 2_000_000, text: str = SWEEP) -> None:
        self.name = uuid.uuid4().hex
        self.file, self.storage, self.examples = folder / "faults.yaml", storage or folder / "results", examples
        self.file.write_text(text.replace("2_000_000", str(examples)))
        self.programs: list[Program] = []
        self.temporary = folder / "temporary"
        self.temporary.mkdir()
        # Ray's own files go elsewhere, because paths of its sockets must be short.
        self.environment = {"TMPDIR": str(self.temporary), "RAY_TMPDIR": tempfile.gettempdir()}
        self.begun = 0.0
        """When the last start was, in seconds since 1970."""
        self.left = False

    def start(self, *options: str, inside: Sequence[str] = ()) -> Program:
        """The sweep as a process, with what it starts marked as this scene's; `inside` stands before its command."""
        self.begun = time.time()
        with environment({MARK: self.name, **self.environment}):
            self.programs.append(Program(str(self.file), "--storage", str(self.storage), *options, inside=inside))
        return self.programs[-1]

    def finish(self, *options: str, tries: int = 1, inside: Sequence[str] = ()) -> Program:
        """Starts it until it comes to its end, which it must within so many tries."""
        for _ in range(tries):
            program = self.start(*options, inside=inside)
            code = program.wait()
            if code == 0:
                return program
            assert code == 1, program.story()
        raise AssertionError(f"did not finish: {program.story()}")

    def check(self, remade: int = 0) -> None:
        """The results are complete and those of an undisturbed sweep, each trial ended once, and nothing is left behind.

        Args:
          remade: how many trials may have ended twice, because their results were damaged from outside.
        """
        sweep, known = load_sweep(self.file), undisturbed(self.examples)
        store = Store(self.storage, sweep.name)
        for each in sweep.configurations:
            stored = store.read_curves(each.config, sweep.seeds, sweep.engine)
            for metric, values in known[each.config.model_dump_json()].metrics.items():
                np.testing.assert_array_equal(stored[metric], values, err_msg=metric)
        (status,) = statuses(store)
        assert (status.state, status.missing, status.failed) == ("complete", 0, 0), status
        counts = Counter(trial for program in self.programs for trial in program.done())
        assert sum(count - 1 for count in counts.values()) <= remade, counts
        left = [path for path in (self.storage / sweep.name).rglob("*") if path.name.startswith(".tmp-")]
        left += [path for folder in ("checkpoints", "live") for path in (self.storage / sweep.name / folder).glob("*")]
        # What a killed start leaves is removed by the next, unless it is so new that its owner may not have locked it.
        left += [path for path in self.temporary.glob(f"{PREFIX}*") if path.stat().st_ctime < self.begun - NEW]
        assert not left, left
        self.leave()

    def used_nodes(self) -> set[str]:
        """Ids of the nodes that made its results."""
        tables = [pyarrow.parquet.read_table(path, columns=["node"]) for path in self.storage.glob("*/runs/*.parquet")]
        return {node for table in tables for node in table.column("node").to_pylist()}

    def leave(self) -> None:
        """Leaves its last processes to end by themselves; that they do is checked by `assert_all_have_ended`."""
        LEAVING.append(Leaving(self.name))
        self.left = True

    def processes(self) -> dict[int, str]:
        """All processes of the scene that are alive, whoever their parents are, with their command lines."""
        return marked(self.name)

    def complete(self) -> bool:
        """Whether all results are there."""
        return len(list(self.storage.glob("*/curves/*.parquet"))) == TRIALS

    def begin_anew(self, storage: Path) -> None:
        """In another storage, as another scene."""
        self.storage, self.name, self.left = storage, uuid.uuid4().hex, False
        self.programs.clear()

    def stored(self) -> dict[str, tuple[int, int]]:
        """Identity of every file of results; runs without their curves, which come last, do not count as stored."""
        done = {path.name for path in self.storage.glob("*/curves/*.parquet")}
        return {path: identity for path, identity in snapshot(self.storage).items() if Path(path).name in done}

    def end(self) -> None:
        """Ends whatever is left of it."""
        for pid in self.processes():
            kill(pid)


@contextlib.contextmanager
def scene(folder: Path, **options: Any) -> Iterator[Scene]:
    """A scene of which nothing is left in the end."""
    made = Scene(folder, **options)
    try:
        yield made
    finally:
        if not made.left:
            made.end()


def marked(name: str) -> dict[int, str]:
    """Processes of the scene of this name that are alive, with their command lines."""
    wanted, found = f"{MARK}={name}".encode(), {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found[int(entry.name)] = (entry / "cmdline").read_text().replace("\0", " ")
    return found


class Leaving(threading.Thread):
    """Watches the last processes of a scene that is over: Ray leaves some behind for a minute."""

    def __init__(self, name: str) -> None:
        super().__init__(daemon=True)
        self.scene, self.outlived = name, dict[int, str]()
        self.start()

    def run(self) -> None:
        until = time.monotonic() + OUTLIVES
        while (still := marked(self.scene)) and time.monotonic() < until:
            time.sleep(0.5)
        self.outlived = still


LEAVING: list[Leaving] = []
"""Scenes that are over, and perhaps not all of their processes."""


def assert_all_have_ended() -> None:
    """Of every scene that came to its end, no process has outlived it by more than it may."""
    outlived = {}
    while LEAVING:
        left = LEAVING.pop()
        left.join()
        outlived |= left.outlived
    for pid in outlived:
        kill(pid)
    assert not outlived, f"still there after {OUTLIVES:g} s: { {pid: line[:200] for pid, line in outlived.items()} }"


@contextlib.contextmanager
def environment(variables: dict[str, str]) -> Iterator[None]:
    """Variables of the environment for what is started meanwhile."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.contextmanager
def nodes(made: Scene, *cpus: int) -> Iterator[Cluster]:
    """A cluster of several nodes on this machine, whose processes are marked as the scene's."""
    cluster.use_token()
    ray.shutdown()
    with environment({MARK: made.name, "RAY_worker_niceness": "0", **made.environment}):
        started = Cluster(initialize_head=True, head_node_args={"num_cpus": cpus[0], "include_dashboard": False})
        for count in cpus[1:]:
            started.add_node(num_cpus=count)
        started.wait_for_nodes()
    try:
        yield started
    finally:
        started.shutdown()


def wait_until(condition: Callable[[], Any], seconds: float = 60, why: Callable[[], str] = lambda: "") -> None:
    """Waits for something to be true, and fails with a reason if that takes too long."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, why()
        time.sleep(0.1)


def workers(made: Scene) -> list[int]:
    """Workers of Ray that run a trial."""
    return [pid for pid, line in made.processes().items() if re.match(r"ray::(ResourceTrainable|RunBlock)", line)]


@contextlib.contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A file system of so many bytes at `folder`."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def remount(folder: Path, options: str) -> None:
    """Changes a mounted file system: `ro`, `rw`, `size=…`."""
    subprocess.run(["mount", "-o", f"remount,{options}", str(folder)], check=True)
