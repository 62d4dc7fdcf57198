"""`engine="torch"`: the reference. One run after the other, example by example, through `cbp_ray.algorithm`."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from cbp_ray.experiments.config import BitFlippingConfig, OnlineConfig, PermutedMnistConfig
from cbp_ray.experiments.engine import HIDDEN_METRICS, Arrays, Metrics, check_complete, metrics_of
from cbp_ray.experiments.torch_learner import Learner
from cbp_ray.experiments.torch_mnist import MnistRun
from cbp_ray.problems.bit_flipping import BitFlipping

SATURATION = 0.9


class Run(Learner):
    """One learner and its Bit-Flipping problem."""

    def __init__(self, config: OnlineConfig, seed: int, device: str = "cpu") -> None:
        assert isinstance(config.problem, BitFlippingConfig)
        super().__init__(config, seed, config.problem.inputs, nn.functional.mse_loss, device)
        self.problem = BitFlipping(seed, **config.problem.model_dump(exclude={"name"}))

    def advance(self, examples: int) -> dict[str, float]:
        """Learns from the next examples; the metrics over them."""
        inputs, targets = self.problem.take(examples, start=self.examples)
        xs, ys = (torch.from_numpy(array).to(self.device, self.dtype) for array in (inputs, targets))
        outputs: list[Tensor] = []
        hooks = [module.register_forward_hook(lambda _m, _i, h: outputs.append(h.detach())) for module in self.activations]
        first, last = self.layers[0], self.layers[-1]
        replaced, nonfinite = self.replacements()
        error = saturated = gradient = 0.0
        largest = [torch.zeros(0, dtype=self.dtype)] * len(self.activations)
        units = sum(layer.out_features for layer in self.layers) - 1
        for t in range(examples):
            outputs.clear()
            error += float(self.learn(xs[t : t + 1], ys[t : t + 1, None])[1])
            assert first.weight.grad is not None
            gradient += float(first.weight.grad.abs().mean())
            for layer, h in enumerate(outputs):
                size = h[0].abs()
                saturated += int((size > SATURATION).sum())
                largest[layer] = torch.maximum(largest[layer], size) if t else size
        for hook in hooks:
            hook.remove()
        self.examples += examples
        replaced_now, nonfinite_now = self.replacements()
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


class OneRun(Protocol):
    """What the engine needs of a run, whatever its problem."""

    def advance(self, examples: int) -> dict[str, float]: ...

    def state(self) -> dict[str, Any]: ...

    def load_state(self, state: Mapping[str, Any], examples: int) -> None: ...


def make_run(config: OnlineConfig, seed: int, device: str) -> OneRun:
    """The run of one seed."""
    if isinstance(config.problem, PermutedMnistConfig):
        return MnistRun(config, seed, device=device)
    return Run(config, seed, device)


class TorchEngine:
    """Any number of runs, one after the other."""

    def __init__(self, config: OnlineConfig, seeds: Sequence[int], device: str = "cpu") -> None:
        self._config, self._device = config, device
        self._runs = [make_run(config, seed, device) for seed in seeds]

    def advance(self, examples: int) -> Metrics:
        bins = [run.advance(examples) for run in self._runs]
        return {name: np.array([b[name] for b in bins]) for name in metrics_of(self._config)}

    def state(self) -> Arrays:
        return {f"{number}/{name}": array for number, run in enumerate(self._runs) for name, array in flatten(run.state())}

    def load_state(self, state: Arrays, examples: int) -> None:
        # Optimizers make their state at the first step.
        example = make_run(self._config, seed=0, device=self._device)
        example.advance(1)
        names = [name for name, _ in flatten(example.state())]
        check_complete(state, [f"{number}/{name}" for number in range(len(self._runs)) for name in names])
        for number, run in enumerate(self._runs):
            prefix = f"{number}/"
            own = {name.removeprefix(prefix): a for name, a in state.items() if name.startswith(prefix)}
            run.load_state(unflatten(own), examples)


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
            node[leaf] = array.copy() if kind == "array" else array.tolist()
    return tree
