"""The networks of Continual PPO, as an RLModule (appendix D of the paper)."""

from typing import Any

import gymnasium as gym
import torch
from ray.rllib.algorithms.ppo.torch.default_ppo_torch_rl_module import DefaultPPOTorchRLModule
from torch import nn

from cbp_ray.algorithm.initialization import MARK, distribution_of
from cbp_ray.algorithm.units import UNIT_MODULES

INITIALIZERS = [f"{part}_{what}_initializer" for part in ("fcnet", "head_fcnet", "conv") for what in ("kernel", "bias")]


class ContinualPPOTorchRLModule(DefaultPPOTorchRLModule):
    """Separate policy and value networks with LeCun initialization and a free standard deviation.

    Changes to RLlib's default module of PPO:

    - Weights start from U(±√(3/fan_in)) and biases from zero, drawn from torch's generator; each layer remembers its
      distribution, from which generate-and-test draws new units. If `model_config` names an initializer, all layers are as
      RLlib makes them.
    - With a Box of actions, the logarithm of the standard deviation is a parameter, the same in all states, and starts at 0.
      `model_config={"free_log_std": False}` makes it an output of the network.
    - Training and evaluation mode are switched only where they must: doing so visits every submodule.

    Sizes, activations, layer norm and a shared encoder come from `model_config`, as in RLlib:
    `.rl_module(model_config={"fcnet_hiddens": [64], "fcnet_activation": "relu", "vf_share_layers": True})`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        model_config = kwargs.get("model_config")
        if isinstance(model_config, dict) and model_config.get("free_log_std") is None:
            kwargs["model_config"] = model_config | {"free_log_std": isinstance(kwargs["action_space"], gym.spaces.Box)}
        super().__init__(*args, **kwargs)

    def setup(self) -> None:
        super().setup()
        if not any(self.model_config.get(name) for name in INITIALIZERS):
            _initialize_lecun(self)

    def forward_train(self, batch: dict[str, Any], **kwargs: Any) -> Any:
        if not self.training:
            self.train()
        return self._forward_train(batch, **kwargs)

    def forward_exploration(self, batch: dict[str, Any], **kwargs: Any) -> Any:
        return (super().forward_exploration if self.training else self._forward_exploration)(batch, **kwargs)

    def forward_inference(self, batch: dict[str, Any], **kwargs: Any) -> Any:
        return (super().forward_inference if self.training else self._forward_inference)(batch, **kwargs)


@torch.no_grad()
def _initialize_lecun(module: nn.Module) -> None:
    for layer in module.modules():
        if isinstance(layer, UNIT_MODULES):
            distribution = distribution_of("lecun", layer, None)
            layer.weight.uniform_(-distribution.scale, distribution.scale)
            if layer.bias is not None:
                layer.bias.zero_()
            setattr(layer, MARK, distribution)
