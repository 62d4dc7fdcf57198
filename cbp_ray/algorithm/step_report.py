"""The report of one step of generate-and-test."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cbp_ray.algorithm.watched_layer import Population


@dataclass(frozen=True)
class StepReport:
    """What one step of generate-and-test did. Layers go by the names of their unit modules.

    Nothing is computed or copied until it is read.
    """

    step: int
    """Number of steps so far, including this one."""
    replaced: dict[str, list[int]]
    """The units replaced in this step, lowest utility first, by layer; only layers with replacements are here."""
    _populations: list[Population] = field(repr=False)
    _utilities: Callable[[Population], Tensor] = field(repr=False)
    _birth: NDArray[np.int64] = field(repr=False)

    @property
    def utilities(self) -> dict[str, Tensor]:
        """û of every unit, as it was compared in this step, before any replacement."""
        return {units.name: self._utilities(units) for units in self._populations}

    @property
    def ages(self) -> dict[str, Tensor]:
        """Age of every unit in this step, before any replacement."""
        return {units.name: torch.from_numpy(self.step - self._birth[units.at]) for units in self._populations}

    @property
    def nonfinite(self) -> dict[str, int]:
        """Per layer, units whose utility is not a finite number; they can't be selected."""
        return {name: int((~utility.isfinite()).sum()) for name, utility in self.utilities.items()}
