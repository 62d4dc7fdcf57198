"""Several networks of one shape side by side in one: a step of all of them is a few batched operations."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from cbp_ray.algorithm.initialization import MARK
from cbp_ray.algorithm.online_norm import OnlineNorm
from cbp_ray.errors import InputError


class StackedLinear(nn.Linear):
    """The Linear layers of several runs: features [N, runs·inputs] become [N, runs·outputs].

    `in_features` and `out_features` are those of one run. The weight is [runs, outputs, inputs], the bias [runs·outputs].
    """

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        nn.Module.__init__(self)  # without the weights of a plain Linear
        self.runs, self.in_features, self.out_features = len(layers), layers[0].in_features, layers[0].out_features
        # In memory [runs, inputs, outputs]: the order in which batched products read it and leave its gradient.
        weight = torch.stack([layer.weight.detach().T for layer in layers])
        self.weight = nn.Parameter(weight.transpose(1, 2))
        self.bias = nn.Parameter(torch.cat([layer.bias.detach() for layer in layers]))
        setattr(self, MARK, getattr(layers[0], MARK, None))

    def forward(self, input: Tensor) -> Tensor:
        by_run = input.view(len(input), self.runs, -1).transpose(0, 1)  # [runs, N, inputs]
        outputs = torch.baddbmm(self.bias.view(self.runs, 1, -1), by_run, self.weight.transpose(1, 2))
        return outputs.transpose(0, 1).flatten(1)


def stack(models: Sequence[nn.Sequential]) -> nn.Sequential:
    """One network that computes what all of `models` do, each on its own part of the features.

    Args:
      models: of one shape, made of Linear, OnlineNorm and modules without parameters.

    Example:
      >>> models = [nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)) for _ in range(2)]
      >>> stack(models)(torch.ones(5, 2 * 3)).shape
      torch.Size([5, 2])
    """
    stacked: list[nn.Module] = []
    for alike in zip(*models, strict=True):
        first: Any = alike[0]
        if isinstance(first, nn.Linear):
            stacked.append(StackedLinear(alike))
        elif isinstance(first, OnlineNorm):
            alphas, affine = (first.alpha_forward, first.alpha_backward), first.weight is not None
            norm = OnlineNorm(len(models) * first.num_features, *alphas, first.eps, affine)
            states = [norm_of_run.state_dict() for norm_of_run in alike]
            norm.to(first.mean.dtype).load_state_dict({name: torch.cat([s[name] for s in states]) for name in states[0]})
            stacked.append(norm)
        elif first.state_dict():
            raise InputError(f"model: {type(first).__name__} can't be stacked; only Linear, OnlineNorm and activations can")
        else:
            stacked.append(first)
    return nn.Sequential(*stacked)


def load_run(model: nn.Module, stacked: nn.Module, run: int, runs: int) -> None:
    """Gives `model`, a plain network, the parameters and buffers of one run of `stack`'s result."""
    state = {name: tensor if tensor.ndim == 3 else tensor.view(runs, -1) for name, tensor in stacked.state_dict().items()}
    model.load_state_dict({name: tensor[run] for name, tensor in state.items()})
