"""One step of online classification for one deep network: forward, backward and update, skipping what is zero.

An input that is 0 has no part in the sums that it feeds, and its outgoing weights have no gradient: its row of weights is
neither read nor written. With ReLU that holds for inactive units as well; other activations take the same code with every
unit active. Backward and update are one pass over the rows, which also keeps Σ|w| up to date for generate-and-test.
Adam moves every weight in every step and therefore skips nothing.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from cbp_ray.kernels import rules
from cbp_ray.kernels.activations import Activation, activate, exponential
from cbp_ray.kernels.choices import NO_CHOICES, Choices
from cbp_ray.kernels.compilation import UNCOUNTED, compile_cached, inlined
from cbp_ray.kernels.lanes import (
    absolute,
    flush_denormals,
    multiply_add,
    restore_denormals,
    spread,
    use_wide_vectors,
    where_greater,
)
from cbp_ray.kernels.mlp_replacement import generate_and_test, measure, needs_incoming, needs_outgoing
from cbp_ray.kernels.mlp_state import ROWS, Total
from cbp_ray.kernels.vectors import VECTOR, four_sums, load_at, prefetch, store_at, total

SMALLEST_SCALE = 1 / 16
"""Below this, a layer's `scale` goes back into its weights."""

FAR = 1 << 18
"""A layer with more weights does not stay in the second-level cache, so its rows are fetched ahead."""

FETCHED = 128
"""Places of a row that are worked on between two fetches."""

REFRESH = 1024
"""Steps after which Σ|w| is summed again, so that rounding errors of its updates can't grow further."""


@inlined
def fill_up(layout: Any, scratch: Any, level: int, count: int) -> None:
    """Fills a level's list of active units up with the spare row."""
    start = layout.first_active[level]
    while count % ROWS:
        scratch.active[start + count] = layout.size[level]
        scratch.active_outputs[start + count] = 0
        count += 1
    scratch.active_count[level] = count


@inlined
def load_image(layout: Any, scratch: Any, choices: Any, stream: Any, image: int, where: Any, shades: Any) -> None:
    """Puts an image, its pixels permuted by `where`, into level 0."""
    first, last = stream.start[image], stream.start[image + 1]
    for k in range(last - first):
        place = where[stream.pixel[first + k]]
        shade = shades[stream.value[first + k]]
        scratch.active[k] = place
        scratch.active_outputs[k] = shade
        if choices.adam:
            scratch.h[place] = shade
    fill_up(layout, scratch, 0, last - first)


@inlined
def clear_image(layout: Any, scratch: Any, choices: Any) -> None:
    """Undoes `load_image`."""
    if choices.adam:
        for k in range(scratch.active_count[0]):
            # The filling's place may lie behind the level; a level's own places are all that is read.
            if scratch.active[k] < layout.size[0]:
                scratch.h[scratch.active[k]] = 0


@inlined
def prefetch_rows(state: Any, layout: Any, scratch: Any, layer: int, following: int, begin: int, end: int) -> None:
    """Fetches part of the rows of the group that comes next in the list, if the layer is too large for the cache."""
    if following < 0 or following >= scratch.active_count[layer]:
        return
    first, stride, at = layout.weight[layer], layout.stride[layer], layout.first_active[layer] + following
    for k in range(ROWS):
        row = first + scratch.active[at + k] * stride
        for i in range(begin, end, VECTOR):
            prefetch(state.weights, row + i)


@inlined
def sum_rows(state: Any, layout: Any, scratch: Any, choices: Any, layer: int) -> None:
    """Writes z = Wᵀh + b of a layer into `scratch.h`."""
    z, stride, first = layout.unit[layer + 1], layout.stride[layer], layout.weight[layer]
    start = layout.first_active[layer]
    w, h = state.weights, scratch.h
    far = layout.size[layer] * stride > FAR
    for k in range(0, stride, VECTOR):
        bias = load_at(state.bias, z + k)
        store_at(h, z + k, spread(0.0, bias) if choices.decays else bias)
    for k in range(0, scratch.active_count[layer], ROWS):
        a = first + scratch.active[start + k] * stride
        b = first + scratch.active[start + k + 1] * stride
        c = first + scratch.active[start + k + 2] * stride
        d = first + scratch.active[start + k + 3] * stride
        x_a, x_b = scratch.active_outputs[start + k], scratch.active_outputs[start + k + 1]
        x_c, x_d = scratch.active_outputs[start + k + 2], scratch.active_outputs[start + k + 3]
        for begin in range(0, stride, FETCHED):
            end = min(begin + FETCHED, stride)
            if far:
                prefetch_rows(state, layout, scratch, layer, k + ROWS, begin, end)
            for i in range(begin, end, VECTOR):
                left = multiply_add(load_at(w, a + i), x_a, load_at(w, b + i) * x_b)
                right = multiply_add(load_at(w, c + i), x_c, load_at(w, d + i) * x_d)
                store_at(h, z + i, load_at(h, z + i) + (left + right))
    if choices.decays:
        scale = state.scale[layer]
        for k in range(0, stride, VECTOR):
            store_at(h, z + k, multiply_add(scale, load_at(h, z + k), load_at(state.bias, z + k)))


@inlined
def normalize(state: Any, scratch: Any, numbers: Any, k: int, x: Any) -> Any:
    """OnlineNorm forward for the units at `k`, with their learned scale and bias."""
    y, sigma, mean, variance = rules.normalize(x, load_at(state.mean, k), load_at(state.variance, k), numbers)
    store_at(scratch.sigma, k, sigma)
    store_at(scratch.normalized, k, y)
    store_at(state.variance, k, variance)
    store_at(state.mean, k, mean)
    return multiply_add(load_at(state.gain, k), y, load_at(state.shift, k))


@inlined
def activate_level(state: Any, layout: Any, scratch: Any, choices: Any, numbers: Any, level: int) -> None:
    """Turns a level's pre-activations into outputs, and lists its active units."""
    unit, n, start = layout.unit[level], layout.size[level], layout.first_active[level]
    for k in range(unit, layout.unit[level + 1], VECTOR):
        z = load_at(scratch.h, k)
        if choices.normalized:
            z = normalize(state, scratch, numbers, k, z)
        h, derivative = activate(z, choices.activation)
        store_at(scratch.h, k, h)
        store_at(scratch.derivative, k, derivative)
    count = 0
    for i in range(n):
        h_i = scratch.h[unit + i]
        scratch.active[start + count] = i
        scratch.active_outputs[start + count] = h_i
        # Without a branch; not-a-number counts as active.
        count += 1 if choices.activation != Activation.RELU else int(not h_i <= 0)
    fill_up(layout, scratch, level, count)


@inlined
def classify(state: Any, layout: Any, scratch: Any, level: int, label: int) -> None:
    """Counts accuracy and cross-entropy, and writes the gradient by the outputs into `scratch.delta`."""
    unit, n = layout.unit[level], layout.size[level]
    best = 0
    for i in range(1, n):
        if scratch.h[unit + i] > scratch.h[unit + best]:
            best = i
    top = scratch.h[unit + best]
    state.totals[Total.RIGHT] += best == label
    for k in range(unit, layout.unit[level + 1], VECTOR):
        store_at(scratch.delta, k, exponential(load_at(scratch.h, k) - top))
    for i in range(n, layout.unit[level + 1] - unit):
        scratch.delta[unit + i] = 0
    whole = 0.0
    for i in range(n):
        whole += scratch.delta[unit + i]
    state.totals[Total.LOSS] += math.log(whole) - (np.float64(scratch.h[unit + label]) - top)
    for k in range(unit, layout.unit[level + 1], VECTOR):
        store_at(scratch.delta, k, load_at(scratch.delta, k) * (1.0 / whole))
    scratch.delta[unit + label] -= 1


@inlined
def clear_delta(layout: Any, scratch: Any, level: int) -> None:
    """Sets a level's δ to 0: units that are not active get no gradient."""
    for k in range(layout.unit[level], layout.unit[level + 1], VECTOR):
        store_at(scratch.delta, k, spread(0.0, load_at(scratch.delta, k)))


@inlined
def decay(state: Any, layout: Any, choices: Any, numbers: Any, layer: int) -> None:
    """Shrinks all weights of a layer by 1 - αλ: their common scale. Once in a while the weights take up the scale."""
    if state.scale[layer] < SMALLEST_SCALE:
        for k in range(layout.weight[layer], layout.weight[layer + 1], VECTOR):
            store_at(state.weights, k, load_at(state.weights, k) * state.scale[layer])
        state.scale[layer] = 1.0
        if choices.replaces:
            measure(state, layout, layer)
    state.scale[layer] *= 1 - numbers.step_size * numbers.weight_decay


@inlined
def sgd_rows(state: Any, layout: Any, scratch: Any, choices: Any, numbers: Any, layer: int, back: bool, hidden: bool) -> None:
    """SGD on a layer's weights, and the gradient by its inputs from the weights before it.

    `back` (not the first layer) and `hidden` (not the last) are constants where this is called, so that the inner loop has no
    branches.
    """
    stride, first, below, above = layout.stride[layer], layout.weight[layer], layout.unit[layer], layout.unit[layer + 1]
    start = layout.first_active[layer]
    w, delta, incoming = state.weights, scratch.delta, state.incoming
    sums_in = needs_incoming(choices) and hidden
    sums_out = needs_outgoing(choices) and back
    rate, scale = numbers.step_size, 1.0
    if choices.decays:
        decay(state, layout, choices, numbers, layer)
        rate = numbers.step_size / state.scale[layer]
        scale = state.scale[layer] / (1 - numbers.step_size * numbers.weight_decay)
    zero = spread(0.0, load_at(delta, above))
    far = layout.size[layer] * stride > FAR
    # Backwards: what the forward pass has read last is still in the cache.
    for k in range(scratch.active_count[layer] - ROWS, -1, -ROWS):
        j_a, j_b = scratch.active[start + k], scratch.active[start + k + 1]
        j_c, j_d = scratch.active[start + k + 2], scratch.active[start + k + 3]
        a, b, c, d = first + j_a * stride, first + j_b * stride, first + j_c * stride, first + j_d * stride
        s_a, s_b = -rate * scratch.active_outputs[start + k], -rate * scratch.active_outputs[start + k + 1]
        s_c, s_d = -rate * scratch.active_outputs[start + k + 2], -rate * scratch.active_outputs[start + k + 3]
        dot_a, dot_b, dot_c, dot_d = zero, zero, zero, zero
        out_a, out_b, out_c, out_d = zero, zero, zero, zero
        for begin in range(0, stride, FETCHED):
            end = min(begin + FETCHED, stride)
            if far:
                prefetch_rows(state, layout, scratch, layer, k - ROWS, begin, end)
            for i in range(begin, end, VECTOR):
                g = load_at(delta, above + i)
                w_a, w_b, w_c, w_d = load_at(w, a + i), load_at(w, b + i), load_at(w, c + i), load_at(w, d + i)
                if back:
                    dot_a, dot_b = multiply_add(w_a, g, dot_a), multiply_add(w_b, g, dot_b)
                    dot_c, dot_d = multiply_add(w_c, g, dot_c), multiply_add(w_d, g, dot_d)
                n_a, n_b = multiply_add(s_a, g, w_a), multiply_add(s_b, g, w_b)
                n_c, n_d = multiply_add(s_c, g, w_c), multiply_add(s_d, g, w_d)
                store_at(w, a + i, n_a)
                store_at(w, b + i, n_b)
                store_at(w, c + i, n_c)
                store_at(w, d + i, n_d)
                if sums_in or sums_out:
                    n_a, n_b, n_c, n_d = absolute(n_a), absolute(n_b), absolute(n_c), absolute(n_d)
                if sums_out:
                    out_a, out_b, out_c, out_d = out_a + n_a, out_b + n_b, out_c + n_c, out_d + n_d
                if sums_in:
                    left = (n_a - absolute(w_a)) + (n_b - absolute(w_b))
                    right = (n_c - absolute(w_c)) + (n_d - absolute(w_d))
                    store_at(incoming, above + i, load_at(incoming, above + i) + (left + right))
        if back:
            g_a, g_b, g_c, g_d = four_sums(dot_a, dot_b, dot_c, dot_d)
            store_delta(layout, scratch, choices, below, layer, j_d, g_d, scale)
            store_delta(layout, scratch, choices, below, layer, j_c, g_c, scale)
            store_delta(layout, scratch, choices, below, layer, j_b, g_b, scale)
            store_delta(layout, scratch, choices, below, layer, j_a, g_a, scale)
        if sums_out:
            m_a, m_b, m_c, m_d = four_sums(out_a, out_b, out_c, out_d)
            n = layout.size[layer]
            state.outgoing[below + j_a] = m_a
            if j_b < n:
                state.outgoing[below + j_b] = m_b
            if j_c < n:
                state.outgoing[below + j_c] = m_c
            if j_d < n:
                state.outgoing[below + j_d] = m_d


@inlined
def store_delta(layout: Any, scratch: Any, choices: Any, below: int, layer: int, j: int, gradient: Any, scale: float) -> None:
    """Writes δ of unit j, given Σ w δ over what it feeds. The spare row is no unit."""
    if j < layout.size[layer]:
        if choices.decays:
            gradient = gradient * scale
        scratch.delta[below + j] = gradient * scratch.derivative[below + j]


@inlined
def adam_rows(state: Any, layout: Any, scratch: Any, choices: Any, numbers: Any, layer: int) -> None:
    """`sgd_rows` with Adam: every weight has a momentum of its own, so every row moves."""
    stride, first, below, above = layout.stride[layer], layout.weight[layer], layout.unit[layer], layout.unit[layer + 1]
    last = len(layout.stride) - 1
    sums_in = needs_incoming(choices) and layer < last
    sums_out = needs_outgoing(choices) and layer > 0
    zero = spread(0.0, load_at(scratch.delta, above))
    if sums_in:
        for i in range(0, stride, VECTOR):
            store_at(state.incoming, above + i, zero)
    for j in range(layout.size[layer]):
        row, x = first + j * stride, scratch.h[below + j]
        scale_1, scale_2 = scratch.inverse_1[below + j], scratch.inverse_2[below + j]
        dot, out = zero, zero
        for i in range(0, stride, VECTOR):
            delta, w = load_at(scratch.delta, above + i), load_at(state.weights, row + i)
            dot = multiply_add(w, delta, dot)
            column_1, column_2 = load_at(scratch.inverse_1, above + i), load_at(scratch.inverse_2, above + i)
            gradient = delta * x
            larger_1 = where_greater(column_1, scale_1, column_1, scale_1)
            larger_2 = where_greater(column_2, scale_2, column_2, scale_2)
            moments = state.first, state.second
            w = adam(state.weights, *moments, choices, numbers, row + i, gradient, larger_1, larger_2)
            if sums_in or sums_out:
                size = absolute(w)
            if sums_in:
                store_at(state.incoming, above + i, load_at(state.incoming, above + i) + size)
            if sums_out:
                out = out + size
        if layer > 0:
            store_delta(layout, scratch, choices, below, layer, j, total(dot), 1.0)
        if sums_out:
            state.outgoing[below + j] = total(out)


@inlined
def adam(
    values: Any, first: Any, second: Any, choices: Any, numbers: Any, k: int, gradient: Any, scale_1: Any, scale_2: Any
) -> Any:
    """One step of Adam for the parameters at `k`, with the factors of `rules.adam_scales`. Returns the new values."""
    w, m, v = load_at(values, k), load_at(first, k), load_at(second, k)
    w, m, v = rules.adam(w, m, v, gradient, scale_1, scale_2, choices, numbers)
    store_at(first, k, m)
    store_at(second, k, v)
    store_at(values, k, w)
    return w


@inlined
def step_vector(values: Any, first: Any, second: Any, scratch: Any, choices: Any, numbers: Any, k: int, gradient: Any) -> None:
    """One optimizer step for parameters by unit at `k`: biases, or OnlineNorm's scale and bias."""
    if choices.adam:
        scale_1, scale_2 = load_at(scratch.inverse_1, k), load_at(scratch.inverse_2, k)
        adam(values, first, second, choices, numbers, k, gradient, scale_1, scale_2)
    else:
        store_at(values, k, rules.sgd(load_at(values, k), -numbers.step_size, gradient, choices, numbers))


@inlined
def learn_level(state: Any, layout: Any, scratch: Any, choices: Any, numbers: Any, level: int) -> None:
    """Given δ of a level's outputs, applies OnlineNorm's gradient control and updates the parameters by unit."""
    hidden = level < len(layout.size) - 1
    for k in range(layout.unit[level], layout.unit[level + 1], VECTOR):
        delta = load_at(scratch.delta, k)
        if choices.normalized and hidden:
            y, by_y = load_at(scratch.normalized, k), delta * load_at(state.gain, k)
            step_vector(state.gain, state.gain_first, state.gain_second, scratch, choices, numbers, k, delta * y)
            step_vector(state.shift, state.shift_first, state.shift_second, scratch, choices, numbers, k, delta)
            u, v = load_at(state.control_u, k), load_at(state.control_v, k)
            delta, u, v = rules.control(by_y, y, load_at(scratch.sigma, k), u, v, numbers)
            store_at(state.control_v, k, v)
            store_at(state.control_u, k, u)
            store_at(scratch.delta, k, delta)
        step_vector(state.bias, state.bias_first, state.bias_second, scratch, choices, numbers, k, delta)


@inlined
def count_time_steps(state: Any, layout: Any, scratch: Any, numbers: Any) -> None:
    """Writes Adam's factors of this step for every unit, see `rules.adam_scales`."""
    for k in range(0, layout.unit[len(layout.size)], VECTOR):
        c_1, c_2 = load_at(state.correction_1, k), load_at(state.correction_2, k)
        c_1, c_2, scale_1, scale_2 = rules.adam_scales(c_1, c_2, numbers)
        store_at(state.correction_1, k, c_1)
        store_at(state.correction_2, k, c_2)
        store_at(scratch.inverse_1, k, scale_1)
        store_at(scratch.inverse_2, k, scale_2)


@functools.cache
def specialised_classifier(constant: Choices | None) -> Callable[..., None]:
    """Makes the function that learns from images, compiled for constant choices. From the disk cache after the first time.

    The body is not a part that is inlined: it would be compiled twice, once for itself.
    """
    fixed = constant is not None
    known = constant or NO_CHOICES

    def learner(
        state: Any,
        layout: Any,
        scratch: Any,
        stream: Any,
        order: Any,
        where: Any,
        shades: Any,
        bounds: Any,
        given: Any,
        numbers: Any,
    ) -> None:
        """Learns from the images `order`, one after the other.

        Args:
          state, layout, scratch: the run.
          stream: the data set.
          order: int64 [examples].
          where: int64 [pixels], where each pixel goes.
          shades: [256], the input for each value of a pixel.
          bounds: float64 [layers], of the distribution of new weights.
          given: `Choices`; ignored by a specialised classifier.
          numbers: `Numbers`.
        """
        use_wide_vectors()
        choices = known if fixed else given
        before = flush_denormals()
        layers = len(layout.stride)
        for t in range(len(order)):
            image = order[t]
            load_image(layout, scratch, choices, stream, image, where, shades)
            for layer in range(layers):
                sum_rows(state, layout, scratch, choices, layer)
                if layer < layers - 1:
                    activate_level(state, layout, scratch, choices, numbers, layer + 1)
            classify(state, layout, scratch, layers, stream.label[image])
            if choices.adam:
                count_time_steps(state, layout, scratch, numbers)
            for layer in range(layers - 1, -1, -1):
                learn_level(state, layout, scratch, choices, numbers, layer + 1)
                if layer > 0 and choices.activation == Activation.RELU:
                    clear_delta(layout, scratch, layer)
                if choices.adam:
                    adam_rows(state, layout, scratch, choices, numbers, layer)
                elif layer == 0:
                    sgd_rows(state, layout, scratch, choices, numbers, layer, False, True)
                elif layer == layers - 1:
                    sgd_rows(state, layout, scratch, choices, numbers, layer, True, False)
                else:
                    sgd_rows(state, layout, scratch, choices, numbers, layer, True, True)
            clear_image(layout, scratch, choices)
            if choices.replaces:
                if state.steps[0] % REFRESH == 0:
                    for layer in range(layers):
                        measure(state, layout, layer)
                generate_and_test(state, layout, scratch, choices, numbers, bounds)
        restore_denormals(before)

    return compile_cached(learner, **UNCOUNTED)


unspecialised_classifier = functools.partial(specialised_classifier, None)
"""Makes the same function for tests, compiled once for all choices, which it takes at run time: slower, the same numbers."""
