"""What a step of generate-and-test did."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cbp_ray.algorithm.units import Units


@dataclass(frozen=True)
class StepReport:
    """What one step did. Layers go by the name of their unit module. Nothing is computed or copied until it is read."""

    step: int
    """How many steps there have been, this one included."""
    replaced: dict[str, list[int]]
    """Layers with replacements in this step, and the units replaced, lowest utility first."""
    _layers: list[Units] = field(repr=False)
    _utilities: Callable[[Units], Tensor] = field(repr=False)
    _birth: NDArray[np.int64] = field(repr=False)

    @property
    def utilities(self) -> dict[str, Tensor]:
        """û of every unit, as it was compared in this step, before any replacement."""
        return {units.name: self._utilities(units) for units in self._layers}

    @property
    def ages(self) -> dict[str, Tensor]:
        """Age of every unit in this step, before any replacement."""
        return {units.name: torch.from_numpy(self.step - self._birth[units.at]) for units in self._layers}

    @property
    def nonfinite(self) -> dict[str, int]:
        """Per layer, units whose utility is not a finite number; they can't be selected."""
        return {name: int((~utility.isfinite()).sum()) for name, utility in self.utilities.items()}
