"""Inputs normalised by running averages of their mean and variance."""

import torch
from torch import Tensor, nn

from cbp_ray.activations import NORM_EPSILON


class InputNorm(nn.Module):
    """Gives every input mean 0 and variance 1, by exponential averages of both that include the example itself.

    The simplest remedy against inputs that change: an input that was constant for long and changes becomes at most
    1/√(1 - decay), about. In evaluation the averages stay.

    Args:
      inputs: how many.
      decay: of the averages.

    Example:
      >>> InputNorm(3, decay=0.99)(torch.ones(1, 3)).shape
      torch.Size([1, 3])
    """

    mean: Tensor
    variance: Tensor

    def __init__(self, inputs: int, decay: float) -> None:
        super().__init__()
        self.decay = decay
        self.register_buffer("mean", torch.zeros(inputs))
        self.register_buffer("variance", torch.ones(inputs))

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return (x - self.mean) / (self.variance + NORM_EPSILON).sqrt()
        outputs = []
        for example in x:
            deviation = example - self.mean
            self.variance.copy_(self.decay * (self.variance + (1 - self.decay) * deviation.square()))
            self.mean.add_((1 - self.decay) * deviation)
            outputs.append((example - self.mean) / (self.variance + NORM_EPSILON).sqrt())
        return torch.stack(outputs)
