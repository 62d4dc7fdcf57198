"""Averages and utilities of generate-and-test for the units of an MLP, as `cbp_ray.algorithm.generate_and_test` has them.

One step in two halves: what is seen of the units' outputs, right after the forward pass, and the utilities, after the weights
have changed. Then units are replaced; see `cbp_ray.compiled.replacement`.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cbp_ray.compiled.mlp import Matrix, part
from cbp_ray.compiled.statistics import averages, magnitudes
from cbp_ray.kernels.choices import Utility

Vector = NDArray[np.float32]


class Units(NamedTuple):
    """The state of one hidden layer's units: parts of the vectors of a `GenerateAndTest`."""

    average_activation: Vector
    """Running average f of the output h, equation 2."""
    average_utility: Vector
    """Running average u of the utility, equation 6."""
    utility_tm1: Vector
    """u before the present step."""
    correction: Vector
    """Correction 1 - ηᵃ of both averages at age a."""
    f_hat: Vector
    """Average output f̂, corrected for the age, equation 3."""
    mean: Vector
    """Average of h over the mini-batch."""
    activity: Vector
    """Average of |h| or |h - f̂| over the mini-batch."""
    incoming: Vector
    """Σ|w| into the unit, or its mean."""
    outgoing: Vector
    """Σ|w| out of the unit, or its mean."""
    birth: NDArray[np.int64]
    """Step in which the unit was made."""
    counts: NDArray[np.int64]
    """What is counted of all units of the layer; see `cbp_ray.compiled.replacement.Count`."""
    ready: Matrix
    """New units: input weights, then the bias."""
    u_hat: NDArray[np.float64]
    """Utility û, equation 7, in steps that replace units of this layer."""
    seen_utility: NDArray[np.float64]
    """û in the last step, before its replacements."""
    seen_birth: NDArray[np.int64]
    """The births before the last step's replacements."""


class Watching(NamedTuple):
    """What generate-and-test measures."""

    active: bool
    """Whether there is generate-and-test at all."""
    utility: int
    """Code of the `Utility`."""
    rest: np.float32
    """Weight 1 - η of a new value in a running average."""
    lagged: bool
    """f̂ comes from the average before this step instead of after it."""
    mean_magnitudes: bool
    """Utilities use means of weight magnitudes instead of sums."""
    averages: bool
    """Whether averages of the outputs are needed."""
    running: bool
    """Whether the running average of the outputs, f, is needed."""
    deviation: bool
    """Whether |h - f̂| is needed instead of |h|."""
    magnitude_in: bool
    magnitude_out: bool
    replacement_rate: float
    maturity_threshold: int
    bernoulli: bool
    """Whether the fraction of the units due in a step is rounded at random, and not carried to the next."""
    rate_of_eligible: bool
    """Whether the rate applies to eligible units instead of all."""
    transfers_bias: bool
    """Whether a removed unit's mean contribution is moved into the biases that it fed."""
    seed: np.uint64
    steps: int
    """Steps of generate-and-test before the iteration."""


@part
def running_average(average: Vector, value: Vector, rest: np.float32) -> None:
    """η average + (1 - η) value, in place: equations 2 and 6 of the paper; `rest` is 1 - η."""
    for i in range(len(average)):
        average[i] += rest * (value[i] - average[i])


@part
def observe(h: Matrix, units: Units, watching: Watching) -> None:
    """Brings 1 - ηᵃ and f up to this step, and averages h [examples, units] and |h - f̂|."""
    rest = watching.rest
    for i in range(h.shape[1]):
        units.correction[i] += rest * (np.float32(1) - units.correction[i])
        units.f_hat[i] = 0
    if not watching.averages:
        return
    if watching.deviation:
        if not watching.lagged:
            averages(h, units.f_hat, units.mean, units.activity)
        for i in range(h.shape[1]):
            f = units.average_activation[i]
            if not watching.lagged:
                f += rest * (units.mean[i] - f)
            units.f_hat[i] = f / units.correction[i]  # equation 3
    averages(h, units.f_hat, units.mean, units.activity)
    if watching.running:
        running_average(units.average_activation, units.mean, rest)


@part
def measure_magnitudes(params: Any, units: Any, watching: Watching) -> None:
    """Reads all weights, and writes Σ|w| (or its mean) into and out of every unit."""
    for layer in range(len(units) + 1):
        weights = params[2 * layer][0]
        rows, columns = units[0].incoming[:0], units[0].outgoing[:0]
        if watching.magnitude_in and layer < len(units):
            rows = units[layer].incoming
        if watching.magnitude_out and layer > 0:
            columns = units[layer - 1].outgoing
        if len(rows) or len(columns):
            magnitudes(weights, rows, columns)
        if watching.mean_magnitudes:
            for i in range(len(rows)):
                rows[i] /= np.float32(weights.shape[1])
            for i in range(len(columns)):
                columns[i] /= np.float32(weights.shape[0])


@part
def follow_utility(own: Units, watching: Watching) -> None:
    """u of this step from u before it; see `cbp_ray.algorithm.utility`."""
    for i in range(len(own.average_utility)):
        if watching.utility == Utility.WEIGHT_MAGNITUDE:
            y = own.outgoing[i]
        elif watching.utility == Utility.ADAPTATION:
            y = np.float32(1) / own.incoming[i]
        elif watching.utility == Utility.OVERALL:  # equation 5
            y = own.activity[i] * own.outgoing[i] / own.incoming[i]
        else:  # equations 1 and 4
            y = own.activity[i] * own.outgoing[i]
        u = own.utility_tm1[i]
        own.average_utility[i] = u + watching.rest * (y - u)  # equation 6


@part
def follow_utilities(params: Any, units: Any, watching: Watching) -> None:
    """Brings the average utilities up to this step, with the weights as they are now."""
    if watching.utility == Utility.RANDOM:
        return
    measure_magnitudes(params, units, watching)
    for own in units:
        for i in range(len(own.average_utility)):
            own.utility_tm1[i] = own.average_utility[i]
        follow_utility(own, watching)
