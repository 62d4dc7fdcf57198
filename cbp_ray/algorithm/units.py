"""What belongs to a unit: the one structure through which weights, norms and optimizer state are reached.

A *unit* is a group of entries: rows of the weights that produce it (several where a sum or a gate joins them), columns of the
weights that consume it, and its features in norms and scales between them. A layer holds the units of one make, which are
compared with each other. A *site* is a tensor that consumers read: there a unit's output is measured, whatever happened to it
on the way. A *tap* is one unit at one site; a unit has several taps where consumers read different tensors.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

UnitModule = (
    nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d
)  # fmt: skip
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
COMPUTED = (
    "the weight of {name!r} is computed (weight_norm, spectral_norm or another parametrization) and can't be reset; remove the "
    "parametrization, for example by torch.nn.utils.parametrize.remove_parametrizations"
)
"""Why a module with a parametrization is left alone."""
UNIT_MODULES = (nn.Linear, *CONVOLUTIONS, *TRANSPOSED)
"""Modules whose outputs are units, and which read units."""
RECURRENT = (nn.RNNBase, nn.RNNCellBase)
"""Modules that read units, and whose own units feed themselves and can't be replaced."""


def unit_dim(module: nn.Module) -> int:
    """Dimension of a module's weight along which its outputs stand."""
    return 1 if isinstance(module, TRANSPOSED) else 0


def spatial_dims(module: UnitModule) -> int:
    """Number of dimensions behind the channels of what a module reads and gives: 0 for a Linear, 2 for a Conv2d."""
    return 0 if isinstance(module, nn.Linear) else module.weight.ndim - 2


def outputs_of(module: UnitModule) -> int:
    """Number of a module's outputs; of all runs together, in a stack of several runs."""
    if isinstance(module, nn.Linear):
        return module.out_features * getattr(module, "runs", 1)
    return module.out_channels


def inputs_of(module: UnitModule) -> int:
    """Number of inputs that a module reads; of all runs together, in a stack of several runs."""
    if isinstance(module, nn.Linear):
        return module.in_features * getattr(module, "runs", 1)
    return module.in_channels


@dataclass(frozen=True, eq=False)
class Part:
    """Entries of one tensor that belong to the units of a layer."""

    name: str
    """The tensor's module, by its name in the model."""
    module: nn.Module
    index: Tensor
    """Entries of each unit along the dimension, [units, entries per unit]."""
    size: int
    """Number of entries along the dimension, whoever they belong to."""
    dim: int = 0
    parameter: str = "weight"

    @cached_property
    def plain(self) -> bool:
        """Whether unit i has entry i, and there are no other entries."""
        return self.index.shape == (self.size, 1) and bool((self.index[:, 0] == torch.arange(self.size)).all())

    @property
    def tensor(self) -> Tensor:
        tensor: Tensor = getattr(self.module, self.parameter)
        return tensor

    @property
    def share(self) -> int:
        """Number of the tensor's weights that each unit has."""
        return self.tensor.numel() * self.index.shape[1] // self.size

    def of(self, units: Tensor) -> Tensor:
        """Entries of some units of the layer, or in a stack of several runs of one run of it."""
        return units if self.plain else self.index.to(units.device)[units].flatten()


@dataclass(frozen=True, eq=False)
class Scale(Part):
    """Entries of a parameter that multiplies units, or is added to them: they go back to what they were."""

    initial: Tensor = field(default_factory=lambda: torch.zeros(0))
    """The whole parameter as it was when generate-and-test was made."""


class Segment(NamedTuple):
    """Taps whose inputs stand end to end at a site, each filling the same number of inputs."""

    start: int
    """The first input."""
    taps: int
    repeats: int = 1
    """Inputs per tap: the positions of a flattened channel, which are averaged like examples; otherwise 1."""
    tiled: bool = False
    """Whether all taps stand side by side again and again, instead of each of a tap's inputs beside the last."""

    @property
    def stop(self) -> int:
        return self.start + self.taps * self.repeats


@dataclass(eq=False)
class Reader:
    """A weight that reads a site."""

    name: str
    module: nn.Module
    taps: Tensor
    """The tap of each input, [inputs]; -1 where no unit is."""
    parameter: str = "weight"
    bias_name: str = "bias"
    norm: nn.Module | None = None
    """Batch normalization right behind it, whose mean does for a bias: all that it lacks is taken out of the running mean."""

    @property
    def dim(self) -> int:
        return 1 - unit_dim(self.module)

    @property
    def tensor(self) -> Tensor:
        tensor: Tensor = getattr(self.module, self.parameter)
        return tensor

    @property
    def bias(self) -> Tensor | None:
        return getattr(self.module, self.bias_name, None)


@dataclass(eq=False)
class Site:
    """A tensor that consumers read, with the units in it."""

    readers: list[Reader]
    segments: list[Segment]
    owners: list[tuple["UnitLayer", int] | None]
    """The unit of each tap: its layer and its number there; None where it is no unit that can be treated."""
    axis: int = -1
    """The dimension, counted from the last, along which the inputs stand."""

    @property
    def count(self) -> int:
        return len(self.owners)

    def only_layer(self) -> "UnitLayer | None":
        """The layer whose units are the taps, one by one and in order, if that is so and nothing else is there."""
        first = self.owners[0]
        if first is None or len(self.segments) > 1 or self.segments[0].start or len(self.owners) != first[0].count:
            return None
        layer = first[0]
        in_order = all(owner is not None and owner[0] is layer and owner[1] == i for i, owner in enumerate(self.owners))
        return layer if in_order else None


@dataclass(eq=False)
class UnitLayer:
    """Units of one make: the same modules produce and consume all of them, and they are compared with each other."""

    name: str
    count: int
    producers: list[Part]
    """Rows of the weights that make the units, the first computed first."""
    activations: list[str | None]
    """For each producer, the activation behind it, for the gain of `init="kaiming"`."""
    consumers: list[Part]
    """Columns of the weights that read the units."""
    norms: list[Part] = field(default_factory=list)
    """Features of the norms on the way."""
    followers: list[Part] = field(default_factory=list)
    """Rows of depthwise convolutions on the way, each of which treats one channel by itself."""
    scales: list[Scale] = field(default_factory=list)
    """Entries of parameters that multiply the units, or are added to them."""
    sites: list[Site] = field(default_factory=list)

    @property
    def runs(self) -> int | None:
        """Number of runs in a stack of several."""
        return getattr(self.producers[0].module, "runs", None)

    @property
    def parts(self) -> list[Part]:
        return [*self.producers, *self.followers, *self.consumers, *self.norms, *self.scales]

    def parameters(self) -> list[tuple[str, nn.Parameter]]:
        """All parameters of which something is reset with a unit, by name."""
        found: dict[str, nn.Parameter] = {}
        for part in (*self.producers, *self.followers, *self.norms):
            for name, parameter in part.module.named_parameters(recurse=False):
                found[f"{part.name}.{name}"] = parameter
        for part in (*self.consumers, *self.scales):
            tensor: Any = part.tensor
            found[f"{part.name}.{part.parameter}".lstrip(".")] = tensor
        return list(found.items())
