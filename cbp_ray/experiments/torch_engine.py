"""`engine="torch"`: the reference. One run after the other, example by example, through `cbp_ray.algorithm`."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cbp_ray.algorithm import Adam, GenerateAndTest, OnlineNorm, initialize
from cbp_ray.experiments.config import AdamConfig, ContinualBackprop, Linear, OnlineConfig, OnlineNormalization
from cbp_ray.experiments.engine import HIDDEN_METRICS, METRICS, Arrays, Metrics, check_complete
from cbp_ray.problems.bit_flipping import BitFlipping

SATURATION = 0.9
ACTIVATIONS: dict[str, type[nn.Module]] = {
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,
    "elu": nn.ELU,
    "swish": nn.SiLU,
}


def build_network(config: OnlineConfig, seed: int) -> nn.Sequential:
    """The learner of one run, at its initial weights."""
    algorithm, dtype = config.algorithm, getattr(torch, config.dtype)
    sizes = [config.problem.inputs, *(() if isinstance(algorithm, Linear) else config.network.hidden)]
    modules: list[nn.Module] = []
    for fan_in, units in pairwise(sizes):
        modules.append(nn.Linear(fan_in, units))
        if isinstance(algorithm, OnlineNormalization):
            modules.append(OnlineNorm(units, algorithm.alpha_forward, algorithm.alpha_backward))
        modules.append(ACTIVATIONS[config.network.activation]())
    model = nn.Sequential(*modules, nn.Linear(sizes[-1], 1)).to(dtype)
    initialize(model, "kaiming", activation=config.network.activation, seed=seed)
    return model


class Run:
    """One learner and its problem."""

    def __init__(self, config: OnlineConfig, seed: int, device: str = "cpu") -> None:
        self.problem = BitFlipping(seed, **config.problem.model_dump(exclude={"name"}))
        self.dtype = getattr(torch, config.dtype)
        self.device = torch.device(device)
        # Drawn on the CPU and then moved: the initial weights are the same on every device.
        self.model = build_network(config, seed).to(self.device)
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
            )
        self.activations = [m for m in self.model if isinstance(m, tuple(ACTIVATIONS.values()))]
        self.examples = 0

    def learn(self, x: Tensor, y: Tensor) -> Tensor:
        """One example [1, m], [1, 1]: predict, update, generate and test. Returns the squared error before the update."""
        self.optimizer.zero_grad()
        loss: Tensor = (self.model(x) - y).square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        if self.gnt is not None:
            self.gnt.step()
        return loss.detach()

    def advance(self, examples: int) -> dict[str, float]:
        """Learns from the next examples; the metrics over them."""
        inputs, targets = self.problem.take(examples, start=self.examples)
        xs, ys = (torch.from_numpy(array).to(self.device, self.dtype) for array in (inputs, targets))
        outputs: list[Tensor] = []
        hooks = [module.register_forward_hook(lambda _m, _i, h: outputs.append(h.detach())) for module in self.activations]
        first = self.model[0]
        assert isinstance(first, nn.Linear)
        replaced, nonfinite = self._counts()
        error = saturated = gradient = 0.0
        largest = [torch.zeros(0, dtype=self.dtype)] * len(self.activations)
        units = sum(m.out_features for m in self.model if isinstance(m, nn.Linear)) - 1
        for t in range(examples):
            outputs.clear()
            error += float(self.learn(xs[t : t + 1], ys[t : t + 1, None]))
            assert first.weight.grad is not None
            gradient += float(first.weight.grad.abs().mean())
            for layer, h in enumerate(outputs):
                size = h[0].abs()
                saturated += int((size > SATURATION).sum())
                largest[layer] = torch.maximum(largest[layer], size) if t else size
        for hook in hooks:
            hook.remove()
        self.examples += examples
        last = self.model[-1]
        assert isinstance(last, nn.Linear)
        replaced_now, nonfinite_now = self._counts()
        metrics = {
            "error": error / examples,
            "input_weight_magnitude": float(first.weight.detach().abs().mean()),
            "output_weight_magnitude": float(last.weight.detach().abs().mean()),
            "saturated": saturated / (examples * units) if units else np.nan,
            "input_gradient": gradient / examples,
            "dead": float((torch.cat(largest) == 0).double().mean()) if units else np.nan,
            "replacements": float(replaced_now - replaced),
            "nonfinite_utilities": float(nonfinite_now - nonfinite),
        }
        return metrics if units else metrics | dict.fromkeys(HIDDEN_METRICS, np.nan)

    def _counts(self) -> tuple[int, int]:
        if self.gnt is None:
            return 0, 0
        return sum(self.gnt.replaced.values()), sum(self.gnt.nonfinite.values())

    def state(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict()["state"],
            "gnt": self.gnt.state_dict() if self.gnt else {},
        }

    def load_state(self, state: Mapping[str, Any], examples: int) -> None:
        self.model.load_state_dict(state["model"])
        # The groups hold settings only, which the config has given already.
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": state["optimizer"]})
        if self.gnt is not None:
            self.gnt.load_state_dict(state["gnt"])
        self.examples = examples


class TorchEngine:
    """Any number of runs, one after the other."""

    def __init__(self, config: OnlineConfig, seeds: Sequence[int], device: str = "cpu") -> None:
        self._config, self._device = config, device
        self._runs = [Run(config, seed, device) for seed in seeds]

    def advance(self, examples: int) -> Metrics:
        bins = [run.advance(examples) for run in self._runs]
        return {name: np.array([b[name] for b in bins]) for name in METRICS}

    def state(self) -> Arrays:
        return {f"{number}/{name}": array for number, run in enumerate(self._runs) for name, array in _flatten(run.state())}

    def load_state(self, state: Arrays, examples: int) -> None:
        # Optimizers make their state at the first step.
        example = Run(self._config, seed=0, device=self._device)
        example.advance(1)
        names = [name for name, _ in _flatten(example.state())]
        check_complete(state, [f"{number}/{name}" for number in range(len(self._runs)) for name in names])
        for number, run in enumerate(self._runs):
            prefix = f"{number}/"
            own = {name.removeprefix(prefix): a for name, a in state.items() if name.startswith(prefix)}
            run.load_state(_unflatten(own), examples)


def _flatten(tree: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """Leaves of a nested state dict by path; the path also records what kind of leaf and key it was."""
    for key, value in tree.items():
        path = f"{prefix}{'#' if isinstance(key, int) else ''}{key}"
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{path}/")
        elif isinstance(value, Tensor):
            yield f"{path}:tensor", value.detach().cpu().numpy().copy()
        elif value is not None:
            yield f"{path}:{'array' if isinstance(value, np.ndarray) else 'item'}", np.array(value)


def _unflatten(arrays: Arrays) -> dict[str, Any]:
    tree: dict[str, Any] = {"model": {}, "optimizer": {}, "gnt": {}}
    for name, array in arrays.items():
        path, _, kind = name.rpartition(":")
        *parents, leaf = [int(part[1:]) if part.startswith("#") else part for part in path.split("/")]
        node: dict[Any, Any] = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        if kind == "tensor":
            node[leaf] = torch.from_numpy(array.copy())
        else:
            node[leaf] = array.copy() if kind == "array" else array.item()
    return tree
