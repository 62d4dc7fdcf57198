"""One step of online learning for a block of runs: forward, backward, update, generate-and-test.

The functions read like the scalar algorithm, because every value is `Lanes`: one number per run. They load and store; the
equations are in `rules`. `specialised_learner` compiles them for constant `Choices`, after which no branch on a choice is left.
"""

import functools
from collections.abc import Callable
from typing import Any

from numba import njit

from cbp_ray.kernels import lanes, rules
from cbp_ray.kernels.activations import activate
from cbp_ray.kernels.choices import NO_CHOICES, SATURATION, Choices
from cbp_ray.kernels.compilation import compile_cached
from cbp_ray.kernels.lane_replacement import follow_unit, replace_where_due, schedule
from cbp_ray.kernels.lane_state import Total, output_bias_row, unit_rows
from cbp_ray.kernels.lanes import (
    absolute,
    flush_denormals,
    load,
    load_bit,
    multiply_add,
    restore_denormals,
    spread,
    store,
    use_wide_vectors,
    where_greater,
    widen,
)

BITS_PER_WORD = 32


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
def normalize(state: Any, scratch: Any, numbers: Any, i: int, x: Any, rows: Any) -> Any:
    """OnlineNorm forward for unit i, with its learned scale and bias."""
    y, sigma, mean, variance = rules.normalize(x, load(state.mean, i), load(state.variance, i), numbers)
    store(scratch.sigma, i, sigma)
    store(scratch.normalized, i, y)
    store(state.variance, i, variance)
    store(state.mean, i, mean)
    return multiply_add(load(state.parameters, rows.gain), y, load(state.parameters, rows.shift))


@njit(forceinline=True)
def control_gradient(state: Any, scratch: Any, numbers: Any, i: int, gradient: Any) -> Any:
    """OnlineNorm backward for unit i: the gradient by its normalized value becomes that by its pre-activation."""
    y, sigma = load(scratch.normalized, i), load(scratch.sigma, i)
    gradient, u, v = rules.control(gradient, y, sigma, load(state.control_u, i), load(state.control_v, i), numbers)
    store(state.control_v, i, v)
    store(state.control_u, i, u)
    return gradient


@njit(forceinline=True)
def count_time_step(state: Any, choices: Any, numbers: Any, i: int) -> Any:
    """Adam's factors for this step of unit i, see `rules.adam_scales`; with SGD, which has none, two values of their type."""
    if not choices.adam:
        one = spread(1.0, load(state.parameters, 0))
        return one, one
    c_1, c_2, scale_1, scale_2 = rules.adam_scales(load(state.correction_1, i), load(state.correction_2, i), numbers)
    store(state.correction_1, i, c_1)
    store(state.correction_2, i, c_2)
    return scale_1, scale_2


@njit(forceinline=True)
def update(state: Any, choices: Any, numbers: Any, row: int, delta: Any, x: Any, scale_1: Any, scale_2: Any) -> Any:
    """One optimizer step for the parameter in `row`, whose gradient is delta·x. Returns its new value."""
    w = load(state.parameters, row)
    if choices.adam:
        m, v = load(state.first, row), load(state.second, row)
        w, m, v = rules.adam(w, m, v, delta * x, scale_1, scale_2, choices, numbers)
        store(state.first, row, m)
        store(state.second, row, v)
    else:
        w = rules.sgd(w, -numbers.step_size * delta, x, choices, numbers)
    store(state.parameters, row, w)
    return w


@njit(forceinline=True)
def forward(state: Any, scratch: Any, choices: Any, numbers: Any, units: int, inputs: int) -> Any:
    """Returns the prediction. Leaves every unit's output and derivative in `scratch`."""
    prediction = load(state.parameters, output_bias_row(units, inputs))
    for i in range(units):
        rows = unit_rows(i, inputs)
        z = load(state.parameters, rows.bias)
        for j in range(inputs):
            z = multiply_add(load(state.parameters, rows.weights + j), load(scratch.x, j), z)
        if choices.normalized:
            z = normalize(state, scratch, numbers, i, z, rows)
        h, derivative = activate(z, choices.activation)
        store(scratch.h, i, h)
        store(scratch.derivative, i, derivative)
        prediction = multiply_add(load(state.parameters, rows.out), h, prediction) if choices.hidden else h
    return prediction


@njit(forceinline=True)
def learn_unit(
    state: Any, scratch: Any, choices: Any, numbers: Any, i: int, inputs: int, gradient: Any
) -> tuple[Any, Any, Any]:
    """Backward and update for unit i. Returns its δ, and the new |w_out| and Σ|w_in|."""
    rows = unit_rows(i, inputs)
    h, derivative = load(scratch.h, i), load(scratch.derivative, i)
    one = spread(1.0, h)
    scale_1, scale_2 = count_time_step(state, choices, numbers, i)
    delta = gradient
    out = one
    if choices.hidden:
        delta = gradient * load(state.parameters, rows.out) * derivative
        out = update(state, choices, numbers, rows.out, gradient, h, scale_1, scale_2)
    if choices.normalized:
        by_y = delta * load(state.parameters, rows.gain)
        update(state, choices, numbers, rows.gain, delta, load(scratch.normalized, i), scale_1, scale_2)
        update(state, choices, numbers, rows.shift, delta, one, scale_1, scale_2)
        delta = control_gradient(state, scratch, numbers, i, by_y)
    update(state, choices, numbers, rows.bias, delta, one, scale_1, scale_2)
    magnitude = spread(0.0, h)
    for j in range(inputs):
        w = update(state, choices, numbers, rows.weights + j, delta, load(scratch.x, j), scale_1, scale_2)
        magnitude = magnitude + absolute(w)
    return delta, absolute(out), magnitude


@njit(forceinline=True)
def add_total(state: Any, row: int, value: Any) -> None:
    """Adds to one of the bin's sums."""
    store(state.totals, row, load(state.totals, row) + widen(value))


def _make_learner(constant: Choices | None) -> Callable[..., None]:
    """Makes the function that learns from examples; compiled for `constant` choices, or for those that it is given."""
    fixed = constant is not None
    known = constant or NO_CHOICES
    width = lanes.WIDTH

    def learner(
        state: Any,
        scratch: Any,
        bits: Any,
        targets: Any,
        draws: Any,
        given: Any,
        numbers: Any,
        units: int,
        inputs: int,
        constant_inputs: int,
        first_bit: int,
    ) -> None:
        """Learns from `targets.shape[0]` examples, one after the other.

        Args:
          state, scratch: the block.
          bits: uint32 [words, WIDTH]; from bit `first_bit` of the whole, each example takes the next
            `inputs - constant_inputs`.
          targets: [examples, WIDTH].
          draws: float64 [examples, WIDTH], uniform numbers for `replacement="bernoulli"`; otherwise of any length.
          given: `Choices`; ignored by a specialised learner.
          numbers: `Numbers`.
          units, inputs: sizes of the network.
          constant_inputs: how many inputs are set in `scratch.x` and stay.
          first_bit: position in `bits`.
        """
        width  # noqa: B018  # part of the cache's key because it is a free variable
        use_wide_vectors()
        choices = known if fixed else given
        before = flush_denormals()
        zero = spread(0.0, load(state.parameters, 0))
        squared_error, saturated, input_gradient = widen(zero), zero, zero
        constant_ones = zero
        for j in range(constant_inputs):
            constant_ones = constant_ones + load(scratch.x, j)
        for t in range(targets.shape[0]):
            position = first_bit + t * (inputs - constant_inputs)
            ones = place_bits(scratch, bits, position, constant_inputs, inputs, constant_ones)
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
                    age = follow_unit(state, scratch, choices, numbers, i, inputs, h, out, magnitude)
                    oldest = where_greater(age, oldest, age, oldest)
                    mature = mature + where_greater(age, numbers.maturity_threshold, 1.0, zero)
            input_gradient = multiply_add(slopes, ones, input_gradient)
            if choices.hidden:
                scale_1, scale_2 = count_time_step(state, choices, numbers, units)
                row, one = output_bias_row(units, inputs), spread(1.0, zero)
                update(state, choices, numbers, row, gradient, one, scale_1, scale_2)
            if choices.replaces:
                if not choices.rate_of_eligible:
                    mature = where_greater(oldest, numbers.maturity_threshold, 1.0 * units, zero)
                if schedule(state, scratch, choices, numbers, draws, t, mature):
                    replace_where_due(state, scratch, choices, numbers, units, inputs)
        add_total(state, Total.SQUARED_ERROR, squared_error)
        add_total(state, Total.SATURATED, saturated)
        add_total(state, Total.INPUT_GRADIENT, input_gradient)
        restore_denormals(before)

    return compile_cached(learner)


@functools.cache
def specialised_learner(choices: Choices) -> Callable[..., None]:
    """The learner for constant `choices`. From the disk cache after the first time."""
    return _make_learner(choices)


@functools.cache
def unspecialised_learner() -> Callable[..., None]:
    """The learner compiled once for all choices, which it takes at run time: slower, and the same numbers. For tests."""
    return _make_learner(None)
