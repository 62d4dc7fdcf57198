"""Runs of the torch engine, one after the other, and their states as plain arrays."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from cbp_ray.experiments.config import OnlineConfig
from cbp_ray.experiments.engines.engine import Arrays, Metrics, check_complete


class OneRun(Protocol):
    """What the engine needs of a run, whatever its problem."""

    def advance(self, examples: int) -> dict[str, float]: ...

    def state(self) -> dict[str, Any]: ...

    def load_state(self, state: Mapping[str, Any], examples: int) -> None: ...


class TorchRuns:
    """Any number of torch runs, one after the other; an `Engine`.

    Args:
      config: settings of the experiment.
      make: makes the run of a seed.
      seeds: seeds of the runs.
    """

    def __init__(self, config: OnlineConfig, make: Callable[[int], OneRun], seeds: Sequence[int]) -> None:
        self._config, self._make = config, make
        self._runs = [make(seed) for seed in seeds]

    def advance(self, examples: int) -> Metrics:
        bins = [run.advance(examples) for run in self._runs]
        return {name: np.array([b[name] for b in bins]) for name in self._config.metrics}

    def state(self) -> Arrays:
        return {f"{number}/{name}": array for number, run in enumerate(self._runs) for name, array in flatten(run.state())}

    def load_state(self, state: Arrays, examples: int) -> None:
        # Optimizers make their state at the first step.
        example = self._make(0)
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
