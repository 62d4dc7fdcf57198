"""How long a run takes and how much memory it needs, roughly. Used to size blocks and to answer `--dry-run`."""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

from cbp_ray.experiments.config import OnlineConfig
from cbp_ray.kernels import WIDTH
from cbp_ray.problems.permuted_mnist import IMAGES

LANE_SECONDS = {"sgd": 20e-9, "adam": 60e-9}
"""Seconds per example and run, for 5 units of 20 inputs on one core with AVX-512; a machine without is a few times slower."""
LANE_WEIGHTS = 5 * 20
NOISE_COSTS = {"perturb": 0.8, "perturb_gradient": 0.8, "perturb_initial": 1.4, "upgd": 3.6, "upgd_unprotected": 3.6}
"""What noise for every weight costs in the kernels, as a part of Backprop's time with SGD; see `cbp-ray bench rivals`."""

TORCH_SECONDS = 400e-6
"""Seconds per example and run of a small network: the price of a few dozen torch calls."""
TORCH_WEIGHT_SECONDS = 8 * 1.2e-10
"""Seconds per example, run and weight of a large network in torch, for all passes over the weights."""

SAMPLING_SECONDS, LEARNING_SECONDS = 1 / 2300, 1 / 5200
"""Seconds per time-step of Slippery Ant with the paper's networks: physics and policy, and ten epochs of updates."""

RLLIB_START_SECONDS = 12.0
"""Seconds until the first time-step of a run of Slippery Ant: a worker with RLlib, physics, networks."""

MLP_SECONDS = 1.7e-6
"""Seconds per example of the MLP kernel, however small the network. All of its algorithms take about as long."""
CACHED_WEIGHTS = 300_000
"""Number of weights that stay near the core."""
CACHED_WEIGHT_SECONDS, FAR_WEIGHT_SECONDS = 6e-11, 1.8e-10
"""Seconds per example and weight: of those, and of the rest, which come from memory. SGD skips about half of them."""
ADAM_WEIGHT_SECONDS = 7e-10
"""Seconds per example and weight with Adam, which skips none."""
TASK_SECONDS = 6e-3
"""Seconds for the permutation of a task and the order of its images, every time that all have been shown."""
LAYER_SECONDS = 5.3e-9
"""Seconds for the diagnostics of a hidden layer at a bin's end, times its width to the power of 2.5."""

DIAGNOSTICS_SECONDS = 6e-3
"""Seconds for the metrics on request at a bin's end, of a small network; they also make an example a third longer."""

STATE_ARRAYS = 4
"""Copies of the weights that a learner keeps: themselves, gradients or Adam's moments, and working memory."""
PROCESS_BYTES = 250e6
"""Memory of a worker with Python, Ray, Numba and NumPy."""
MNIST_BYTES = 150e6
"""Memory of MNIST as images and as lists of pixels."""
RLLIB_BYTES = 700e6
"""Memory of one run of RLlib."""
ENV_RUNNER_BYTES = 500e6
"""Memory of a process that only samples."""


def _lane_seconds(config: OnlineConfig) -> float:
    seconds = LANE_SECONDS[config.optimizer.name] + _noise(config) * LANE_SECONDS["sgd"]
    return config.examples * seconds * max(0.3, weights(config) / LANE_WEIGHTS)


def _noise(config: OnlineConfig) -> float:
    return NOISE_COSTS.get((config.algorithm.kernel() or {}).get("rule", ""), 0.0)


def _mlp_seconds(config: OnlineConfig) -> float:
    size = weights(config)
    far = max(0, size - CACHED_WEIGHTS)
    sgd = (size - far) * CACHED_WEIGHT_SECONDS + far * FAR_WEIGHT_SECONDS
    per_weight = {"sgd": sgd, "adam": size * ADAM_WEIGHT_SECONDS}[config.optimizer.name]
    return config.examples * (MLP_SECONDS + per_weight + _noise(config) * sgd) + _mnist_seconds(config)


def _torch_seconds(config: OnlineConfig) -> float:
    return config.examples * (TORCH_SECONDS + weights(config) * TORCH_WEIGHT_SECONDS)


def _ant_seconds(config: OnlineConfig) -> float:
    # Sampling and learning take turns.
    sampling = SAMPLING_SECONDS / max(1, config.problem.helpers)
    return RLLIB_START_SECONDS + config.examples * (sampling + LEARNING_SECONDS)


def _mnist_seconds(config: OnlineConfig) -> float:
    """Seconds that are not spent learning: making tasks, and looking into the network at the end of every bin."""
    tasks = config.examples / min(config.problem.examples_per_task or IMAGES, IMAGES)
    return tasks * TASK_SECONDS + config.bins * LAYER_SECONDS * sum(math.pow(width, 2.5) for width in config.network.hidden)


class Cost(NamedTuple):
    """What an engine needs for a problem."""

    seconds: Callable[[OnlineConfig], float]
    """Time of one run on one core."""
    lanes: int = 1
    """Runs that the engine always advances together: a single run costs as much as these."""
    together: int = 1
    """Runs that a trial should have at least, where there are that many."""
    data_bytes: float = 0.0
    """Memory that all runs of a worker share."""
    run_bytes: float = 0.0
    """Memory of one run beside its weights and curves."""


COSTS = {
    ("kernel", "bit_flipping"): Cost(_lane_seconds, lanes=WIDTH, together=WIDTH),
    ("kernel", "permuted_mnist"): Cost(_mlp_seconds, data_bytes=MNIST_BYTES),
    ("torch", "bit_flipping"): Cost(_torch_seconds),
    # A trial stacks them: on a GPU they cost little more than one.
    ("torch", "permuted_mnist"): Cost(lambda c: _torch_seconds(c) + _mnist_seconds(c), together=8, data_bytes=MNIST_BYTES),
    ("rllib", "slippery_ant"): Cost(_ant_seconds, run_bytes=RLLIB_BYTES),
}
"""For every engine and problem of `experiments.engines.ENGINES`."""


def weights(config: OnlineConfig) -> int:
    """Number of weights of the learner, without biases."""
    return sum(a * b for a, b in pairwise(config.sizes))


def together(config: OnlineConfig, engine: str) -> int:
    """Runs that a trial should have at least, where there are that many."""
    return COSTS[engine, config.problem.name].together


def seconds(config: OnlineConfig, engine: str, runs: int) -> float:
    """Estimated time of a number of runs on one core."""
    cost = COSTS[engine, config.problem.name]
    asked = runs * config.bins * DIAGNOSTICS_SECONDS if config.diagnostics else 0.0
    return math.ceil(runs / cost.lanes) * cost.lanes * cost.seconds(config) * (1.3 if config.diagnostics else 1.0) + asked


def memory_bytes(config: OnlineConfig, engine: str, runs: int) -> float:
    """Estimated memory of a worker that advances a number of runs together."""
    cost = COSTS[engine, config.problem.name]
    curves, learner = config.bins * 10 * 8, weights(config) * 8 * STATE_ARRAYS
    whole = math.ceil(runs / cost.lanes) * cost.lanes
    helpers = config.problem.helpers * ENV_RUNNER_BYTES
    return PROCESS_BYTES + cost.data_bytes + whole * (curves + learner + cost.run_bytes + helpers)
