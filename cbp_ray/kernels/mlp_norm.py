"""Norms between weights and activation in one deep network: OnlineNorm, and layer normalisation (Ba et al. 2016)."""

from typing import Any

from cbp_ray.kernels import rules
from cbp_ray.kernels.compilation import inlined
from cbp_ray.kernels.lanes import multiply_add, spread, square_root
from cbp_ray.kernels.vectors import VECTOR, load_at, store_at, total


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
def normalize_inputs(state: Any, layout: Any, scratch: Any, numbers: Any) -> None:
    """Normalises level 0 by its running mean and variance, which stand where those of other levels do."""
    for k in range(layout.unit[0], layout.unit[1], VECTOR):
        y, mean, variance = rules.normalize_input(
            load_at(scratch.h, k), load_at(state.mean, k), load_at(state.variance, k), numbers
        )
        store_at(state.mean, k, mean)
        store_at(state.variance, k, variance)
        store_at(scratch.h, k, y * load_at(scratch.columns, k))


@inlined
def normalize_layer(layout: Any, scratch: Any, numbers: Any, level: int) -> None:
    """Layer normalisation: z in `scratch.h` becomes (z - mean) / √(variance + ε) in `scratch.normalized`."""
    first, end, n = layout.unit[level], layout.unit[level + 1], layout.size[level]
    zero = spread(0.0, load_at(scratch.h, first))
    sums = squares = zero
    for k in range(first, end, VECTOR):
        sums = sums + load_at(scratch.h, k) * load_at(scratch.columns, k)
    mean = total(sums) / n
    for k in range(first, end, VECTOR):
        deviation = (load_at(scratch.h, k) - mean) * load_at(scratch.columns, k)
        squares = multiply_add(deviation, deviation, squares)
        store_at(scratch.normalized, k, deviation)
    sigma = square_root(spread(total(squares) / n + numbers.norm_epsilon, zero))
    for k in range(first, end, VECTOR):
        store_at(scratch.sigma, k, sigma)
        store_at(scratch.normalized, k, load_at(scratch.normalized, k) / sigma)


@inlined
def layer_gradient(state: Any, layout: Any, scratch: Any, level: int) -> None:
    """Layer normalisation backward: δ by its outputs goes to `scratch.by_norm`, and `scratch.delta` becomes that by z."""
    first, end, n = layout.unit[level], layout.unit[level + 1], layout.size[level]
    sums = along = spread(0.0, load_at(scratch.delta, first))
    for k in range(first, end, VECTOR):
        delta = load_at(scratch.delta, k)
        store_at(scratch.by_norm, k, delta)
        inner = delta * load_at(state.gain, k)
        store_at(scratch.delta, k, inner)
        sums, along = sums + inner, multiply_add(inner, load_at(scratch.normalized, k), along)
    mean, slope = total(sums) / n, total(along) / n
    for k in range(first, end, VECTOR):
        inner = load_at(scratch.delta, k) - mean - load_at(scratch.normalized, k) * slope
        store_at(scratch.delta, k, inner / load_at(scratch.sigma, k) * load_at(scratch.columns, k))
