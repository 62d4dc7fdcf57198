"""Parameters by unit in one deep network: biases, and the scale and bias of a norm."""

from typing import Any

import numpy as np

from cbp_ray.kernels import rules
from cbp_ray.kernels.choices import UPGDS, Rule
from cbp_ray.kernels.compilation import inlined
from cbp_ray.kernels.mlp_norm import layer_gradient
from cbp_ray.kernels.mlp_weights import ByUnit, step_by_unit
from cbp_ray.kernels.noise import groups_of
from cbp_ray.kernels.vectors import VECTOR, load_at, store_at


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
def step_vector(own: Any, state: Any, scratch: Any, choices: Any, numbers: Any, k: int, gradient: Any, fresh: bool) -> None:
    """One step for parameters by unit at `k`: biases, or a norm's scale and bias."""
    if choices.rule != Rule.NONE:
        step_by_unit(own, state, scratch, choices, numbers, k, gradient, fresh)
    elif choices.adam:
        scale_1, scale_2 = load_at(scratch.inverse_1, k), load_at(scratch.inverse_2, k)
        adam(own.values, own.first, own.second, choices, numbers, k, gradient, scale_1, scale_2)
    else:
        w = load_at(own.values, k)
        store_at(own.values, k, rules.sgd(w, -numbers.step_size, gradient, choices, numbers))


@inlined
def learn_level(
    state: Any, layout: Any, scratch: Any, choices: Any, numbers: Any, bounds: Any, level: int, fresh: bool
) -> None:
    """Given δ of a level's outputs, takes it back through the norm and updates the parameters by unit."""
    last = len(layout.size) - 1
    hidden = level < last
    n, start, group = layout.size[level], layout.unit[level], layout.group[level - 1]
    bound = bounds[level - 1] * (numbers.clip if hidden else numbers.clip_out)
    number = group + n * groups_of(layout.size[level - 1])
    bias = ByUnit(state.bias, state.bias_first, state.bias_second, state.bias_trace, 0.0, number, start, bound)
    gain = ByUnit(state.gain, state.gain_first, state.gain_second, state.gain_trace, 1.0, number + n, start, np.inf)
    shift = ByUnit(state.shift, state.shift_first, state.shift_second, state.shift_trace, 0.0, number + 2 * n, start, np.inf)
    if choices.layer_norm and hidden and choices.rule not in UPGDS:
        layer_gradient(state, layout, scratch, level)
    for k in range(layout.unit[level], layout.unit[level + 1], VECTOR):
        delta = load_at(scratch.delta, k)
        if choices.layer_norm and hidden:
            by_norm = load_at(scratch.by_norm, k)
            step_vector(gain, state, scratch, choices, numbers, k, by_norm * load_at(scratch.normalized, k), fresh)
            step_vector(shift, state, scratch, choices, numbers, k, by_norm, fresh)
        if choices.normalized and hidden:
            y, by_y = load_at(scratch.normalized, k), delta * load_at(state.gain, k)
            if choices.affine:
                step_vector(gain, state, scratch, choices, numbers, k, delta * y, fresh)
                step_vector(shift, state, scratch, choices, numbers, k, delta, fresh)
            u, v = load_at(state.control_u, k), load_at(state.control_v, k)
            delta, u, v = rules.control(by_y, y, load_at(scratch.sigma, k), u, v, numbers)
            store_at(state.control_v, k, v)
            store_at(state.control_u, k, u)
            store_at(scratch.delta, k, delta)
        step_vector(bias, state, scratch, choices, numbers, k, delta, fresh)


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
