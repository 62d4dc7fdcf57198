"""Rivals of generate-and-test that act on single weights, on lanes: `cbp_ray.algorithm.weights` has the same in torch.

`update` of `lane_step` asks these functions around the optimizer's step of each weight.
"""

from typing import Any, NamedTuple

import numpy as np

from cbp_ray.kernels import lanes, rules
from cbp_ray.kernels.activations import LOG2_E, Nearness, gate
from cbp_ray.kernels.choices import REINITIALIZES, Rule
from cbp_ray.kernels.compilation import inlined, separate
from cbp_ray.kernels.lane_state import Total, output_bias_row, unit_rows
from cbp_ray.kernels.lanes import load, multiply_add, store, where_greater
from cbp_ray.kernels.noise import GROUP, SCALE, draw, four_noises, groups_of, make_keys
from cbp_ray.kernels.random_draws import NEW_WEIGHTS, uniform
from cbp_ray.kernels.rules import running_average, smallest_finite

WIDTH = lanes.WIDTH
OWN = 4
"""Rows of a unit behind its input weights."""


class Weight(NamedTuple):
    """What a rule has to know of one weight."""

    noise: int
    """Row of its noise in `Scratch.noise`."""
    mean: float
    initial: float
    """Middle and half width of its initial distribution: biases are 0 at first, and scales of a norm 1."""
    bound: float
    """Bound of the initial weights of its layer."""
    clip: float
    """κ of its layer."""


@inlined
def noise_of_outputs(state: Any, scratch: Any, choices: Any, units: int, inputs: int, step: int) -> None:
    """Makes the keys of a step's noise, and writes that of the output weights and of the output bias behind them."""
    like, first = load(state.parameters, 0), inputs + OWN
    make_keys(state.noise_seed, step, scratch.keys)
    if choices.rule == Rule.PERTURB_INITIAL:
        number = units * inputs + (3 * units if choices.layer_norm else units)
        for i in range(units):
            store(scratch.noise, first + i, draw(scratch.keys, number + i, like))
        return
    number = units * groups_of(inputs) + (3 * units if choices.layer_norm else units)
    for k in range(groups_of(units)):
        store_four(scratch, first + GROUP * k, four_noises(scratch.keys, number + k, like))
    # What lies behind the last group was room for it.
    store(scratch.noise, first + units, four_noises(scratch.keys, number + groups_of(units), like)[0])


@inlined
def noise_of_unit(state: Any, scratch: Any, choices: Any, i: int, units: int, inputs: int) -> None:
    """Writes the noise of one unit's own parameters, in the order of their rows."""
    like = load(state.parameters, 0)
    if choices.rule == Rule.PERTURB_INITIAL:
        # Uniform numbers, each from a hash of its own. Biases and norms have no width, so that any will do for them.
        for j in range(inputs):
            store(scratch.noise, j, draw(scratch.keys, i * inputs + j, like))
        return
    groups = groups_of(inputs)
    for k in range(groups):
        store_four(scratch, GROUP * k, four_noises(scratch.keys, i * groups + k, like))
    number = units * groups + i
    store(scratch.noise, inputs, four_noises(scratch.keys, number, like)[0])
    if choices.layer_norm:
        store(scratch.noise, inputs + 2, four_noises(scratch.keys, number + units, like)[0])
        store(scratch.noise, inputs + 3, four_noises(scratch.keys, number + 2 * units, like)[0])


@inlined
def store_four(scratch: Any, row: int, four: Any) -> None:
    """Writes the noise of a group of weights."""
    store(scratch.noise, row, four[0])
    store(scratch.noise, row + 1, four[1])
    store(scratch.noise, row + 2, four[2])
    store(scratch.noise, row + 3, four[3])


@inlined
def follow_weight(state: Any, choices: Any, numbers: Any, row: int, utility: Any, fresh: bool) -> Any:
    """Updates the trace of a weight's utility, which begins with it where `fresh`. Returns the trace."""
    if fresh and choices.rule in REINITIALIZES:
        trace = utility
    else:
        trace = running_average(load(state.trace, row), utility, numbers.trace_decay)
    store(state.trace, row, trace)
    return trace


@inlined
def freedom(state: Any, scratch: Any, row: int) -> Any:
    """UPGD's 1 - Ū of a weight, given what `scale_utilities` made."""
    return gate(load(state.trace, row) * load(scratch.usefulness, 0), Nearness.UNKNOWN)


@inlined
def mapped(scratch: Any, choices: Any, numbers: Any, weight: Any, w: Any) -> Any:
    """A weight after the optimizer's step: perturbed, shrunk or clipped."""
    if choices.rule == Rule.PERTURB:
        w = multiply_add(numbers.noise * SCALE, load(scratch.noise, weight.noise), w)
    elif choices.rule == Rule.PERTURB_GRADIENT:
        w = multiply_add(-numbers.step_size * numbers.noise * SCALE, load(scratch.noise, weight.noise), w)
    elif choices.rule == Rule.PERTURB_INITIAL:
        w = multiply_add(1 - numbers.shrinkage, w, numbers.noise * weight.mean)
        w = multiply_add(numbers.noise * weight.initial, load(scratch.noise, weight.noise), w)
    elif choices.rule == Rule.CLIP:
        w, beyond = rules.clipped(w, weight.clip * weight.bound)
        store(scratch.clipped, 0, load(scratch.clipped, 0) + beyond)
    return w


@inlined
def scale_utilities(scratch: Any, numbers: Any, largest: Any, step: int) -> None:
    """Writes log₂e / (η (1 - βᵗ)), where η is the largest trace; 0 while none is positive: every weight is half used then."""
    correction = 1 - numbers.trace_decay**step
    positive = where_greater(largest, 0.0, largest, 1.0)
    store(scratch.usefulness, 0, where_greater(largest, 0.0, LOG2_E / (positive * correction), 0.0))


@inlined
def follow_utility_of(state: Any, numbers: Any, row: int, share: Any, largest: Any) -> Any:
    """Follows U = -g w of one weight before its step, given -(1 - β) g. Returns the largest trace so far."""
    trace = multiply_add(numbers.trace_decay, load(state.trace, row), share * load(state.parameters, row))
    store(state.trace, row, trace)
    return where_greater(trace, largest, trace, largest)


@separate
def reinitialize(state: Any, scratch: Any, choices: Any, numbers: Any, units: int, inputs: int, step: int) -> None:
    """Draws the weights of least utility anew, in each parameter of each lane by itself."""
    last = 4 if choices.layer_norm else 2
    for lane in range(WIDTH):
        if choices.layer_norm:
            reinitialize_part(state, scratch, choices, numbers, units, inputs, step, lane, 2)
            reinitialize_part(state, scratch, choices, numbers, units, inputs, step, lane, 3)
        reinitialize_part(state, scratch, choices, numbers, units, inputs, step, lane, 0)
        reinitialize_part(state, scratch, choices, numbers, units, inputs, step, lane, 1)
        reinitialize_part(state, scratch, choices, numbers, units, inputs, step, lane, last)
        reinitialize_part(state, scratch, choices, numbers, units, inputs, step, lane, last + 1)


@inlined
def row_of(part: int, k: int, units: int, inputs: int, normalized: bool) -> Any:
    """The row of place k in parameter `part`, numbered as in torch."""
    out = 4 if normalized else 2
    if part == 0:
        return unit_rows(k // inputs, inputs).weights + k % inputs
    rows = unit_rows(k, inputs)
    if part == 1:
        return rows.bias
    if part == out:
        return rows.out
    if part == out + 1:
        return output_bias_row(units, inputs)
    return rows.gain if part == 2 else rows.shift


@separate
def reinitialize_part(
    state: Any, scratch: Any, choices: Any, numbers: Any, units: int, inputs: int, step: int, lane: int, part: int
) -> None:
    """Draws the weights of least utility of one parameter of one lane anew, and forgets what Adam remembers of them."""
    out = 4 if choices.layer_norm else 2
    count = units * inputs if part == 0 else 1 if part == out + 1 else units
    seed, number, place = state.seed[0, lane], np.uint64(step), np.uint64(part)
    expected = numbers.reinitialized * count
    due = int(expected)
    due += int(uniform(seed, NEW_WEIGHTS, number, place, 0) < expected - due)
    if due == 0:
        return
    for k in range(count):
        if choices.rule == Rule.SWR_RANDOM:
            scratch.ranks[k] = uniform(seed, NEW_WEIGHTS, number, place, 1 + k)
        else:
            scratch.ranks[k] = state.trace[row_of(part, k, units, inputs, choices.layer_norm), lane]
    for _ in range(due):
        k = smallest_finite(scratch.ranks, 0, count)
        if k < 0:
            break
        scratch.ranks[k] = np.inf
        row = row_of(part, k, units, inputs, choices.layer_norm)
        value = 1.0 if choices.layer_norm and part == 2 else 0.0
        if part == 0 or part == out:
            bound = numbers.bound if part == 0 else numbers.bound_out
            value = bound * (2.0 * uniform(seed, NEW_WEIGHTS, number, place, 1 + count + k) - 1.0)
        state.parameters[row, lane] = value
        if choices.adam:
            state.first[row, lane] = 0.0
            state.second[row, lane] = 0.0
        state.totals[Total.REPLACED, lane] += 1.0
