"""Selective weight reinitialisation in one deep network; `cbp_ray.algorithm.weights.reinitialization` has it in torch."""

from typing import Any

import numpy as np

from cbp_ray.kernels.choices import Rule
from cbp_ray.kernels.compilation import separate
from cbp_ray.kernels.mlp_state import Total
from cbp_ray.kernels.random_draws import NEW_WEIGHTS, uniform


@separate
def reinitialize(state: Any, layout: Any, scratch: Any, choices: Any, numbers: Any, bounds: Any, step: int) -> None:
    """Draws the weights of least utility anew, in each parameter by itself."""
    last = len(layout.stride) - 1
    for layer in range(last + 1):
        n, part, place = layout.size[layer + 1], layout.part[layer], layout.unit[layer + 1]
        reinitialize_weights(state, layout, scratch, choices, numbers, bounds, step, layer)
        common = (state, scratch, choices, numbers, step, place, n)
        reinitialize_by_unit(*common, part + 1, state.bias, state.bias_first, state.bias_second, state.bias_trace, 0.0)
        if choices.layer_norm and layer < last:
            reinitialize_by_unit(*common, part + 2, state.gain, state.gain_first, state.gain_second, state.gain_trace, 1.0)
            reinitialize_by_unit(*common, part + 3, state.shift, state.shift_first, state.shift_second, state.shift_trace, 0.0)


CHOSEN = -1.0
"""Rank of a weight that is drawn anew; utilities are not negative."""


@separate
def forget(first: Any, second: Any, choices: Any, k: int) -> None:
    """Sets Adam's moments of one parameter to zero."""
    if choices.adam:
        first[k] = 0
        second[k] = 0


@separate
def reinitialize_by_unit(
    state: Any,
    scratch: Any,
    choices: Any,
    numbers: Any,
    step: int,
    place: int,
    n: int,
    part: int,
    values: Any,
    first: Any,
    second: Any,
    trace: Any,
    initial: float,
) -> None:
    """Sets the parameters by unit of least utility, from `place` on, to what they were at first."""
    for k in range(n):
        scratch.ranks[k] = trace[place + k]
    if choose(state, scratch, choices, numbers, step, part, n):
        for k in range(n):
            if scratch.ranks[k] == CHOSEN:
                values[place + k] = initial
                forget(first, second, choices, place + k)


@separate
def reinitialize_weights(
    state: Any, layout: Any, scratch: Any, choices: Any, numbers: Any, bounds: Any, step: int, layer: int
) -> None:
    """Draws the weights of least utility of one layer anew."""
    fan_in, n, stride, first = layout.size[layer], layout.size[layer + 1], layout.stride[layer], layout.weight[layer]
    count = fan_in * n
    if choices.rule != Rule.SWR_RANDOM:
        for o in range(n):
            for j in range(fan_in):
                scratch.ranks[o * fan_in + j] = state.trace[first + j * stride + o]
    if not choose(state, scratch, choices, numbers, step, layout.part[layer], count):
        return
    seed, number, part = state.seed[0], np.uint64(step), np.uint64(layout.part[layer])
    bound = bounds[layer] / state.scale[layer]
    for k in range(count):
        if scratch.ranks[k] == CHOSEN:
            place = first + (k % fan_in) * stride + k // fan_in
            state.weights[place] = bound * (2.0 * uniform(seed, NEW_WEIGHTS, number, part, 1 + count + k) - 1.0)
            forget(state.first, state.second, choices, place)


@separate
def choose(state: Any, scratch: Any, choices: Any, numbers: Any, step: int, part: int, count: int) -> int:
    """Marks those of `count` weights in `scratch.ranks` that are drawn anew; of equals, the first. Returns how many."""
    seed, number, place = state.seed[0], np.uint64(step), np.uint64(part)
    expected = numbers.reinitialized * count
    due = int(expected)
    due += int(uniform(seed, NEW_WEIGHTS, number, place, 0) < expected - due)
    if due == 0:
        return 0
    finite = 0
    for k in range(count):
        if choices.rule == Rule.SWR_RANDOM:
            scratch.ranks[k] = uniform(seed, NEW_WEIGHTS, number, place, 1 + k)
        if np.isfinite(scratch.ranks[k]):
            scratch.sorted[finite] = scratch.ranks[k]
            finite += 1
    due = min(due, finite)
    if due == 0:
        return 0
    limit = smallest(scratch.sorted, finite, due - 1)
    equal = due
    for k in range(count):
        equal -= int(scratch.ranks[k] < limit)
    for k in range(count):
        if scratch.ranks[k] < limit:
            scratch.ranks[k] = CHOSEN
        elif scratch.ranks[k] == limit and equal > 0:
            scratch.ranks[k] = CHOSEN
            equal -= 1
    state.totals[Total.REPLACED] += due
    return due


@separate
def smallest(values: Any, count: int, rank: int) -> Any:
    """The number that would stand at `rank` if the first `count` of `values` were sorted; changes their order (Hoare 1961)."""
    low, high = 0, count - 1
    while low < high:
        pivot = values[(low + high) // 2]
        i, j = low, high
        while i <= j:
            while values[i] < pivot:
                i += 1
            while values[j] > pivot:
                j -= 1
            if i <= j:
                values[i], values[j] = values[j], values[i]
                i += 1
                j -= 1
        if rank <= j:
            high = j
        elif rank >= i:
            low = i
        else:
            break
    return values[rank]
