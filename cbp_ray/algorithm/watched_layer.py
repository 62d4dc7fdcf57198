"""One hidden layer as generate-and-test sees it: its units, where they are counted, and what new ones are made from."""

from collections.abc import Sequence

import torch
from torch import Tensor

from cbp_ray.algorithm.units import UnitLayer
from cbp_ray.algorithm.watched_site import WatchedSite
from cbp_ray.errors import InputError
from cbp_ray.initial_weights import Distribution


class Population:
    """Units that are compared with each other: those of one hidden layer, or in a stack of several runs those of one run.

    It has what is counted on the host.
    """

    def __init__(self, layer: "WatchedLayer", run: int | None, seed: int) -> None:
        self.layer, self.run, self.seed = layer, run, seed
        self.name = layer.name if run is None else f"{layer.name}[{run}]"
        self.count = layer.count // (layer.units.runs or 1)
        self.offset = (run or 0) * self.count
        """Where these units begin in their layer."""
        start = layer.at.start + self.offset
        self.at = slice(start, start + self.count)
        """Where these units are in the averages of all layers."""
        self.exposure = 0
        """Sum over the steps so far of the units that the replacement rate applies to."""
        self.replaced = 0
        """Number of units replaced so far."""
        self.nonfinite = 0
        """Number of eligible units passed over so far because their utility was not finite."""
        self.oldest_birth = 0
        """Step in which the oldest of these units was made."""


class WatchedLayer:
    """One hidden layer: its units, and the sites where they are measured."""

    sites: list[WatchedSite]
    taps: Tensor
    """Where the taps of each unit are in the averages of all sites, [units, taps per unit]."""

    def __init__(
        self, number: int, start: int, units: UnitLayer, distributions: list[Distribution], seed: int | Sequence[int]
    ) -> None:
        self.number, self.units, self.name, self.count = number, units, units.name, units.count
        self.weight: Tensor = units.producers[0].tensor
        self.distributions = distributions
        """Where new rows come from: of each producer, then of each depthwise convolution."""
        self.at = slice(start, start + self.count)
        """Where this layer's units are in the averages of all layers."""
        self.populations = self._divide(seed)
        self.fan_in = sum(part.share for part in units.producers)
        self.fan_out = sum(part.share for part in units.consumers)
        half = self.weight.dtype in (torch.float16, torch.bfloat16)
        self.dtype = torch.float32 if half else self.weight.dtype

    def _divide(self, seed: int | Sequence[int]) -> list[Population]:
        """All units, or in a stack of several runs those of each run, with their seeds."""
        runs = self.units.runs
        if isinstance(seed, int) and runs is None:
            return [Population(self, None, seed)]
        if not isinstance(seed, int) and runs == len(seed):
            return [Population(self, run, own_seed) for run, own_seed in enumerate(seed)]
        wanted = "one whole number" if runs is None else f"{runs} whole numbers, one for each run of the stack"
        raise InputError(f"GenerateAndTest: seed must be {wanted}, got {seed!r}")

    @property
    def device(self) -> torch.device:
        return self.weight.device

    @property
    def pending(self) -> list[Tensor]:
        """Outputs of forward passes that are not averaged yet, at the first site."""
        return self.sites[0].pending
