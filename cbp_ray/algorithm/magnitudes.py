"""Σ|w| into and out of every unit, reading each weight matrix once per step."""

import torch
from torch import Tensor

CHUNK = 2**17
"""Weights whose magnitudes are held at a time on a CPU: half a MiB of float32 stays in the second-level cache."""


class Magnitudes:
    """Row sums and column sums of |w|, cached until `forget`.

    A matrix between two hidden layers is the output of one and the input of the other. Both sums come from one pass over it.
    """

    def __init__(self, rows_of: set[Tensor], columns_of: set[Tensor]) -> None:
        self.rows_of, self.columns_of = rows_of, columns_of
        self.cache: dict[Tensor, tuple[Tensor, Tensor]] = {}

    def rows(self, weight: Tensor, dtype: torch.dtype) -> Tensor:
        """Σ|w| over everything but dimension 0: one number per unit of the module that owns `weight`."""
        return self._sums(weight, dtype)[0]

    def columns(self, weight: Tensor, dtype: torch.dtype) -> Tensor:
        """Σ|w| over everything but dimension 1: one number per input of the module that owns `weight`."""
        return self._sums(weight, dtype)[1]

    def forget(self, weight: Tensor) -> None:
        """`weight` has changed."""
        self.cache.pop(weight, None)

    def forget_all(self) -> None:
        """A new step: every weight has changed."""
        self.cache.clear()

    def _sums(self, weight: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        if weight not in self.cache:
            self.cache[weight] = sums_of_magnitudes(
                weight.detach(), dtype, rows=weight in self.rows_of, columns=weight in self.columns_of
            )
        return self.cache[weight]


def sums_of_magnitudes(weight: Tensor, dtype: torch.dtype, *, rows: bool, columns: bool) -> tuple[Tensor, Tensor]:
    """(row sums, column sums) of |weight|; the one that is not asked for is empty."""
    none = weight.new_empty(0, dtype=dtype)
    per_chunk = max(1, CHUNK // max(1, weight[0].numel()))
    if weight.device.type != "cpu" or weight.shape[0] <= per_chunk:
        return _sums(weight.abs(), dtype, rows, columns, none)
    scratch = torch.empty_like(weight[:per_chunk])
    parts = []
    for start in range(0, weight.shape[0], per_chunk):
        chunk = weight[start : start + per_chunk]
        parts.append(_sums(torch.abs(chunk, out=scratch[: len(chunk)]), dtype, rows, columns, none))
    return (
        torch.cat([part[0] for part in parts]) if rows else none,
        torch.stack([part[1] for part in parts]).sum(0) if columns else none,
    )


def _sums(magnitudes: Tensor, dtype: torch.dtype, rows: bool, columns: bool, none: Tensor) -> tuple[Tensor, Tensor]:
    kernel = tuple(range(2, magnitudes.ndim))
    return (
        magnitudes.sum((1, *kernel), dtype=dtype) if rows else none,
        magnitudes.sum((0, *kernel), dtype=dtype) if columns else none,
    )
