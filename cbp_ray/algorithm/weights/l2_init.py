"""L2-Init: regularisation towards the initial weights instead of towards zero."""

from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn
from torch.optim import Optimizer

from cbp_ray.algorithm.saved_states import whole_or_not
from cbp_ray.algorithm.weights.rule import WeightRule
from cbp_ray.validation import not_negative


class L2Init(WeightRule):
    """Adds λ (θ - θ₀) to the gradient, where θ₀ are the weights that the model has now.

    With SGD: θ ← (1 - αλ) θ + αλ θ₀ - α g, as in the paper, whose λ‖θ - θ₀‖² has its factor 2 in λ.

    Args:
      model: a network, at its initial weights.
      optimizer: the optimizer, or several, that hold its parameters.
      strength: λ.

    Example:
      >>> import torch
      >>> model = nn.Linear(3, 2)
      >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
      >>> method = L2Init(model, optimizer, strength=1e-2)
      >>> model(torch.ones(1, 3)).sum().backward()
      >>> optimizer.step()
      >>> method.step().step
      1

    References:
      Kumar, Marklund and Van Roy, Maintaining Plasticity in Continual Learning via Regenerative Regularization, 2023.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer | Iterable[Optimizer], strength: float = 1e-2) -> None:
        super().__init__(model, optimizer)
        self.strength = not_negative("L2Init: strength", strength)
        self.initial = {name: p.detach().clone() for name, p in self.parameters.items()}
        self.listen()

    def before(self) -> None:
        if self.strength == 0:
            return
        for name, p in self.parameters.items():
            if p.grad is not None:
                self.initial[name] = self.initial[name].to(p)
                p.grad.add_(p - self.initial[name], alpha=self.strength)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "initial": {name: value.clone() for name, value in self.initial.items()}}

    @whole_or_not
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.initial = {name: state["initial"][name].to(p, copy=True) for name, p in self.parameters.items()}
