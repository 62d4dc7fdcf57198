"""Metrics on request (`diagnostics: true`): what the networks of an experiment have become, asked at every bin's end.

They are computed from the networks as torch modules in float64, whatever engine has trained them, and run by run on one
thread: no number depends on which other runs there are. `cbp_ray.problems.problem` says what each means.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cbp_ray.activations import ACTIVATIONS
from cbp_ray.experiments.config import OnlineConfig
from cbp_ray.experiments.engines.engine import Arrays, Engine, Metrics, check_complete
from cbp_ray.experiments.hidden_outputs import describe, eigenvalues
from cbp_ray.problems.problem import DORMANT, INACTIVE

MODULES = {activation.module for activation in ACTIVATIONS.values()}
PREVIOUS = "previous"


class Stream(Protocol):
    """A problem of one seed."""

    def probe(self, examples: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Inputs and targets to ask a network about that has seen `examples` examples."""
        ...


class Diagnostics:
    """The networks of an engine, and what they were at the end of the bin before.

    Args:
      config: the experiment.
      seeds: one run each.
      engine: has the networks.
      streams: the problem of each run; made from the config without it.
    """

    def __init__(self, config: OnlineConfig, seeds: Sequence[int], engine: Engine, streams: Sequence[Stream] = ()) -> None:
        problem: Any = config.problem
        self._config, self._engine = config, engine
        self._streams = streams or [problem.stream(seed) for seed in seeds]
        self._previous = [_parameters(network) for network in engine.networks()]

    @property
    def state(self) -> Arrays:
        """What `load_state` needs to go on to the last bit."""
        return {PREVIOUS: np.stack(self._previous)}

    def load_state(self, state: Arrays) -> None:
        """Goes on where `state` was taken.

        Raises:
          InputError: if the state lacks something.
        """
        check_complete(state, [PREVIOUS])
        self._previous = list(state[PREVIOUS])

    def measure(self, examples: int) -> Metrics:
        """The metrics after `examples` examples, each [seeds]; all but the sample plasticity, which only an engine can tell."""
        found, now = [], []
        with _one_thread():
            for network, stream, before in zip(self._engine.networks(), self._streams, self._previous, strict=True):
                now.append(_parameters(network))
                change = float(np.sqrt(np.square(now[-1] - before).mean()))
                x, y = (torch.from_numpy(np.ascontiguousarray(array)) for array in stream.probe(examples))
                found.append({"weight_change": change, **describe_network(network.double().cpu().eval(), x, y)})
                if "hessian_rank" in self._config.metrics:
                    found[-1] |= describe_hessian(network, x, y)
        self._previous = now
        return {name: np.array([one[name] for one in found]) for name in found[0]}


def describe_network(network: nn.Module, x: Tensor, y: Tensor) -> dict[str, float]:
    """Dormant and inactive units, and the ranks, of every hidden layer, on inputs and targets."""
    inputs: list[Tensor] = []
    outputs: list[Tensor] = []
    h = x
    for module in network.children():
        if type(module).__name__ in MODULES:
            inputs.append(h)
        h = module(h)
        if type(module).__name__ in MODULES:
            outputs.append(h)
    # Of each example's own loss, though their sum is what is differentiated: no example has a part in another's.
    slopes = torch.autograd.grad(_losses(h, y).sum(), inputs) if inputs else ()
    found: dict[str, float] = {}
    for number, (h, slope) in enumerate(zip(outputs, slopes, strict=True), 1):
        for name, values, thresholds in (("dormant", h, DORMANT), ("inactive", slope, INACTIVE)):
            size = values.detach().abs().mean(0)
            # A layer in which nothing moves has a mean of 0, and all units at most that.
            found |= {f"{name}_{tau:g}_{number}": float((size <= tau * size.mean()).double().mean()) for tau in thresholds}
        ranks = describe(h.detach().numpy())
        found |= {f"{name}_{number}": getattr(ranks, name) for name in ("srank", "stable_rank", "effective_rank")}
    return found


def describe_hessian(network: nn.Module, x: Tensor, y: Tensor) -> dict[str, float]:
    """Rank and effective rank of the Hessian of the mean loss by all parameters: exact, by differentiating twice."""
    names, shapes = zip(*((name, p.shape) for name, p in network.named_parameters()), strict=True)
    sizes = [shape.numel() for shape in shapes]

    def loss(flat: Tensor) -> Tensor:
        parts = torch.split(flat, sizes)
        given = {name: part.view(shape) for name, part, shape in zip(names, parts, shapes, strict=True)}
        return _losses(torch.func.functional_call(network, given, (x,)), y).mean()

    flat = torch.cat([parameter.detach().flatten() for parameter in network.parameters()])
    hessian = torch.func.hessian(loss)(flat).detach().numpy()
    if not np.isfinite(hessian).all():
        return {"hessian_rank": np.nan, "hessian_effective_rank": np.nan}
    magnitudes = np.abs(eigenvalues((hessian + hessian.T) / 2))
    # The tolerance of `numpy.linalg.matrix_rank`.
    magnitudes = magnitudes[magnitudes > magnitudes.max() * len(magnitudes) * np.finfo(np.float64).eps]
    share = magnitudes / magnitudes.sum()
    effective = float(np.exp(-(share * np.log(share)).sum())) if len(share) else 0.0
    return {"hessian_rank": float(len(share)), "hessian_effective_rank": effective}


def _losses(outputs: Tensor, targets: Tensor) -> Tensor:
    """The loss of every example: squared error of numbers, cross-entropy of classes."""
    if targets.is_floating_point():
        return (outputs[:, 0] - targets).square()
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


def _parameters(network: nn.Module) -> NDArray[np.float64]:
    return np.concatenate([parameter.detach().cpu().double().numpy().ravel() for parameter in network.parameters()])


@contextmanager
def _one_thread() -> Iterator[None]:
    """The order of additions, and with it the last bits, must not depend on the number of cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
