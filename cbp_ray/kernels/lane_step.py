"""One step of online learning for a block of runs: forward, backward, update, generate-and-test.

The functions read like the scalar algorithm, because every value is `Lanes`: one number per run. They load and store; the
equations are in `rules`. `specialised_learner` compiles them for constant `Choices`, after which no branch on a choice is left.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from cbp_ray.activations import SATURATION
from cbp_ray.kernels import rules
from cbp_ray.kernels.activations import activate
from cbp_ray.kernels.choices import NO_CHOICES, PERTURBS, REINITIALIZES, UPGDS, Choices, Rule, Tester
from cbp_ray.kernels.compilation import UNCOUNTED, compile_cached, inlined
from cbp_ray.kernels.lane_replacement import follow_unit, replace_where_due, schedule
from cbp_ray.kernels.lane_resets import follow_activity, reset_dormant, reset_silent, some_silent
from cbp_ray.kernels.lane_state import Total, output_bias_row, unit_rows
from cbp_ray.kernels.lane_weights import (
    OWN,
    Weight,
    follow_utility_of,
    follow_weight,
    freedom,
    mapped,
    noise_of_outputs,
    noise_of_unit,
    reinitialize,
    scale_utilities,
)
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
from cbp_ray.kernels.noise import SCALE

BITS_PER_WORD = 32


@inlined
def needs_all_deltas(choices: Any) -> Any:
    """Whether δ of all units is needed before the first weight changes."""
    return choices.layer_norm or choices.rule in UPGDS


@inlined
def place_bits(scratch: Any, bits: Any, position: int, constant: int, inputs: int, total: Any) -> Any:
    """Unpacks the inputs that change with every example. Returns the sum of all inputs, given that of the constant ones."""
    for j in range(constant, inputs):
        bit = load_bit(bits, position // BITS_PER_WORD, position % BITS_PER_WORD, total)
        store(scratch.x, j, bit)
        total = total + bit
        position += 1
    return total


@inlined
def normalize(state: Any, scratch: Any, numbers: Any, i: int, x: Any, rows: Any) -> Any:
    """OnlineNorm forward for unit i, with its learned scale and bias."""
    y, sigma, mean, variance = rules.normalize(x, load(state.mean, i), load(state.variance, i), numbers)
    store(scratch.sigma, i, sigma)
    store(scratch.normalized, i, y)
    store(state.variance, i, variance)
    store(state.mean, i, mean)
    return multiply_add(load(state.parameters, rows.gain), y, load(state.parameters, rows.shift))


@inlined
def control_gradient(state: Any, scratch: Any, numbers: Any, i: int, gradient: Any) -> Any:
    """OnlineNorm backward for unit i: the gradient by its normalized value becomes that by its pre-activation."""
    y, sigma = load(scratch.normalized, i), load(scratch.sigma, i)
    gradient, u, v = rules.control(gradient, y, sigma, load(state.control_u, i), load(state.control_v, i), numbers)
    store(state.control_v, i, v)
    store(state.control_u, i, u)
    return gradient


@inlined
def count_time_step(state: Any, choices: Any, numbers: Any, i: int) -> Any:
    """Adam's factors for this step of unit i, see `rules.adam_scales`; with SGD, which has none, two values of their type."""
    if not choices.adam:
        one = spread(1.0, load(state.parameters, 0))
        return one, one
    c_1, c_2, scale_1, scale_2 = rules.adam_scales(load(state.correction_1, i), load(state.correction_2, i), numbers)
    store(state.correction_1, i, c_1)
    store(state.correction_2, i, c_2)
    return scale_1, scale_2


@inlined
def update(
    state: Any,
    scratch: Any,
    choices: Any,
    numbers: Any,
    row: int,
    weight: Any,
    delta: Any,
    x: Any,
    scale_1: Any,
    scale_2: Any,
    fresh: bool,
) -> Any:
    """One step for the parameter in `row`, which is the `weight`, and whose gradient is delta·x. Returns its new value."""
    before = w = load(state.parameters, row)
    if choices.rule == Rule.SWR_GRADIENT:
        follow_weight(state, choices, numbers, row, absolute(delta * x * w), fresh)
    if choices.adam:
        m, v = load(state.first, row), load(state.second, row)
        g = delta * x
        if choices.rule == Rule.L2_INIT:
            g = rules.pulled(g, w, load(state.initial, row), numbers)
        w, m, v = rules.adam(w, m, v, g, scale_1, scale_2, choices, numbers)
        store(state.first, row, m)
        store(state.second, row, v)
    elif choices.rule == Rule.L2_INIT:
        g = rules.pulled(delta * x, w, load(state.initial, row), numbers)
        w = rules.sgd(w, -numbers.step_size, g, choices, numbers)
    elif choices.rule not in UPGDS:
        w = rules.sgd(w, -numbers.step_size * delta, x, choices, numbers)
    if choices.rule in UPGDS:
        step = (w - before) if choices.adam else -numbers.step_size * delta * x
        w = before if choices.adam else rules.decayed(before, choices, numbers)
        kick, xi = -numbers.step_size * numbers.noise * SCALE, load(scratch.noise, weight.noise)
        w = rules.upgd(w, step, kick, xi, freedom(state, scratch, row), choices)
    w = mapped(scratch, choices, numbers, weight, w)
    if choices.rule == Rule.SWR_MAGNITUDE:
        follow_weight(state, choices, numbers, row, absolute(w), fresh)
    store(state.parameters, row, w)
    return w


@inlined
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
        if choices.layer_norm:
            store(scratch.normalized, i, z)
        else:
            h, derivative = activate(z, choices.activation)
            store(scratch.h, i, h)
            store(scratch.derivative, i, derivative)
            prediction = multiply_add(load(state.parameters, rows.out), h, prediction) if choices.hidden else h
    if choices.layer_norm:
        normalize_layer(scratch, numbers, units)
        for i in range(units):
            rows = unit_rows(i, inputs)
            y = load(scratch.normalized, i)
            z = multiply_add(load(state.parameters, rows.gain), y, load(state.parameters, rows.shift))
            h, derivative = activate(z, choices.activation)
            store(scratch.h, i, h)
            store(scratch.derivative, i, derivative)
            prediction = multiply_add(load(state.parameters, rows.out), h, prediction)
    return prediction


@inlined
def normalize_layer(scratch: Any, numbers: Any, units: int) -> None:
    """Layer normalisation (Ba et al. 2016): the units' z in `scratch.normalized` become (z - mean) / √(variance + ε)."""
    mean = spread(0.0, load(scratch.normalized, 0))
    for i in range(units):
        mean = mean + load(scratch.normalized, i)
    mean = mean * (1.0 / units)
    variance = spread(0.0, mean)
    for i in range(units):
        deviation = load(scratch.normalized, i) - mean
        variance = multiply_add(deviation, deviation, variance)
        store(scratch.normalized, i, deviation)
    sigma = square_root(variance * (1.0 / units) + numbers.norm_epsilon)
    store(scratch.sigma, 0, sigma)
    for i in range(units):
        store(scratch.normalized, i, load(scratch.normalized, i) / sigma)


@inlined
def backward(state: Any, scratch: Any, choices: Any, units: int, inputs: int, gradient: Any) -> None:
    """Writes δ of all units, for methods that need them before the first weight changes."""
    total = along = spread(0.0, gradient)
    for i in range(units):
        rows = unit_rows(i, inputs)
        delta = gradient * load(state.parameters, rows.out) * load(scratch.derivative, i)
        if choices.layer_norm:
            store(scratch.by_norm, i, delta)
            delta = delta * load(state.parameters, rows.gain)
            total, along = total + delta, multiply_add(delta, load(scratch.normalized, i), along)
        store(scratch.delta, i, delta)
    if choices.layer_norm:
        total, along = total * (1.0 / units), along * (1.0 / units)
        for i in range(units):
            inner = load(scratch.delta, i) - total - load(scratch.normalized, i) * along
            store(scratch.delta, i, inner / load(scratch.sigma, 0))


@inlined
def follow_utilities(
    state: Any, scratch: Any, choices: Any, numbers: Any, units: int, inputs: int, gradient: Any, step: int
) -> None:
    """Follows the utilities of all weights, for UPGD, given δ of all units."""
    share = -(1 - numbers.trace_decay) * gradient
    largest = follow_utility_of(state, numbers, output_bias_row(units, inputs), share, spread(-np.inf, share))
    for i in range(units):
        rows = unit_rows(i, inputs)
        largest = follow_utility_of(state, numbers, rows.out, share * load(scratch.h, i), largest)
        if choices.layer_norm:
            by_norm = -(1 - numbers.trace_decay) * load(scratch.by_norm, i)
            largest = follow_utility_of(state, numbers, rows.gain, by_norm * load(scratch.normalized, i), largest)
            largest = follow_utility_of(state, numbers, rows.shift, by_norm, largest)
        own = -(1 - numbers.trace_decay) * load(scratch.delta, i)
        largest = follow_utility_of(state, numbers, rows.bias, own, largest)
        for j in range(inputs):
            largest = follow_utility_of(state, numbers, rows.weights + j, own * load(scratch.x, j), largest)
    scale_utilities(scratch, numbers, largest, step)


@inlined
def learn_unit(
    state: Any, scratch: Any, choices: Any, numbers: Any, i: int, inputs: int, gradient: Any, fresh: bool
) -> tuple[Any, Any, Any]:
    """Backward and update for unit i. Returns its δ, and the new |w_out| and Σ|w_in|."""
    rows = unit_rows(i, inputs)
    common = state, scratch, choices, numbers
    h, derivative = load(scratch.h, i), load(scratch.derivative, i)
    one = spread(1.0, h)
    scale_1, scale_2 = count_time_step(state, choices, numbers, i)
    delta = gradient
    out = one
    if choices.hidden:
        delta = gradient * load(state.parameters, rows.out) * derivative
        weight = Weight(inputs + OWN + i, 0.0, numbers.bound_out, numbers.bound_out, numbers.clip_out)
        out = update(*common, rows.out, weight, gradient, h, scale_1, scale_2, fresh)
    if choices.normalized or choices.layer_norm:
        by_y = delta * load(state.parameters, rows.gain)
        y = load(scratch.normalized, i)
        if choices.affine:
            update(*common, rows.gain, Weight(inputs + 2, 1.0, 0.0, 1.0, np.inf), delta, y, scale_1, scale_2, fresh)
            update(*common, rows.shift, Weight(inputs + 3, 0.0, 0.0, 1.0, np.inf), delta, one, scale_1, scale_2, fresh)
        if choices.normalized:
            delta = control_gradient(state, scratch, numbers, i, by_y)
    if needs_all_deltas(choices):
        delta = load(scratch.delta, i)
    update(*common, rows.bias, Weight(inputs, 0.0, 0.0, numbers.bound, numbers.clip), delta, one, scale_1, scale_2, fresh)
    magnitude = spread(0.0, h)
    for j in range(inputs):
        weight = Weight(j, 0.0, numbers.bound, numbers.bound, numbers.clip)
        w = update(*common, rows.weights + j, weight, delta, load(scratch.x, j), scale_1, scale_2, fresh)
        magnitude = magnitude + absolute(w)
    return delta, absolute(out), magnitude


@inlined
def add_total(state: Any, row: int, value: Any) -> None:
    """Adds to one of the bin's sums."""
    store(state.totals, row, load(state.totals, row) + widen(value))


@functools.cache
def specialised_learner(constant: Choices | None) -> Callable[..., None]:
    """Makes the function that learns from examples, compiled for constant choices. From the disk cache after the first time."""
    fixed = constant is not None
    known = constant or NO_CHOICES

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
        first_step: int,
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
          first_step: number of examples before these.
        """
        use_wide_vectors()
        choices = known if fixed else given
        before = flush_denormals()
        zero = spread(0.0, load(state.parameters, 0))
        squared_error, saturated, input_gradient, plasticity = widen(zero), zero, zero, widen(zero)
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
            step = first_step + t + 1
            # The first step, and the one behind each reinitialisation.
            fresh = choices.rule in REINITIALIZES and (step - 1) % numbers.every == 0
            if choices.rule in PERTURBS:
                noise_of_outputs(state, scratch, choices, units, inputs, step)
            if needs_all_deltas(choices):
                backward(state, scratch, choices, units, inputs, gradient)
            if choices.rule in UPGDS:
                follow_utilities(state, scratch, choices, numbers, units, inputs, gradient, step)
            for i in range(units):
                h = load(scratch.h, i)
                size, largest = absolute(h), load(state.largest, i)
                saturated = saturated + where_greater(size, SATURATION, 1.0, zero)
                store(state.largest, i, where_greater(size, largest, size, largest))
                if choices.rule in PERTURBS:
                    noise_of_unit(state, scratch, choices, i, units, inputs)
                delta, out, magnitude = learn_unit(state, scratch, choices, numbers, i, inputs, gradient, fresh)
                slopes = slopes + absolute(delta)
                if choices.replaces and choices.tester != Tester.UTILITY:
                    follow_activity(state, choices, numbers, i, h)
                elif choices.replaces:
                    age = follow_unit(state, scratch, choices, numbers, i, inputs, h, out, magnitude)
                    oldest = where_greater(age, oldest, age, oldest)
                    mature = mature + where_greater(age, numbers.maturity_threshold, 1.0, zero)
            input_gradient = multiply_add(slopes, ones, input_gradient)
            if choices.hidden:
                scale_1, scale_2 = count_time_step(state, choices, numbers, units)
                row, one = output_bias_row(units, inputs), spread(1.0, zero)
                weight = Weight(inputs + OWN + units, 0.0, 0.0, numbers.bound_out, numbers.clip_out)
                update(state, scratch, choices, numbers, row, weight, gradient, one, scale_1, scale_2, fresh)
            if choices.rule in REINITIALIZES and step % numbers.every == 0:
                reinitialize(state, scratch, choices, numbers, units, inputs, step)
            if choices.replaces and choices.tester == Tester.ACTIVITY:
                if step % numbers.every == 0:
                    reset_dormant(state, scratch, choices, numbers, units, inputs)
            elif choices.replaces and choices.tester == Tester.SILENCE:
                if some_silent(state, numbers, units, zero):
                    reset_silent(state, choices, numbers, units, inputs)
            elif choices.replaces:
                if not choices.rate_of_eligible:
                    mature = where_greater(oldest, numbers.maturity_threshold, 1.0 * units, zero)
                if schedule(state, scratch, choices, numbers, draws, t, mature):
                    replace_where_due(state, scratch, choices, numbers, units, inputs)
            if choices.plasticity:
                after = forward(state, scratch, choices, numbers, units, inputs) - load(targets, t)
                plasticity = plasticity + widen(rules.sample_plasticity(error * error, after * after))
        add_total(state, Total.SQUARED_ERROR, squared_error)
        add_total(state, Total.SATURATED, saturated)
        add_total(state, Total.INPUT_GRADIENT, input_gradient)
        if choices.plasticity:
            store(state.totals, Total.PLASTICITY, load(state.totals, Total.PLASTICITY) + plasticity)
        if choices.rule == Rule.CLIP:
            add_total(state, Total.REPLACED, load(scratch.clipped, 0))
            store(scratch.clipped, 0, zero)
        restore_denormals(before)

    return compile_cached(learner, **UNCOUNTED)


unspecialised_learner = functools.partial(specialised_learner, None)
"""Makes the same function for tests, compiled once for all choices, which it takes at run time: slower, the same numbers."""
