"""How long a run takes and how much memory it needs, roughly. Used to size blocks and to answer `--dry-run`."""

import math

from cbp_ray.experiments.config import OnlineConfig

LANES = 32
"""Runs that the lane kernel advances together; the engine fills up the last block, so a single run costs as much as these."""

LANE_SECONDS = {"sgd": 20e-9, "adam": 60e-9}
"""Per example and run, for 5 units of 20 inputs on one core of an AVX-512 machine; a machine without is a few times slower."""
LANE_WEIGHTS = 5 * 20

STACKED = 8
"""Runs of Permuted MNIST that a trial of the torch engine stacks: on a GPU they cost little more than one."""

TORCH_SECONDS = 400e-6
"""Per example and run of a small network: the price of a few dozen torch calls."""

MLP_SECONDS = {"sgd": (5e-11, 2e-10), "adam": (2.5e-10, 6e-10)}
"""Per example, run and weight of the sparse MLP kernel, within and beyond the second-level cache; SGD skips most of them."""
CACHED_WEIGHTS = 500_000
MLP_STEP_SECONDS = 1e-6
"""Per example and run, whatever the size."""
RANK_SECONDS = 5e-10
"""Per bin, hidden layer and cube of its width: eigenvalues of the representation."""

WEIGHT_SECONDS = 1.2e-10
"""Per example, run and weight of a large network in torch, for each of a few passes over the weights."""

STATE_ARRAYS = 4
"""Copies of the weights that a learner keeps: themselves, gradients or Adam's moments, and working memory."""
PROCESS_BYTES = 250e6
"""Of a worker with Python, Ray, Numba and NumPy."""


def weights(config: OnlineConfig) -> int:
    """Number of weights of the learner, without biases."""
    sizes = [config.problem.inputs, *config.network.hidden]
    if config.algorithm.name == "linear":
        sizes = sizes[:1]
    return sum(a * b for a, b in zip(sizes, [*sizes[1:], config.problem.outputs], strict=True))


def lanes(config: OnlineConfig, engine: str) -> int:
    """Runs that cost as much together as one alone."""
    return LANES if engine == "kernel" and config.problem.name == "bit_flipping" else 1


def together(config: OnlineConfig, engine: str) -> int:
    """Runs that a trial should have at least, where there are so many."""
    return STACKED if engine == "torch" and config.problem.name == "permuted_mnist" else lanes(config, engine)


def seconds(config: OnlineConfig, engine: str, runs: int) -> float:
    """Estimated time of so many runs on one core."""
    size = weights(config)
    if lanes(config, engine) > 1:
        whole = math.ceil(runs / LANES) * LANES
        per_example = LANE_SECONDS[config.optimizer.name] * max(0.3, size / LANE_WEIGHTS)
        return whole * config.examples * per_example
    if engine == "kernel":
        per_example = MLP_STEP_SECONDS + size * MLP_SECONDS[config.optimizer.name][size > CACHED_WEIGHTS]
    else:
        per_example = TORCH_SECONDS + 8 * size * WEIGHT_SECONDS
    ranks = config.bins * RANK_SECONDS * sum(n**3 for n in config.network.hidden) if config.problem.outputs > 1 else 0.0
    return runs * (config.examples * per_example + ranks)


def memory_bytes(config: OnlineConfig, engine: str, runs: int) -> float:
    """Estimated memory of a worker that advances so many runs together."""
    whole = math.ceil(runs / lanes(config, engine)) * lanes(config, engine)
    curves = whole * config.bins * 10 * 8
    return PROCESS_BYTES + whole * weights(config) * 8 * STATE_ARRAYS + curves
