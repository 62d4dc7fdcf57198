"""The Wasserstein regulariser: the weights keep the distribution that they had at first, whichever weight has which value."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from cbp_ray.algorithm.saved_states import whole_or_not
from cbp_ray.algorithm.weights.rule import WeightRule
from cbp_ray.validation import not_negative


class Wasserstein(WeightRule):
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

    def __init__(self, model: nn.Module, optimizer: Optimizer | Iterable[Optimizer], strength: float = 1e-2) -> None:
        super().__init__(model, optimizer)
        self.strength = not_negative("Wasserstein: strength", strength)
        self.sorted = {name: p.detach().flatten().sort().values for name, p in self.parameters.items()}
        """θ₀ of each parameter, the smallest first."""
        self.listen()

    def before(self) -> None:
        if self.strength == 0:
            return
        for name, p in self.parameters.items():
            if p.grad is not None:
                self.sorted[name] = self.sorted[name].to(p)
                p.grad.add_(p - self._in_order_of(p, self.sorted[name]), alpha=self.strength)

    def _in_order_of(self, p: Tensor, values: Tensor) -> Tensor:
        """Sorted values in the shape of a parameter, the smallest where the parameter is smallest."""
        found = torch.empty_like(values)
        found[p.flatten().argsort(stable=True)] = values
        return found.view_as(p)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "sorted": {name: value.clone() for name, value in self.sorted.items()}}

    @whole_or_not
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.sorted = {name: state["sorted"][name].to(p, copy=True) for name, p in self.parameters.items()}
