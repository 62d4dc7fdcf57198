"""How much of a sweep is learning: `cbp-ray run` on this machine's cores, from before Ray starts until after it has stopped.

`efficiency` is CPU time inside the engine / (wall time × cores). The engine measures its own CPU time, so time in which a
core waits, or belongs to Ray, to another process or to the driver, counts against it.

`cpu_efficiency` is CPU time inside the engine / CPU time of the driver, Ray and the workers together. Waiting does not count
there, and neither do other people's processes: on a machine that is shared, it is the one to look at.
"""

import contextlib
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from cbp_ray.sweeps import load_sweep, run_sweep
from cbp_ray.sweeps.compile_lock import compile_once
from cbp_ray.sweeps.progress import Event

SWEEP: dict[str, Any] = {
    "sweep": "bench",
    "seeds": "0:100",
    "base": {
        "optimizer": [{"name": "sgd", "step_size": 0.01}, {"name": "adam", "step_size": 0.01}],
        "network": {"activation": ["tanh", "relu", "elu"]},
    },
    "groups": {
        "bp": {"algorithm": {"name": "bp"}},
        "l2": {"algorithm": {"name": "l2", "weight_decay": [1e-6, 1e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2]}},
        "cbp": {"algorithm": {"name": "cbp", "replacement_rate": [1e-6, 1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2]}},
    },
}
"""The kind of figures 6, 14 and 16: 96 configurations × 100 seeds × 1M examples, half of them with Adam."""


class Meter:
    """CPU time of this process and of those below it, looked up whenever a trial ends."""

    def __init__(self) -> None:
        self._ticks: dict[int, int] = {}
        self._before = self._own()

    @staticmethod
    def _own() -> float:
        times = os.times()
        return times.user + times.system

    def __call__(self, event: Event) -> None:
        if event.kind not in {"start", "trial_done"}:
            return
        parents, ticks = {}, {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    fields = (entry / "stat").read_text().rpartition(")")[2].split()
                    parents[int(entry.name)] = int(fields[1])
                    ticks[int(entry.name)] = int(fields[11]) + int(fields[12])
        below: set[int] = set()
        new = {os.getpid()}
        while new:
            new = {pid for pid, parent in parents.items() if parent in new} - below
            below |= new
        self._ticks |= {pid: ticks[pid] for pid in below}

    @property
    def seconds(self) -> float:
        """CPU seconds so far."""
        return self._own() - self._before + sum(self._ticks.values()) / os.sysconf("SC_CLK_TCK")


def run(examples: int = 1_000_000) -> dict[str, Any]:
    """Runs the sweep once. Numba's cache is filled before: a machine compiles once, not once per sweep."""
    with tempfile.TemporaryDirectory(prefix="cbp-ray-bench-") as directory:
        path = Path(directory) / "bench.yaml"
        path.write_text(yaml.safe_dump(SWEEP))
        sweep = load_sweep(path, overrides=[f"base.examples={examples}"])
        for configuration in sweep.configurations:
            compile_once(configuration.config)
        cores, begun = len(os.sched_getaffinity(0)), time.perf_counter()
        meter = Meter()
        outcome = run_sweep(sweep, Path(directory) / "results", progress=meter)
        seconds = time.perf_counter() - begun
    capacity = seconds * cores
    return {
        "configurations": len(sweep.configurations),
        "runs": outcome.runs_done,
        "trials": outcome.trials_done,
        "examples": outcome.runs_done * examples,
        "failed": outcome.failed,
        "cores": cores,
        "load_average": os.getloadavg()[0],
        "seconds": seconds,
        "engine_seconds": outcome.engine_seconds,
        "cpu_seconds": meter.seconds,
        "efficiency": outcome.engine_seconds / capacity,
        "cpu_efficiency": outcome.engine_seconds / meter.seconds,
        "overhead_s_per_trial": (capacity - outcome.engine_seconds) / max(outcome.trials_done, 1),
        "examples_per_second": outcome.runs_done * examples / seconds,
    }


def render(result: dict[str, Any]) -> str:
    """The result as text for a person."""
    length = result["examples"] // result["runs"]
    return "\n".join(
        [
            f"{result['configurations']} configurations, {result['runs']} runs of {length:,} examples",
            f"in {result['trials']} trials on {result['cores']} cores: {result['seconds']:.1f} s with start and stop of Ray",
            f"inside the engine  {result['efficiency']:.1%} of (wall time × cores)",
            f"                   {result['cpu_efficiency']:.1%} of the CPU time of driver, Ray and workers",
            f"everything else    {result['overhead_s_per_trial']:.3f} core-seconds per trial",
            f"examples           {result['examples_per_second'] / 1e6:.1f} M per second",
        ]
    )
