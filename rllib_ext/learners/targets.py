"""What becomes of a target network when units of its main network are replaced.

A target network is a copy of the main one that follows it slowly. There are two ways to follow:

- *Hard copies* (τ = 1: DQN and APPO by default). Between two copies the target is a network that existed, as a whole. It is
  left alone: a replaced unit reaches it with the next copy, with everything else.
- *Averaging* (τ < 1: SAC by default). The target's weights move towards the main network's. Input weights halfway between an
  old unit and the unrelated new one make a unit that never existed, still with the old one's output weights. So the
  replacement is made in the target at once: the same new input weights, output weights zero. The target loses the contribution
  that the main network lost, one of the smallest of its layer, and main and target stay unit for unit comparable.
"""

from collections.abc import Mapping, Sequence

import torch
from ray.rllib.core.rl_module.apis import TargetNetworkAPI
from ray.rllib.core.rl_module.rl_module import RLModule
from torch import Tensor, nn

from cbp_ray.algorithm.network import HiddenLayer


class Targets:
    """Makes in a module's target networks the replacements that were made in its main networks."""

    def __init__(self, module: RLModule, layers: list[HiddenLayer]) -> None:
        pairs = module.get_target_network_pairs() if isinstance(module, TargetNetworkAPI) else []
        self.target_of: dict[Tensor, Tensor] = {}
        for main, target in pairs:
            self.target_of |= dict(zip(_state(main), _state(target), strict=True))
        self.layers = {layer.name: layer.units for layer in layers if layer.units is not None}

    @torch.no_grad()
    def follow(self, replaced: Mapping[str, Sequence[int]]) -> None:
        """Copies the input and output weights of the units replaced, layer by layer."""
        for name, units in replaced.items():
            layer, index = self.layers[name], torch.tensor(units)
            for part in (*layer.producers, *layer.followers, *layer.norms):
                for tensor in _state(part.module, recurse=False):
                    if tensor.ndim:
                        self._copy(tensor, part.dim if tensor.ndim > part.dim else 0, part.of(index))
            for part in (*layer.consumers, *layer.scales):
                self._copy(part.tensor, part.dim, part.of(index))

    def _copy(self, main: Tensor, dim: int, index: Tensor) -> None:
        target = self.target_of.get(main)
        if target is not None:
            index = index.to(main.device)
            target.index_copy_(dim, index, main.detach().index_select(dim, index))


def _state(module: nn.Module, recurse: bool = True) -> list[Tensor]:
    return [*module.parameters(recurse), *module.buffers(recurse)]
