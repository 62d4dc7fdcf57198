"""What methods that act on weights have in common."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from cbp_ray.algorithm.initialization import recognise
from cbp_ray.algorithm.preconditions import optimizers_by_parameter
from cbp_ray.algorithm.saved_states import whole_or_not
from cbp_ray.algorithm.units import UNIT_MODULES
from cbp_ray.errors import InputError
from cbp_ray.initial_weights import Distribution


@dataclass(frozen=True)
class WeightReport:
    """What one step of a method did to the weights."""

    step: int
    """Number of steps so far, including this one."""
    changed: dict[str, int]
    """How many weights of each parameter it changed that it leaves alone otherwise; only parameters that have some."""


class WeightRule:
    """A method that acts on all trained weights, biases included, around the optimizer's step.

    Args:
      model: a network.
      optimizer: the optimizer, or several, that hold its parameters; what none of them holds is left alone.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer | Iterable[Optimizer]) -> None:
        if not isinstance(model, nn.Module):
            raise InputError(f"model: must be a torch.nn.Module, got {type(model).__name__}")
        self.optimizers = optimizers_by_parameter(optimizer)
        self.parameters = {name: p for name, p in model.named_parameters() if p in self.optimizers}
        if not self.parameters:
            raise InputError(
                f"{type(self).__name__}: the optimizer holds no parameter of the model; give it model.parameters()"
            )
        self.steps = 0
        self._hooks: list[Any] = []
        self._due = True

    def listen(self) -> None:
        """Hooks `before` into the optimizers: the end of every constructor, so that one that fails leaves nothing behind."""
        kinds = {id(o): o for o in self.optimizers.values()}.values()
        self._hooks = [o.register_step_pre_hook(lambda _, args, given: self._before(args, given)) for o in kinds]

    def _before(self, args: tuple[Any, ...], given: Mapping[str, Any]) -> None:
        # The first of them is the optimizer itself.
        if any(value is not None for value in (*args[1:], *given.values())):
            name = type(self).__name__
            raise InputError(
                f"{name}: optimizer.step(closure) computes gradients behind it; compute them first, and call step()"
            )
        # Of several optimizers, the first one's step is the beginning of all; without gradients it is none of the method's.
        if self._due and any(p.grad is not None for p in self.parameters.values()):
            self._due = False
            with torch.no_grad():
                self.before()

    def before(self) -> None:
        """Acts on gradients, before the optimizer's step."""

    def after(self) -> dict[str, int]:
        """Acts on weights, after the optimizer's step. Returns `WeightReport.changed`."""
        return {}

    @torch.no_grad()
    def step(self) -> WeightReport:
        """One step of the method, after the optimizer's."""
        self.steps += 1
        self._due = True
        return WeightReport(self.steps, self.after())

    def learning_rate(self, parameter: Tensor) -> float:
        """α of a parameter, as its optimizer has it now."""
        groups = self.optimizers[parameter].param_groups
        return float(next(g["lr"] for g in groups if any(p is parameter for p in g["params"])))

    def state_dict(self) -> dict[str, Any]:
        """Everything a resumed run needs besides the model's and the optimizer's states; safe for `weights_only=True`."""
        return {"steps": self.steps}

    @whole_or_not
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues where `state_dict` was taken."""
        self.steps = int(state["steps"])

    def close(self) -> None:
        """Removes the hooks from the optimizers."""
        for hook in self._hooks:
            hook.remove()


def saved_distributions(distributions: Mapping[str, tuple[Distribution, bool]]) -> dict[str, Any]:
    """Distributions as plain data."""
    return {name: {**asdict(distribution), "is_bias": is_bias} for name, (distribution, is_bias) in distributions.items()}


def loaded_distributions(saved: Mapping[str, Mapping[str, Any]]) -> dict[str, tuple[Distribution, bool]]:
    """What `saved_distributions` was made from."""
    return {
        name: (Distribution(**{key: value for key, value in each.items() if key != "is_bias"}), bool(each["is_bias"]))
        for name, each in saved.items()
    }


def initial_distributions(model: nn.Module) -> dict[str, tuple[Distribution, bool]]:
    """By parameter of a Linear or convolution: the layer's initial distribution, and whether the parameter is its bias."""
    found: dict[str, tuple[Distribution, bool]] = {}
    for name, module in model.named_modules():
        if isinstance(module, UNIT_MODULES):
            distribution, prefix = recognise(module), f"{name}." if name else ""
            found |= {f"{prefix}weight": (distribution, False), f"{prefix}bias": (distribution, True)}
    return found
