"""Utility-based perturbed gradient descent, first order, by weight, with the global scaling of utilities."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from cbp_ray.algorithm.saved_states import whole_or_not
from cbp_ray.algorithm.weights.noise import Noise
from cbp_ray.algorithm.weights.rule import WeightRule
from cbp_ray.validation import SEEDS, in_unit_interval, not_negative, truth_value, whole_number


class UPGD(WeightRule):
    """Perturbs weights that are of little use, and protects the others.

        U = -g w,  ū ← β ū + (1 - β) U                                     utility and its trace
        Ū = sigmoid((ū / (1 - βᵗ)) / η),  η = max ū over all weights       scaled utility
        protecting:      w ← (1 - αλ) w - α (g + σ ε) (1 - Ū)
        not protecting:  w ← (1 - αλ) w - α (g + σ ε (1 - Ū))
        with Adam:       w ← w + 2 (1 - Ū) (Δ - α σ ε), where Δ is Adam's own change; not protecting: w + Δ - 2 α σ ε (1 - Ū)

    λ is the optimizer's weight decay; with Adam it is a part of Δ, and not outside of it as in AdaUPGD. As in the authors'
    experiments, the step is α and not 2 α, except with Adam, and η is the largest trace without the correction for its age.
    While no trace is positive, every weight counts as half used.

    Args:
      model: a network.
      optimizer: `torch.optim.SGD` without momentum, or any other, which then counts as Adam does (AdaUPGD).
      noise: σ.
      decay: β of the trace.
      protects: whether weights of use keep what they have learned.
      seed: seed of the noise.

    References:
      Elsayed and Mahmood, Addressing Loss of Plasticity and Catastrophic Forgetting in Continual Learning, 2024.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Iterable[Optimizer],
        noise: float = 0.1,
        decay: float = 0.9999,
        protects: bool = True,
        seed: int = 0,
    ) -> None:
        super().__init__(model, optimizer)
        self.noise, self.decay = not_negative("UPGD: noise", noise), in_unit_interval("UPGD: decay", decay)
        self.protects = truth_value("UPGD: protects", protects)
        self._noise = Noise(list(self.parameters.values()), whole_number("seed", seed, below=SEEDS))
        self.traces = {name: torch.zeros_like(p) for name, p in self.parameters.items()}
        """ū of every weight."""
        self.adaptive = not all(
            type(o) is torch.optim.SGD and not any(g["momentum"] for g in o.param_groups) for o in self.optimizers.values()
        )
        self._time = 0
        self._before_step: dict[str, Tensor] = {}
        self.listen()

    def before(self) -> None:
        self._time = self.steps + 1
        trained = {name: p for name, p in self.parameters.items() if p.grad is not None}
        for name, p in trained.items():
            assert p.grad is not None
            self.traces[name] = self.traces[name].to(p)
            self.traces[name].lerp_(-p.grad * p, 1 - self.decay)
        if self.adaptive:
            self._before_step = {name: p.detach().clone() for name, p in trained.items()}
            return
        free, noises = self._free(), self._noises()
        for name, p in trained.items():
            assert p.grad is not None
            if self.protects:
                p.grad.add_(noises[name], alpha=self.noise).mul_(free[name])
            else:
                p.grad.addcmul_(noises[name], free[name], value=self.noise)

    def after(self) -> dict[str, int]:
        if self.adaptive:
            free, noises = self._free(), self._noises()
            for name, before in self._before_step.items():
                p = self.parameters[name]
                perturbation = 2 * free[name] * noises[name] * (-self.noise * self.learning_rate(p))
                change = 2 * free[name] * (p - before) if self.protects else p - before
                p.copy_(before + (change + perturbation))
            self._before_step = {}
        return {}

    def _free(self) -> dict[str, Tensor]:
        """1 - Ū of every weight."""
        largest = max(float(trace.max()) for trace in self.traces.values())
        correction = 1 - self.decay**self._time
        if not largest > 0:
            return {name: torch.full_like(trace, 0.5) for name, trace in self.traces.items()}
        return {name: torch.sigmoid(-trace / (correction * largest)) for name, trace in self.traces.items()}

    def _noises(self) -> dict[str, Tensor]:
        found = self._noise.at(self._time, list(self.parameters.values()))
        return dict(zip(self.parameters, found, strict=True))

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "traces": {name: trace.clone() for name, trace in self.traces.items()}}

    @whole_or_not
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.traces = {name: state["traces"][name].to(p, copy=True) for name, p in self.parameters.items()}
