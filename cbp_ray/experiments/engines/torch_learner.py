"""Runs of the torch engine: one learner, several of them one after the other, and their states as plain arrays."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cbp_ray.activations import ACTIVATIONS, SMALLEST_LOSS
from cbp_ray.algorithm import OnlineNorm, initialize
from cbp_ray.algorithm.input_norm import InputNorm
from cbp_ray.algorithm.stacked_linear import stack
from cbp_ray.errors import InputError
from cbp_ray.experiments.config import OnlineConfig
from cbp_ray.experiments.engines.engine import Arrays, Engine, Metrics, check_array, check_complete
from cbp_ray.problems.problem import COUNTS, SAMPLE_PLASTICITY


def build_network(config: OnlineConfig, seed: int, inputs: int, restart: int = 0) -> nn.Sequential:
    """The learner of one run, at the initial weights of its first or a later beginning."""
    model = bare_network(config, inputs)
    scheme, activation = config.network.initial_weights, config.network.activation
    initialize(model, scheme, activation=activation, seed=seed, restart=restart, biases=False)
    return model


def bare_network(config: OnlineConfig, inputs: int) -> nn.Sequential:
    """A network for these inputs whose weights are still to be set."""
    sizes, modules = [inputs, *config.sizes[1:]], list[nn.Module]()
    if config.network.input_norm:
        modules.append(InputNorm(inputs, config.network.input_norm))
    for fan_in, units in pairwise(sizes[:-1]):
        modules.append(nn.Linear(fan_in, units))
        norm = config.algorithm.norm(units)
        if norm is not None:
            modules.append(norm)
        if config.network.layer_norm:
            modules.append(nn.LayerNorm(units))
        modules.append(getattr(nn, ACTIVATIONS[config.network.activation].module)())
    return nn.Sequential(*modules, nn.Linear(sizes[-2], sizes[-1])).to(getattr(torch, config.dtype))


class LayerState(NamedTuple):
    """A layer of weights, and the norm behind it, as plain arrays."""

    weight: NDArray[Any]
    """[units, inputs]."""
    bias: NDArray[Any]
    gain: NDArray[Any] | None = None
    shift: NDArray[Any] | None = None
    mean: NDArray[Any] | None = None
    variance: NDArray[Any] | None = None


def make_network(
    config: OnlineConfig, inputs: int, layers: Sequence[LayerState], statistics: Sequence[NDArray[Any]] = ()
) -> nn.Sequential:
    """The network whose layers are in this state; what its norm does not have is ignored.

    Args:
      config: the experiment.
      inputs: number of inputs.
      layers: states of the layers of weights.
      statistics: mean and variance of the inputs, if they are normalised.
    """
    model, number = bare_network(config, inputs), -1
    names = {"weight": "gain", "bias": "shift", "mean": "mean", "variance": "variance"}
    with torch.no_grad():
        for module in model:
            number += isinstance(module, nn.Linear)
            if isinstance(module, InputNorm):
                for tensor, array in zip((module.mean, module.variance), statistics, strict=True):
                    tensor.copy_(torch.from_numpy(array))
                continue
            for name, tensor in module.state_dict().items():
                source = name if isinstance(module, nn.Linear) else names.get(name)
                if source is not None:
                    tensor.copy_(torch.from_numpy(np.ascontiguousarray(getattr(layers[number], source))))
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
        self.loss, self.networks = loss, 1 if isinstance(seed, int) else len(seed)
        self.dtype, self.device = getattr(torch, config.dtype), find_device(device)
        # Drawn on the CPU and then moved: the initial weights are the same on every device.
        each = [build_network(config, one, inputs) for one in ([seed] if isinstance(seed, int) else seed)]
        self.model = (each[0] if isinstance(seed, int) else stack(each)).to(self.device)
        # Shown each example again after its step. It is a copy, so that the method does not see it.
        self.twin = copy.deepcopy(self.model).eval() if config.diagnostics else None
        self.optimizer = config.optimizer.make(self.model.parameters(), config.algorithm.decay)
        self.after_step = config.algorithm.after_step(self.model, self.optimizer, seed)
        self.activations = [m for m in self.model if type(m).__name__ in {a.module for a in ACTIVATIONS.values()}]
        self.layers = [m for m in self.model if isinstance(m, nn.Linear)]
        self.examples = 0
        self.report: Any = None
        self.period = config.problem.change_period if config.algorithm.restarts else None
        self._origin = config, seed, inputs
        self.normalized = any(isinstance(module, OnlineNorm) for module in self.model)
        self.plasticity = torch.zeros(self.networks, dtype=torch.float64, device=self.device)

    def learn(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Learns from one example: predicts, updates, and lets the method act.

        Returns:
          Prediction and loss, both from before the update.
        """
        if self.period and self.examples and self.examples % self.period == 0:
            self._restart(self.examples // self.period)
        self.examples += 1
        self.optimizer.zero_grad()
        prediction = self.model(x)
        loss = self.loss(prediction, y)
        loss.sum().backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        if self.after_step is not None:
            self.report = self.after_step.step()
        if self.twin is not None:
            self.plasticity += self._sample_plasticity(x, y, loss.detach())
        return prediction.detach(), loss.detach()

    @torch.no_grad()
    def _sample_plasticity(self, x: Tensor, y: Tensor, before: Tensor) -> Tensor:
        """The part of an example's loss that its step has removed (Elsayed and Mahmood 2024), [networks]."""
        assert self.twin is not None
        self.twin.load_state_dict(self.model.state_dict())
        removed = 1 - self.loss(self.twin(x), y).double() / before.double().clamp(min=SMALLEST_LOSS)
        return torch.where(removed > 0, removed, 0.0).reshape(self.networks)

    def sample_plasticity(self, examples: int) -> dict[str, NDArray[np.float64]]:
        """The metric over the latest examples, [networks], if it was asked for; then begins anew."""
        if self.twin is None:
            return {}
        # Statistics of OnlineNorm have moved between the two losses.
        mean = self.plasticity.cpu().numpy() / (np.nan if self.normalized else examples)
        self.plasticity.zero_()
        return {SAMPLE_PLASTICITY: mean}

    def _restart(self, number: int) -> None:
        """Begins again with new weights, for an oracle."""
        config, seed, inputs = self._origin
        assert isinstance(seed, int)  # networks in a stack do not begin again
        self.model.load_state_dict(build_network(config, seed, inputs, number).state_dict())
        self.optimizer.state.clear()

    def counts(self) -> dict[str, NDArray[np.float64]]:
        """The metrics `COUNTS` since the beginning, each [networks]."""
        found = (list(getattr(self.after_step, name, {}).values()) for name in ("replaced", "nonfinite"))
        each = [np.array(count, dtype=np.float64).reshape(-1, self.networks).sum(0) for count in found]
        return dict(zip(COUNTS, each, strict=True))

    def units(self) -> dict[str, NDArray[np.float64]]:
        """The numbers `UNITS` of a method whose step reports them as `cbp_ray.GenerateAndTest` does, each [networks]."""
        found: dict[str, NDArray[np.float64]] = {}
        for name, reported in (("age", "ages"), ("utility", "utilities")):
            values = getattr(self.report, reported, {}).values()
            means = [float(each[each.isfinite()].double().mean()) for each in values]
            if means:
                found[name] = np.array(means).reshape(-1, self.networks).mean(0)
        return found

    def advance(self, examples: int) -> dict[str, float]:
        """Learns from the next examples of a problem, which a subclass has, and returns the metrics over them."""
        raise NotImplementedError

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


class TorchRuns(Engine):
    """Any number of torch runs, one after the other; an `Engine`.

    Args:
      config: settings of the experiment.
      make: makes the run of a seed.
      seeds: seeds of the runs.
    """

    def __init__(self, config: OnlineConfig, make: Callable[[int], Learner], seeds: Sequence[int]) -> None:
        self._config, self._make = config, make
        self._runs = [make(seed) for seed in seeds]

    def advance(self, examples: int) -> Metrics:
        bins = [run.advance(examples) for run in self._runs]
        return {name: np.array([b[name] for b in bins]) for name in self._config.engine_metrics}

    def units(self) -> Metrics:
        each = [run.units() for run in self._runs]
        return {name: np.concatenate([units[name] for units in each]) for name in each[0]}

    def networks(self) -> Iterator[nn.Sequential]:
        for run in self._runs:
            model = bare_network(self._config, run.layers[0].in_features)
            model.load_state_dict(run.model.state_dict())
            yield model

    def state(self) -> Arrays:
        return {f"{number}/{name}": array for number, run in enumerate(self._runs) for name, array in flatten(run.state())}

    def load_state(self, state: Arrays, examples: int) -> None:
        # Optimizers make their state at the first step.
        example = self._make(0)
        example.advance(1)
        arrays = dict(flatten(example.state()))
        check_complete(state, [f"{number}/{name}" for number in range(len(self._runs)) for name in arrays])
        for number, run in enumerate(self._runs):
            prefix = f"{number}/"
            own = {name.removeprefix(prefix): a for name, a in state.items() if name.startswith(prefix)}
            for name, like in arrays.items():
                check_array(name, own[name], like)
            run.load_state(unflatten(own), examples)


def find_device(name: str) -> torch.device:
    """The device of a name.

    Raises:
      InputError: if torch does not know it, or this machine does not have it.
    """
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, ValueError, AssertionError, NotImplementedError) as error:
        reason = " ".join(str(error).split())[:100]
        raise InputError(f"device: must be one that torch has here, got {name!r} ({reason}); use 'cpu'") from None
    return device


def flatten(tree: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """Leaves of a nested state dict by path; the path also records what kind of leaf and key it was."""
    for key, value in tree.items():
        path = f"{prefix}{'#' if isinstance(key, int) else ''}{key}"
        if isinstance(value, Mapping):
            yield from flatten(value, f"{path}/")
        elif isinstance(value, Tensor):
            yield f"{path}:tensor", value.detach().cpu().numpy().copy()
        elif value is not None:
            yield f"{path}:{'array' if isinstance(value, np.ndarray) else 'item'}", np.array(value)


def unflatten(arrays: Arrays) -> dict[str, Any]:
    """The inverse of `flatten` for the state of a learner."""
    tree: dict[str, Any] = {"model": {}, "optimizer": {}, "method": {}}
    for name, array in arrays.items():
        path, _, kind = name.rpartition(":")
        *parents, leaf = [int(part[1:]) if part.startswith("#") else part for part in path.split("/")]
        node: dict[Any, Any] = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        if kind == "tensor":
            node[leaf] = torch.from_numpy(array.copy())
        else:
            node[leaf] = array.copy() if kind == "array" else array.tolist()
    return tree
