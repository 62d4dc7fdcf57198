"""Generate-and-test on lanes: utilities in every step, and the rare replacement, lane by lane.

The averages follow Equations 2 to 7 of the paper. Whether some lane is due is one comparison per step; only then a scalar
path looks for its unit. `tests/support/naive.py` is the same once more, without lanes.
"""

from typing import Any

import numpy as np

from cbp_ray.kernels import lanes
from cbp_ray.kernels.choices import Utility
from cbp_ray.kernels.compilation import inlined, separate
from cbp_ray.kernels.lane_state import Total, output_bias_row, unit_rows
from cbp_ray.kernels.lanes import any_positive, floor, load, store, where_greater, widen
from cbp_ray.kernels.random_draws import NEW_UNIT, RANDOM_UTILITY, ZERO, uniform
from cbp_ray.kernels.rules import follow_utility, smallest_finite

WIDTH = lanes.WIDTH


@inlined
def follow_unit(
    state: Any, scratch: Any, choices: Any, numbers: Any, i: int, inputs: int, h: Any, out: Any, magnitude: Any
) -> Any:
    """Ages unit i and updates its averages. `out` is |w_out| and `magnitude` Σ|w_in|, after the step. Returns the age."""
    age = load(state.age, i) + 1.0
    store(state.age, i, age)
    if choices.mean_magnitudes:
        magnitude = magnitude * (1.0 / inputs)
    f_tm1, u_tm1, correction = load(state.activation, i), load(state.utility, i), load(state.correction, i)
    f_t, u_t, correction = follow_utility(h, f_tm1, u_tm1, correction, out, magnitude, choices, numbers)
    store(state.correction, i, correction)
    store(state.activation, i, f_t)
    if choices.utility != Utility.RANDOM:
        store(state.utility, i, u_t)
        store(scratch.utility_before, i, u_tm1)
    return age


@inlined
def schedule(state: Any, scratch: Any, choices: Any, numbers: Any, draws: Any, t: int, exposed: Any) -> Any:
    """Writes how many units of each lane are to be replaced into `scratch.due`. Returns whether there are any."""
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


@separate
def replace_where_due(state: Any, scratch: Any, choices: Any, numbers: Any, units: int, inputs: int) -> None:
    """In each lane that is due, replaces the eligible units with the smallest utilities. Ties go to the lowest index."""
    u_hat = scratch.u_hat
    for lane in range(WIDTH):
        due = int(scratch.due[0, lane])
        if due <= 0:
            continue
        seed, number = state.seed[0, lane], np.uint64(state.replaced[0, lane])
        for i in range(units):
            if choices.utility == Utility.RANDOM:
                u_hat[i] = uniform(seed, RANDOM_UTILITY, number, ZERO, i)
            else:
                u = scratch.utility_before[i, lane] if choices.lagged else state.utility[i, lane]
                u_hat[i] = u / state.correction[i, lane]  # Equation 7
            if not state.age[i, lane] > numbers.maturity_threshold:
                u_hat[i] = np.inf
            elif not np.isfinite(u_hat[i]):
                state.totals[Total.NONFINITE, lane] += 1
        for _ in range(due):
            unit = smallest_finite(u_hat, 0, units)
            if unit < 0:
                break
            replace_unit(state, choices, numbers, units, inputs, unit, lane)
            u_hat[unit] = np.inf


@separate
def replace_unit(state: Any, choices: Any, numbers: Any, units: int, inputs: int, i: int, lane: int) -> None:
    """The generator: the one place, besides the gradient step, where weights and optimizer state change."""
    rows = unit_rows(i, inputs)
    if choices.transfers_bias:
        output_bias = output_bias_row(units, inputs)
        f_hat = state.activation[i, lane] / state.correction[i, lane]
        state.parameters[output_bias, lane] += state.parameters[rows.out, lane] * f_hat
    number = np.uint64(state.replaced[0, lane])
    for j in range(inputs):
        draw = uniform(state.seed[0, lane], NEW_UNIT, number, ZERO, j)
        state.parameters[rows.weights + j, lane] = numbers.bound * (2.0 * draw - 1.0)
    state.parameters[rows.bias, lane] = 0.0
    state.parameters[rows.out, lane] = 0.0
    if choices.layer_norm:
        state.parameters[rows.gain, lane] = 1.0
        state.parameters[rows.shift, lane] = 0.0
    if choices.adam:
        for k in range(rows.weights, rows.end):
            state.first[k, lane] = 0.0
            state.second[k, lane] = 0.0
        state.correction_1[i, lane] = 0.0
        state.correction_2[i, lane] = 0.0
    state.utility[i, lane] = 0.0
    state.activation[i, lane] = 0.0
    state.correction[i, lane] = 0.0
    state.age[i, lane] = 0.0
    state.silence[i, lane] = 0.0
    state.firing[i, lane] = 0.0
    state.replaced[0, lane] += 1.0
    state.totals[Total.REPLACED, lane] += 1.0
