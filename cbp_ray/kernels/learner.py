"""One step of online learning for a block of runs: forward, backward, update, generate-and-test.

The functions read like the scalar algorithm, because every value is `Lanes`: one number per run. They are composed into one
loop by `learn`; `specialised_learner` compiles it for constant `Choices`, after which no branch on a choice is left.
"""

import functools
from collections.abc import Callable
from typing import Any

from numba import njit

from cbp_ray.kernels import lanes
from cbp_ray.kernels.activations import activate
from cbp_ray.kernels.compilation import compile_cached
from cbp_ray.kernels.lanes import (
    absolute,
    flush_denormals,
    load,
    load_bit,
    multiply_add,
    restore_denormals,
    spread,
    square_root,
    store,
    use_wide_vectors,
    where_greater,
    widen,
)
from cbp_ray.kernels.learner_state import Choices, Total
from cbp_ray.kernels.unit_replacement import follow_utility, replace_where_due, schedule

BITS_PER_WORD = 32
SATURATION = 0.9
SQUARED_ERROR, SATURATED, INPUT_GRADIENT = int(Total.SQUARED_ERROR), int(Total.SATURATED), int(Total.INPUT_GRADIENT)


@njit(forceinline=True)
def place_bits(scratch: Any, bits: Any, position: int, constant: int, inputs: int, total: Any) -> Any:
    """Unpacks the inputs that change with every example. Returns the sum of all inputs, given that of the constant ones."""
    for j in range(constant, inputs):
        bit = load_bit(bits, position // BITS_PER_WORD, position % BITS_PER_WORD, total)
        store(scratch.x, j, bit)
        total = total + bit
        position += 1
    return total


@njit(forceinline=True)
def normalize(state: Any, scratch: Any, numbers: Any, i: int, x: Any, row: int) -> Any:
    """OnlineNorm forward for unit i (Chiley et al. 2019, equation 8), with its learned scale and bias in `row`, `row + 1`."""
    alpha = numbers.alpha_forward
    mean, variance = load(state.mean, i), load(state.variance, i)
    sigma = square_root(variance + numbers.norm_epsilon)
    deviation = x - mean
    y = deviation / sigma
    store(scratch.sigma, i, sigma)
    store(scratch.normalized, i, y)
    store(state.variance, i, multiply_add(alpha, variance, alpha * (1 - alpha) * (deviation * deviation)))
    store(state.mean, i, multiply_add(alpha, mean, (1 - alpha) * x))
    return multiply_add(load(state.parameters, row), y, load(state.parameters, row + 1))


@njit(forceinline=True)
def control_gradient(state: Any, scratch: Any, numbers: Any, i: int, gradient: Any) -> Any:
    """OnlineNorm backward for unit i (equations 10 to 12): the gradient of y becomes that of x."""
    rate = 1 - numbers.alpha_backward
    y, u, v = load(scratch.normalized, i), load(state.control_u, i), load(state.control_v, i)
    g = gradient - rate * v * y
    store(state.control_v, i, multiply_add(g, y, v))
    g = g / load(scratch.sigma, i)
    g = g - rate * u
    store(state.control_u, i, u + g)
    return g


@njit(forceinline=True)
def count_time_step(state: Any, choices: Any, numbers: Any, i: int) -> Any:
    """Adam's α / (1 - β₁ᵗ) and 1 / (1 - β₂ᵗ) for this step of unit i. 1 - βᵗ is kept by a recursion that never cancels."""
    one = spread(numbers.step_size, load(state.parameters, 0))
    if not choices.adam:
        return one, one
    c_1 = multiply_add(numbers.beta_1, load(state.correction_1, i), 1 - numbers.beta_1)
    c_2 = multiply_add(numbers.beta_2, load(state.correction_2, i), 1 - numbers.beta_2)
    store(state.correction_1, i, c_1)
    store(state.correction_2, i, c_2)
    return numbers.step_size / c_1, 1.0 / c_2


@njit(forceinline=True)
def update(state: Any, choices: Any, numbers: Any, row: int, delta: Any, x: Any, scale_1: Any, scale_2: Any) -> Any:
    """One optimizer step for the parameter in `row`, whose gradient is delta·x. Returns its new value."""
    w = load(state.parameters, row)
    if choices.adam:
        g = delta * x
        if choices.decays:
            g = multiply_add(numbers.weight_decay, w, g)
        m = multiply_add(numbers.beta_1, load(state.first, row), (1 - numbers.beta_1) * g)
        v = multiply_add(numbers.beta_2, load(state.second, row), (1 - numbers.beta_2) * (g * g))
        store(state.first, row, m)
        store(state.second, row, v)
        w = w - scale_1 * m / (square_root(v * scale_2) + numbers.epsilon)
    else:
        if choices.decays:
            w = w * (1 - numbers.step_size * numbers.weight_decay)
        w = multiply_add(-numbers.step_size * delta, x, w)
    store(state.parameters, row, w)
    return w


@njit(forceinline=True)
def forward(state: Any, scratch: Any, choices: Any, numbers: Any, units: int, inputs: int) -> Any:
    """The prediction. Leaves every unit's output and derivative in `scratch`."""
    unit_rows = inputs + 4
    prediction = load(state.parameters, units * unit_rows)
    for i in range(units):
        row = i * unit_rows
        z = load(state.parameters, row + inputs)
        for j in range(inputs):
            z = multiply_add(load(state.parameters, row + j), load(scratch.x, j), z)
        if choices.normalized:
            z = normalize(state, scratch, numbers, i, z, row + inputs + 2)
        h, derivative = activate(z, choices.activation)
        store(scratch.h, i, h)
        store(scratch.derivative, i, derivative)
        prediction = multiply_add(load(state.parameters, row + inputs + 1), h, prediction) if choices.hidden else h
    return prediction


@njit(forceinline=True)
def learn_unit(
    state: Any, scratch: Any, choices: Any, numbers: Any, i: int, inputs: int, gradient: Any
) -> tuple[Any, Any, Any]:
    """Backward and update for unit i. Returns its δ, and the new |w_out| and Σ|w_in|."""
    row = i * (inputs + 4)
    h, derivative = load(scratch.h, i), load(scratch.derivative, i)
    one = spread(1.0, h)
    scale_1, scale_2 = count_time_step(state, choices, numbers, i)
    delta = gradient
    out = one
    if choices.hidden:
        delta = gradient * load(state.parameters, row + inputs + 1) * derivative
        out = update(state, choices, numbers, row + inputs + 1, gradient, h, scale_1, scale_2)
    if choices.normalized:
        by_y = delta * load(state.parameters, row + inputs + 2)
        update(state, choices, numbers, row + inputs + 2, delta, load(scratch.normalized, i), scale_1, scale_2)
        update(state, choices, numbers, row + inputs + 3, delta, one, scale_1, scale_2)
        delta = control_gradient(state, scratch, numbers, i, by_y)
    update(state, choices, numbers, row + inputs, delta, one, scale_1, scale_2)
    magnitude = spread(0.0, h)
    for j in range(inputs):
        w = update(state, choices, numbers, row + j, delta, load(scratch.x, j), scale_1, scale_2)
        magnitude = magnitude + absolute(w)
    return delta, absolute(out), magnitude


@njit(forceinline=True)
def learn(
    state: Any,
    scratch: Any,
    bits: Any,
    targets: Any,
    draws: Any,
    choices: Any,
    numbers: Any,
    units: int,
    inputs: int,
    constant: int,
    first_bit: int,
) -> None:
    """Learns from `targets.shape[0]` examples, one after the other.

    Args:
      state, scratch: the block.
      bits: uint32 [words, WIDTH]; from bit `first_bit` of the whole, each example takes the next `inputs - constant`.
      targets: [examples, WIDTH].
      draws: float64 [examples, WIDTH], uniform numbers for `replacement="bernoulli"`; otherwise of any length.
      choices, numbers: see `learner_state`.
      units, inputs: sizes of the network.
      constant: how many inputs are set in `scratch.x` and stay.
      first_bit: position in `bits`.
    """
    before = flush_denormals()
    zero = spread(0.0, load(state.parameters, 0))
    squared_error, saturated, input_gradient = widen(zero), zero, zero
    constant_ones = zero
    for j in range(constant):
        constant_ones = constant_ones + load(scratch.x, j)
    for t in range(targets.shape[0]):
        ones = place_bits(scratch, bits, first_bit + t * (inputs - constant), constant, inputs, constant_ones)
        error = forward(state, scratch, choices, numbers, units, inputs) - load(targets, t)
        squared_error = squared_error + widen(error * error)
        gradient = 2.0 * error
        slopes, oldest, mature = zero, zero, zero
        for i in range(units):
            h = load(scratch.h, i)
            size, largest = absolute(h), load(state.largest, i)
            saturated = saturated + where_greater(size, SATURATION, 1.0, zero)
            store(state.largest, i, where_greater(size, largest, size, largest))
            delta, out, magnitude = learn_unit(state, scratch, choices, numbers, i, inputs, gradient)
            slopes = slopes + absolute(delta)
            if choices.replaces:
                age = follow_utility(state, scratch, choices, numbers, i, inputs, h, out, magnitude)
                oldest = where_greater(age, oldest, age, oldest)
                mature = mature + where_greater(age, numbers.maturity_threshold, 1.0, zero)
        input_gradient = multiply_add(slopes, ones, input_gradient)
        if choices.hidden:
            scale_1, scale_2 = count_time_step(state, choices, numbers, units)
            row = units * (inputs + 4)
            update(state, choices, numbers, row, gradient, spread(1.0, zero), scale_1, scale_2)
        if choices.replaces:
            if not choices.rate_of_eligible:
                mature = where_greater(oldest, numbers.maturity_threshold, 1.0 * units, zero)
            if schedule(state, scratch, choices, numbers, draws, t, mature):
                replace_where_due(state, scratch, choices, numbers, units, inputs)
    store(state.totals, SQUARED_ERROR, load(state.totals, SQUARED_ERROR) + squared_error)
    store(state.totals, SATURATED, load(state.totals, SATURATED) + widen(saturated))
    store(state.totals, INPUT_GRADIENT, load(state.totals, INPUT_GRADIENT) + widen(input_gradient))
    restore_denormals(before)


@functools.cache
def specialised_learner(choices: Choices) -> Callable[..., None]:
    """`learn` compiled for constant `choices`, without that argument. From the disk cache after the first time."""
    width = lanes.WIDTH

    @compile_cached
    def learner(
        state: Any,
        scratch: Any,
        bits: Any,
        targets: Any,
        draws: Any,
        numbers: Any,
        units: int,
        inputs: int,
        constant: int,
        first_bit: int,
    ) -> None:
        width  # noqa: B018  # part of the cache's key because it is a free variable
        use_wide_vectors()
        learn(state, scratch, bits, targets, draws, choices, numbers, units, inputs, constant, first_bit)

    return learner


@functools.cache
def general_learner() -> Callable[..., None]:
    """`learn` compiled once for all choices, which it takes at run time: slower, and the same numbers. For tests."""
    width = lanes.WIDTH

    @compile_cached
    def learner(
        state: Any,
        scratch: Any,
        bits: Any,
        targets: Any,
        draws: Any,
        choices: Any,
        numbers: Any,
        units: int,
        inputs: int,
        constant: int,
        first_bit: int,
    ) -> None:
        width  # noqa: B018
        use_wide_vectors()
        learn(state, scratch, bits, targets, draws, choices, numbers, units, inputs, constant, first_bit)

    return learner
