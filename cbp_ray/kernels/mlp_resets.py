"""Rivals of generate-and-test that reset units by another rule, in one deep network: `cbp_ray.algorithm.unit_resets`."""

import math
from typing import Any

import numpy as np

from cbp_ray.kernels import rules
from cbp_ray.kernels.choices import Tester
from cbp_ray.kernels.compilation import inlined, separate
from cbp_ray.kernels.mlp_replacement import replace_unit
from cbp_ray.kernels.mlp_state import Total
from cbp_ray.kernels.vectors import VECTOR, load_at, store_at


@inlined
def reset_units(state: Any, layout: Any, scratch: Any, choices: Any, numbers: Any, bounds: Any) -> None:
    """One step of ReDo or of self-normalised resets for all hidden levels, in order, each finished before the next."""
    state.steps[0] += 1
    for level in range(1, len(layout.size) - 1):
        follow_activity(state, layout, scratch, choices, numbers, level)
        if choices.tester == Tester.ACTIVITY:
            if state.steps[0] % numbers.every == 0:
                reset_dormant(state, layout, scratch, choices, numbers, bounds, level)
        else:
            reset_silent(state, layout, scratch, choices, numbers, bounds, level)


@inlined
def follow_activity(state: Any, layout: Any, scratch: Any, choices: Any, numbers: Any, level: int) -> None:
    """Updates the averages of |h|, or those of h > 0 and how long units have been silent."""
    for k in range(layout.unit[level], layout.unit[level + 1], VECTOR):
        known = load_at(state.utility, k), load_at(state.correction, k), load_at(state.silence, k), load_at(state.firing, k)
        average, correction, silence, firing = rules.follow_activity(load_at(scratch.h, k), *known, choices, numbers)
        store_at(state.utility, k, average)
        store_at(state.correction, k, correction)
        if choices.tester == Tester.SILENCE:
            store_at(state.silence, k, silence)
            store_at(state.firing, k, firing)


@separate
def reset_dormant(state: Any, layout: Any, scratch: Any, choices: Any, numbers: Any, bounds: Any, level: int) -> None:
    """ReDo: replaces the units whose average |h| is at most τ times the layer's mean."""
    first, n = layout.unit[level], layout.size[level]
    mean, finite = 0.0, 0
    for k in range(first, first + n):
        scratch.u_hat[k] = np.float64(state.utility[k]) / state.correction[k]
        if np.isfinite(scratch.u_hat[k]):
            mean += scratch.u_hat[k]
            finite += 1
        else:
            state.totals[Total.NONFINITE] += 1
    for k in range(first, first + n):
        if np.isfinite(scratch.u_hat[k]) and scratch.u_hat[k] <= numbers.threshold * (mean / finite):
            replace_unit(state, layout, scratch, choices, bounds, level, k - first)


@separate
def reset_silent(state: Any, layout: Any, scratch: Any, choices: Any, numbers: Any, bounds: Any, level: int) -> None:
    """Self-normalised resets: replaces the units for which so long a silence is no chance."""
    first, n = layout.unit[level], layout.size[level]
    limit = math.log(numbers.threshold) ** 2 * 0.98
    mature_before = state.steps[0] - numbers.maturity_threshold
    mean = -1.0
    for k in range(first, first + n):
        # What is necessary, and cheap to see: (a p)² ≥ (1 - p) (ln η)², because ln(1 - p) ≥ -p / √(1 - p).
        silence, p = float(state.silence[k]), float(state.firing[k])
        if not silence > 0 or not state.birth[k] < mature_before:
            continue
        if p > 0 and silence * p * silence * p < (1 - p) * limit:
            continue
        if not p > 0:
            if mean < 0:
                mean = mean_firing(state, first, n)
            p = mean
        if p >= 1 or math.exp(silence * math.log1p(-p)) <= numbers.threshold:
            if mean < 0:
                mean = mean_firing(state, first, n)
            replace_unit(state, layout, scratch, choices, bounds, level, k - first)


@separate
def mean_firing(state: Any, first: int, n: int) -> float:
    """How often units of a level fire, on average over those that ever did."""
    total, known = 0.0, 0
    for k in range(first, first + n):
        if state.firing[k] > 0:
            total += state.firing[k]
            known += 1
    return total / known if known else 0.0
