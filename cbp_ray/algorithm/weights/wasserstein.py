"""The Wasserstein regulariser: the weights keep the distribution that they had at first, whichever weight has which value."""

import torch
from torch import Tensor

from cbp_ray.algorithm.weights.pull import Pull


class Wasserstein(Pull):
    """Adds λ (θ - θ₀') to the gradient, where θ₀' are a parameter's initial values in the order of its values now.

    This is the gradient of λ/2 Σᵢ (θ₍ᵢ₎ - θ₀₍ᵢ₎)², where (i) is the i-th smallest of one parameter: half the squared
    Wasserstein distance of the two empirical distributions. Unlike L2-Init, it lets a weight go anywhere, as long as another
    takes its place.

    Args:
      model: a network, at its initial weights.
      optimizer: the optimizer, or several, that hold its parameters.
      strength: λ.

    Example:
      >>> import torch
      >>> from torch import nn
      >>> model = nn.Linear(3, 2)
      >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
      >>> method = Wasserstein(model, optimizer, strength=1e-2)
      >>> model(torch.ones(1, 3)).sum().backward()
      >>> optimizer.step()
      >>> method.step().step
      1

    References:
      Lewandowski, Tanaka, Schuurmans and Machado, Directions of Curvature as an Explanation for Loss of Plasticity, 2023.
    """

    def remember(self, initial: Tensor) -> Tensor:
        """The values, the smallest first."""
        return initial.flatten().sort().values

    def target(self, p: Tensor, initial: Tensor) -> Tensor:
        """The sorted values in the shape of the parameter, the smallest where the parameter is smallest."""
        found = torch.empty_like(initial)
        found[p.flatten().argsort(stable=True)] = initial
        return found.view_as(p)
