"""Replacing units of an MLP, as `cbp_ray.algorithm` does it for any network: when, which, and by what.

New units are drawn by the algorithm itself, some in advance: each is a function of its number.
"""

import math
from enum import IntEnum
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cbp_ray.algorithm.replacement import new_units
from cbp_ray.algorithm.watched_layer import Population
from cbp_ray.compiled.mlp import Matrix, part
from cbp_ray.compiled.statistics import magnitudes
from cbp_ray.compiled.units import Units, Watching, follow_utility
from cbp_ray.initial_weights import Distribution
from cbp_ray.kernels.choices import Utility
from cbp_ray.kernels.random_draws import BERNOULLI, RANDOM_UTILITY, uniform
from cbp_ray.kernels.rules import smallest_finite

READY = 32
"""New units that are drawn at a time, beyond those that the next step needs."""


class Count(IntEnum):
    """What is counted of a layer's units, in the order of `Units.counts`; see `Population`."""

    EXPOSURE = 0
    REPLACED = 1
    NONFINITE = 2
    OLDEST_BIRTH = 3
    FIRST_READY = 4
    """The number, among the layer's new units, of the first that is ready."""
    LAYER = 5
    """The layer's number among those of generate-and-test."""


def most_due(rate: float, bernoulli: bool, count: int, exposure: int, replaced: int) -> int:
    """The most of a layer's `count` units that the next step may replace."""
    most = math.floor(rate * count) + 1 if bernoulli else math.floor(rate * (exposure + count)) - replaced
    return int(min(max(most, 0), count))


compiled_most_due = part(most_due)


@part
def has_enough(units: Any, watching: Watching) -> bool:
    """Whether new units are ready for whatever the next step replaces."""
    for own in units:
        exposure, replaced = own.counts[Count.EXPOSURE], own.counts[Count.REPLACED]
        left = own.counts[Count.FIRST_READY] + own.ready.shape[0] - replaced
        if left < compiled_most_due(watching.replacement_rate, watching.bernoulli, len(own.birth), exposure, replaced):
            return False
    return True


@part
def count_due(own: Units, steps: int, watching: Watching) -> int:
    """How many units of a layer are to be replaced in this step, as far as enough are eligible."""
    mature_before = steps - watching.maturity_threshold
    exposed = 0
    if own.counts[Count.OLDEST_BIRTH] < mature_before:
        exposed = len(own.birth)
        if watching.rate_of_eligible:
            exposed = 0
            for birth in own.birth:
                exposed += birth < mature_before
    if watching.bernoulli:
        expected = watching.replacement_rate * exposed
        whole = math.floor(expected)
        draw = uniform(watching.seed, BERNOULLI, np.uint64(steps - 1), np.uint64(own.counts[Count.LAYER]), 0)
        return int(whole) + int(draw < expected - whole)
    own.counts[Count.EXPOSURE] += exposed
    if exposed == 0:
        return 0
    return int(math.floor(watching.replacement_rate * own.counts[Count.EXPOSURE]) - own.counts[Count.REPLACED])


@part
def estimate(own: Units, watching: Watching) -> None:
    """Writes û of a layer's units (equation 7)."""
    for i in range(len(own.birth)):
        if watching.utility == Utility.RANDOM:
            number, layer = np.uint64(own.counts[Count.REPLACED]), np.uint64(own.counts[Count.LAYER])
            own.u_hat[i] = uniform(watching.seed, RANDOM_UTILITY, number, layer, i)
        else:
            u = own.utility_tm1[i] if watching.lagged else own.average_utility[i]
            own.u_hat[i] = u / own.correction[i]


@part
def replace_unit(
    layer: int, i: int, step: int, steps: int, params: Any, resets: Any, starts: Any, own: Units, watching: Watching
) -> None:
    """The generator: the one place of compiled updates, besides Adam's step, where weights and optimizer state change."""
    into, bias, out = params[2 * layer], params[2 * layer + 1], params[2 * layer + 2]
    new = own.ready[own.counts[Count.REPLACED] - own.counts[Count.FIRST_READY]]
    fan_in = into[0].shape[1]
    f_hat = own.average_activation[i] / own.correction[i]
    for k in range(out[0].shape[0]):
        if watching.transfers_bias:
            params[2 * layer + 3][0][0, k] += out[0][k, i] * f_hat
        out[0][k, i], out[1][k, i], out[2][k, i] = 0, 0, 0
    for j in range(fan_in):
        into[0][i, j], into[1][i, j], into[2][i, j] = new[j], 0, 0
    bias[0][0, i], bias[1][0, i], bias[2][0, i] = new[fan_in], 0, 0
    # Rows of the weights into the unit, columns of the bias, which is one long row, and of the weights out of it.
    for vector in (4 * layer, 4 * layer + 3, 4 * layer + 5):
        resets[starts[vector] + i] = step
    own.average_activation[i], own.average_utility[i], own.correction[i] = 0, 0, 0
    own.birth[i] = steps
    own.counts[Count.REPLACED] += 1


@part
def replace_smallest(
    layer: int, due: int, step: int, steps: int, params: Any, resets: Any, starts: Any, own: Units, watching: Watching
) -> bool:
    """Replaces the `due` eligible units with the smallest finite û, of equals the first. Returns whether there was one."""
    mature_before, before = steps - watching.maturity_threshold, own.counts[Count.REPLACED]
    for i in range(len(own.birth)):
        if own.birth[i] >= mature_before:
            own.u_hat[i] = np.inf
        elif not np.isfinite(own.u_hat[i]):
            own.counts[Count.NONFINITE] += 1
    for _ in range(due):
        best = smallest_finite(own.u_hat, 0, len(own.birth))
        if best < 0:
            break
        replace_unit(layer, best, step, steps, params, resets, starts, own, watching)
        own.u_hat[best] = np.inf
    oldest = own.birth[0]
    for birth in own.birth:
        oldest = min(oldest, birth)
    own.counts[Count.OLDEST_BIRTH] = oldest
    return bool(own.counts[Count.REPLACED] > before)


@part
def replace_due(
    step: int, steps: int, params: Any, resets: Any, starts: Any, units: Any, watching: Watching, report: bool
) -> None:
    """Ends a step of generate-and-test: replaces what is due, layer by layer, each finished before the next.

    Args:
      step: number of the optimizer's steps so far.
      steps: number of steps of generate-and-test so far, with this one.
      params: of the network; see `cbp_ray.compiled.ppo.Network`.
      resets: as there.
      starts: where the resets of each parameter's rows, then of its columns, begin.
      units: `Units` of each hidden layer.
      watching: settings.
      report: whether û and births are kept as they were before this step's replacements.
    """
    for layer in range(len(units)):
        own = units[layer]
        due = count_due(own, steps, watching)
        if due > 0 or report:
            estimate(own, watching)
        if report:
            for i in range(len(own.birth)):
                own.seen_utility[i], own.seen_birth[i] = own.u_hat[i], own.birth[i]
        if due <= 0 or not replace_smallest(layer, due, step, steps, params, resets, starts, own, watching):
            continue
        if watching.magnitude_in and layer + 1 < len(units):
            # The next layer must see that some of its input weights are zero now.
            later, weights = units[layer + 1], params[2 * layer + 2][0]
            magnitudes(weights, later.incoming, later.incoming[:0])
            if watching.mean_magnitudes:
                for i in range(len(later.incoming)):
                    later.incoming[i] /= np.float32(weights.shape[1])
            follow_utility(later, watching)


def _rows(weights: Tensor, biases: Tensor) -> Matrix:
    rows: Matrix = torch.cat([weights, biases[:, None]], 1).float().numpy()
    return rows


class ReadyUnits:
    """New units of one layer, drawn before they are needed."""

    def __init__(self, units: Population) -> None:
        self._units = units
        self._first = 0
        self._distribution: Distribution | None = None
        self._rows: Matrix = np.zeros((0, 0), np.float32)

    def rows(self, rate: float, bernoulli: bool) -> tuple[int, Matrix]:
        """Enough new units for the next step, input weights and then the bias, and the number of the first of them."""
        units, number = self._units, self._units.replaced
        most = most_due(rate, bernoulli, units.count, units.exposure, number)
        distribution = units.layer.distributions[0]
        if distribution != self._distribution or not self._first <= number <= self._first + len(self._rows) - most:
            (part,) = units.layer.units.producers
            numbers = range(number, number + most + READY)
            weights, biases = new_units(distribution, part.share, units.seed, units.layer.number, numbers)
            self._distribution, self._first, self._rows = distribution, number, _rows(weights, biases)
        return self._first, self._rows


def counts(units: Population, first_ready: int) -> NDArray[np.int64]:
    """The counts of a layer's units, in the order of `Count`."""
    return np.array(
        [units.exposure, units.replaced, units.nonfinite, units.oldest_birth, first_ready, units.layer.number], np.int64
    )


def take_counts(units: Population, found: NDArray[np.int64]) -> None:
    """Writes back what compiled code has counted."""
    units.exposure, units.replaced, units.nonfinite, units.oldest_birth = found[: Count.FIRST_READY].tolist()
