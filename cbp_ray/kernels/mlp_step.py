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

from cbp_ray.activations import SMALLEST_LOSS
from cbp_ray.kernels import rules
from cbp_ray.kernels.activations import Activation, activate, exponential
from cbp_ray.kernels.choices import NO_CHOICES, PERTURBS, REINITIALIZES, UPGDS, Choices, Rule, Tester
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
from cbp_ray.kernels.mlp_levels import adam, count_time_steps, learn_level
from cbp_ray.kernels.mlp_norm import layer_gradient, normalize, normalize_inputs, normalize_layer
from cbp_ray.kernels.mlp_reinitialization import reinitialize
from cbp_ray.kernels.mlp_replacement import generate_and_test, measure, needs_incoming, needs_outgoing
from cbp_ray.kernels.mlp_resets import reset_units
from cbp_ray.kernels.mlp_scale import decay, keeps_distances, whole
from cbp_ray.kernels.mlp_state import ROWS, Total
from cbp_ray.kernels.mlp_weights import (
    clip,
    follow_gradients,
    follow_magnitudes,
    follow_network,
    perturb,
    upgd_rows,
)
from cbp_ray.kernels.noise import make_keys_of_run
from cbp_ray.kernels.vectors import VECTOR, four_sums, load_at, prefetch, store_at, total

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
def reads_all_inputs(choices: Any) -> Any:
    """Whether a pass over all rows of the first layer needs every input, and not only those that are not 0."""
    reads = choices.adam or choices.rule == Rule.SWR_GRADIENT or choices.rule in UPGDS
    return reads or choices.input_norm


@inlined
def load_image(
    state: Any, layout: Any, scratch: Any, choices: Any, numbers: Any, stream: Any, image: int, where: Any, shades: Any
) -> None:
    """Puts an image, its pixels permuted by `where`, into level 0."""
    first, last = stream.start[image], stream.start[image + 1]
    for k in range(last - first):
        place = where[stream.pixel[first + k]]
        shade = shades[stream.value[first + k]]
        scratch.active[k] = place
        scratch.active_outputs[k] = shade
        if reads_all_inputs(choices):
            scratch.h[place] = shade
    count = last - first
    if choices.input_norm:
        normalize_inputs(state, layout, scratch, numbers)
        count = layout.size[0]
        for k in range(count):
            scratch.active[k] = k
            scratch.active_outputs[k] = scratch.h[k]
    fill_up(layout, scratch, 0, count)


@inlined
def clear_image(layout: Any, scratch: Any, choices: Any) -> None:
    """Undoes `load_image`."""
    if reads_all_inputs(choices):
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
    w, h, scale = state.weights, scratch.h, state.scale[layer]
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
                w_a, w_b, w_c, w_d = load_at(w, a + i), load_at(w, b + i), load_at(w, c + i), load_at(w, d + i)
                w_a, w_b = whole(state, choices, a + i, w_a, scale), whole(state, choices, b + i, w_b, scale)
                w_c, w_d = whole(state, choices, c + i, w_c, scale), whole(state, choices, d + i, w_d, scale)
                left, right = multiply_add(w_a, x_a, w_b * x_b), multiply_add(w_c, x_c, w_d * x_d)
                store_at(h, z + i, load_at(h, z + i) + (left + right))
    if choices.decays:
        for k in range(0, stride, VECTOR):
            store_at(h, z + k, multiply_add(scale, load_at(h, z + k), load_at(state.bias, z + k)))


@inlined
def activate_level(state: Any, layout: Any, scratch: Any, choices: Any, numbers: Any, level: int) -> None:
    """Turns a level's pre-activations into outputs, and lists its active units."""
    unit, n, start = layout.unit[level], layout.size[level], layout.first_active[level]
    if choices.layer_norm:
        normalize_layer(layout, scratch, numbers, level)
    for k in range(unit, layout.unit[level + 1], VECTOR):
        z = load_at(scratch.h, k)
        if choices.normalized:
            z = normalize(state, scratch, numbers, k, z)
        if choices.layer_norm:
            z = multiply_add(load_at(state.gain, k), load_at(scratch.normalized, k), load_at(state.shift, k))
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
def forward(state: Any, layout: Any, scratch: Any, choices: Any, numbers: Any) -> None:
    """Turns the image in level 0 into the outputs of all levels."""
    layers = len(layout.stride)
    for layer in range(layers):
        sum_rows(state, layout, scratch, choices, layer)
        if layer < layers - 1:
            activate_level(state, layout, scratch, choices, numbers, layer + 1)


@inlined
def cross_entropy(layout: Any, scratch: Any, level: int, label: int) -> Any:
    """Returns the loss, the class of the largest output, and the sum of the exponentials that it leaves in `scratch.delta`."""
    unit, n = layout.unit[level], layout.size[level]
    best = 0
    for i in range(1, n):
        if scratch.h[unit + i] > scratch.h[unit + best]:
            best = i
    top = scratch.h[unit + best]
    for k in range(unit, layout.unit[level + 1], VECTOR):
        store_at(scratch.delta, k, exponential(load_at(scratch.h, k) - top))
    for i in range(n, layout.unit[level + 1] - unit):
        scratch.delta[unit + i] = 0
    whole = 0.0
    for i in range(n):
        whole += scratch.delta[unit + i]
    return math.log(whole) - (np.float64(scratch.h[unit + label]) - top), best, whole


@inlined
def classify(state: Any, layout: Any, scratch: Any, level: int, label: int) -> Any:
    """Counts accuracy and cross-entropy, and writes the gradient by the outputs into `scratch.delta`. Returns the loss."""
    unit = layout.unit[level]
    loss, best, whole = cross_entropy(layout, scratch, level, label)
    state.totals[Total.RIGHT] += best == label
    state.totals[Total.LOSS] += loss
    for k in range(unit, layout.unit[level + 1], VECTOR):
        store_at(scratch.delta, k, load_at(scratch.delta, k) * (1.0 / whole))
    scratch.delta[unit + label] -= 1
    return loss


@inlined
def clear_delta(layout: Any, scratch: Any, level: int) -> None:
    """Sets a level's δ to 0: units that are not active get no gradient."""
    for k in range(layout.unit[level], layout.unit[level + 1], VECTOR):
        store_at(scratch.delta, k, spread(0.0, load_at(scratch.delta, k)))


@inlined
def sgd_rows(
    state: Any, layout: Any, scratch: Any, choices: Any, numbers: Any, bound: float, layer: int, back: bool, hidden: bool
) -> None:
    """SGD on a layer's weights, and the gradient by its inputs from the weights before it.

    Where weights are clipped, to ±`bound`, all that don't move lie within it already.

    `back` (not the first layer) and `hidden` (not the last) are constants where this is called, so that the inner loop has no
    branches.
    """
    stride, first, below, above = layout.stride[layer], layout.weight[layer], layout.unit[layer], layout.unit[layer + 1]
    start = layout.first_active[layer]
    w, delta, incoming = state.weights, scratch.delta, state.incoming
    sums_in = needs_incoming(choices) and hidden
    sums_out = needs_outgoing(choices) and back
    rate, scale = numbers.step_size, 1.0
    if choices.decays or keeps_distances(choices):
        scale = decay(state, layout, choices, numbers, layer)
        rate = numbers.step_size / state.scale[layer]
    zero = count = spread(0.0, load_at(delta, above))
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
                    v_a, v_b = whole(state, choices, a + i, w_a, scale), whole(state, choices, b + i, w_b, scale)
                    v_c, v_d = whole(state, choices, c + i, w_c, scale), whole(state, choices, d + i, w_d, scale)
                    dot_a, dot_b = multiply_add(v_a, g, dot_a), multiply_add(v_b, g, dot_b)
                    dot_c, dot_d = multiply_add(v_c, g, dot_c), multiply_add(v_d, g, dot_d)
                n_a, n_b = multiply_add(s_a, g, w_a), multiply_add(s_b, g, w_b)
                n_c, n_d = multiply_add(s_c, g, w_c), multiply_add(s_d, g, w_d)
                if choices.rule == Rule.CLIP:
                    n_a, c_a = rules.clipped(n_a, bound)
                    n_b, c_b = rules.clipped(n_b, bound)
                    n_c, c_c = rules.clipped(n_c, bound)
                    n_d, c_d = rules.clipped(n_d, bound)
                    count = count + ((c_a + c_b) + (c_c + c_d))
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
    if choices.rule == Rule.CLIP:
        state.totals[Total.REPLACED] += total(count)


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
            if choices.rule == Rule.L2_INIT:
                gradient = rules.pulled(gradient, w, load_at(state.initial, row + i), numbers)
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
def backward(state: Any, layout: Any, scratch: Any, choices: Any) -> None:
    """Writes δ of all levels, for methods that need them before the first weight changes."""
    for layer in range(len(layout.stride) - 1, 0, -1):
        stride, first, below, above = layout.stride[layer], layout.weight[layer], layout.unit[layer], layout.unit[layer + 1]
        if layer < len(layout.stride) - 1 and choices.layer_norm:
            layer_gradient(state, layout, scratch, layer + 1)
        if choices.activation == Activation.RELU:
            clear_delta(layout, scratch, layer)
        start = layout.first_active[layer]
        for k in range(scratch.active_count[layer]):
            j = scratch.active[start + k]
            dot = spread(0.0, load_at(scratch.delta, above))
            for i in range(0, stride, VECTOR):
                dot = multiply_add(load_at(state.weights, first + j * stride + i), load_at(scratch.delta, above + i), dot)
            store_delta(layout, scratch, choices, below, layer, j, total(dot), state.scale[layer])
    if choices.layer_norm:
        layer_gradient(state, layout, scratch, 1)


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
        first_step: int,
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
          first_step: number of examples before these.
        """
        use_wide_vectors()
        choices = known if fixed else given
        before = flush_denormals()
        layers = len(layout.stride)
        for t in range(len(order)):
            image = order[t]
            load_image(state, layout, scratch, choices, numbers, stream, image, where, shades)
            forward(state, layout, scratch, choices, numbers)
            loss = classify(state, layout, scratch, layers, stream.label[image])
            if choices.adam:
                count_time_steps(state, layout, scratch, numbers)
            step = first_step + t + 1
            # The first step, and the one behind each reinitialisation; traces that forget at once need only the last one.
            fresh = choices.rule in REINITIALIZES and (step - 1) % numbers.every == 0
            followed = choices.rule in REINITIALIZES and (numbers.trace_decay > 0 or step % numbers.every == 0)
            if choices.rule in PERTURBS:
                make_keys_of_run(state.noise_seed, step, scratch.keys)
            if choices.rule in UPGDS:
                backward(state, layout, scratch, choices)
                follow_network(state, layout, scratch, choices, numbers, step)
            for layer in range(layers - 1, -1, -1):
                learn_level(state, layout, scratch, choices, numbers, bounds, layer + 1, fresh)
                if layer > 0 and choices.activation == Activation.RELU and choices.rule not in UPGDS:
                    clear_delta(layout, scratch, layer)
                if choices.rule == Rule.SWR_GRADIENT and followed:
                    follow_gradients(state, layout, scratch, numbers, layer, fresh)
                bound = bounds[layer] * (numbers.clip if layer < layers - 1 else numbers.clip_out)
                if choices.rule in UPGDS:
                    if choices.decays and not choices.adam:
                        decay(state, layout, choices, numbers, layer)
                    upgd_rows(state, layout, scratch, choices, numbers, layer)
                elif choices.adam:
                    adam_rows(state, layout, scratch, choices, numbers, layer)
                elif layer == 0:
                    sgd_rows(state, layout, scratch, choices, numbers, bound, layer, False, True)
                elif layer == layers - 1:
                    sgd_rows(state, layout, scratch, choices, numbers, bound, layer, True, False)
                else:
                    sgd_rows(state, layout, scratch, choices, numbers, bound, layer, True, True)
                if choices.rule == Rule.CLIP and (choices.adam or step == 1):
                    clip(state, layout, bound, layer)
                if choices.rule in PERTURBS and choices.rule not in UPGDS:
                    perturb(state, layout, scratch, choices, numbers, bounds, layer)
                if choices.rule == Rule.SWR_MAGNITUDE and followed:
                    follow_magnitudes(state, layout, numbers, layer, fresh)
            clear_image(layout, scratch, choices)
            if choices.rule in REINITIALIZES and step % numbers.every == 0:
                reinitialize(state, layout, scratch, choices, numbers, bounds, step)
            if choices.replaces and choices.tester != Tester.UTILITY:
                reset_units(state, layout, scratch, choices, numbers, bounds)
            elif choices.replaces:
                if state.steps[0] % REFRESH == 0:
                    for layer in range(layers):
                        measure(state, layout, layer)
                generate_and_test(state, layout, scratch, choices, numbers, bounds)
            if choices.plasticity:
                forward(state, layout, scratch, choices, numbers)
                after, _, _ = cross_entropy(layout, scratch, layers, stream.label[image])
                state.totals[Total.PLASTICITY] += max(1 - after / max(loss, SMALLEST_LOSS), 0.0)
        restore_denormals(before)

    return compile_cached(learner, **UNCOUNTED)


unspecialised_classifier = functools.partial(specialised_classifier, None)
"""Makes the same function for tests, compiled once for all choices, which it takes at run time: slower, the same numbers."""
