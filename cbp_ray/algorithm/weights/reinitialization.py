"""Selective weight reinitialisation: Continual Backprop's idea, weight by weight."""

from collections.abc import Iterable, Mapping
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from cbp_ray.algorithm.saved_states import whole_or_not
from cbp_ray.algorithm.weights.rule import WeightRule, initial_distributions, loaded_distributions, saved_distributions
from cbp_ray.errors import InputError
from cbp_ray.randomness import Purpose, uniforms
from cbp_ray.validation import SEEDS, in_unit_interval, whole_number

Utility = Literal["gradient", "magnitude", "random"]


class WeightReinitialization(WeightRule):
    """Draws the weights of least utility anew, in each parameter by itself, once every few steps.

        U = |g w| (gradient) or |w| (magnitude),  ū ← β ū + (1 - β) U
        every T steps: of n weights the n ρ with the smallest ū, n ρ rounded at random, come from the initial distribution

    Traces begin again at U after that. What optimizers remember of such a weight is forgotten; a time step that it shares with
    other weights goes on.

    Args:
      model: a network, at its initial weights. Parameters of modules other than Linear and convolutions go back to the value
        that they have now, if all their numbers are the same, and are left alone otherwise.
      optimizer: the optimizer, or several, that hold its parameters.
      rate: ρ, the share of a parameter's weights that is drawn anew each time.
      every: T.
      utility: `gradient`, `magnitude` or `random`.
      decay: β of the traces.
      seed: seed of the new weights.

    References:
      Hernandez-Garcia, Dohare, Luo and Sutton, Reinitializing Weights vs Units for Maintaining Plasticity, 2025.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Iterable[Optimizer],
        rate: float = 1e-2,
        every: int = 1000,
        utility: Utility = "gradient",
        decay: float = 0.0,
        seed: int = 0,
    ) -> None:
        super().__init__(model, optimizer)
        if not isinstance(utility, str) or utility not in get_args(Utility):
            raise InputError(f"WeightReinitialization: utility must be one of {', '.join(get_args(Utility))}, got {utility!r}")
        self.rate, self.decay = in_unit_interval("rate", rate, closed=True), in_unit_interval("decay", decay)
        self.every, self.utility, self.seed = (
            whole_number("every", every, least=1),
            utility,
            whole_number("seed", seed, below=SEEDS),
        )
        self._distributions = initial_distributions(model)
        self._constants = {
            name: float(p.detach().flatten()[0])
            for name, p in self.parameters.items()
            if name not in self._distributions and bool((p == p.flatten()[0]).all())
        }
        self.traces = {name: torch.zeros_like(p) for name, p in self.parameters.items()}
        """ū of every weight."""
        self.since = 0
        """Steps since the traces began."""
        self.replaced = dict.fromkeys((name for name in self.parameters if self._treats(name)), 0)
        """Number of weights drawn anew since the beginning, by parameter."""
        self.listen()

    def _treats(self, name: str) -> bool:
        return name in self._distributions or name in self._constants

    def before(self) -> None:
        if self.utility != "gradient":
            return
        for name, p in self.parameters.items():
            if p.grad is not None:
                self._follow(name, (p.grad * p).abs())

    def after(self) -> dict[str, int]:
        if self.utility == "magnitude":
            for name, p in self.parameters.items():
                self._follow(name, p.abs())
        self.since += 1
        if self.rate == 0 or self.steps % self.every:
            return {}
        changed: dict[str, int] = {}
        for number, name in enumerate(self.parameters):
            if self._treats(name):
                count = self._draw_anew(name, number)
                self.replaced[name] += count
                changed |= {name: count} if count else {}
        self.since = 0
        return changed

    def _follow(self, name: str, utility: Tensor) -> None:
        trace = self.traces[name].to(utility)
        self.traces[name] = utility if self.since == 0 else trace.lerp_(utility, 1 - self.decay)

    def _draw_anew(self, name: str, number: int) -> int:
        p = self.parameters[name]
        expected = self.rate * p.numel()
        draws = uniforms(self.seed, Purpose.NEW_WEIGHTS, 1 + 2 * p.numel(), address=(self.steps, number, 0))
        count = int(expected) + int(draws[0] < expected - int(expected))
        if count == 0:
            return 0
        utility = draws[1 : 1 + p.numel()] if self.utility == "random" else self.traces[name].flatten().double().cpu().numpy()
        # Of equals, the first; what is not a number is never chosen.
        chosen = np.argsort(np.where(np.isfinite(utility), utility, np.inf), kind="stable")[:count]
        chosen = chosen[np.isfinite(utility[chosen])]
        if name in self._constants:
            values = np.full(len(chosen), self._constants[name])
        else:
            distribution, is_bias = self._distributions[name]
            own = draws[1 + p.numel() :][chosen]
            values = distribution.bias(own) if is_bias else distribution.single_weight(own)
        index = torch.from_numpy(chosen).to(p.device)
        where = torch.unravel_index(index, p.shape)
        p[where] = torch.from_numpy(values).to(p)
        for value in self.optimizers[p].state.get(p, {}).values():
            if isinstance(value, Tensor) and value.ndim > 0 and value.shape == p.shape:
                value[where] = 0
        return len(chosen)

    def state_dict(self) -> dict[str, Any]:
        traces = {name: trace.clone() for name, trace in self.traces.items()}
        counts = {"since": self.since, "replaced": dict(self.replaced)}
        initial = {"distributions": saved_distributions(self._distributions), "constants": dict(self._constants)}
        return {**super().state_dict(), "traces": traces, **counts, **initial}

    @whole_or_not
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.traces = {name: state["traces"][name].to(p, copy=True) for name, p in self.parameters.items()}
        self.since, self.replaced = int(state["since"]), {name: int(count) for name, count in state["replaced"].items()}
        self._distributions = loaded_distributions(state["distributions"])
        self._constants = {name: float(value) for name, value in state.get("constants", {}).items()}
