"""The equations of learning, each once for both kernels: functions of values, which store nothing.

A value is `Lanes`, one number per run in the lane kernel and one per unit in the MLP kernel. The order of operations and the
fused multiply-adds are part of every result. `tests/support/naive.py` is the same once more, on single numbers.
"""

from typing import Any

import numpy as np

from cbp_ray.activations import SMALLEST_LOSS
from cbp_ray.kernels.choices import Rule, Tester, Utility
from cbp_ray.kernels.compilation import inlined, separate
from cbp_ray.kernels.lanes import absolute, multiply_add, spread, square_root, where_greater


@inlined
def running_average(average: Any, value: Any, rate: float) -> Any:
    """β·average + (1 - β)·value, for Adam's moments, OnlineNorm's mean, and Equations 2 and 6 of the paper."""
    return multiply_add(rate, average, (1 - rate) * value)


@inlined
def grown(correction: Any, rate: float) -> Any:
    """1 - βᵗ from 1 - βᵗ⁻¹: the running average of a constant 1, which unlike the formula never cancels."""
    return running_average(correction, 1.0, rate)


@inlined
def sgd(w: Any, factor: Any, x: Any, choices: Any, numbers: Any) -> Any:
    """One step of SGD for parameters w, where factor·x is -α times their gradient.

    How the caller splits that product decides the rounding: `factor` is rounded before the fused multiply-add.
    """
    return multiply_add(factor, x, decayed(w, choices, numbers))


@inlined
def decayed(w: Any, choices: Any, numbers: Any) -> Any:
    """Parameters after the weight decay of one step of SGD: (1 - αλ) w."""
    return w * (1 - numbers.step_size * numbers.weight_decay) if choices.decays else w


@inlined
def adam_scales(correction_1: Any, correction_2: Any, numbers: Any) -> Any:
    """Counts one time step of Adam: the new 1 - β₁ᵗ and 1 - β₂ᵗ, then α / (1 - β₁ᵗ) and 1 / (1 - β₂ᵗ)."""
    correction_1, correction_2 = grown(correction_1, numbers.beta_1), grown(correction_2, numbers.beta_2)
    return correction_1, correction_2, numbers.step_size / correction_1, 1.0 / correction_2


@inlined
def adam(w: Any, m: Any, v: Any, g: Any, scale_1: Any, scale_2: Any, choices: Any, numbers: Any) -> Any:
    """One step of Adam for parameters w with gradient g, given what `adam_scales` made. Returns the new w, m and v."""
    if choices.decays:
        g = multiply_add(numbers.weight_decay, w, g)
    m = running_average(m, g, numbers.beta_1)
    v = running_average(v, g * g, numbers.beta_2)
    return w - scale_1 * m / (square_root(v * scale_2) + numbers.epsilon), m, v


@inlined
def normalize(x: Any, mean: Any, variance: Any, numbers: Any) -> Any:
    """OnlineNorm forward (Chiley et al. 2019, equation 8). Returns y and σ, and the new mean and variance."""
    alpha = numbers.alpha_forward
    sigma = square_root(variance + numbers.norm_epsilon)
    deviation = x - mean
    variance = multiply_add(alpha, variance, alpha * (1 - alpha) * (deviation * deviation))
    return deviation / sigma, sigma, running_average(mean, x, alpha), variance


@inlined
def control(g: Any, y: Any, sigma: Any, u: Any, v: Any, numbers: Any) -> Any:
    """OnlineNorm backward (equations 10 to 12): the gradient by y becomes that by x. Returns it, and the new u and v."""
    rate = 1 - numbers.alpha_backward
    g = g - rate * v * y
    v = multiply_add(g, y, v)
    g = g / sigma
    g = g - rate * u
    return g, u + g, v


@inlined
def instantaneous(h: Any, f: Any, correction: Any, out: Any, magnitude: Any, choices: Any) -> Any:
    """What a step adds to the running average of a utility other than the random one; see `cbp_ray.algorithm.utility`."""
    if choices.utility == Utility.WEIGHT_MAGNITUDE:
        y = out
    elif choices.utility == Utility.CONTRIBUTION:
        y = absolute(h) * out  # Equation 1
    elif choices.utility == Utility.MEAN_CORRECTED_CONTRIBUTION:
        y = absolute(h - f / correction) * out  # Equation 4
    elif choices.utility == Utility.ADAPTATION:
        y = spread(1.0, h) / magnitude
    else:
        # Equation 5, its two divisions made one: f̂ = f / correction.
        y = absolute(h * correction - f) * out / (correction * magnitude)
    return y


@inlined
def follow_utility(
    h: Any, f_tm1: Any, u_tm1: Any, correction: Any, out: Any, magnitude: Any, choices: Any, numbers: Any
) -> Any:
    """One step of a unit's averages, given |w_out| and Σ|w_in| after the gradient step. Returns the new f, u and 1 - ηᵃ."""
    eta = numbers.decay_rate
    correction = grown(correction, eta)
    f_t, u_t = running_average(f_tm1, h, eta), u_tm1  # Equation 2
    if choices.utility != Utility.RANDOM:
        y = instantaneous(h, f_tm1 if choices.lagged else f_t, correction, out, magnitude, choices)
        u_t = running_average(u_tm1, y, eta)  # Equation 6
    return f_t, u_t, correction


@inlined
def normalize_input(x: Any, mean: Any, variance: Any, numbers: Any) -> Any:
    """One input by averages that include it: (x - mean) / √(variance + ε). Returns it, and the two."""
    deviation = x - mean
    variance = numbers.input_decay * multiply_add((1 - numbers.input_decay) * deviation, deviation, variance)
    mean = multiply_add(1 - numbers.input_decay, deviation, mean)
    return (x - mean) / square_root(variance + numbers.norm_epsilon), mean, variance


@inlined
def pulled(g: Any, w: Any, initial: Any, numbers: Any) -> Any:
    """L2-Init's gradient: g + λ (w - w₀)."""
    return multiply_add(numbers.strength, w - initial, g)


@inlined
def clipped(w: Any, bound: float) -> Any:
    """Weight clipping to ±bound: the new w, and 1 where it was beyond."""
    beyond = where_greater(absolute(w), bound, 1.0, spread(0.0, w))
    w = where_greater(w, bound, bound, w)
    return where_greater(-bound, w, -bound, w), beyond


@inlined
def upgd(w: Any, step: Any, kick: Any, xi: Any, free: Any, choices: Any) -> Any:
    """UPGD's new w, given (1 - αλ) w, the optimizer's own step, `kick` = -α σ, and `free` = 1 - Ū, which Adam takes twice."""
    if choices.adam:
        free = 2.0 * free
    if choices.rule == Rule.UPGD:
        return multiply_add(multiply_add(kick, xi, step), free, w)
    return multiply_add(kick * xi, free, w + step)


@inlined
def follow_activity(h: Any, average: Any, correction: Any, silence: Any, firing: Any, choices: Any, numbers: Any) -> Any:
    """One step of what ReDo and self-normalised resets know of a unit.

    Returns the new average, of |h| or of h > 0, its 1 - ηᵃ, the examples since the unit fired, and how often it had by then.
    """
    correction = grown(correction, numbers.decay_rate)
    value = where_greater(h, 0.0, spread(1.0, h), 0.0) if choices.tester == Tester.SILENCE else absolute(h)
    average = running_average(average, value, numbers.decay_rate)
    if choices.tester == Tester.SILENCE:
        silence = where_greater(h, 0.0, 0.0, silence + 1.0)
        firing = where_greater(h, 0.0, average / correction, firing)
    return average, correction, silence, firing


@inlined
def sample_plasticity(before: Any, after: Any) -> Any:
    """The part of an example's loss that a step has removed: max(1 - after / max(before, ε), 0) (Elsayed and Mahmood 2024)."""
    before = where_greater(before, SMALLEST_LOSS, before, SMALLEST_LOSS)
    removed = 1.0 - after / before
    return where_greater(removed, 0.0, removed, 0.0)


@separate
def smallest_finite(u_hat: Any, first: int, last: int) -> int:
    """The place of the smallest finite number in `u_hat[first:last]`, the first of equals; -1 if there is none."""
    best = -1
    for k in range(first, last):
        if np.isfinite(u_hat[k]) and (best < 0 or u_hat[k] < u_hat[best]):
            best = k
    return best
