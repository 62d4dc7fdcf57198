"""Weight clipping: no weight grows beyond a multiple of its initial range."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn
from torch.optim import Optimizer

from cbp_ray.algorithm.network import HiddenLayer, check_layers, find_hidden_layers
from cbp_ray.algorithm.saved_states import whole_or_not
from cbp_ray.algorithm.weights.rule import WeightRule, initial_distributions
from cbp_ray.validation import positive, truth_value


class WeightClipping(WeightRule):
    """Clips every weight and bias of a Linear or convolution to [-κ s, κ s] after the optimizer's step.

    s is the bound of the layer's initial distribution if that is uniform, and 1/√fan_in otherwise, for its bias as well.
    Parameters of other modules are left alone.

    Args:
      model: a network, at its initial weights.
      optimizer: the optimizer, or several, that hold its parameters.
      factor: κ.
      last_layer: whether the last layers, which feed nothing, are clipped, too.
      layers: the hidden layers, for networks that can't be traced.

    References:
      Elsayed, Lan, Lyle and Mahmood, Weight Clipping for Deep Continual and Reinforcement Learning, 2024.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Iterable[Optimizer],
        factor: float = 2.0,
        last_layer: bool = True,
        layers: Iterable[HiddenLayer] | None = None,
    ) -> None:
        super().__init__(model, optimizer)
        self.factor = positive("WeightClipping: factor", factor)
        distributions = initial_distributions(model)
        truth_value("WeightClipping: last_layer", last_layer)
        found = check_layers(model, layers) if layers is not None else [] if last_layer else find_hidden_layers(model)
        hidden = {part.name for layer in found if layer.units for part in layer.units.producers}
        self.bounds: dict[str, float] = {}
        """κ s by parameter."""
        for name, (distribution, _) in distributions.items():
            layer = name.rpartition(".")[0]
            if name in self.parameters and (last_layer or layer in hidden):
                fan_in = model.get_submodule(layer).weight[0].numel()  # type: ignore[index]
                bound = distribution.scale if distribution.kind == "uniform" else 1 / math.sqrt(fan_in)
                self.bounds[name] = self.factor * bound

        self.replaced = dict.fromkeys(self.bounds, 0)
        """How often weights were clipped since the beginning, by parameter."""

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "bounds": dict(self.bounds), "replaced": dict(self.replaced)}

    @whole_or_not
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.bounds = {name: float(bound) for name, bound in state["bounds"].items()}
        self.replaced = {name: int(count) for name, count in state.get("replaced", self.replaced).items()}

    def after(self) -> dict[str, int]:
        changed = {}
        for name, bound in self.bounds.items():
            p = self.parameters[name]
            beyond = int((p.abs() > bound).sum())
            if beyond:
                p.clamp_(-bound, bound)
                changed[name] = beyond
                self.replaced[name] += beyond
        return changed
