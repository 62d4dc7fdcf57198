"""The paper's kind of RLModule, recognised in one place: what compiled code evaluates and trains without asking torch.

Policy and value network are separate MLPs, the actions are Gaussian with a standard deviation that is the same in all states,
and everything is float32 on a CPU.
"""

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import torch
from ray.rllib.algorithms.ppo.torch.default_ppo_torch_rl_module import DefaultPPOTorchRLModule
from ray.rllib.core.distribution.torch.torch_distribution import TorchDiagGaussian
from ray.rllib.core.models.torch.encoder import TorchActorCriticEncoder, TorchMLPEncoder
from ray.rllib.core.models.torch.heads import TorchFreeLogStdMLPHead, TorchMLPHead
from ray.rllib.core.models.torch.primitives import TorchMLP
from ray.rllib.core.rl_module.rl_module import RLModule
from torch import Tensor, nn

from cbp_ray.activations import ACTIVATIONS, LEAKY_SLOPE
from rllib_ext.learners.rl_module import ContinualPPOTorchRLModule

KNOWN = (DefaultPPOTorchRLModule, ContinualPPOTorchRLModule)
"""RLModules whose forward passes are known to be those of their encoders and heads, one after the other."""
FORWARDS = (
    *("_forward", "_forward_train", "_forward_exploration", "_forward_inference"),
    *("compute_values", "forward_train", "forward_exploration", "forward_inference"),
)
"""Methods that a subclass or torch.compile may have replaced."""
NAMES: dict[type[nn.Module], str] = {getattr(nn, activation.module): name for name, activation in ACTIVATIONS.items()}


@dataclass(frozen=True)
class PlainMLP:
    """Linear layers, all with a bias, with the same activation between each and the next, and none after the last."""

    layers: list[nn.Linear]
    activation: str
    """A name in `cbp_ray.activations.ACTIVATIONS`; `linear` if there is no hidden layer, or nothing between the layers."""

    @property
    def parameters(self) -> list[Tensor]:
        """Weight and bias of each layer."""
        return [parameter for layer in self.layers for parameter in (layer.weight, layer.bias)]


@dataclass(frozen=True)
class PlainActorCritic:
    """The networks of an RLModule."""

    policy: PlainMLP
    """From observations to the means of the actions."""
    log_std: Tensor
    """Logarithms of the actions' standard deviations: a parameter, [actions]."""
    log_std_limit: float
    """Where `log_std` is clamped to ± this before it is used; may be infinite."""
    value: PlainMLP | None
    """From observations to one value; None in a module for inference only."""

    @property
    def parameters(self) -> list[Tensor]:
        """All parameters: those of the policy, `log_std`, those of the value network."""
        return [*self.policy.parameters, self.log_std, *([] if self.value is None else self.value.parameters)]


class _NotPlainError(Exception):
    """Says what is not plain about a module."""


def plain_actor_critic(module: RLModule) -> PlainActorCritic | str:
    """The networks of a module of the paper's kind; of any other module, the reason why it is not one, for a log line."""
    try:
        return _recognise(module.unwrapped())
    except _NotPlainError as reason:
        return str(reason)


def _recognise(module: Any) -> PlainActorCritic:
    _check(isinstance(module, DefaultPPOTorchRLModule), f"{type(module).__name__} is not the module of PPO")
    replaced = [name for name in FORWARDS if not _is_known(module, name)]
    _check(not replaced, f"{type(module).__name__} has a {', '.join(replaced)} of its own")
    _check(isinstance(module.action_space, gym.spaces.Box), "the actions are not a Box")
    distributions = (module.get_train_action_dist_cls(), module.get_exploration_action_dist_cls())
    _check(set(distributions) == {TorchDiagGaussian}, "the actions have a distribution other than the diagonal Gaussian")
    encoder, head = module.encoder, module.pi
    _check(type(encoder) is TorchActorCriticEncoder, f"the encoder is a {type(encoder).__name__}")
    _check(not encoder.config.shared, "policy and value network share an encoder")
    _check(type(head) is TorchFreeLogStdMLPHead, "the standard deviation is an output of the policy network")
    critic, value = getattr(encoder, "critic_encoder", None), None
    if critic is not None and getattr(module, "vf", None) is not None:
        _check(type(module.vf) is TorchMLPHead and not module.vf.clip_log_std, "the value network's head is not an MLP")
        value = _mlp(critic, module.vf)
        _check(value.layers[-1].out_features == 1, "the value network has several outputs")
    limit = float(head.log_std_clip_param_const) if head.clip_log_std else float("inf")
    plain = PlainActorCritic(_mlp(encoder.actor_encoder, head), head.log_std, limit, value)
    for parameter in plain.parameters:
        _check(parameter.dtype is torch.float32 and parameter.is_cpu, "the weights are not float32 on a CPU")
        _check(parameter.is_contiguous(), "the weights do not lie in memory one after the other")
    return plain


def _check(holds: bool, otherwise: str) -> None:
    if not holds:
        raise _NotPlainError(otherwise)


def _is_known(module: Any, name: str) -> bool:
    """Whether a method is one of RLlib's or ours. (`torch.compile` puts others into the instance.)"""
    own = getattr(type(module), name)
    return name not in vars(module) and any(own is getattr(known, name) for known in KNOWN)


def _mlp(encoder: Any, head: Any) -> PlainMLP:
    _check(type(encoder) is TorchMLPEncoder, f"an encoder is a {type(encoder).__name__}")
    nets = (encoder.net, head.net)
    _check(all(type(net) is TorchMLP for net in nets), "a network is not an MLP")
    modules = [part for net in nets for part in net.mlp]
    _check(bool(modules) and type(modules[-1]) is nn.Linear, "a network has an activation after its last layer")
    layers = [part for part in modules if type(part) is nn.Linear]
    _check(all(layer.bias is not None for layer in layers), "a layer has no bias")
    between = [part for part in modules if type(part) is not nn.Linear]
    unknown = [type(part).__name__ for part in between if not _is_plain_activation(part)]
    _check(not unknown, f"a network has a {', '.join(unknown)}")
    alternating = all((type(part) is nn.Linear) == (number % 2 == 0) for number, part in enumerate(modules))
    _check(alternating or not between, "a network does not have one activation between each layer and the next")
    activations = {NAMES[type(part)] for part in between} or {"linear"}
    _check(len(activations) == 1, "a network has several kinds of activation")
    return PlainMLP(layers, activations.pop())


def _is_plain_activation(module: Any) -> bool:
    slope, alpha = getattr(module, "negative_slope", LEAKY_SLOPE), getattr(module, "alpha", 1.0)
    return type(module) in NAMES and slope == LEAKY_SLOPE and alpha == 1.0
