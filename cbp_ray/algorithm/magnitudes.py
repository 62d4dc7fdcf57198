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
        self.layers, self.mean = layers, mean
        self.owners = {layer.weight: layer for layer in layers} if needs.magnitude_in else {}
        self.feeders: dict[Tensor, list[tuple[Units, int]]] = {}
        if needs.magnitude_out:
            for layer in layers:
                for consumer in layer.consumers:
                    self.feeders.setdefault(consumer.module.weight, []).append((layer, consumer.inputs_per_unit))
        self.weights = list({**self.owners, **self.feeders})
        self.allocate()

    def allocate(self) -> None:
        """Makes the two vectors beside the weights."""
        last = self.layers[-1]
        self.incoming = torch.zeros(last.at.stop, dtype=last.dtype, device=last.device)
        self.outgoing = torch.zeros(last.at.stop, dtype=last.dtype, device=last.device)
        self.rows = {layer: self.incoming[layer.at] for layer in self.layers}
        self.columns = {layer: self.outgoing[layer.at] for layer in self.layers}

    def measure(self) -> None:
        """Reads all weights."""
        for layer in self.layers:
            if len(layer.consumers) > 1:
                self.columns[layer].zero_()
        for weight in self.weights:
            owner, feeders = self.owners.get(weight), self.feeders.get(weight, [])
            place = self._place_of_columns(feeders)
            columns = sums_of_magnitudes(
                weight,
                self.incoming.dtype,
                rows=None if owner is None else self.rows[owner],
                columns=place,
                wants_columns=bool(feeders),
            )
            if place is None:
                for layer, inputs_per_unit in feeders:
                    per_unit = columns.view(layer.count, inputs_per_unit).sum(1)
                    self.columns[layer].copy_(per_unit if len(layer.consumers) == 1 else self.columns[layer] + per_unit)
        if self.mean:
            for layer in self.layers:
                self.rows[layer].div_(layer.fan_in)
                self.columns[layer].div_(layer.fan_out)

    def _place_of_columns(self, feeders: list[tuple[Units, int]]) -> Tensor | None:
        """Where a weight's column sums can be written as they are: one layer feeds it and nothing else, unit by input."""
        if len(feeders) == 1:
            layer, inputs_per_unit = feeders[0]
            if inputs_per_unit == 1 and len(layer.consumers) == 1:
                return self.columns[layer]
        return None

    def measure_incoming(self, layer: Units) -> None:
        """Reads one layer's input weights again, because some have just been set to zero."""
        sums_of_magnitudes(layer.weight, self.incoming.dtype, rows=self.rows[layer])
        if self.mean:
            self.rows[layer].div_(layer.fan_in)


def sums_of_magnitudes(
    weight: Tensor,
    dtype: torch.dtype,
    *,
    rows: Tensor | None = None,
    columns: Tensor | None = None,
    wants_columns: bool = False,
) -> Tensor:
    """Writes Σ|w| over all but dimension 0 into `rows`, and over all but dimension 1 into `columns`.

    Returns:
      The column sums, in a new tensor if `wants_columns` and none is given.
    """
    kernel = tuple(range(2, weight.ndim))
    per_row = weight.numel() // weight.shape[0]
    per_chunk = max(1, CHUNK // per_row)
    if columns is None:
        columns = weight.new_empty(weight.shape[1] if wants_columns else 0, dtype=dtype)
    else:
        wants_columns = True
    if weight.device.type != "cpu" or weight.shape[0] <= per_chunk:
        magnitudes = weight.abs()
        if rows is not None:
            torch.sum(magnitudes, (1, *kernel), dtype=dtype, out=rows)
        if wants_columns:
            torch.sum(magnitudes, (0, *kernel), dtype=dtype, out=columns)
        return columns
    scratch = torch.empty_like(weight[:per_chunk], requires_grad=False)
    if wants_columns:
        columns.zero_()
    for start in range(0, weight.shape[0], per_chunk):
        chunk = weight[start : start + per_chunk]
        magnitudes = torch.abs(chunk, out=scratch[: len(chunk)])
        if rows is not None:
            torch.sum(magnitudes, (1, *kernel), dtype=dtype, out=rows[start : start + len(chunk)])
        if wants_columns:
            columns += magnitudes.sum((0, *kernel), dtype=dtype)
    return columns
