"""What regularisers have in common that pull weights towards their initial values."""

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from cbp_ray.algorithm.saved_states import whole_or_not
from cbp_ray.algorithm.weights.rule import WeightRule
from cbp_ray.validation import not_negative


class Pull(WeightRule):
    """Adds λ (θ - target) to the gradient, where the target is made of the values that a parameter has at first.

    Args:
      model: a network, at its initial weights.
      optimizer: the optimizer, or several, that hold its parameters.
      strength: λ.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer | Iterable[Optimizer], strength: float = 1e-2) -> None:
        super().__init__(model, optimizer)
        self.strength = not_negative(f"{type(self).__name__}: strength", strength)
        self.initial = {name: self.remember(p.detach()) for name, p in self.parameters.items()}
        """θ₀ of each parameter, as `remember` makes it."""
        self.listen()

    def remember(self, initial: Tensor) -> Tensor:
        """What is kept of a parameter's first values."""
        return initial.clone()

    def target(self, p: Tensor, initial: Tensor) -> Tensor:
        """Where a parameter is pulled to, given what is kept of its first values."""
        return initial

    def before(self) -> None:
        if self.strength == 0:
            return
        for name, p in self.parameters.items():
            if p.grad is not None:
                self.initial[name] = self.initial[name].to(p)
                p.grad.add_(p - self.target(p, self.initial[name]), alpha=self.strength)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "initial": {name: value.clone() for name, value in self.initial.items()}}

    @whole_or_not
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.initial = {name: state["initial"][name].to(p, copy=True) for name, p in self.parameters.items()}
