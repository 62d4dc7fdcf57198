"""Generate-and-test on lanes: utilities in every step, and the rare replacement, lane by lane.

The averages follow Equations 2 to 7 of the paper. Whether some lane is due is one comparison per step; only then a scalar
path looks for its unit. `tests/naive.py` is the same once more, without lanes.
"""

from typing import Any

import numpy as np
from numba import njit

from cbp_ray import randomness
from cbp_ray.kernels import lanes
from cbp_ray.kernels.lanes import absolute, any_positive, floor, load, multiply_add, spread, store, where_greater, widen
from cbp_ray.kernels.learner_state import Total, Utility
from cbp_ray.randomness import UNIT_SCALE, Purpose

RANDOM, WEIGHT_MAGNITUDE, CONTRIBUTION, MEAN_CORRECTED, ADAPTATION = (int(u) for u in list(Utility)[:5])
REPLACED, NONFINITE = int(Total.REPLACED), int(Total.NONFINITE)
NEW_UNIT, RANDOM_UTILITY = np.uint64(Purpose.NEW_UNIT), np.uint64(Purpose.RANDOM_UTILITY)
BERNOULLI = np.uint64(Purpose.BERNOULLI)
ZERO, FOUR, MANTISSA_SHIFT = np.uint64(0), np.uint64(4), np.uint64(11)
WIDTH = lanes.WIDTH

philox_block = njit(randomness.philox_block)


@njit(forceinline=True)
def instantaneous(choices: Any, h: Any, f: Any, correction: Any, out: Any, magnitude: Any) -> Any:
    """What a step adds to the running average of a utility other than the random one; see `cbp_ray.algorithm.utility`."""
    if choices.utility == WEIGHT_MAGNITUDE:
        y = out
    elif choices.utility == CONTRIBUTION:
        y = absolute(h) * out  # Equation 1
    elif choices.utility == MEAN_CORRECTED:
        y = absolute(h - f / correction) * out  # Equation 4
    elif choices.utility == ADAPTATION:
        y = spread(1.0, h) / magnitude
    else:
        # Equation 5, its two divisions made one: f̂ = f / correction.
        y = absolute(h * correction - f) * out / (correction * magnitude)
    return y


@njit(forceinline=True)
def follow_utility(
    state: Any, scratch: Any, choices: Any, numbers: Any, i: int, inputs: int, h: Any, out: Any, magnitude: Any
) -> Any:
    """Ages unit i and updates its averages. `out` is |w_out| and `magnitude` Σ|w_in|, after the step. Returns the age."""
    eta = numbers.decay_rate
    age = load(state.age, i) + 1.0
    store(state.age, i, age)
    correction = multiply_add(eta, load(state.correction, i), 1 - eta)  # 1 - ηᵃ, without cancellation
    store(state.correction, i, correction)
    f_tm1, u_tm1 = load(state.activation, i), load(state.utility, i)
    f_t = multiply_add(eta, f_tm1, (1 - eta) * h)  # Equation 2
    store(state.activation, i, f_t)
    f = f_tm1 if choices.lagged else f_t
    if choices.mean_magnitudes:
        magnitude = magnitude * (1.0 / inputs)

    if choices.utility != RANDOM:
        y = instantaneous(choices, h, f, correction, out, magnitude)
        u_t = multiply_add(eta, u_tm1, (1 - eta) * y)  # Equation 6
        store(state.utility, i, u_t)
        store(scratch.utility_before, i, u_tm1)
    return age


@njit(forceinline=True)
def schedule(state: Any, scratch: Any, choices: Any, numbers: Any, draws: Any, t: int, exposed: Any) -> Any:
    """How many units of each lane are to be replaced, into `scratch.due`. Returns whether any."""
    rate = numbers.replacement_rate
    exposed = widen(exposed)
    store(state.steps, 0, load(state.steps, 0) + 1.0)
    replaced = load(state.replaced, 0)
    if choices.bernoulli:
        expected = rate * exposed
        whole = floor(expected)
        due = whole + where_greater(expected - whole, load(draws, t), 1.0, replaced * 0.0)
    else:
        exposure = load(state.exposure, 0) + exposed
        store(state.exposure, 0, exposure)
        due = floor(rate * exposure) - replaced
    store(scratch.due, 0, due)
    return any_positive(due)


@njit
def replace_where_due(state: Any, scratch: Any, choices: Any, numbers: Any, units: int, inputs: int) -> None:
    """In each lane that is due, replaces the eligible units with the smallest utilities. Ties go to the lowest index."""
    u_hat = np.empty(units)
    for lane in range(WIDTH):
        due = int(scratch.due[0, lane])
        if due <= 0:
            continue
        seed, number = state.seed[0, lane], np.uint64(state.replaced[0, lane])
        for i in range(units):
            if choices.utility == RANDOM:
                u_hat[i] = uniform(seed, RANDOM_UTILITY, number, ZERO, i)
            else:
                u = scratch.utility_before[i, lane] if choices.lagged else state.utility[i, lane]
                u_hat[i] = u / state.correction[i, lane]  # Equation 7
            if state.age[i, lane] > numbers.maturity_threshold and not np.isfinite(u_hat[i]):
                state.totals[NONFINITE, lane] += 1
        for _ in range(due):
            unit = smallest(u_hat, state.age, lane, numbers.maturity_threshold)
            if unit < 0:
                break
            replace_unit(state, choices, numbers, units, inputs, unit, lane)


@njit
def smallest(u_hat: Any, age: Any, lane: int, maturity_threshold: float) -> int:
    """The eligible unit with the smallest finite utility, or -1. A unit replaced in this step has age 0."""
    best = -1
    for i in range(len(u_hat)):
        if age[i, lane] > maturity_threshold and np.isfinite(u_hat[i]) and (best < 0 or u_hat[i] < u_hat[best]):
            best = i
    return best


@njit
def replace_unit(state: Any, choices: Any, numbers: Any, units: int, inputs: int, i: int, lane: int) -> None:
    """The generator: the one place, besides the gradient step, where weights and optimizer state change."""
    unit_rows = inputs + 4
    row, out = i * unit_rows, i * unit_rows + inputs + 1
    if choices.transfers_bias:
        f_hat = state.activation[i, lane] / state.correction[i, lane]
        state.parameters[units * unit_rows, lane] += state.parameters[out, lane] * f_hat
    number = np.uint64(state.replaced[0, lane])
    for j in range(inputs):
        draw = uniform(state.seed[0, lane], NEW_UNIT, number, ZERO, j)
        state.parameters[row + j, lane] = numbers.bound * (2.0 * draw - 1.0)
    state.parameters[row + inputs, lane] = 0.0
    state.parameters[out, lane] = 0.0
    if choices.adam:
        for k in range(row, row + unit_rows):
            state.first[k, lane] = 0.0
            state.second[k, lane] = 0.0
        state.correction_1[i, lane] = 0.0
        state.correction_2[i, lane] = 0.0
    state.utility[i, lane] = 0.0
    state.activation[i, lane] = 0.0
    state.correction[i, lane] = 0.0
    state.age[i, lane] = 0.0
    state.replaced[0, lane] += 1.0
    state.totals[REPLACED, lane] += 1.0


@njit
def uniform(seed: Any, purpose: Any, number: Any, layer: Any, word: int) -> float:
    """Number `word` of `randomness.uniforms(seed, purpose, …, address=(number, layer, 0))`."""
    block = philox_block(seed, purpose, np.uint64(word // 4), number, layer, ZERO)
    k = word % 4
    raw = block[0] if k == 0 else block[1] if k == 1 else block[2] if k == 2 else block[3]
    return np.float64(raw >> MANTISSA_SHIFT) * UNIT_SCALE
