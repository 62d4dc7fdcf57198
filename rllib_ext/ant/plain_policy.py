"""The policy of an RLModule of plain MLPs, compiled: for a few rows, torch's calls cost more than their arithmetic."""

import math
from functools import partial

import gymnasium
import numpy as np
from numpy.typing import NDArray

from cbp_ray.kernels.activations import Activation, activate
from cbp_ray.kernels.compilation import compile_cached
from cbp_ray.kernels.lanes import multiply_add, spread
from cbp_ray.kernels.vectors import VECTOR, load_at, store_at
from rllib_ext.plain_module import PlainActorCritic

LOG_ROOT_TWO_PI = math.log(math.sqrt(2 * math.pi))
GROUP = 4 * VECTOR
"""Units that are summed side by side, so that no sum waits for its last addition."""

AS_THEY_ARE, CLIPPED, UNSQUASHED = 0, 1, 2
"""What environments get of actions."""
ONE, TWO = np.float32(1), np.float32(2)

Array = NDArray[np.float32]

compiled = partial(compile_cached, error_model="numpy")


@compiled
def _layer(x: Array, weights: Array, offset: int, inputs: int, units: int, y: Array) -> None:
    """Writes the sums of a layer's units into `y`. Weights are [inputs + 1, units] from `offset` on, the bias last."""
    j = 0
    while j + GROUP <= units:
        at = offset + inputs * units + j
        a, b = load_at(weights, at), load_at(weights, at + VECTOR)
        c, d = load_at(weights, at + 2 * VECTOR), load_at(weights, at + 3 * VECTOR)
        at = offset + j
        for k in range(inputs):
            value = spread(x[k], a)
            a = multiply_add(value, load_at(weights, at), a)
            b = multiply_add(value, load_at(weights, at + VECTOR), b)
            c = multiply_add(value, load_at(weights, at + 2 * VECTOR), c)
            d = multiply_add(value, load_at(weights, at + 3 * VECTOR), d)
            at += units
        store_at(y, j, a)
        store_at(y, j + VECTOR, b)
        store_at(y, j + 2 * VECTOR, c)
        store_at(y, j + 3 * VECTOR, d)
        j += GROUP
    while j < units:
        a = load_at(weights, offset + inputs * units + j)
        for k in range(inputs):
            a = multiply_add(spread(x[k], a), load_at(weights, offset + k * units + j), a)
        store_at(y, j, a)
        j += VECTOR


@compiled
def _act(
    observations: Array,
    weights: Array,
    sizes: NDArray[np.int64],
    activation: int,
    x: Array,
    y: Array,
    noise: Array,
    bounds: Array,
    way: int,
    means: Array,
    actions: Array,
    for_env: Array,
) -> None:
    """Writes means, actions and what environments get of them; `sizes` are inputs, units and padded units of layers."""
    for row in range(observations.shape[0]):
        for k in range(observations.shape[1]):
            x[k] = observations[row, k]
        offset, last = 0, sizes.shape[0] - 1
        for layer in range(last + 1):
            inputs, padded = sizes[layer, 0], sizes[layer, 2]
            _layer(x, weights, offset, inputs, padded, y)
            offset += (inputs + 1) * padded
            if layer < last:
                for j in range(0, padded, VECTOR):
                    h, _ = activate(load_at(y, j), activation)
                    store_at(x, j, h)
        for k in range(means.shape[1]):
            means[row, k] = y[k]
            actions[row, k] = action = y[k] + noise[row, k]
            if way != AS_THEY_ARE:
                low, high = bounds[0, k], bounds[1, k]
                if way == UNSQUASHED:
                    action = low + (action + ONE) * (high - low) / TWO
                action = low if action < low else high if action > high else action
            for_env[row, k] = action


class PlainPolicy:
    """Means and standard deviations of actions, from the module's weights as they are when the policy is made.

    Args:
      networks: the module's networks.
      space: that of the actions.
      normalize: whether environments get actions from -1 to 1 stretched to the bounds of the space, as RLlib's
        `normalize_actions` has it; or, with `clip`, cut off at the bounds.
    """

    def __init__(self, networks: PlainActorCritic, space: gymnasium.spaces.Box, *, normalize: bool, clip: bool) -> None:
        layers = [(layer.weight.detach().numpy(), layer.bias.detach().numpy()) for layer in networks.policy.layers]
        self._sizes = np.array([(w.shape[1], w.shape[0], -(-w.shape[0] // VECTOR) * VECTOR) for w, _ in layers])
        packed = []
        for (weight, bias), (inputs, units, padded) in zip(layers, self._sizes, strict=True):
            block = np.zeros((inputs + 1, padded), np.float32)
            block[:-1, :units], block[-1, :units] = weight.T, bias
            packed.append(block.ravel())
        self._weights = np.concatenate(packed)
        self._activation = int(Activation[networks.policy.activation.upper()])
        self._x, self._y = np.zeros((2, max(int(self._sizes.max()), VECTOR)), np.float32)
        bounded = bool(space.is_bounded())
        self._bounds = np.stack([space.low, space.high])
        self._way = (UNSQUASHED if bounded else AS_THEY_ARE) if normalize else CLIPPED if clip else AS_THEY_ARE
        limit = np.float32(networks.log_std_limit)
        self.log_std: Array = np.clip(networks.log_std.detach().numpy(), -limit, limit)
        """Logarithms of the standard deviations, [actions]."""

    def act(self, observations: Array, noise: Array, means: Array, actions: Array, for_env: Array) -> None:
        """Writes the means of the actions, the actions (with `noise` added), and what environments get of them.

        All are [rows, actions].
        """
        network = (self._weights, self._sizes, self._activation, self._x, self._y)
        _act(observations, *network, noise, self._bounds, self._way, means, actions, for_env)

    def distribution_inputs(self, means: Array) -> Array:
        """What the module's forward pass gives for rows with these means: means and logarithms of standard deviations."""
        return np.concatenate([means, np.broadcast_to(self.log_std, means.shape)], axis=1)

    def log_probabilities(self, actions: Array, means: Array) -> Array:
        """Logarithms of the densities of actions, one per row."""
        standard = (actions - means) / np.exp(self.log_std)
        found: Array = (-0.5 * standard * standard - self.log_std - np.float32(LOG_ROOT_TWO_PI)).sum(axis=1)
        return found
