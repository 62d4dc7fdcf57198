"""How able to learn a network still is: measured once per iteration, from the last mini-batch and the weights."""

from functools import partial
from typing import Any

import torch
from ray.rllib.core.rl_module.rl_module import RLModule
from torch import Tensor

from cbp_ray.activations import SATURATION
from cbp_ray.algorithm.generate_and_test import GenerateAndTest
from cbp_ray.algorithm.network import HiddenLayer
from cbp_ray.algorithm.step_report import StepReport
from cbp_ray.algorithm.watched_layer import Capture
from cbp_ray.experiments.hidden_outputs import describe

DORMANT = 0.01
"""A unit is dormant when its mean |h| is at most this fraction of the layer's (Sokar et al. 2023)."""
QUANTILES = (0.05, 0.5, 0.95)


class Diagnostics:
    """Watches the hidden layers of one RLModule. It costs a training step one reference per layer."""

    def __init__(self, module: RLModule, layers: list[HiddenLayer]) -> None:
        modules: dict[str, Any] = dict(module.named_modules())
        self.layers = layers
        self.weights: dict[str, Tensor] = {layer.unit: modules[layer.unit].weight for layer in layers}
        self.latest: dict[str, Tensor] = {}
        self.hooks = [
            modules[layer.outgoing[0]].register_forward_pre_hook(
                Capture(partial(self.latest.__setitem__, layer.unit)), with_kwargs=True
            )
            for layer in layers
        ]

    @torch.no_grad()
    def measure(self, gnt: GenerateAndTest | None, report: StepReport | None) -> dict[tuple[str, ...], float]:
        """Numbers of the module by `(name,)`, and those of its hidden layers by `(layer, name)`."""
        ages = {} if report is None else report.ages
        utilities = {} if report is None else report.utilities
        result: dict[tuple[str, ...], float] = {}
        for layer in self.layers:
            name = layer.unit
            numbers = {"weight_magnitude": float(self.weights[name].abs().mean())}
            if name in self.latest:
                numbers |= of_activations(self.latest[name])
            if name in ages:
                age = ages[name].double()
                numbers |= {"age_mean": float(age.mean()), "age_min": float(age.min()), "age_max": float(age.max())}
                finite = utilities[name][utilities[name].isfinite()].double()
                if len(finite):
                    numbers["utility_mean"] = float(finite.mean())
                    values = torch.quantile(finite, torch.tensor(QUANTILES, dtype=torch.float64, device=finite.device))
                    numbers |= {f"utility_q{round(100 * q):02}": float(v) for q, v in zip(QUANTILES, values, strict=True)}
            if gnt is not None:
                numbers["replaced_lifetime"] = float(gnt.replaced[name])
                numbers["nonfinite_lifetime"] = float(gnt.nonfinite[name])
            result |= {(name, key): value for key, value in numbers.items()}
        if gnt is not None:
            result["replaced_lifetime",] = float(sum(gnt.replaced.values()))
        return result

    def close(self) -> None:
        """Removes the hooks from the module."""
        for hook in self.hooks:
            hook.remove()


def of_activations(h: Tensor) -> dict[str, float]:
    """Dormant units, saturated features and stable rank ‖H‖²_F / ‖H‖²₂ of the outputs H of a layer, [examples, units]."""
    h = h.detach().flatten(1) if h.ndim <= 2 else h.detach().flatten(0, -2)
    magnitude = h.abs()
    by_unit = magnitude.mean(0)
    return {
        "dormant_fraction": float((by_unit <= DORMANT * by_unit.mean()).double().mean()),
        "saturated_fraction": float((magnitude > SATURATION).double().mean()),
        "stable_rank": describe(h.double().cpu().numpy()).stable_rank,
    }
