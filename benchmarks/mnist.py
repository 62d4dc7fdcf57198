"""Permuted MNIST with the paper's networks: the sparse MLP kernel beside the torch engine, on one core, per example.

Real MNIST, float32, SGD, one run. Processor time, and the fastest of several repeats, because other jobs may run beside this
one; the engines and algorithms alternate, so that they meet the same conditions. All work on the calling thread alone.
"""

import statistics
import time
from typing import Any

import numpy as np
from cbp_ray_benchmarks.cores import METHODS, one_core

from cbp_ray.experiments.config import OnlineConfig
from cbp_ray.experiments.engines.mlp_permuted_mnist import MlpEngine
from cbp_ray.experiments.engines.torch_permuted_mnist import MnistRun, take

EXAMPLES = {100: (6000, 250), 2000: (250, 25)}
"""By width: examples per repeat of the kernel and of torch."""
REPEATS = 8
WARM_UP = 150
"""Until the first units are mature, generate-and-test has nothing to select."""

STREAM_MEGABYTES = 256
"""Of the array that is read and updated to measure the memory: larger than a third-level cache."""


class Case:
    """One algorithm at one width, in both engines."""

    def __init__(self, width: int, algorithm: str, with_torch: bool) -> None:
        self.width, self.algorithm = width, algorithm
        config = OnlineConfig.make(
            {
                "problem": {"name": "permuted_mnist"},
                "network": {"hidden": [width] * 3},
                "algorithm": METHODS[algorithm],
                "optimizer": {"name": "sgd", "step_size": 0.003},
            }
        )
        (self.kernel,) = MlpEngine(config, [0]).runs
        self.torch = MnistRun(config, 0) if with_torch else None
        self.kernel_us: list[float] = []
        self.torch_us: list[float] = []
        self.kernel.learn(WARM_UP)
        if self.torch is not None:
            self.torch.advance(WARM_UP)
        self.rows: list[int] = []

    def repeat(self) -> None:
        """One measurement of each engine: learning, with the data at hand."""
        kernel_examples, torch_examples = EXAMPLES[self.width]
        if self.torch is not None:
            xs, ys = take(self.torch, self.torch.problem, torch_examples)
            start = time.thread_time()
            for t in range(torch_examples):
                self.torch.learn(xs[t : t + 1], ys[t : t + 1])
            self.torch_us.append((time.thread_time() - start) / torch_examples * 1e6)
        start = time.thread_time()
        self.kernel.learn(kernel_examples)
        self.kernel_us.append((time.thread_time() - start) / kernel_examples * 1e6)
        self.rows.append(self._moved())

    def _moved(self) -> int:
        """Bytes of weights that a step of SGD moves: rows of active inputs, read forward, read and written backward."""
        layout, rows = self.kernel.layout, self.kernel.scratch.active_count
        return int(sum(3 * 4 * rows[layer] * layout.stride[layer] for layer in range(self.kernel.layers)))

    def result(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "width": self.width,
            "algorithm": self.algorithm,
            "kernel_us": round(min(self.kernel_us), 2),
            "kernel_median_us": round(statistics.median(self.kernel_us), 2),
            "megabytes_moved": round(statistics.mean(self.rows) / 1e6, 2),
        }
        if self.torch_us:
            found["torch_us"] = round(min(self.torch_us), 2)
            found["speedup"] = round(min(self.torch_us) / min(self.kernel_us), 1)
        return found


def memory_seconds_per_megabyte() -> tuple[float, float]:
    """To read a large array, and to read and write it, with NumPy on this core: for each megabyte of the array."""
    array = np.ones(STREAM_MEGABYTES * 10**6 // 4, dtype=np.float32)

    def fastest(action: Any) -> float:
        times = []
        for _ in range(20):
            start = time.thread_time()
            action()
            times.append(time.thread_time() - start)
        return min(times) / STREAM_MEGABYTES

    return fastest(array.max), fastest(lambda: np.add(array, 1, out=array))


def run() -> dict[str, Any]:
    """BP and CBP at both widths in both engines; the baselines in the kernel."""
    results, baselines, ratios = [], [], {}
    with one_core():
        reading, updating = memory_seconds_per_megabyte()
        for width in EXAMPLES:
            cases = [Case(width, algorithm, algorithm in ("bp", "cbp")) for algorithm in METHODS]
            for _ in range(REPEATS):
                for case in cases:
                    case.repeat()
            for case in cases:
                (results if case.torch is not None else baselines).append(case.result())
            bp, cbp = (min(case.kernel_us) for case in cases[:2])
            ratios[str(width)] = round(cbp / bp, 3)
        again = memory_seconds_per_megabyte()
    reading, updating = min(reading, again[0]), min(updating, again[1])
    for result in results + baselines:
        # A third of what is moved is read forward, the rest is read and written backward.
        least = result["megabytes_moved"] / 3 * (reading + updating) * 1e6
        result["memory_bound_us"] = round(least, 1) if result["width"] == 2000 else None
    return {
        "cases": results,
        "kernel_only": baselines,
        "cbp_over_bp": ratios,
        "read_gb_per_s": round(1e-3 / reading, 1),
        "update_gb_per_s": round(2e-3 / updating, 1),
    }


def render(result: dict[str, Any]) -> str:
    """A table for people."""
    lines = ["width  algorithm     torch us  kernel us  speed-up  at the memory's speed"]
    for c in sorted(result["cases"] + result["kernel_only"], key=lambda c: c["width"]):
        torch_us, speedup = (f"{c[name]:,.1f}" if name in c else "" for name in ("torch_us", "speedup"))
        bound = f"{c['memory_bound_us']:,.0f} us" if c["memory_bound_us"] else "(in the cache)"
        lines.append(f"{c['width']:>5}  {c['algorithm']:<12} {torch_us:>9} {c['kernel_us']:>10,.2f} {speedup:>9}  {bound}")
    ratios = ", ".join(f"{ratio} at width {width}" for width, ratio in result["cbp_over_bp"].items())
    lines.append(f"per example, one core, float32; CBP over BP in the kernel: {ratios}")
    lines.append(
        f"memory beyond the second-level cache, one core: {result['read_gb_per_s']} GB/s reading, "
        f"{result['update_gb_per_s']} GB/s reading and writing"
    )
    return "\n".join(lines)
