"""Shrink and perturb, in the online forms that are in use."""

from collections.abc import Iterable, Mapping
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from cbp_ray.algorithm.saved_states import whole_or_not
from cbp_ray.algorithm.weights.noise import Noise
from cbp_ray.algorithm.weights.rule import WeightRule, initial_distributions, loaded_distributions, saved_distributions
from cbp_ray.errors import InputError
from cbp_ray.validation import SEEDS, not_negative, whole_number

Variant = Literal["nature2024", "gradient", "initial"]


class ShrinkAndPerturb(WeightRule):
    """Perturbs all weights in every step; they shrink by the optimizer's weight decay, or by `shrinkage`.

    | variant | after the optimizer's step | source |
    |---|---|---|
    | `nature2024` | θ ← θ + σ ε, ε ~ N(0, 1) | Dohare et al. (2024) |
    | `gradient` | θ ← θ - α σ ε, as if the noise were in the gradient of SGD | Elsayed and Mahmood (2024), "PGD" |
    | `initial` | θ ← (1 - s) θ + σ φ, φ ~ the initial distribution | Kumar et al. (2023); "soft", Juliani and Ash (2024) |

    Of other modules than Linear and convolutions, φ is 1 for weights and 0 for all else.

    Args:
      model: a network.
      optimizer: the optimizer, or several, that hold its parameters; its weight decay shrinks in the first two forms.
      noise: σ.
      variant: which form.
      shrinkage: s, of `initial` only.
      seed: seed of the noise.

    References:
      Ash and Adams, On Warm-Starting Neural Network Training, 2020.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Iterable[Optimizer],
        noise: float,
        variant: Variant = "nature2024",
        shrinkage: float = 0.0,
        seed: int = 0,
    ) -> None:
        super().__init__(model, optimizer)
        if not isinstance(variant, str) or variant not in get_args(Variant):
            raise InputError(f"ShrinkAndPerturb: variant must be one of {', '.join(get_args(Variant))}, got {variant!r}")
        self.noise = not_negative("ShrinkAndPerturb: noise", noise)
        self.shrinkage = not_negative("ShrinkAndPerturb: shrinkage", shrinkage)
        if self.shrinkage and variant != "initial":
            raise InputError(f"ShrinkAndPerturb: shrinkage is of variant 'initial', got it with {variant!r}; use weight decay")
        self.variant, self.seed = variant, whole_number("seed", seed, below=SEEDS)
        self._noise = Noise(list(self.parameters.values()), self.seed)
        self._distributions = initial_distributions(model) if variant == "initial" else {}

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "distributions": saved_distributions(self._distributions)}

    @whole_or_not
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._distributions = loaded_distributions(state.get("distributions", {}))

    def after(self) -> dict[str, int]:
        parameters: list[Tensor] = list(self.parameters.values())
        if self.variant == "initial":
            for number, (name, p) in enumerate(self.parameters.items()):
                p.mul_(1 - self.shrinkage)
                if self.noise:
                    p.add_(self._fresh(name, number, p), alpha=self.noise)
        elif self.noise:
            for each, noise in zip(parameters, self._noise.at(self.steps, parameters), strict=True):
                each.add_(noise, alpha=self.noise if self.variant == "nature2024" else -self.noise * self.learning_rate(each))
        return {}

    def _fresh(self, name: str, number: int, p: Tensor) -> Tensor:
        """New values of a parameter from its initial distribution; scales of norms start at one and all else at zero."""
        if name not in self._distributions:
            return torch.ones_like(p) if name.rpartition(".")[2] == "weight" else torch.zeros_like(p)
        distribution, is_bias = self._distributions[name]
        draws = self._noise.uniform(self.steps, number, p).cpu().numpy()
        drawn = distribution.bias(draws) if is_bias else distribution.single_weight(draws)
        return torch.from_numpy(np.asarray(drawn)).to(p)
