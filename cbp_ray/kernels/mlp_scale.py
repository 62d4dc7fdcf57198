"""What is kept of a layer's weights with SGD: the weights, or with L2-Init their distances from the first ones, over a scale.

Weight decay shrinks every weight by the same factor in every step, and L2-Init every distance. Both shrink the layer's `scale`
instead, so that rows whose input is 0 need not be visited.
"""

from typing import Any

from numba.extending import register_jitable

from cbp_ray.kernels.choices import Rule
from cbp_ray.kernels.compilation import inlined
from cbp_ray.kernels.lanes import multiply_add
from cbp_ray.kernels.mlp_replacement import measure
from cbp_ray.kernels.vectors import VECTOR, load_at, store_at

SMALLEST_SCALE = 1 / 16
"""Below this, a layer's `scale` goes back into its weights."""
ALMOST_NOTHING = 1e-30
"""Stands in for 1 - αλ = 0, because weights are divided by their scale."""


@register_jitable(forceinline=True)
def keeps_distances(choices: Any) -> Any:
    """Whether `weights` are distances from the first weights: L2-Init with SGD is weight decay of these."""
    return choices.rule == Rule.L2_INIT and not choices.adam


@inlined
def whole(state: Any, choices: Any, k: int, w: Any, scale: float) -> Any:
    """The weights at k, given what is kept of them: their distance from the first weights, or just themselves."""
    return multiply_add(scale, w, load_at(state.initial, k)) if keeps_distances(choices) else w


@inlined
def decay(state: Any, layout: Any, choices: Any, numbers: Any, layer: int) -> float:
    """Shrinks all weights of a layer, or their distances from the first ones, by 1 - αλ: their common scale.

    Once in a while the weights take up the scale. Returns what it was before.
    """
    if state.scale[layer] < SMALLEST_SCALE:
        for k in range(layout.weight[layer], layout.weight[layer + 1], VECTOR):
            store_at(state.weights, k, load_at(state.weights, k) * state.scale[layer])
        state.scale[layer] = 1.0
        if choices.replaces:
            measure(state, layout, layer)
    kept = 1 - numbers.step_size * (numbers.strength if keeps_distances(choices) else numbers.weight_decay)
    if kept == 0:
        kept = ALMOST_NOTHING
    state.scale[layer] *= kept
    return float(state.scale[layer] / kept)
