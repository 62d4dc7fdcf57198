"""Bit-Flipping at the paper's size: the lane kernel beside the torch engine, on one core, per example and run."""

import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

import torch
from cbp_ray_benchmarks.cores import METHODS, one_core

from cbp_ray.experiments.config import OnlineConfig
from cbp_ray.experiments.engines.lane_bit_flipping import LaneEngine
from cbp_ray.experiments.engines.torch_bit_flipping import BitFlippingRun
from cbp_ray.kernels.lanes import WIDTH

ACTIVATIONS = ("tanh", "sigmoid", "relu", "leaky_relu", "elu", "swish")
ALGORITHMS = METHODS | {"linear": {"name": "linear"}}
OPTIMIZERS = ("sgd", "adam")
KERNEL_EXAMPLES, TORCH_EXAMPLES, REPEATS = 10_000, 200, 7
TORCH_WARM_UP = 150
"""Until the first units are mature, the torch engine has nothing to select."""

CALL = """
import resource, time
from cbp_ray.experiments.config import OnlineConfig
from cbp_ray.experiments.engines.lane_bit_flipping import LaneEngine
cbp, sgd = {"name": "cbp", "replacement_rate": 1e-4}, {"name": "sgd", "step_size": 0.01}
config = OnlineConfig.make({"algorithm": cbp, "optimizer": sgd})
start = time.perf_counter()
LaneEngine(config, [0]).advance(2)
seconds = time.perf_counter() - start
LaneEngine(config, range(100)).advance(20_000)
print(seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


def kernel_time(engine: Any) -> float:
    """Per example and run, in ns: data, learning and diagnostics."""
    start = time.thread_time()
    engine.advance(KERNEL_EXAMPLES)
    return (time.thread_time() - start) / (KERNEL_EXAMPLES * engine.runs) * 1e9


def torch_time(run: Any, xs: Any, ys: Any) -> float:
    """Per example, in ns: learning alone. Data and diagnostics, which the kernel's time includes, are left out."""
    start = time.thread_time()
    for t in range(TORCH_EXAMPLES):
        run.learn(xs[t : t + 1], ys[t : t + 1])
    return (time.thread_time() - start) / TORCH_EXAMPLES * 1e9


def measure(algorithm: str, optimizer: str, activation: str) -> dict[str, Any]:
    """One case. Processor time, not wall-clock time, and the fastest of several repeats, because other jobs may run beside
    this one; the engines alternate, so that they meet the same conditions. Both work on the calling thread alone."""
    network, step = {"activation": activation}, {"name": optimizer, "step_size": 0.01}
    config = OnlineConfig.make({"network": network, "algorithm": ALGORITHMS[algorithm], "optimizer": step})
    kernel, reference = LaneEngine(config, range(WIDTH)), BitFlippingRun(config, 0)
    kernel.advance(1000)
    reference.advance(TORCH_WARM_UP)
    inputs, targets = reference.problem.take(TORCH_EXAMPLES, start=TORCH_WARM_UP)
    xs, ys = torch.from_numpy(inputs).float(), torch.from_numpy(targets).float()[:, None]
    kernel_ns, torch_ns = [], []
    for _ in range(REPEATS):
        torch_ns.append(torch_time(reference, xs, ys))
        kernel_ns.append(kernel_time(kernel))
    return {
        "algorithm": algorithm,
        "optimizer": optimizer,
        "activation": activation,
        "torch_ns": round(min(torch_ns)),
        "kernel_ns": round(min(kernel_ns), 2),
        "kernel_median_ns": round(statistics.median(kernel_ns), 2),
        "speedup": round(min(torch_ns) / min(kernel_ns)),
    }


def fresh_process(cache: str) -> tuple[float, float]:
    """Seconds of the first kernel call of a process, and its peak memory in MB with 100 runs."""
    environment = os.environ | {"NUMBA_CACHE_DIR": cache}
    done = subprocess.run([sys.executable, "-c", CALL], env=environment, check=True, capture_output=True, text=True)
    seconds, memory = done.stdout.split()
    return float(seconds), float(memory)


def run() -> dict[str, Any]:
    """Every algorithm, optimizer and activation."""
    with one_core():
        with tempfile.TemporaryDirectory() as cache:
            (cold, _), (warm, memory) = fresh_process(cache), fresh_process(cache)
        every = itertools.product(ALGORITHMS, OPTIMIZERS, ACTIVATIONS)
        # The linear tracker has no activation.
        cases = [measure(*case) for case in every if case[0] != "linear" or case[2] == "tanh"]
    tanh = {(c["algorithm"], c["optimizer"]): c["kernel_ns"] for c in cases if c["activation"] == "tanh"}
    for case in cases:
        case["of_cbp_tanh"] = round(case["kernel_ns"] / tanh["cbp", case["optimizer"]], 2)
    return {
        "cases": cases,
        "cold_compile_seconds": round(cold, 2),
        "cached_seconds": round(warm, 2),
        "peak_memory_mb": round(memory),
        "runs_per_block": WIDTH,
    }


def render(result: dict[str, Any]) -> str:
    """A table for people."""
    lines = ["algorithm    optimizer  activation   torch ns  kernel ns  speed-up  of CBP tanh"]
    lines += [
        f"{c['algorithm']:<12} {c['optimizer']:<10} {c['activation']:<11} {c['torch_ns']:>9,} {c['kernel_ns']:>10.1f} "
        f"{c['speedup']:>9,} {c['of_cbp_tanh']:>11.2f}"
        for c in result["cases"]
    ]
    lines.append(
        f"per example and run, one core, {result['runs_per_block']} runs per block; first call "
        f"{result['cold_compile_seconds']} s without a cache and {result['cached_seconds']} s with it; "
        f"peak memory of the kernel engine with 100 runs {result['peak_memory_mb']} MB"
    )
    return "\n".join(lines)
