"""Rivals of generate-and-test that act on single weights, in one deep network: `cbp_ray.algorithm.weights` has them in torch.

Gradient steps skip what is zero, as in Backprop; what a rival does to every weight is a pass of its own over whole layers.
"""

from typing import Any, NamedTuple

from cbp_ray.kernels import rules
from cbp_ray.kernels.activations import LOG2_E, NEAR, NEARER, Nearness, gate
from cbp_ray.kernels.choices import UPGDS, Rule
from cbp_ray.kernels.compilation import inlined
from cbp_ray.kernels.lanes import absolute, multiply_add, spread, where_greater
from cbp_ray.kernels.mlp_state import Total
from cbp_ray.kernels.noise import GROUP, SCALE, draw_at, four_noises_at, groups_of
from cbp_ray.kernels.vectors import VECTOR, largest_of, load_at, store_at, total

SMALLEST_TRACE = 2.0**-20
"""Below this, `trace_scale` goes back into the traces."""


class ByUnit(NamedTuple):
    """Parameters by unit of one kind, and what the methods keep of them."""

    values: Any
    first: Any
    second: Any
    trace: Any
    mean: float
    """What they are at first."""
    number: int
    """Number of the hash of their first noise."""
    start: int
    """Place of their first."""
    bound: float
    """Where they are clipped."""


@inlined
def perturb(state: Any, layout: Any, scratch: Any, choices: Any, numbers: Any, bounds: Any, layer: int) -> None:
    """Shrink and perturb after the step of a layer."""
    stride, first, above, n = layout.stride[layer], layout.weight[layer], layout.unit[layer + 1], layout.size[layer]
    if choices.rule == Rule.PERTURB_INITIAL:
        size, keep = numbers.noise * bounds[layer] / state.scale[layer], 1 - numbers.shrinkage
        for j in range(n):
            row = first + j * stride
            for i in range(0, stride, VECTOR):
                w = load_at(state.weights, row + i)
                number = layout.number[layer] + i * n + j
                drawn = draw_at(scratch.keys, number, n, w) * load_at(scratch.columns, above + i)
                store_at(state.weights, row + i, multiply_add(size, drawn, keep * w))
        return
    size = numbers.noise * SCALE / state.scale[layer]
    if choices.rule == Rule.PERTURB_GRADIENT:
        size = -numbers.step_size * size
    groups, number = groups_of(n), layout.group[layer]
    for k in range(groups):
        row, rows = first + GROUP * k * stride, min(GROUP, n - GROUP * k)
        for i in range(0, stride, VECTOR):
            sizes = size * load_at(scratch.columns, above + i)
            a, b, c, d = four_noises_at(scratch.keys, number + i * groups + k, groups, sizes)
            add_to(state.weights, row + i, sizes, a)
            # The row behind the last of a layer stays zero, and those behind it are another layer's.
            if rows > 1:
                add_to(state.weights, row + stride + i, sizes, b)
            if rows > 2:
                add_to(state.weights, row + 2 * stride + i, sizes, c)
            if rows > 3:
                add_to(state.weights, row + 3 * stride + i, sizes, d)


@inlined
def add_to(values: Any, place: int, factor: Any, change: Any) -> None:
    """values += factor · change."""
    store_at(values, place, multiply_add(factor, change, load_at(values, place)))


@inlined
def clip(state: Any, layout: Any, bound: float, layer: int) -> None:
    """Weight clipping after the step of a layer."""
    stride, first = layout.stride[layer], layout.weight[layer]
    count = spread(0.0, load_at(state.weights, first))
    for k in range(first, first + layout.size[layer] * stride, VECTOR):
        w, beyond = rules.clipped(load_at(state.weights, k), bound)
        store_at(state.weights, k, w)
        count = count + beyond
    state.totals[Total.REPLACED] += total(count)


@inlined
def follow_gradients(state: Any, layout: Any, scratch: Any, numbers: Any, layer: int, fresh: bool) -> None:
    """Follows |g w| of a layer's weights before their step."""
    stride, first, below, above = layout.stride[layer], layout.weight[layer], layout.unit[layer], layout.unit[layer + 1]
    for j in range(layout.size[layer]):
        row, x = first + j * stride, state.scale[layer] * scratch.h[below + j]
        for i in range(0, stride, VECTOR):
            utility = absolute(load_at(scratch.delta, above + i) * x * load_at(state.weights, row + i))
            follow(state.trace, row + i, utility, numbers, fresh)


@inlined
def follow_magnitudes(state: Any, layout: Any, numbers: Any, layer: int, fresh: bool) -> None:
    """Follows |w| of a layer's weights after their step."""
    first = layout.weight[layer]
    for k in range(first, first + layout.size[layer] * layout.stride[layer], VECTOR):
        follow(state.trace, k, absolute(state.scale[layer] * load_at(state.weights, k)), numbers, fresh)


@inlined
def follow(trace: Any, k: int, utility: Any, numbers: Any, fresh: bool) -> None:
    """Updates traces, which begin with their utility where `fresh`."""
    store_at(trace, k, utility if fresh else rules.running_average(load_at(trace, k), utility, numbers.trace_decay))


@inlined
def follow_useful(trace: Any, values: Any, k: int, share: Any) -> Any:
    """Follows U = -g w, given -(1 - β) g / `trace_scale`. Returns the traces."""
    now = multiply_add(share, load_at(values, k), load_at(trace, k))
    store_at(trace, k, now)
    return now


@inlined
def larger(a: Any, b: Any) -> Any:
    """The larger of two in every place."""
    return where_greater(a, b, a, b)


@inlined
def scale_traces(state: Any, layout: Any, factor: float) -> None:
    """Multiplies all traces, and the largest of every row."""
    for k in range(0, len(state.trace), VECTOR):
        store_at(state.trace, k, factor * load_at(state.trace, k))
    for k in range(0, layout.unit[len(layout.size)], VECTOR):
        store_at(state.bias_trace, k, factor * load_at(state.bias_trace, k))
        store_at(state.gain_trace, k, factor * load_at(state.gain_trace, k))
        store_at(state.shift_trace, k, factor * load_at(state.shift_trace, k))
        store_at(state.row_best, k, factor * load_at(state.row_best, k))
        store_at(state.row_size, k, factor * load_at(state.row_size, k))


@inlined
def follow_network(state: Any, layout: Any, scratch: Any, choices: Any, numbers: Any, step: int) -> None:
    """Follows the utilities of all weights for UPGD, given δ of all levels, and writes what `freedom` needs.

    All traces shrink by β, which is left to their common `trace_scale`: rows whose input is 0 are not visited.
    """
    state.trace_scale[0] *= numbers.trace_decay
    if state.trace_scale[0] < SMALLEST_TRACE:
        scale_traces(state, layout, state.trace_scale[0])
        state.trace_scale[0] = 1.0
    zero = largest = spread(0.0, load_at(state.bias, 0))
    rate, last = -(1 - numbers.trace_decay) / state.trace_scale[0], len(layout.stride)
    for layer in range(last):
        stride, first, below, above = layout.stride[layer], layout.weight[layer], layout.unit[layer], layout.unit[layer + 1]
        start, by_weight = layout.first_active[layer], rate * state.scale[layer]
        for place in range(start, start + scratch.active_count[layer]):
            j = scratch.active[place]
            if j < layout.size[layer]:
                row, x, best, size = first + j * stride, by_weight * scratch.active_outputs[place], zero, zero
                for i in range(0, stride, VECTOR):
                    now = follow_useful(state.trace, state.weights, row + i, x * load_at(scratch.delta, above + i))
                    best, size = larger(now, best), larger(absolute(now), size)
                state.row_best[below + j] = largest_of(best)
                state.row_size[below + j] = largest_of(size)
        for k in range(below, above, VECTOR):
            largest = larger(load_at(state.row_best, k), largest)
        for k in range(above, layout.unit[layer + 2], VECTOR):
            largest = larger(follow_useful(state.bias_trace, state.bias, k, rate * load_at(scratch.delta, k)), largest)
            if choices.layer_norm and layer < last - 1:
                by_norm = rate * load_at(scratch.by_norm, k)
                by_gain = by_norm * load_at(scratch.normalized, k)
                largest = larger(follow_useful(state.gain_trace, state.gain, k, by_gain), largest)
                largest = larger(follow_useful(state.shift_trace, state.shift, k, by_norm), largest)
    scratch.usefulness[0] = 0.0
    found = largest_of(largest)
    if found > 0:
        # Where no utility is positive, every weight counts as half used.
        scratch.usefulness[0] = LOG2_E / (found * (1 - numbers.trace_decay**step))


@inlined
def upgd_rows(state: Any, layout: Any, scratch: Any, choices: Any, numbers: Any, layer: int) -> None:
    """UPGD's step of a layer's weights, four rows at a time, because they share their hashes.

    With SGD, weight decay shrinks the layer's scale.
    """
    n, below = layout.size[layer], layout.unit[layer]
    for k in range(groups_of(n)):
        rows, largest = min(GROUP, n - GROUP * k), 0.0
        for j in range(GROUP * k, GROUP * k + rows):
            largest = max(largest, state.row_size[below + j])
        largest *= scratch.usefulness[0]
        if largest < NEARER:
            upgd_group(state, layout, scratch, choices, numbers, layer, k, rows, Nearness.NEARER)
        elif largest < NEAR:
            upgd_group(state, layout, scratch, choices, numbers, layer, k, rows, Nearness.NEAR)
        else:
            upgd_group(state, layout, scratch, choices, numbers, layer, k, rows, Nearness.UNKNOWN)


@inlined
def upgd_group(
    state: Any, layout: Any, scratch: Any, choices: Any, numbers: Any, layer: int, k: int, rows: int, nearness: int
) -> None:
    """UPGD's step of up to four rows, of whose gates `nearness` is known."""
    stride, n, above = layout.stride[layer], layout.size[layer], layout.unit[layer + 1]
    groups, number, rate = groups_of(n), layout.group[layer] + k, -numbers.step_size / state.scale[layer]
    unit, row = layout.unit[layer] + GROUP * k, layout.weight[layer] + GROUP * k * stride
    usefulness = spread(scratch.usefulness[0], load_at(scratch.delta, above))
    # What lies behind a level's last unit is not used.
    x_a, x_b, x_c, x_d = scratch.h[unit], scratch.h[unit + 1], scratch.h[unit + 2], scratch.h[unit + 3]
    factor = 1.0 if choices.adam else rate
    x_a, x_b, x_c, x_d = factor * x_a, factor * x_b, factor * x_c, factor * x_d
    for i in range(0, stride, VECTOR):
        delta, kick = load_at(scratch.delta, above + i), rate * numbers.noise * SCALE * load_at(scratch.columns, above + i)
        common = state, scratch, choices, numbers, usefulness, kick, nearness
        a, b, c, d = four_noises_at(scratch.keys, number + i * groups, groups, kick)
        upgd_place(common, row + i, unit, above + i, delta * x_a, a)
        if rows > 1:
            upgd_place(common, row + stride + i, unit + 1, above + i, delta * x_b, b)
        if rows > 2:
            upgd_place(common, row + 2 * stride + i, unit + 2, above + i, delta * x_c, c)
        if rows > 3:
            upgd_place(common, row + 3 * stride + i, unit + 3, above + i, delta * x_d, d)


@inlined
def upgd_place(common: Any, k: int, unit: int, column: int, step: Any, xi: Any) -> None:
    """UPGD's step of the weights at k, from a unit to the units at `column`; `step` is SGD's own, or the gradient for Adam."""
    state, scratch, choices, numbers, usefulness, kick, nearness = common
    w, free = load_at(state.weights, k), gate(load_at(state.trace, k) * usefulness, nearness)
    if choices.adam:
        column_1, column_2 = load_at(scratch.inverse_1, column), load_at(scratch.inverse_2, column)
        row_1, row_2 = scratch.inverse_1[unit], scratch.inverse_2[unit]
        scale_1 = where_greater(column_1, row_1, column_1, row_1)
        scale_2 = where_greater(column_2, row_2, column_2, row_2)
        new, m, v = rules.adam(w, load_at(state.first, k), load_at(state.second, k), step, scale_1, scale_2, choices, numbers)
        store_at(state.first, k, m)
        store_at(state.second, k, v)
        step = new - w
    store_at(state.weights, k, rules.upgd(w, step, kick, xi, free, choices))


@inlined
def step_by_unit(own: Any, state: Any, scratch: Any, choices: Any, numbers: Any, k: int, gradient: Any, fresh: bool) -> None:
    """One step of the method for parameters by unit at `k`: biases, or a norm's scale and bias."""
    w = load_at(own.values, k)
    m = v = scale_1 = scale_2 = w
    if choices.rule == Rule.SWR_GRADIENT:
        follow(own.trace, k, absolute(gradient * w), numbers, fresh)
    if choices.rule == Rule.L2_INIT:
        gradient = rules.pulled(gradient, w, own.mean, numbers)
    if choices.adam:
        m, v = load_at(own.first, k), load_at(own.second, k)
        scale_1, scale_2 = load_at(scratch.inverse_1, k), load_at(scratch.inverse_2, k)
    columns, before = load_at(scratch.columns, k), w
    if choices.adam:
        w, m, v = rules.adam(w, m, v, gradient, scale_1, scale_2, choices, numbers)
    elif choices.rule not in UPGDS:
        w = rules.sgd(w, -numbers.step_size, gradient, choices, numbers)
    if choices.rule in UPGDS:
        xi, kick = four_noises_at(scratch.keys, own.number + k - own.start, 1, w)[0], -numbers.step_size * numbers.noise * SCALE
        free = gate(load_at(own.trace, k) * spread(scratch.usefulness[0], w), Nearness.UNKNOWN)
        step = (w - before) if choices.adam else -numbers.step_size * gradient
        w = before if choices.adam else rules.decayed(before, choices, numbers)
        w = rules.upgd(w, step, kick * columns, xi, free, choices)
    if choices.rule == Rule.PERTURB or choices.rule == Rule.PERTURB_GRADIENT:
        size = numbers.noise * SCALE
        if choices.rule == Rule.PERTURB_GRADIENT:
            size = -numbers.step_size * size
        w = multiply_add(four_noises_at(scratch.keys, own.number + k - own.start, 1, w)[0] * columns, size, w)
    elif choices.rule == Rule.PERTURB_INITIAL:
        w = multiply_add(1 - numbers.shrinkage, w, numbers.noise * own.mean)
    elif choices.rule == Rule.CLIP:
        w, beyond = rules.clipped(w, own.bound)
        state.totals[Total.REPLACED] += total(beyond)
    elif choices.rule == Rule.SWR_MAGNITUDE:
        follow(own.trace, k, absolute(w), numbers, fresh)
    store_at(own.values, k, w)
    if choices.adam:
        store_at(own.first, k, m)
        store_at(own.second, k, v)
