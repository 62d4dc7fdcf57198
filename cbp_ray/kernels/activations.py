"""The six activation functions and their derivatives on lanes, all from one exponential.

`exp_minus_one` reduces x = k·ln 2 + r with |r| ≤ ln 2 / 2 and sums the Taylor series of e^r - 1: seven terms leave less than
half a unit of float32's last place, thirteen of float64's. `tests/kernels/test_lane_functions.py` states and checks
the largest errors.
"""

from enum import IntEnum
from math import log
from typing import Any

from cbp_ray.activations import LEAKY_SLOPE
from cbp_ray.kernels.compilation import inlined
from cbp_ray.kernels.lanes import (
    is_single,
    multiply_add,
    none_greater,
    round_to_integer,
    shift_exponent,
    split_power,
    spread,
    times_power_of_two,
    where_greater,
)


class Activation(IntEnum):
    """Codes of the activation functions."""

    TANH = 0
    SIGMOID = 1
    RELU = 2
    LEAKY_RELU = 3
    ELU = 4
    SWISH = 5
    LINEAR = 6


LN2 = log(2)
LOG2_E = 1 / LN2


class Nearness(IntEnum):
    """What is known of the arguments of `gate`, which are near 0 more often than not."""

    UNKNOWN = 0
    NEAR = 1
    NEARER = 2


NEAR, NEARER = 0.9999 * LOG2_E, 0.22
"""Arguments of `gate` below these are near or nearer for certain, however they were rounded."""
# ln 2 in two parts: the first has enough trailing zeros for k·LN2_HIGH to be exact.
LN2_HIGH_SINGLE, LN2_LOW_SINGLE = 0.693359375, -2.12194440054690583e-4
LN2_HIGH_DOUBLE, LN2_LOW_DOUBLE = 6.93147180369123816490e-1, 1.90821492927058770002e-10
# Beyond these e^x - 1 is still normal and finite, and tanh and the logistic function no longer change.
LIMIT_SINGLE, LIMIT_DOUBLE = 87.0, 708.0


@inlined
def _reduced_exponential(x: Any) -> Any:
    """Returns 2^k and q with e^x = 2^k (q + 1)."""
    limit = LIMIT_SINGLE if is_single(x) else LIMIT_DOUBLE
    x = where_greater(x, limit, limit, x)
    x = where_greater(-limit, x, -limit, x)
    k = round_to_integer(x * LOG2_E)
    r = multiply_add(k, -(LN2_HIGH_SINGLE if is_single(x) else LN2_HIGH_DOUBLE), x)
    r = multiply_add(k, -(LN2_LOW_SINGLE if is_single(x) else LN2_LOW_DOUBLE), r)
    if is_single(x):
        q = multiply_add(r, 1 / 5040, 1 / 720)
    else:
        q = multiply_add(r, 1 / 6227020800, 1 / 479001600)
        q = multiply_add(r, q, 1 / 39916800)
        q = multiply_add(r, q, 1 / 3628800)
        q = multiply_add(r, q, 1 / 362880)
        q = multiply_add(r, q, 1 / 40320)
        q = multiply_add(r, q, 1 / 5040)
        q = multiply_add(r, q, 1 / 720)
    q = multiply_add(r, q, 1 / 120)
    q = multiply_add(r, q, 1 / 24)
    q = multiply_add(r, q, 1 / 6)
    q = multiply_add(r, q, 1 / 2)
    q = multiply_add(r * r, q, r)
    return times_power_of_two(spread(1.0, x), k), q


@inlined
def exp_minus_one(x: Any) -> Any:
    """e^x - 1, with x clamped to ±87 (float32) or ±708 (float64). Not-a-number stays so."""
    scale, q = _reduced_exponential(x)
    # Summed so that nothing cancels near x = 0.
    return multiply_add(scale, q, scale - 1.0)


@inlined
def exponential(x: Any) -> Any:
    """e^x, with x clamped as in `exp_minus_one`."""
    scale, q = _reduced_exponential(x)
    return multiply_add(scale, q, scale)


@inlined
def logistic(x: Any) -> Any:
    """The logistic function 1 / (1 + e^-x)."""
    return 1.0 / (exp_minus_one(0.0 - x) + 2.0)


@inlined
def gate(x: Any, nearness: int) -> Any:
    """1 / (1 + 2ˣ), the logistic function where every weight needs it; in float32 with x clamped to ±24, and good to 3e-7.

    The five coefficients behind the first interpolate 2ʳ at the Chebyshev points of [-1/2, 1/2]. Most weights are of little
    use, and their x is small: on [-log₂e, log₂e] an odd polynomial is as good, and no more is computed where all lie there,
    or where the caller knows that they do. Nearer to 0, two terms of it are enough.
    """
    if not is_single(x):
        return logistic(x * -LN2)
    y = x * x
    if nearness == Nearness.NEARER:
        return multiply_add(x, multiply_add(y, LN2**3 / 48, -LN2 / 4), 0.5)
    near = multiply_add(y, 1.3016667e-05, -0.00032860658)
    near = multiply_add(y, near, 0.0069353459)
    near = multiply_add(y, near, -0.17328638)
    near = multiply_add(x, near, 0.5)
    if nearness == Nearness.NEAR or none_greater(y, LOG2_E * LOG2_E):
        return near
    z = where_greater(x, 24.0, 24.0, x)
    z = where_greater(-24.0, z, -24.0, z)
    r, k = split_power(z)
    p = multiply_add(r, 0.00133908634, 0.00967603192)
    p = multiply_add(r, p, 0.0555035711)
    p = multiply_add(r, p, 0.240221075)
    p = multiply_add(r, p, 0.693147188)
    p = multiply_add(r, p, 1.00000008)
    # Lane by lane, so that a run's numbers do not depend on its neighbours.
    return where_greater(y, LOG2_E * LOG2_E, 1.0 / (shift_exponent(p, k) + 1.0), near)


@inlined
def activate(x: Any, activation: int) -> Any:
    """Returns the unit's output h and dh/dx. `activation` is a constant, so only one branch is compiled."""
    if activation == Activation.TANH:
        # Beyond ±44 (float32) the estimate of 1 / (e^2x + 1) would no longer be normal; tanh is 1 from 9 on.
        x = where_greater(x, 20.0, 20.0, x)
        e = exp_minus_one(x + x)
        h = e / (e + 2.0)
        return h, 1.0 - h * h
    if activation == Activation.SIGMOID:
        h = logistic(x)
        return h, h - h * h
    if activation == Activation.RELU:
        return where_greater(x, 0.0, x, 0.0), where_greater(x, 0.0, 1.0, 0.0)
    if activation == Activation.LEAKY_RELU:
        slope = where_greater(x, 0.0, 1.0, LEAKY_SLOPE)
        return slope * x, slope
    if activation == Activation.ELU:
        e = exp_minus_one(x)
        return where_greater(x, 0.0, x, e), where_greater(x, 0.0, 1.0, e + 1.0)
    if activation == Activation.SWISH:
        s = logistic(x)
        h = x * s
        return h, multiply_add(h, 1.0 - s, s)
    return x, spread(1.0, x)
