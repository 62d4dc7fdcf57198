"""Rivals of generate-and-test that reset units by another rule, on lanes: `cbp_ray.algorithm.unit_resets` has them in torch."""

import math
from typing import Any

import numpy as np

from cbp_ray.kernels import lanes, rules
from cbp_ray.kernels.choices import Tester
from cbp_ray.kernels.compilation import inlined, separate
from cbp_ray.kernels.lane_replacement import replace_unit
from cbp_ray.kernels.lane_state import Total
from cbp_ray.kernels.lanes import any_positive, load, multiply_add, spread, store, where_greater

WIDTH = lanes.WIDTH
NEARLY = 0.99
"""Part of the exact limit at which lanes are looked at one by one."""


@inlined
def follow_activity(state: Any, choices: Any, numbers: Any, i: int, h: Any) -> None:
    """Ages unit i, and updates the average of |h|, or that of h > 0 and how long the unit has been silent."""
    store(state.age, i, load(state.age, i) + 1.0)
    known = load(state.utility, i), load(state.correction, i), load(state.silence, i), load(state.firing, i)
    average, correction, silence, firing = rules.follow_activity(h, *known, choices, numbers)
    store(state.utility, i, average)
    store(state.correction, i, correction)
    if choices.tester == Tester.SILENCE:
        store(state.silence, i, silence)
        store(state.firing, i, firing)


@separate
def reset_dormant(state: Any, scratch: Any, choices: Any, numbers: Any, units: int, inputs: int) -> None:
    """ReDo: in each lane, replaces the units whose average |h| is at most τ times the layer's mean."""
    for lane in range(WIDTH):
        mean, finite = 0.0, 0
        for i in range(units):
            scratch.u_hat[i] = state.utility[i, lane] / state.correction[i, lane]
            if np.isfinite(scratch.u_hat[i]):
                mean += scratch.u_hat[i]
                finite += 1
            else:
                state.totals[Total.NONFINITE, lane] += 1
        for i in range(units):
            if np.isfinite(scratch.u_hat[i]) and scratch.u_hat[i] <= numbers.threshold * (mean / finite):
                replace_unit(state, choices, numbers, units, inputs, i, lane)


@inlined
def some_silent(state: Any, numbers: Any, units: int, zero: Any) -> Any:
    """Whether some unit of some lane may have been silent for too long: what is necessary, and cheap to see.

    (1 - p)ᵃ ≤ η needs (a p)² ≥ (1 - p) (ln η)², because ln(1 - p) ≥ -p / √(1 - p).
    """
    limit = (math.log(numbers.threshold) * NEARLY) ** 2
    firing, known = zero, zero
    for i in range(units):
        p = load(state.firing, i)
        firing, known = firing + p, known + where_greater(p, 0.0, 1.0, zero)
    mean = firing / where_greater(known, 0.0, known, 1.0)
    found = zero
    for i in range(units):
        p = load(state.firing, i)
        p = where_greater(p, 0.0, p, mean)
        # Rounding may leave more than 1, of a unit that is never silent.
        p = where_greater(p, 1.0, 1.0, p)
        known = load(state.silence, i) * p
        late = where_greater(known * known, multiply_add(-limit, p, spread(limit, p)), 1.0, zero)
        found = found + where_greater(load(state.age, i), numbers.maturity_threshold, late, zero)
    return any_positive(found)


@separate
def reset_silent(state: Any, choices: Any, numbers: Any, units: int, inputs: int) -> None:
    """Self-normalised resets: in each lane, replaces the units for which so long a silence is no chance."""
    limit = (math.log(numbers.threshold) * NEARLY) ** 2
    for lane in range(WIDTH):
        firing, known = 0.0, 0
        for i in range(units):
            if state.firing[i, lane] > 0:
                firing += state.firing[i, lane]
                known += 1
        mean = firing / known if known else 0.0
        for i in range(units):
            silence = np.float64(state.silence[i, lane])
            if not silence > 0 or not state.age[i, lane] > numbers.maturity_threshold:
                continue
            own = np.float64(state.firing[i, lane])
            p = own if own > 0 else mean
            # As in `some_silent`: an exponential and a logarithm only where they may tell.
            if (silence * p) ** 2 <= limit * (1 - p):
                continue
            if p >= 1 or math.exp(silence * math.log1p(-p)) <= numbers.threshold:
                replace_unit(state, choices, numbers, units, inputs, i, lane)
