"""How long a run takes and how much memory it needs, roughly. Used to size blocks and to answer `--dry-run`."""

import math
from itertools import pairwise

from cbp_ray.experiments.config import OnlineConfig
from cbp_ray.problems import PermutedMnistConfig

LANES = 32
"""Runs that the lane kernel advances together; the engine fills up the last block, so a single run costs as much as these."""

LANE_SECONDS = {"sgd": 20e-9, "adam": 60e-9}
"""Per example and run, for 5 units of 20 inputs on one core of an AVX-512 machine; a machine without is a few times slower."""
LANE_WEIGHTS = 5 * 20

STACKED = 8
"""Runs of Permuted MNIST that a trial of the torch engine stacks: on a GPU they cost little more than one."""

TORCH_SECONDS = 400e-6
"""Per example and run of a small network: the price of a few dozen torch calls."""

RLLIB_SECONDS = 1 / 700
"""Per time-step of Slippery Ant: physics, policy and ten epochs of updates with the paper's networks."""
RLLIB_BYTES = 700e6
"""Of a worker with torch, RLlib and a run of it."""

WEIGHT_SECONDS = 1.2e-10
"""Per example, run and weight of a large network in torch, for each of a few passes over the weights."""

MLP_SECONDS = 1.7e-6
"""Per example of the MLP kernel, however small the network. All of its algorithms take about as long."""
CACHED_WEIGHTS = 300_000
"""So many weights stay near the core."""
CACHED_WEIGHT_SECONDS, FAR_WEIGHT_SECONDS = 6e-11, 1.8e-10
"""Per example and weight: of those, and of the rest, which come from memory. SGD skips about half of the weights."""
ADAM_WEIGHT_SECONDS = 7e-10
"""Per example and weight with Adam, which skips none."""
TASK_SECONDS = 6e-3
"""For the permutation of a task and the order of its images, every time that all have been shown."""
LAYER_SECONDS = 5.3e-9
"""For the diagnostics of a hidden layer of Permuted MNIST at a bin's end, times its width to the power of 2.5."""
IMAGES = 60_000
DATA_BYTES = 150e6
"""Of MNIST in memory, as images and as lists of pixels."""

STATE_ARRAYS = 4
"""Copies of the weights that a learner keeps: themselves, gradients or Adam's moments, and working memory."""
PROCESS_BYTES = 250e6
"""Of a worker with Python, Ray, Numba and NumPy."""


def weights(config: OnlineConfig) -> int:
    """Number of weights of the learner, without biases."""
    return sum(a * b for a, b in pairwise(config.sizes))


def lanes(config: OnlineConfig, engine: str) -> int:
    """Runs that cost as much together as one alone."""
    return LANES if engine == "kernel" and config.problem.name == "bit_flipping" else 1


def together(config: OnlineConfig, engine: str) -> int:
    """Runs that a trial should have at least, where there are so many."""
    return STACKED if engine == "torch" and config.problem.name == "permuted_mnist" else lanes(config, engine)


def seconds(config: OnlineConfig, engine: str, runs: int) -> float:
    """Estimated time of so many runs on one core."""
    if engine == "rllib":
        return runs * config.examples * RLLIB_SECONDS
    size = weights(config)
    if lanes(config, engine) > 1:
        whole = math.ceil(runs / LANES) * LANES
        per_example = LANE_SECONDS[config.optimizer.name] * max(0.3, size / LANE_WEIGHTS)
        return whole * config.examples * per_example
    if engine == "kernel":
        per_example = MLP_SECONDS + _weight_seconds(size, config.optimizer.name)
    else:
        per_example = TORCH_SECONDS + 8 * size * WEIGHT_SECONDS
    return runs * (config.examples * per_example + _around_the_learner(config))


def _weight_seconds(size: int, optimizer: str) -> float:
    if optimizer == "adam":
        return size * ADAM_WEIGHT_SECONDS
    far = max(0, size - CACHED_WEIGHTS)
    return (size - far) * CACHED_WEIGHT_SECONDS + far * FAR_WEIGHT_SECONDS


def _around_the_learner(config: OnlineConfig) -> float:
    """Seconds of one run that are not spent learning: making tasks, and looking into the network at the end of every bin."""
    if not isinstance(config.problem, PermutedMnistConfig):
        return 0.0
    tasks = config.examples / min(config.problem.task_length, IMAGES)
    return tasks * TASK_SECONDS + config.bins * LAYER_SECONDS * sum(math.pow(width, 2.5) for width in config.network.hidden)


def memory_bytes(config: OnlineConfig, engine: str, runs: int) -> float:
    """Estimated memory of a worker that advances so many runs together."""
    if engine == "rllib":
        return PROCESS_BYTES + runs * RLLIB_BYTES
    whole = math.ceil(runs / lanes(config, engine)) * lanes(config, engine)
    curves = whole * config.bins * 10 * 8
    data = DATA_BYTES if isinstance(config.problem, PermutedMnistConfig) else 0.0
    return PROCESS_BYTES + data + whole * weights(config) * 8 * STATE_ARRAYS + curves
