"""One learner in torch: a network, an optimizer, and what the method does after every step."""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from cbp_ray.activations import ACTIVATIONS
from cbp_ray.algorithm import initialize
from cbp_ray.algorithm.stacked_linear import stack
from cbp_ray.experiments.config import OnlineConfig


def build_network(config: OnlineConfig, seed: int, inputs: int) -> nn.Sequential:
    """The learner of one run, at its initial weights."""
    sizes, modules = [inputs, *config.sizes[1:]], list[nn.Module]()
    for fan_in, units in pairwise(sizes[:-1]):
        modules.append(nn.Linear(fan_in, units))
        norm = config.algorithm.norm(units)
        if norm is not None:
            modules.append(norm)
        modules.append(getattr(nn, ACTIVATIONS[config.network.activation].module)())
    model = nn.Sequential(*modules, nn.Linear(sizes[-2], sizes[-1])).to(getattr(torch, config.dtype))
    initialize(model, "kaiming", activation=config.network.activation, seed=seed)
    return model


class Learner:
    """One network, or several side by side, that learn example by example.

    Args:
      config: settings of the experiment.
      seed: seed of the initial weights and of the method; several are several networks in a stack.
      inputs: number of inputs of a network.
      loss: function of outputs [1, outputs] and targets; for several networks it returns the loss of each.
      device: where they learn.
    """

    def __init__(
        self,
        config: OnlineConfig,
        seed: int | Sequence[int],
        inputs: int,
        loss: Callable[[Tensor, Tensor], Tensor],
        device: str,
    ) -> None:
        self.loss = loss
        self.dtype, self.device = getattr(torch, config.dtype), torch.device(device)
        # Drawn on the CPU and then moved: the initial weights are the same on every device.
        if isinstance(seed, int):
            self.model = build_network(config, seed, inputs).to(self.device)
        else:
            self.model = stack([build_network(config, each, inputs) for each in seed]).to(self.device)
        self.optimizer = config.optimizer.make(self.model.parameters(), config.algorithm.decay)
        self.after_step = config.algorithm.after_step(self.model, self.optimizer, seed)
        kinds = tuple(getattr(nn, activation.module) for activation in ACTIVATIONS.values())
        self.activations = [m for m in self.model if isinstance(m, kinds)]
        self.layers = [m for m in self.model if isinstance(m, nn.Linear)]
        self.examples = 0

    def learn(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Learns from one example: predicts, updates, and lets the method act.

        Returns:
          Prediction and loss, both from before the update.
        """
        self.optimizer.zero_grad()
        prediction = self.model(x)
        loss = self.loss(prediction, y)
        loss.sum().backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        if self.after_step is not None:
            self.after_step.step()
        return prediction.detach(), loss.detach()

    def replacements(self) -> tuple[int, int]:
        """Units replaced, and units passed over for a utility that was not finite, since the beginning."""
        replaced, nonfinite = (getattr(self.after_step, name, {}) for name in ("replaced", "nonfinite"))
        return sum(replaced.values()), sum(nonfinite.values())

    def state(self) -> dict[str, Any]:
        """The states of network, optimizer and method."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict()["state"],
            "method": {} if self.after_step is None else self.after_step.state_dict(),
        }

    def load_state(self, state: Mapping[str, Any], examples: int) -> None:
        """Continues where `state` was taken."""
        self.model.load_state_dict(state["model"])
        # The groups hold settings only, which the config has given already.
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": state["optimizer"]})
        if self.after_step is not None:
            self.after_step.load_state_dict(state["method"])
        self.examples = examples
