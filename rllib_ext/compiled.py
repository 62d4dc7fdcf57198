"""Generate-and-test's measurements as compiled passes, for the sizes at which calling torch costs more than the work."""

import numpy as np
import torch
from torch import Tensor

from cbp_ray.kernels.unit_statistics import averages, magnitudes

EMPTY = np.empty(0, np.float32)


class CompiledStatistics:
    """A `cbp_ray.algorithm.units.Statistics`: does what it can (float32, on a CPU, in matrices), torch does the rest.

    Equal to torch to rounding.
    """

    def averages(self, h: Tensor, f_hat: Tensor, mean: Tensor, activity: Tensor) -> bool:
        if not _suits(h):
            return False
        averages(h.numpy(), f_hat.numpy(), mean.numpy(), activity.numpy())
        return True

    def magnitudes(self, weight: Tensor, rows: Tensor | None, columns: Tensor | None) -> bool:
        if not _suits(weight):
            return False
        magnitudes(
            weight.detach().numpy(),
            EMPTY if rows is None else rows.numpy(),
            EMPTY if columns is None else columns.numpy(),
        )
        return True


def _suits(matrix: Tensor) -> bool:
    return matrix.dtype == torch.float32 and matrix.device.type == "cpu" and matrix.ndim == 2 and matrix.is_contiguous()
