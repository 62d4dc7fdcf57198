"""The points of `cbp-ray bench scaling`: one sweep each, with whatever is looked up while it runs and after."""

import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from cbp_ray_benchmarks.scaling_board import Board
from cbp_ray_benchmarks.scaling_meter import Meter, Timed, summed, timed

from cbp_ray.methods import VARIABLE
from cbp_ray.sweeps.board_updates import most_runs

ASLEEP = {VARIABLE: "cbp_ray_benchmarks.asleep:Asleep"}
"""The environment in which the method that sleeps is known."""
LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""The environment in which Ray takes this machine for one that others can't reach, and uses 127.0.0.1 as its address."""
EXAMPLES, BIN = 20_000, 400
"""Length of a kernel's run, which takes a few ms: what is measured is everything else. It has as many bins as the paper's."""
SLEEP_SECONDS = 2.0
TRIALS_PER_NODE = 24
"""Of which the first third is not measured, in which workers start, nor the last sixth."""
BOARD_SECONDS = 900.0


def sweep_of(name: str, configurations: int, seeds: int = 1) -> dict[str, Any]:
    """A sweep of the kernel with so many configurations and seeds, all of them different and all of the same length."""
    rates = [float(f"{1e-6 * (1 + number):.9g}") for number in range(configurations)]
    base = {"optimizer": {"name": "sgd", "step_size": 0.01}, "examples": EXAMPLES, "bin_size": BIN}
    groups = {"cbp": {"algorithm": {"name": "cbp", "replacement_rate": rates}}}
    return {"sweep": name, "seeds": f"0:{seeds}", "base": base, "groups": groups}


def asleep(name: str, trials: int, seconds: float) -> dict[str, Any]:
    """A sweep whose trials sleep, in the torch engine: it learns from one example."""
    algorithm = {"name": "asleep", "seconds": seconds, "number": [float(number) for number in range(trials)]}
    base = {"optimizer": {"name": "sgd", "step_size": 0.01}, "examples": 1, "bin_size": 1}
    groups = {"asleep": {"algorithm": algorithm}}
    return {"sweep": name, "seeds": "0:1", "engine": "torch", "base": base, "groups": groups}


class Run:
    """`cbp-ray run` as a process with a meter, until its end.

    Args:
      folder: where the sweep file and the storage are; results of an earlier attempt go.
      sweep: content of the sweep file.
      options: further options of the command.
      roots: processes whose offspring counts as Ray's.
    """

    def __init__(self, folder: Path, sweep: dict[str, Any], *options: str, roots: tuple[int, ...] = ()) -> None:
        self.name, self.storage = str(sweep["sweep"]), folder / "storage"
        self.file = folder / f"{self.name}.yaml"
        shutil.rmtree(self.storage / self.name, ignore_errors=True)
        self.file.write_text(yaml.safe_dump(sweep))
        command = [sys.executable, "-m", "cbp_ray", "run", str(self.file), "--storage", str(self.storage), "--json", *options]
        self.begun = time.monotonic()
        self.errors = (folder / f"{self.name}.err").open("w+")
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.errors, text=True)
        self.meter = Meter(self.process.pid, *roots)
        self.meter.start()
        self.times: list[float] = []
        """When each trial was done, in seconds since the start."""
        self.last: dict[str, Any] = {}
        """The last event."""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with contextlib.suppress(ValueError):
                self.last = json.loads(line)
                if self.last["event"] == "trial_done":
                    self.times.append(time.monotonic() - self.begun)
                    self.meter.done = len(self.times)

    def wait_for(self, done: int) -> bool:
        """Waits until so many trials are done; False if the sweep has ended before."""
        while len(self.times) < done:
            if self.process.poll() is not None:
                return False
            time.sleep(0.05)
        return True

    def wait(self) -> None:
        """Waits for the end."""
        self.process.wait()
        self._reader.join()
        self.meter.stop()
        self.errors.seek(0)
        if self.process.returncode:
            raise RuntimeError(f"{self.name} ended with {self.process.returncode}: {self.errors.read()[-2000:]}")
        self.errors.close()

    def numbers(self) -> dict[str, Any]:
        """What was measured: CPU by part, and of the driver memory and files, in the whole and per trial."""
        cpu, trials = self.meter.cpu_seconds(), len(self.times)
        first, last = self.meter.at(1), self.meter.at(trials)
        late, between = self.meter.at(trials // 2), max(1, trials - trials // 2)
        after = [sample for sample in self.meter.samples if sample["done"] >= trials]
        found: dict[str, Any] = {
            "trials": trials,
            "runs": self.last["runs_done"],
            "failed": self.last["failed"],
            "seconds": time.monotonic() - self.begun,
            "seconds_to_first_trial": self.times[0],
            "span_s": self.times[-1] - self.times[0],
            "engine_s": self.last["engine_seconds"],
            **{f"{part}_cpu_s": seconds for part, seconds in cpu.items()},
            "driver_cpu_ms_per_trial": 1e3 * (last["cpu_s"] - first["cpu_s"]) / max(1, last["done"] - first["done"]),
            "driver_cpu_ms_per_late_trial": 1e3 * (last["cpu_s"] - late["cpu_s"]) / between,
            "driver_cpu_s_before_first_trial": first["cpu_s"],
            "driver_cpu_s_after_last_trial": self.meter.samples[-1]["cpu_s"] - last["cpu_s"],
            "driver_seconds_after_last_trial": self.meter.samples[-1]["seconds"] - last["seconds"],
            "driver_rss_mb_at_first_trial": first["rss_mb"],
            "driver_rss_mb_at_last_trial": last["rss_mb"],
            "driver_rss_mb_peak": max(sample["rss_mb"] for sample in [*self.meter.samples, *after]),
            "driver_kb_per_trial": 1e3 * (last["rss_mb"] - first["rss_mb"]) / max(1, last["done"] - first["done"]),
            "driver_files_at_first_trial": first["files"],
            "driver_files_at_last_trial": last["files"],
            "driver_files_peak": max(sample["files"] for sample in self.meter.samples),
            **{f"{part}_rss_mb_peak": amount / 1e6 for part, amount in self.meter.peak.items()},
        }
        return summed(found)

    def worker_numbers(self) -> dict[str, Any]:
        """Memory and files of the worker that had most to do, from its first tenth to its end."""
        # Ray starts some that stay empty.
        size = {pid: sum(rss for _, rss, _ in seen) for pid, seen in self.meter.workers.items()}
        seen = self.meter.workers[max(size, key=size.__getitem__)]
        trials = len(self.times)
        curve = [(done, rss / 1e6, files) for done, rss, files in seen if done]
        settled = [each for each in curve if each[0] >= trials / 10] or curve
        # Of several samples, because memory goes up and down within a trial.
        begin, end = settled[: max(1, len(settled) // 5)], settled[-max(1, len(settled) // 5) :]
        before, after = (statistics.median(rss for _, rss, _ in part) for part in (begin, end))
        share = sum(2 * each > max(size.values()) for each in size.values())
        between = end[len(end) // 2][0] - begin[len(begin) // 2][0]
        return summed(
            {
                "workers": share,
                "worker_rss_mb_early": before,
                "worker_rss_mb_late": after,
                "worker_kb_per_trial": 1e3 * (after - before) * share / max(1, between),
                "worker_files_early": max(files for _, _, files in begin),
                "worker_files_late": max(files for _, _, files in end),
                "worker_rss_curve": thinned([(done, round(rss, 1)) for done, rss, _ in curve]),
            }
        )

    def driver_curve(self) -> list[tuple[float, float]]:
        """Trials done, memory of the driver in MB."""
        return thinned([(sample["done"], round(sample["rss_mb"], 1)) for sample in self.meter.samples if sample["done"]])


def thinned(points: list[Any], most: int = 60) -> list[Any]:
    """At most so many of some points, evenly."""
    step = max(1, len(points) // most)
    return points[::step]


def trials(folder: Path, size: int) -> dict[str, Any]:
    """A sweep of so many trials on this machine, with a TensorBoard that is there all the time, and what comes after it."""
    run = Run(folder, sweep_of(f"trials-{size}", size))
    board, found = None, dict[str, Any]()
    if run.wait_for(1):
        board = Board(run.storage / run.name / "tensorboard")
    if run.wait_for(max(1, size // 2)):
        found |= command("status_while_running", timed("status", run.name, "--storage", str(run.storage)))
    run.wait()
    found = run.numbers() | run.worker_numbers() | found | {"driver_rss_curve": run.driver_curve()}
    if board is not None:
        found |= {f"board_live_{name}": value for name, value in board.numbers(min(size, most_runs())).items()}
        board.close()
    found |= after(run, size)
    return found


def after(run: Run, size: int) -> dict[str, Any]:
    """What it takes to look at a sweep that is complete."""
    storage = ("--storage", str(run.storage))
    found = command("status", timed("status", run.name, *storage))
    found |= command("run_again", timed("run", str(run.file), *storage))
    found |= command("results", timed("results", run.name, *storage))
    board = Board(run.storage / run.name / "tensorboard")
    found |= {f"board_{name}": value for name, value in board.numbers(min(size, most_runs())).items()}
    board.close()
    return found


def command(name: str, took: Timed) -> dict[str, Any]:
    """What a command took, with its name before each number."""
    if took.code:
        raise RuntimeError(f"{name} ended with {took.code}")
    return summed({f"{name}_s": took.seconds, f"{name}_cpu_s": took.cpu_seconds, f"{name}_rss_mb": took.rss_mb})


def seeds(folder: Path, size: int) -> dict[str, Any]:
    """1,024 runs, so many to a block."""
    run = Run(folder, sweep_of(f"seeds-{size}", max(1, 1024 // size), size))
    run.wait()
    found = run.numbers()
    return found | summed({"driver_cpu_ms_per_run": found["driver_cpu_ms_per_trial"] * found["trials"] / found["runs"]})


def worker(folder: Path, size: int) -> dict[str, Any]:
    """So many trials of the torch engine one after the other, in one worker."""
    with environment(**ASLEEP):
        run = Run(folder, asleep(f"worker-{size}", size, 0.0), "--max-concurrent", "1")
        run.wait()
    return run.numbers() | run.worker_numbers()


def nodes(folder: Path, size: int) -> dict[str, Any]:
    """Trials that sleep on so many nodes of one core, all simulated on this machine."""
    count = TRIALS_PER_NODE * size
    with environment(**ASLEEP, **LOOPBACK), cluster(size) as (address, pid):
        run = Run(folder, asleep(f"nodes-{size}", count, SLEEP_SECONDS), "--address", address, roots=(pid,))
        run.wait()
    first, last = count // 3, count - count // 6
    span = run.times[last - 1] - run.times[first - 1]
    ideal = (last - first) * SLEEP_SECONDS / size
    seen = run.numbers()
    extra = {
        "nodes": size,
        "efficiency": ideal / span,
        "trials_per_s": (last - first) / span,
        "outside_s_per_trial": (span - ideal) * size / (last - first),
        **{f"{part}_cpu_ms_per_trial": 1e3 * seen[f"{part}_cpu_s"] / count for part in ("gcs", "raylet", "agent")},
        # A worker that starts has 3 s of imports, which is not what a trial costs.
        "worker_cpu_s_per_worker": seen["worker_cpu_s"] / max(1, len(run.meter.workers)),
    }
    return seen | summed(extra)


def reports(folder: Path, size: int) -> dict[str, Any]:
    """A search of so many trials, each of which reports after every bin: what Ray Tune and the driver need for a report."""
    sweep = sweep_of(f"reports-{size}", 1)
    sweep["groups"]["cbp"]["algorithm"]["replacement_rate"] = 1e-4
    space = {"algorithm.replacement_rate": {"loguniform": [1e-6, 1e-2]}}
    sweep["tune"] = {"metric": "error", "samples": size, "scheduler": {"name": "none"}, "space": space}
    run = Run(folder, sweep)
    run.wait()
    found, bins = run.numbers(), EXAMPLES // BIN
    return found | summed({"reports": size * bins, "driver_cpu_ms_per_report": found["driver_cpu_ms_per_trial"] / bins})


def live(folder: Path, size: int) -> dict[str, Any]:
    """What so many trials that run cost the driver by their reports, without Ray."""
    sweep = sweep_of(f"live-{size}", size)
    storage, file = folder / "storage", folder / f"live-{size}.yaml"
    shutil.rmtree(storage / f"live-{size}", ignore_errors=True)
    file.write_text(yaml.safe_dump(sweep))
    command = [sys.executable, "-m", "cbp_ray_benchmarks.scaling_live", str(file), str(storage)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"live-{size} ended with {done.returncode}: {done.stderr[-2000:]}")
    return summed(json.loads(done.stdout.splitlines()[-1]))


@contextlib.contextmanager
def environment(**variables: str) -> Iterator[None]:
    """Variables for the processes that are started."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


CLUSTER = """
import sys
from cbp_ray.sweeps.cluster import use_token
use_token()
from ray.cluster_utils import Cluster
settings = dict(num_cpus=1, object_store_memory=80 * 2**20, node_ip_address="127.0.0.1", include_dashboard=False)
cluster = Cluster(initialize_head=True, head_node_args=settings)
for _ in range(int(sys.argv[1]) - 1):
    cluster.add_node(**settings)
cluster.wait_for_nodes()
print(cluster.address, flush=True)
sys.stdin.read()
cluster.shutdown()
"""
"""A process that has a cluster until its standard input ends."""


@contextlib.contextmanager
def cluster(size: int) -> Iterator[tuple[str, int]]:
    """So many nodes of one core each on this machine; gives their address and the process that has started them."""
    command = [sys.executable, "-c", CLUSTER, str(size)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None and process.stdin is not None
    address = ""
    while not address.startswith("127."):
        address = process.stdout.readline().strip()
        if process.poll() is not None:
            raise RuntimeError("the cluster did not start")
    try:
        yield address, process.pid
    finally:
        process.stdin.close()
        process.wait(120)
