"""A method of somebody's own, all of it in this file: after every few steps, all parameters shrink a little."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import nn
from torch.optim import Optimizer

from cbp_ray.methods import Method
from cbp_ray.validation import Count, Rate


class Shrinkage:
    """Multiplies all parameters of a network by a factor, once every few steps."""

    def __init__(self, model: nn.Module, factor: float, every: int) -> None:
        self.model, self.factor, self.every = model, factor, every
        self.steps = 0

    @torch.no_grad()
    def step(self) -> None:
        self.steps += 1
        if self.steps % self.every == 0:
            for parameter in self.model.parameters():
                parameter.mul_(self.factor)

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.steps = int(state["steps"])


class Toy(Method):
    """Backprop whose parameters shrink."""

    label = "Toy shrinkage"
    swept = "shrinkage"
    look: ClassVar[dict[str, Any]] = {"color": "#CC79A7", "marker": "v"}

    name: Literal["toy"] = "toy"
    """Name of the method in configs."""
    shrinkage: Rate
    """The part of every parameter that is lost each time."""
    every: Count = 7
    """Steps from one time to the next."""

    def after_step(self, model: nn.Module, optimizer: Optimizer, seed: int) -> Shrinkage:
        return Shrinkage(model, 1 - self.shrinkage, self.every)
