"""One learner in torch: network, optimizer and generate-and-test of `cbp_ray.algorithm`, whatever it learns."""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from cbp_ray.algorithm import Adam, GenerateAndTest, OnlineNorm, initialize
from cbp_ray.algorithm.stacked_linear import stack
from cbp_ray.experiments.config import AdamConfig, ContinualBackprop, Linear, OnlineConfig, OnlineNormalization

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,
    "elu": nn.ELU,
    "swish": nn.SiLU,
}


def build_network(config: OnlineConfig, seed: int, inputs: int) -> nn.Sequential:
    """The learner of one run, at its initial weights."""
    algorithm, dtype = config.algorithm, getattr(torch, config.dtype)
    sizes = [inputs, *(() if isinstance(algorithm, Linear) else config.network.hidden)]
    modules: list[nn.Module] = []
    for fan_in, units in pairwise(sizes):
        modules.append(nn.Linear(fan_in, units))
        if isinstance(algorithm, OnlineNormalization):
            modules.append(OnlineNorm(units, algorithm.alpha_forward, algorithm.alpha_backward))
        modules.append(ACTIVATIONS[config.network.activation]())
    model = nn.Sequential(*modules, nn.Linear(sizes[-1], config.problem.outputs)).to(dtype)
    initialize(model, "kaiming", activation=config.network.activation, seed=seed)
    return model


class Learner:
    """One network, or several side by side, that learn example by example.

    Args:
      config: the experiment.
      seed: seed of initial weights and new units; several are several networks in a stack.
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
        algorithm, optimizer = config.algorithm, config.optimizer
        weight_decay = float(getattr(algorithm, "weight_decay", 0.0))
        self.optimizer: torch.optim.Optimizer
        if isinstance(optimizer, AdamConfig):
            self.optimizer = Adam(
                self.model.parameters(), optimizer.step_size, optimizer.betas, optimizer.epsilon, weight_decay
            )
        else:
            self.optimizer = torch.optim.SGD(self.model.parameters(), optimizer.step_size, weight_decay=weight_decay)
        self.gnt: GenerateAndTest | None = None
        if isinstance(algorithm, ContinualBackprop):
            self.gnt = GenerateAndTest(
                self.model,
                self.optimizer,
                algorithm.replacement_rate,
                algorithm.maturity_threshold,
                algorithm.decay_rate,
                algorithm.utility,
                algorithm.preset,
                seed,
                replacement=algorithm.replacement,
                compiled=False,
            )
        self.activations = [m for m in self.model if isinstance(m, tuple(ACTIVATIONS.values()))]
        self.layers = [m for m in self.model if isinstance(m, nn.Linear)]
        self.examples = 0

    def learn(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """One example: predict, update, generate and test. Returns prediction and loss, both from before the update."""
        self.optimizer.zero_grad()
        prediction = self.model(x)
        loss = self.loss(prediction, y)
        loss.sum().backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        if self.gnt is not None:
            self.gnt.step()
        return prediction.detach(), loss.detach()

    def replacements(self) -> tuple[int, int]:
        """Units replaced, and units passed over for a utility that was not finite, since the beginning."""
        if self.gnt is None:
            return 0, 0
        return sum(self.gnt.replaced.values()), sum(self.gnt.nonfinite.values())

    def state(self) -> dict[str, Any]:
        """The three state dicts."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict()["state"],
            "gnt": self.gnt.state_dict() if self.gnt else {},
        }

    def load_state(self, state: Mapping[str, Any], examples: int) -> None:
        """Continues where `state` was taken."""
        self.model.load_state_dict(state["model"])
        # The groups hold settings only, which the config has given already.
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": state["optimizer"]})
        if self.gnt is not None:
            self.gnt.load_state_dict(state["gnt"])
        self.examples = examples
