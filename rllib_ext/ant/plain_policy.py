"""The policy of an RLModule of plain MLPs in NumPy: for a few rows, torch's calls cost more than their arithmetic."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cbp_ray.activations import ACTIVATIONS
from rllib_ext.plain_module import PlainActorCritic

LOG_ROOT_TWO_PI = math.log(math.sqrt(2 * math.pi))

Array = NDArray[np.float32]


class PlainPolicy:
    """Means and standard deviations of actions, from the module's own weights as they are when a method is called.

    Args:
      networks: the module's networks.
      rows: number of observations that are evaluated together.
    """

    def __init__(self, networks: PlainActorCritic, rows: int) -> None:
        layers = [(layer.weight.detach().numpy().T, layer.bias.detach().numpy()) for layer in networks.policy.layers]
        self._layers = [(weight, bias, np.empty((rows, len(bias)), np.float32)) for weight, bias in layers]
        self._activate = _in_place(networks.policy.activation)
        limit = np.float32(networks.log_std_limit)
        self.log_std: Array = np.clip(networks.log_std.detach().numpy(), -limit, limit)
        """Logarithms of the standard deviations, [actions]."""

    def means(self, observations: Array, out: Array) -> None:
        """Writes the means of the actions, [rows, actions], for observations [rows, features]."""
        *hidden, (weight, bias, _) = self._layers
        for into, add, h in hidden:
            np.dot(observations, into, out=h)
            h += add
            self._activate(h)
            observations = h
        np.dot(observations, weight, out=out)
        out += bias

    def distribution_inputs(self, means: Array) -> Array:
        """What the module's forward pass gives for rows with these means: means and logarithms of standard deviations."""
        return np.concatenate([means, np.broadcast_to(self.log_std, means.shape)], axis=1)

    def log_probabilities(self, actions: Array, means: Array) -> Array:
        """Logarithms of the densities of actions, one per row."""
        standard = (actions - means) / np.exp(self.log_std)
        found: Array = (-0.5 * standard * standard - self.log_std - np.float32(LOG_ROOT_TWO_PI)).sum(axis=1)
        return found


def _in_place(name: str) -> Callable[[Array], Any]:
    if name == "linear":
        return lambda h: None
    if name == "tanh":
        return lambda h: np.tanh(h, out=h)
    function = ACTIVATIONS[name].function
    return lambda h: np.copyto(h, function(h))
