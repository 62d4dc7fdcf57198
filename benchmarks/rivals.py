"""What every method costs in the kernels: time per example against Backprop, on one core.

Bit-Flipping with 32 runs in a block, and Permuted MNIST with three layers of 100; float32, SGD and Adam. Processor time, and
the fastest of several repeats, because other jobs may run beside this one; the methods alternate, so that they meet the same
conditions.
"""

import time
from typing import Any

from cbp_ray_benchmarks.cores import one_core

from cbp_ray.experiments.config import OnlineConfig
from cbp_ray.experiments.engines import make_engine

METHODS: dict[str, dict[str, Any]] = {
    "bp": {"name": "bp"},
    "layer norm": {"name": "bp"},
    "l2": {"name": "l2", "weight_decay": 1e-4},
    "cbp": {"name": "cbp", "replacement_rate": 1e-4},
    "l2_init": {"name": "l2_init", "strength": 1e-3},
    "shrink_perturb": {"name": "shrink_perturb", "noise": 1e-4, "weight_decay": 1e-4},
    "clipping": {"name": "clipping", "factor": 2},
    "swr": {"name": "swr", "rate": 0.01, "every": 1000},
    "redo": {"name": "redo", "threshold": 0.1, "every": 1000},
    "snr_geometric": {"name": "snr_geometric", "rejection": 0.01},
    "upgd": {"name": "upgd", "noise": 0.01, "weight_decay": 1e-3},
    "upgd, unprotected": {"name": "upgd", "noise": 0.01, "protects": False},
}
STREAMS = {"bit_flipping": (32, 2_000), "permuted_mnist": (1, 1_000)}
"""Runs, and examples per repeat."""
STEPS = {"sgd": 0.003, "adam": 1e-4}
REPEATS, WARM_UP = 15, 2_000


def run() -> dict[str, Any]:
    """All methods on both streams with both optimizers."""
    with one_core():
        return {f"{stream}, {optimizer}": _measure(stream, optimizer) for stream in STREAMS for optimizer in STEPS}


def _measure(stream: str, optimizer: str) -> dict[str, float]:
    runs, examples = STREAMS[stream]
    engines = {}
    for name, method in METHODS.items():
        # Self-normalised resets are for units that fall silent.
        network: dict[str, Any] = {"activation": "relu", "layer_norm": name == "layer norm"}
        if stream == "permuted_mnist":
            network["hidden"] = [100] * 3
        config = {
            "problem": {"name": stream},
            "network": network,
            "algorithm": method,
            "optimizer": {"name": optimizer, "step_size": STEPS[optimizer]},
        }
        engines[name] = make_engine(OnlineConfig.make(config), "kernel", range(runs))
        engines[name].advance(WARM_UP)
    if stream == "permuted_mnist":
        problem = engines["bp"].runs[0].problem  # type: ignore[attr-defined]
        order, where = problem.order(0, WARM_UP, examples), problem.permutation(0)
    least = dict.fromkeys(engines, float("inf"))
    for _ in range(REPEATS):
        for name, engine in engines.items():
            start = time.thread_time()
            if stream == "permuted_mnist":
                # Without the task's order and permutation, and what a bin measures, whose price is of other kinds.
                engine.runs[0].show(order[:examples], where)  # type: ignore[attr-defined]
            else:
                engine.advance(examples)
            least[name] = min(least[name], time.thread_time() - start)
    nanoseconds = {"bp_ns": round(least["bp"] / examples / runs * 1e9, 1)}
    return nanoseconds | {name: round(seconds / least["bp"], 2) for name, seconds in least.items() if name != "bp"}


def render(result: dict[str, Any]) -> str:
    """A table for people."""
    cases = list(result)
    lines = [f"{'time per example against Backprop':<34}" + "".join(f"{case:>24}" for case in cases)]
    lines.append(f"{'Backprop itself':<34}" + "".join(f"{result[case]['bp_ns']:>21,.0f} ns" for case in cases))
    rows = [name for name in METHODS if name != "bp"]
    lines += [f"{name:<34}" + "".join(f"{result[case][name]:>24.2f}" for case in cases) for name in rows]
    return "\n".join(lines)
