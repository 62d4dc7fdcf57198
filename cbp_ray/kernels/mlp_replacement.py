"""Generate-and-test in one deep network: averages in every step, and the rare replacement.

Equations 2 to 7 of the paper, vector by vector. How many units are due follows from births and counts alone; only when one
is, the smallest utility is looked for. `tests/support/naive.py` is the same once more, without vectors.
"""

import math
from typing import Any

import numpy as np

from cbp_ray.kernels.choices import NEEDS_INCOMING, NEEDS_OUTGOING, Utility
from cbp_ray.kernels.compilation import inlined, separate
from cbp_ray.kernels.lanes import absolute, spread
from cbp_ray.kernels.mlp_state import Total
from cbp_ray.kernels.random_draws import BERNOULLI, NEW_UNIT, RANDOM_UTILITY, fill_uniforms, uniform
from cbp_ray.kernels.rules import follow_utility, smallest_finite
from cbp_ray.kernels.vectors import VECTOR, load_at, store_at, total

SMALL = 1 << 17
"""Sums over layers with at most this many weights are taken again after a replacement; in larger ones no sum becomes zero."""


@inlined
def needs_incoming(choices: Any) -> Any:
    """Whether Σ|w_in| has a part in the utility."""
    return choices.replaces and choices.utility in NEEDS_INCOMING


@inlined
def needs_outgoing(choices: Any) -> Any:
    """Whether Σ|w_out| has a part in the utility."""
    return choices.replaces and choices.utility in NEEDS_OUTGOING


@separate
def measure(state: Any, layout: Any, layer: int) -> None:
    """Sums |w| of a whole weight layer, by row and by column."""
    stride, first, below, above = layout.stride[layer], layout.weight[layer], layout.unit[layer], layout.unit[layer + 1]
    zero = spread(0.0, load_at(state.weights, first))
    for i in range(0, stride, VECTOR):
        store_at(state.incoming, above + i, zero)
    for j in range(layout.size[layer]):
        row, out = first + j * stride, zero
        for i in range(0, stride, VECTOR):
            size = absolute(load_at(state.weights, row + i))
            out = out + size
            store_at(state.incoming, above + i, load_at(state.incoming, above + i) + size)
        state.outgoing[below + j] = total(out)


@inlined
def follow_level(state: Any, layout: Any, scratch: Any, choices: Any, numbers: Any, level: int) -> None:
    """Updates the averages of a level's units."""
    weight_in, weight_out = 1.0, 1.0
    if choices.decays:
        weight_in, weight_out = abs(state.scale[level - 1]), abs(state.scale[level])
    if choices.mean_magnitudes:
        weight_in, weight_out = weight_in / layout.size[level - 1], weight_out / layout.size[level + 1]
    for k in range(layout.unit[level], layout.unit[level + 1], VECTOR):
        out, magnitude = load_at(state.outgoing, k), load_at(state.incoming, k)
        if choices.decays or choices.mean_magnitudes:
            out, magnitude = out * weight_out, magnitude * weight_in
        h, correction = load_at(scratch.h, k), load_at(state.correction, k)
        f, u = load_at(state.activation, k), load_at(state.utility, k)
        f, u, correction = follow_utility(h, f, u, correction, out, magnitude, choices, numbers)
        store_at(state.correction, k, correction)
        store_at(state.activation, k, f)
        store_at(state.utility, k, u)


@inlined
def count_due(state: Any, layout: Any, choices: Any, numbers: Any, level: int) -> Any:
    """Returns how many units of a level are to be replaced in this step, as far as enough are eligible."""
    rate, mature_before = numbers.replacement_rate, state.steps[0] - numbers.maturity_threshold
    exposed = 0
    if state.oldest_birth[level] < mature_before:
        exposed = layout.size[level]
        if choices.rate_of_eligible:
            exposed = 0
            for k in range(layout.unit[level], layout.unit[level] + layout.size[level]):
                exposed += state.birth[k] < mature_before
    if choices.bernoulli:
        expected = rate * exposed
        whole = math.floor(expected)
        draw = uniform(state.seed[0], BERNOULLI, np.uint64(state.steps[0] - 1), np.uint64(level - 1), 0)
        return int(whole) + int(draw < expected - whole)
    state.exposure[level] += exposed
    return np.int64(math.floor(rate * state.exposure[level])) - state.replaced[level]


@inlined
def generate_and_test(state: Any, layout: Any, scratch: Any, choices: Any, numbers: Any, bounds: Any) -> None:
    """One step of generate-and-test for all hidden levels, in order, each finished before the next."""
    state.steps[0] += 1
    for level in range(1, len(layout.size) - 1):
        due = count_due(state, layout, choices, numbers, level)
        if due > 0 and choices.lagged:
            estimate(state, layout, scratch, choices, numbers, level)
        follow_level(state, layout, scratch, choices, numbers, level)
        if due > 0:
            if not choices.lagged:
                estimate(state, layout, scratch, choices, numbers, level)
            replace_smallest(state, layout, scratch, choices, numbers, bounds, level, due)


@separate
def estimate(state: Any, layout: Any, scratch: Any, choices: Any, numbers: Any, level: int) -> None:
    """Writes û of a level's units (Equation 7), from the averages as they are, and the present step's correction."""
    for i in range(layout.size[level]):
        k = layout.unit[level] + i
        if choices.utility == Utility.RANDOM:
            number = np.uint64(state.replaced[level])
            scratch.u_hat[k] = uniform(state.seed[0], RANDOM_UTILITY, number, np.uint64(level - 1), i)
        else:
            correction = np.float64(state.correction[k])
            if choices.lagged:
                correction = numbers.decay_rate * correction + (1 - numbers.decay_rate)
            scratch.u_hat[k] = state.utility[k] / correction


@separate
def replace_smallest(
    state: Any, layout: Any, scratch: Any, choices: Any, numbers: Any, bounds: Any, level: int, due: int
) -> None:
    """Replaces the `due` eligible units with the smallest finite û; of equals, the one with the lowest index first."""
    mature_before = state.steps[0] - numbers.maturity_threshold
    first, last = layout.unit[level], layout.unit[level] + layout.size[level]
    for k in range(first, last):
        if not state.birth[k] < mature_before:
            scratch.u_hat[k] = np.inf
        elif not np.isfinite(scratch.u_hat[k]):
            state.totals[Total.NONFINITE] += 1
    for _ in range(due):
        best = smallest_finite(scratch.u_hat, first, last)
        if best < 0:
            break
        replace_unit(state, layout, scratch, choices, bounds, level, best - first)
        scratch.u_hat[best] = np.inf
    if layout.size[level] * layout.stride[level] <= SMALL:
        # A unit whose inputs have all been replaced has Σ|w_in| = 0 and nothing else; subtracting leaves rounding errors.
        measure(state, layout, level)
    oldest = state.birth[first]
    for k in range(first, last):
        oldest = min(oldest, state.birth[k])
    state.oldest_birth[level] = oldest


@separate
def replace_unit(state: Any, layout: Any, scratch: Any, choices: Any, bounds: Any, level: int, i: int) -> None:
    """The generator: the one place, besides the gradient step, where weights and optimizer state change."""
    k = layout.unit[level] + i
    # Out of the unit.
    stride, above, scale = layout.stride[level], layout.unit[level + 1], state.scale[level]
    row = layout.weight[level] + i * stride
    f_hat = state.activation[k] / state.correction[k]
    for c in range(layout.size[level + 1]):
        w = state.weights[row + c]
        if choices.transfers_bias:
            state.bias[above + c] += scale * w * f_hat
        state.incoming[above + c] -= abs(w)
        state.weights[row + c] = 0
        if choices.adam:
            state.first[row + c] = 0
            state.second[row + c] = 0
    state.outgoing[k] = 0
    # Into the unit.
    n, stride, below = layout.size[level - 1], layout.stride[level - 1], layout.unit[level - 1]
    factor = bounds[level - 1] / state.scale[level - 1]
    number, layer = np.uint64(state.replaced[level]), np.uint64(level - 1)
    fill_uniforms(scratch.draws, state.seed[0], NEW_UNIT, number, layer, n)
    magnitude = 0.0
    for j in range(n):
        place = layout.weight[level - 1] + j * stride + i
        old = abs(state.weights[place])
        state.weights[place] = factor * (2.0 * scratch.draws[j] - 1.0)
        new = abs(state.weights[place])
        if level > 1:
            state.outgoing[below + j] += new - old
        magnitude += new
        if choices.adam:
            state.first[place] = 0
            state.second[place] = 0
    state.incoming[k] = magnitude
    state.bias[k] = 0
    if choices.layer_norm:
        state.gain[k] = 1
        state.shift[k] = 0
    if choices.adam and choices.layer_norm:
        state.gain_first[k] = 0
        state.gain_second[k] = 0
        state.shift_first[k] = 0
        state.shift_second[k] = 0
    if choices.adam:
        state.bias_first[k] = 0
        state.bias_second[k] = 0
        state.correction_1[k] = 0
        state.correction_2[k] = 0
    state.utility[k] = 0
    state.activation[k] = 0
    state.correction[k] = 0
    state.silence[k] = 0
    state.firing[k] = 0
    state.birth[k] = state.steps[0]
    state.replaced[level] += 1
    state.totals[Total.REPLACED] += 1
