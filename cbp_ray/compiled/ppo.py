"""PPO's updates of one network (Algorithm 3 of the paper), many mini-batches in a single call that holds no lock.

Policy and value network share no weight, and the loss is a sum of one term for each, so that each network learns by itself.
"""

import math
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cbp_ray.compiled.adam import adam_step, corrections
from cbp_ray.compiled.mlp import Matrix, Workspace, backward, compiled, forward_level, part
from cbp_ray.compiled.replacement import has_enough, replace_due
from cbp_ray.compiled.units import Watching, follow_utilities, observe

Vector = NDArray[np.float32]
HALF_LOG_2_PI = math.log(2 * math.pi) / 2


class Rows(NamedTuple):
    """The data of an iteration, one row per time-step, and the order in which mini-batches take them."""

    observations: Matrix
    actions: Matrix
    action_logp: Vector
    """log π(a|s) of the policy that acted."""
    advantages: Vector
    value_targets: Vector
    order: NDArray[np.int64]
    """Rows of the first mini-batch, then those of the second, and so on."""


class Network(NamedTuple):
    """A network, its optimizer's state and its memory."""

    params: Any
    """Per parameter: itself, both moments, and four vectors of corrections, as `adam_step` takes them. After the parameters
    of the layers comes log σ of a policy, or nothing of a value network."""
    resets: NDArray[np.int64]
    """Time steps at which rows and columns of the parameters were made anew, end to end."""
    starts: NDArray[np.int64]
    """Where in `resets` the rows of each parameter begin, and its columns."""
    first: Vector
    """The corrections 1 / (1 - β₁ᵗ) of all params, end to end."""
    second: Vector
    """The corrections 1 / √(1 - β₂ᵗ) of all params, end to end."""
    units: Any
    """`Units` of each hidden layer."""
    space: Workspace
    nonfinite: NDArray[np.int64]
    """Counts, for each parameter, the mini-batches whose gradient was not finite."""
    per_example: Vector
    """Of the last mini-batch: what the policy is to maximize, or the values."""
    entropy: NDArray[np.float64]
    """Of the policy in the last mini-batch."""


class Loss(NamedTuple):
    """Settings of loss and optimizer."""

    is_policy: bool
    activation: int
    """Code of `cbp_ray.kernels.activations.Activation`."""
    clip: float
    """Limit ε of the policy's clipped ratio 1 ± ε."""
    entropy_coefficient: float
    log_std_limit: float
    value_clip: float
    """Squared errors of values beyond this have no gradient; may be infinite."""
    value_coefficient: float
    lr: np.float32
    rest1: np.float32
    """1 - β₁."""
    beta2: np.float32
    rest2: np.float32
    """1 - β₂."""
    eps: np.float32
    weight_decay: np.float32
    clean: bool
    """Whether gradients that are not finite are made so, as `torch.nan_to_num` does."""


@compiled
def discounted_sums(terms: NDArray[np.float64], decay: NDArray[np.float64]) -> None:
    """Turns xₜ into xₜ + dₜ (xₜ₊₁ + dₜ₊₁ (xₜ₊₂ + …)), in place; the decay of the last must be 0."""
    following = 0.0
    for t in range(len(terms) - 1, -1, -1):
        terms[t] += decay[t] * following
        following = terms[t]


# The arrays that a function needs, and not the tuples that they are parts of: LLVM takes seconds for each function that is
# handed hundreds of them.
@part
def policy_gradient(
    index: Any,
    actions: Matrix,
    action_logp: Vector,
    advantages: Vector,
    means: Matrix,
    log_std: Matrix,
    deltas: Matrix,
    by_log_std: Matrix,
    per_example: Vector,
    loss: Loss,
) -> float:
    """Writes the gradient of -min(A r, A clip(r)) - c H by means and log σ, for Gaussian actions; r = π(a|s) / π_old(a|s).

    Also writes min(A r, A clip(r)) into `per_example`, and returns the entropy H.
    """
    share = np.float32(1 / len(index))
    low, high = np.float32(1 - loss.clip), np.float32(1 + loss.clip)
    limit = np.float32(loss.log_std_limit)
    sigmas, constant = np.empty(means.shape[1], np.float32), np.float32(0)
    for j in range(means.shape[1]):
        log_sigma = min(max(log_std[0, j], -limit), limit)
        by_log_std[0, j], sigmas[j] = 0, math.exp(log_sigma)
        constant += log_sigma + np.float32(HALF_LOG_2_PI)
    for i in range(len(index)):
        row = index[i]
        logp = -constant
        for j in range(means.shape[1]):
            deviation = (actions[row, j] - means[i, j]) / sigmas[j]
            logp -= deviation * deviation / np.float32(2)
        ratio = np.float32(math.exp(logp - action_logp[row]))
        advantage = advantages[row]
        free, clipped = advantage * ratio, advantage * min(max(ratio, low), high)
        per_example[i] = clipped if clipped < free else free
        # Each of the two has the gradient where it is the smaller, half of it where they are equal, and the clipped one only
        # where it is not clipped; what is not a number stays so.
        part = np.float32(0.5) if free == clipped else np.float32(0) if free > clipped else np.float32(1)
        if low <= ratio <= high:
            part += np.float32(0.5) if free == clipped else np.float32(0) if clipped > free else np.float32(1)
        by_logp = -share * part * advantage * ratio
        for j in range(means.shape[1]):
            deviation = (actions[row, j] - means[i, j]) / sigmas[j]
            deltas[i, j] = by_logp * deviation / sigmas[j]
            # Two terms, as in autograd: where both are infinite, their difference is not a number.
            by_log_std[0, j] += by_logp * (deviation * deviation) - by_logp
    for j in range(means.shape[1]):
        by_log_std[0, j] -= np.float32(loss.entropy_coefficient)
        if log_std[0, j] < -limit or log_std[0, j] > limit:
            by_log_std[0, j] = 0
    entropy: float = constant + 0.5 * means.shape[1]
    return entropy


@part
def value_gradient(index: Any, targets: Vector, values: Matrix, deltas: Matrix, per_example: Vector, loss: Loss) -> None:
    """Writes the gradient of c (V(s) - target)² by the values, where the square is not clipped, and the values themselves."""
    scale = np.float32(2 * loss.value_coefficient / len(index))
    for i in range(len(index)):
        error = values[i, 0] - targets[index[i]]
        per_example[i] = values[i, 0]
        deltas[i, 0] = (np.float32(0) if error * error > loss.value_clip else scale) * error


# The sum may be taken in any order, or it can't be vectorised.
@partial(part, fastmath={"reassoc"})
def is_finite(gradient: Matrix) -> bool:
    """Whether all numbers are finite: then zero times their sum is zero."""
    total = np.float32(0)
    for i in range(gradient.shape[0]):
        for j in range(gradient.shape[1]):
            total += np.float32(0) * gradient[i, j]
    return bool(total == np.float32(0))


@part
def make_finite(gradient: Matrix) -> None:
    """What is not a number becomes zero, what is infinite the largest number."""
    most = np.float32(np.finfo(np.float32).max)
    for i in range(gradient.shape[0]):
        for j in range(gradient.shape[1]):
            g = gradient[i, j]
            gradient[i, j] = np.float32(0) if np.isnan(g) else min(max(g, -most), most)


@compiled
def learn(first: int, last: int, step: int, table: Matrix, rows: Rows, network: Network, watching: Watching, loss: Loss) -> int:
    """Learns from the mini-batches `first` to `last` - 1: forward, loss, backward, Adam, generate-and-test.

    `step` is the number of the optimizer's steps so far, and `table` has the corrections by age.

    Returns:
      The number of the mini-batch to go on with: `last`, or an earlier one if too few new units were ready.
    """
    levels, gradients, deltas = network.space.levels, network.space.gradients, network.space.deltas[-1]
    size = levels[0].shape[0]
    for number in range(first, last):
        if watching.active and not has_enough(network.units, watching):
            return number
        index = rows.order[number * size : (number + 1) * size]
        for i in range(size):
            for j in range(levels[0].shape[1]):
                levels[0][i, j] = rows.observations[index[i], j]
        for level in range(1, len(levels)):
            forward_level(level, network.params, network.space, loss.activation)
            if watching.active and level < len(levels) - 1:
                observe(levels[level], network.units[level - 1], watching)
        if loss.is_policy:
            of_rows = rows.actions, rows.action_logp, rows.advantages
            arrays = levels[-1], network.params[-1][0], deltas, gradients[-1], network.per_example
            network.entropy[0] = policy_gradient(index, *of_rows, *arrays, loss)
        else:
            value_gradient(index, rows.value_targets, levels[-1], deltas, network.per_example, loss)
        backward(network.params, network.space)
        step += 1
        corrections(step, network.resets, table, network.first, network.second)
        for k in range(len(network.params)):
            if not is_finite(gradients[k]):
                network.nonfinite[k] += 1
                if loss.clean:
                    make_finite(gradients[k])
            p, numbers = network.params[k], (loss.lr, loss.rest1, loss.beta2, loss.rest2, loss.eps, loss.weight_decay)
            adam_step(p[0], p[1], p[2], p[3], p[4], p[5], p[6], gradients[k], *numbers)
        if watching.active:
            follow_utilities(network.params, network.units, watching)
            steps, weights = watching.steps + number + 1, (network.params, network.resets, network.starts)
            replace_due(step, steps, *weights, network.units, watching, number == last - 1)
    return last
