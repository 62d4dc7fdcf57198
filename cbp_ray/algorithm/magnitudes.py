"""Σ|w| into and out of every unit, reading each weight matrix once per step."""

import torch
from torch import Tensor

from cbp_ray.algorithm.units import Units
from cbp_ray.algorithm.utility import Needs

CHUNK = 2**17
"""Weights whose magnitudes are held at a time on a CPU: half a MiB of float32 stays in the second-level cache."""


class Magnitudes:
    """`incoming` and `outgoing`: Σ|w| (or its mean per connection) for the units of all layers, end to end.

    A matrix between two hidden layers is the output of one and the input of the other. Both sums come from one pass over it.
    """

    def __init__(self, layers: list[Units], needs: Needs, *, mean: bool) -> None:
        first = layers[0]
        units = sum(layer.count for layer in layers)
        self.incoming = torch.zeros(units, dtype=first.dtype, device=first.device)
        self.outgoing = torch.zeros(units, dtype=first.dtype, device=first.device)
        self.mean = mean
        self.owners = {layer.weight: layer for layer in layers} if needs.magnitude_in else {}
        self.feeders: dict[Tensor, list[tuple[Units, int]]] = {}
        if needs.magnitude_out:
            for layer in layers:
                for consumer in layer.consumers:
                    self.feeders.setdefault(consumer.module.weight, []).append((layer, consumer.inputs_per_unit))
        self.weights = list({**self.owners, **self.feeders})

    def measure(self) -> None:
        """Reads all weights."""
        if any(len(layer.consumers) > 1 for feeders in self.feeders.values() for layer, _ in feeders):
            self.outgoing.zero_()
        for weight in self.weights:
            owner, feeders = self.owners.get(weight), self.feeders.get(weight, [])
            rows, columns = sums_of_magnitudes(weight.detach(), self.incoming.dtype, owner is not None, bool(feeders))
            if owner is not None:
                self._set_incoming(owner, rows)
            for layer, inputs_per_unit in feeders:
                if inputs_per_unit > 1:
                    columns = columns.view(layer.count, inputs_per_unit).sum(1)
                if self.mean:
                    columns = columns / layer.fan_out
                if len(layer.consumers) > 1:
                    self.outgoing[layer.at] += columns
                else:
                    self.outgoing[layer.at] = columns

    def measure_incoming(self, layer: Units) -> None:
        """Reads one layer's input weights again, because some have just been set to zero."""
        self._set_incoming(layer, sums_of_magnitudes(layer.weight.detach(), self.incoming.dtype, True, False)[0])

    def to(self, device: torch.device) -> None:
        """Moves with the weights."""
        self.incoming, self.outgoing = self.incoming.to(device), self.outgoing.to(device)

    def _set_incoming(self, layer: Units, rows: Tensor) -> None:
        self.incoming[layer.at] = rows / layer.fan_in if self.mean else rows


def sums_of_magnitudes(weight: Tensor, dtype: torch.dtype, rows: bool, columns: bool) -> tuple[Tensor, Tensor]:
    """Σ|w| over all but dimension 0, and over all but dimension 1; the one that is not asked for is empty."""
    per_chunk = max(1, CHUNK // max(1, weight[0].numel()))
    if weight.device.type != "cpu" or weight.shape[0] <= per_chunk:
        return _sums(weight.abs(), dtype, rows, columns)
    scratch = torch.empty_like(weight[:per_chunk])
    parts = []
    for start in range(0, weight.shape[0], per_chunk):
        chunk = weight[start : start + per_chunk]
        parts.append(_sums(torch.abs(chunk, out=scratch[: len(chunk)]), dtype, rows, columns))
    return (
        torch.cat([part[0] for part in parts]) if rows else EMPTY,
        torch.stack([part[1] for part in parts]).sum(0) if columns else EMPTY,
    )


EMPTY = torch.empty(0)


def _sums(magnitudes: Tensor, dtype: torch.dtype, rows: bool, columns: bool) -> tuple[Tensor, Tensor]:
    kernel = tuple(range(2, magnitudes.ndim))
    widen = None if magnitudes.dtype == dtype else dtype
    return (
        magnitudes.sum((1, *kernel), dtype=widen) if rows else EMPTY,
        magnitudes.sum((0, *kernel), dtype=widen) if columns else EMPTY,
    )
